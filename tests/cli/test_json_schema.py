"""Answers of `qrun generate` in the form of a schema: every one is JSON that fits, at any temperature and for any seed, and
none depends on what runs beside it, on drafts or on how the prompt is read.

    python3 test_json_schema.py path/to/qrun path/to/source
"""

import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

QRUN, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = str(SOURCE / "examples" / "model")
N_SEEDS = 12

try:
    import jsonschema
except ImportError:  # what follows each schema below is checked all the same
    jsonschema = None


def is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def is_tree(node, depth=0):
    return list(node) == ["n", "left", "right"] and is_integer(node["n"]) and depth < 70 and \
        all(child is None or is_tree(child, depth + 1) for child in (node["left"], node["right"]))


NODE = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99},
                                         "left": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
                                         "right": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["n", "left", "right"], "additionalProperties": False}
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 20},
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "mood": {"type": ["string", "null"], "maxLength": 8},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    "score": {"type": "number", "minimum": 0, "maximum": 1}},
    "required": ["name", "age", "tags"], "additionalProperties": False}
SHAPE = {"oneOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
                    "required": ["kind", "radius"]},
                   {"type": "object", "properties": {"kind": {"const": "box"}, "sides": {
                       "type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}},
                    "required": ["kind", "sides"]}]}

# What a schema is, and what an answer must be beside JSON.
SCHEMAS = [
    (PERSON, lambda v: [k for k in PERSON["properties"] if k in v] == list(v) and 1 <= len(v["name"]) <= 20 and
        is_integer(v["age"]) and 0 <= v["age"] <= 120 and set(v["tags"]) <= {"red", "green", "blue"} and
        1 <= len(v["tags"]) <= 3 and 0 <= v.get("score", 0) <= 1 and len(v.get("mood") or "") <= 8),
    (SHAPE, lambda v: list(v) in (["kind", "radius"], ["kind", "sides"])),
    (NODE, is_tree),
    ({"type": "string", "pattern": r"^[A-Z][a-z]{2,5}( [A-Z]\.)? \d{3}-\d{4}$"},
     lambda v: re.fullmatch(r"[A-Z][a-z]{2,5}( [A-Z]\.)? \d{3}-\d{4}", v)),
    ({"enum": ["yes", "no", None, 3, {"a": [1]}]}, lambda v: v in ("yes", "no", None, 3, {"a": [1]})),
    ({"type": "integer", "minimum": -5, "maximum": 1234}, lambda v: is_integer(v) and -5 <= v <= 1234),
    ({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"],
      "additionalProperties": {"type": "boolean"}},
     lambda v: is_integer(v["id"]) and all(isinstance(x, bool) for k, x in v.items() if k != "id")),
    ({"type": "array", "items": {"type": "string", "format": "date"}, "maxItems": 4},
     lambda v: all(re.fullmatch(r"\d{4}-\d\d-\d\d", x) for x in v)),
]


def line(number, schema, **more):
    form = {"type": "json_object"} if schema is None else {
        "type": "json_schema", "json_schema": {"name": "form", "strict": True, "schema": schema}}
    return {"prompt": "Once upon a time there was a", "seed": number, "temperature": 1.0, "max_tokens": 300, "top_p": 0.95,
            "response_format": form, **more}


def generate(folder, lines, *options):
    requests = folder / "requests.jsonl"
    requests.write_text("".join(json.dumps(x) + "\n" for x in lines))
    done = subprocess.run([QRUN, "generate", "--model", MODEL, "--prompts", str(requests), "--output", "-", *options],
                          capture_output=True, text=True, timeout=300)
    answers = collections.defaultdict(dict)
    for text in done.stdout.splitlines():
        answer = json.loads(text)
        answers[answer["index"]][answer.get("sample", 0)] = answer
    return [answers[i] for i in range(len(lines))]


def facts(answers):
    return [[(k, a.get("text"), a.get("token_ids"), a.get("finish_reason"), a.get("logprobs")) for k, a in
             sorted(samples.items())] for samples in answers]


def check_answers(lines, answers, checks):
    n_whole = 0
    for request, samples, check in zip(lines, answers, checks):
        for answer in samples.values():
            assert "error" not in answer, answer
            if answer["finish_reason"] == "length":  # the beginning of an answer
                continue
            value = json.loads(answer["text"])
            schema = request["response_format"].get("json_schema", {}).get("schema")
            assert check(value), answer["text"]
            if jsonschema is not None and schema is not None:
                jsonschema.validate(value, schema)
            assert len(answer["text"]) < 50000
            n_whole += 1
    return n_whole


