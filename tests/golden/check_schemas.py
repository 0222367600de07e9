"""No golden: random schemas, and what `qrun generate` answers under each of them, at a high temperature. jsonschema has to
find every whole answer valid.

    python3 tests/golden/check_schemas.py path/to/qrun [schemas] [seed]      with jsonschema
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import jsonschema

MODEL = pathlib.Path(__file__).resolve().parents[2] / "examples" / "model"
NAMES = ["a", "b", "ab", "é", 'x"y', "a\\b", "", "key with space"]
PATTERNS = ["^a+b?$", "[0-9]{2,5}", "^(x|yz)*$", "^[^a-c]{1,4}$", r"^\w+@\w+\.[a-z]{2,3}$", "^.{3,}$", r"^\S\D\W$"]
FORMATS = ["date", "email", "ipv4", "uuid", "hostname"]


def leaf(r):
    low = r.randint(-200, 50)
    return r.choice([
        {}, True, {"type": "string"}, {"type": "null"}, {"type": ["boolean", "string"]},
        {"enum": ["a", "ab", 1, 12, None, {"q": [1.5]}]},
        {"type": "integer", "minimum": low, "maximum": low + r.randint(0, 3000)},
        {"type": "integer", "multipleOf": r.randint(1, 128)}, {"type": "integer", "exclusiveMinimum": low},
        {"type": "number", "exclusiveMinimum": r.randint(-30, 0), "maximum": r.randint(1, 40)}, {"type": "number"},
        {"type": "number", "minimum": round(r.uniform(-5, 5), 3), "exclusiveMaximum": round(r.uniform(5.5, 9), 2)},
        {"type": "integer", "multipleOf": 5, "minimum": low, "maximum": low + 400},
        {"type": "string", "maxLength": r.randint(1, 30)}, {"type": "string", "minLength": r.randint(0, 5)},
        {"type": "string", "pattern": r.choice(PATTERNS)}, {"type": "string", "format": r.choice(FORMATS)},
        {"$ref": f"#/$defs/{r.choice(['list', 'chain'])}"}])


def schema_of(r, depth):
    kind = r.random()
    if depth <= 0 or kind < 0.25:
        return leaf(r)
    if kind < 0.6:
        names = r.sample(NAMES, r.randint(0, 5))
        made = {"type": "object", "properties": {name: schema_of(r, depth - 1) for name in names},
                "required": r.sample(names, r.randint(0, len(names)))}
        if r.random() < 0.5:
            made["additionalProperties"] = r.choice([False, True, schema_of(r, depth - 1)])
        return made
    if kind < 0.85:
        made = {"type": "array", "items": schema_of(r, depth - 1), "minItems": r.randint(0, 3)}
        if r.random() < 0.5:
            made["maxItems"] = made["minItems"] + r.randint(0, 4)
        if r.random() < 0.3:
            made["prefixItems"] = [schema_of(r, depth - 1) for _ in range(r.randint(1, 3))]
        return made
    return {"anyOf": [schema_of(r, depth - 1) for _ in range(r.randint(1, 4))]}


def whole_schema(r):
    made = schema_of(r, 4)
    made = {} if made is True else dict(made)
    return made | {"$defs": {"list": {"type": "array", "items": leaf(r)},
                             "chain": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {
                                 "n": {"$ref": "#/$defs/chain"}}, "required": ["n"]}]}}}


def main():
    count, seed = [int(x) for x in sys.argv[2:4] + ["200", "1"][len(sys.argv[2:4]):]]
    r = random.Random(seed)
    schemas = [whole_schema(r) for _ in range(count)]
    n_valid = n_cut = n_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        requests = pathlib.Path(folder) / "requests.jsonl"
        requests.write_text("".join(json.dumps({
            "prompt": "Once", "seed": i, "n": 3, "temperature": 3.0, "max_tokens": 400,
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}) + "\n"
            for i, schema in enumerate(schemas)))
        done = subprocess.run([sys.argv[1], "generate", "--model", str(MODEL), "--prompts", str(requests), "--output", "-"],
                              capture_output=True, text=True)
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        schema = schemas[answer["index"]]
        if answer.get("finish_reason") == "length":
            n_cut += 1
            continue
        try:
            value = json.loads(answer.get("text", ""))
            jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(value)
            n_valid += 1
        except (ValueError, jsonschema.ValidationError) as why:
            n_wrong += 1
            print(json.dumps(schema), answer, str(why)[:300])
    print(f"{n_valid} answers are valid, {n_cut} are cut, {n_wrong} are wrong")
    sys.exit(n_wrong > 0)


if __name__ == "__main__":
    main()