def test_answers(folder):
    lines, checks = [], []
    for schema, check in SCHEMAS + [(None, lambda v: isinstance(v, dict))]:
        for seed in range(N_SEEDS):
            lines.append(line(seed, schema, logprobs=2, **({"n": 3} if seed == 0 else {}),
                              **({"temperature": 0} if seed == 1 else {}),
                              **({"repetition_penalty": 1.1, "top_k": 40} if seed == 2 else {})))
            checks.append(check)
    answers = generate(folder, lines)
    n = sum(len(samples) for samples in answers)
    n_whole = check_answers(lines, answers, checks)
    assert n_whole >= n * 3 // 4, (n_whole, n)
    print(f"{n_whole} of {n} answers are whole and fit{' (by jsonschema too)' if jsonschema else ''}")
    expected = facts(answers)
    for options in (["--speculate", "off"], ["--max-sequences", "1"], ["--threads", "1", "--max-step-tokens", "16"],
                    ["--speculate", MODEL], ["--data-parallel", "2"], ["--tensor-parallel", "2"]):
        assert facts(generate(folder, lines, *options)) == expected, options


def test_ends(folder):
    """A whole answer ends at once, whatever min_tokens says; one that is cut says so."""
    schema = {"const": {"ok": True}}
    lines = [line(1, schema, min_tokens=50), line(1, schema, max_tokens=2), line(1, schema, stop=["true"]),
             line(1, {"type": "integer"}, stop_token_ids=[5, 9]), line(1, schema, n=4),
             line(1, {"type": "integer", "const": 1.0})]
    answers = generate(folder, lines)
    texts = [[a["text"] for a in samples.values()] for samples in answers]
    assert texts[0] == ['{"ok":true}'] and texts[4] == ['{"ok":true}'] * 4, texts
    assert texts[5] == ["1"], texts  # as qrun serve writes it, whose requests do not keep the point
    assert answers[1][0]["finish_reason"] == "length" and '{"ok":true}'.startswith(texts[1][0]), texts
    assert answers[2][0]["finish_reason"] == "stop" and texts[2] == ['{"ok":'], texts
    assert re.fullmatch(r"-?\d+", texts[3][0]), texts


def test_errors(folder):
    cases = [({"type": "json_schema"}, '"response_format" must be'), ("json_object", "response_format"),
             ({"type": "grammar"}, '"json_object" or "json_schema"'), ({"type": "json_object", "schema": 1}, '"schema"'),
             ({"type": 3}, '"json_object" or "json_schema"'),
             ({"type": "json_schema", "json_schema": {"schema": {"type": "string", "format": "regex"}}}, '"regex"'),
             ({"type": "json_schema", "json_schema": {"schema": {}, "grammar": "x"}}, '"grammar"')]
    lines = [line(1, None, response_format=form) for form, _ in cases] + [line(1, None, ignore_eos=True)]
    answers = generate(folder, lines)
    for (form, part), samples in zip(cases, answers):
        assert part in samples[0]["error"], (form, samples[0])
        assert "response_format" in samples[0]["error"] and "--json-schema" not in samples[0]["error"], samples[0]
    assert '"response_format" does not go with' in answers[-1][0]["error"], answers[-1]


def test_option(folder):
    schema = folder / "schema.json"
    schema.write_text(json.dumps(PERSON))
    run = [QRUN, "generate", "--model", MODEL, "--prompt", "A person:", "--temperature", "1", "--seed", "3",
           "--max-tokens", "300"]
    done = subprocess.run(run + ["--json-schema", str(schema)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and SCHEMAS[0][1](json.loads(done.stdout)), done
    schema.write_text('{"type": "object", "properties": {"a": {"not": {}}}}')
    done = subprocess.run(run + ["--json-schema", str(schema)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and '--json-schema: #/properties/a: "not" is not supported' in done.stderr, done
    schema.write_text("")
    done = subprocess.run(run + ["--json-schema", str(schema)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "the schema" in done.stderr, done
    done = subprocess.run(run + ["--json-schema", "-"], input=" " * 300000, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "more than the 262144 bytes" in done.stderr, done  # and the rest is not read


def main():
    with tempfile.TemporaryDirectory() as folder:
        for test in (test_answers, test_ends, test_errors, test_option):
            test(pathlib.Path(folder))


main()
