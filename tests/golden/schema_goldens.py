"""Schemas, and which texts fit them, by jsonschema; and which of these texts xgrammar and llguidance accept in their
strict forms. Writes tests/fixtures/goldens/schemas.json.

    python3 tests/golden/schema_goldens.py     with jsonschema, xgrammar and llguidance
"""

import importlib.metadata
import json
import pathlib

import jsonschema
import llguidance
import xgrammar

OUT = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "goldens" / "schemas.json"

CLOSED = {"additionalProperties": False}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
          "required": ["name", "age"], **CLOSED}
TREE = {"$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object",
                           "properties": {"value": {"type": "integer"},
                                          "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                           "required": ["value", "children"], **CLOSED}}}
SHAPES = {"oneOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
                     "required": ["kind", "radius"], **CLOSED},
                    {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
                     "required": ["kind", "side"], **CLOSED}]}

# A name, the schema, and texts; each text is JSON, or nearly.
CASES = [
    ("person", PERSON, [
        '{"name": "Ann", "age": 3}', '{"name":"Ann","age":3}', '{\n  "name": "Ann",\n  "age": 3\n}', '{"name": "", "age": -1}',
        '{"age": 3, "name": "Ann"}', '{"name": "Ann"}', '{"name": "Ann", "age": "3"}', '{"name": "Ann", "age": 3.5}',
        '{"name": "Ann", "age": 3, "more": 1}', '{"name": "Ann", "age": 3,}', '{"name": "An\\n\\u00e9\\"", "age": 0}',
        '{"name": "Zoë 日本 🎉", "age": 12}', '{"name": "a\nb", "age": 1}', '{"name": "\\x", "age": 1}', "[]", "3", "",
        '{"name": "Ann", "age": 01}', '{"name": "Ann", "age": 3', '{"name": "Ann", "age": 3}}', '{"name": null, "age": 3}',
        '{"name": "\\ud83c\\udf89", "age": 3}', '{"name": "\\", "age": 3}']),
    ("optional", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}},
                  "required": ["b"], **CLOSED}, [
        '{"b": true}', '{"a": 1, "b": false}', '{"b": true, "c": null}', '{"a": 1, "b": true, "c": null}', "{}",
        '{"a": 1}', '{"a": 1, "c": null}', '{"b": true, "b": true}', '{"c": null}', '{, "b": true}', '{"b": 1}']),
    ("all_optional", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, **CLOSED}, [
        "{}", '{"a": 1}', '{"b": 1}', '{"a": 1, "b": 2}', '{"c": 1}', "{ }", '{"a": 1,}', '{,}', '{"a": 1 "b": 2}']),
    ("types", {"type": ["string", "null", "boolean"]}, ['"a"', "null", "true", "false", "1", "[]", "{}", "nul", "True"]),
    ("enum", {"enum": ["red", "green", 3, None, True, 1.5]}, [
        '"red"', '"green"', "3", "null", "true", "1.5", '"blue"', "4", "false", '"re"', '"red', "31"]),
    ("enum_typed", {"type": "string", "enum": ["a", "ab", "abc", 3]}, ['"a"', '"ab"', '"abc"', "3", '"b"', '"abcd"']),
    ("const", {"const": {"a": [1, "x"]}}, ['{"a":[1,"x"]}', '{"a":[1,"y"]}', "{}"]),
    ("any_of", {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}, PERSON]}, [
        "1", "[1]", "[1, 2]", "[]", '{"name": "A", "age": 1}', '"1"', "null", "[[1]]"]),
    ("one_of", SHAPES, ['{"kind": "circle", "radius": 1.5}', '{"kind": "square", "side": 2}', '{"kind": "circle", "side": 2}',
                        '{"kind": "oval"}', '{"kind": "square", "side": 2e1}']),
    ("tree", TREE, ['{"value": 1, "children": []}', '{"value": 1, "children": [{"value": 2, "children": []}]}',
                    '{"value": 1, "children": [{"value": 2, "children": [{"value": 3, "children": []}]}, '
                    '{"value": 4, "children": []}]}',
                    '{"value": 1}', '{"value": 1, "children": [{"value": 2}]}', '{"value": 1, "children": [1]}']),
    ("nullable_tree", {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
                       "required": ["next"], **CLOSED}, [
        '{"next": null}', '{"next": {"next": null}}', '{"next": {"next": {"next": null}}}', '{"next": {}}', '{"next": 1}']),
    ("array_counts", {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, [
        "[1, 2]", "[1,2,3]", "[1]", "[]", "[1, 2, 3, 4]", '["a", 2]', "[1, 2,]"]),
    ("array_min", {"type": "array", "items": {"type": "boolean"}, "minItems": 1}, ["[true]", "[true, false, true]", "[]"]),
    ("array_none", {"type": "array", "items": {"type": "boolean"}, "maxItems": 0}, ["[]", "[true]"]),
    ("tuple", {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2}, [
        '["a", 1]', '["a"]', '["a", 1, 2]', '[1, "a"]']),
    ("tuple_rest", {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, [
        '["a"]', '["a", 1, 2]', '["a", "b"]', "[1]"]),
    ("length", {"type": "string", "minLength": 2, "maxLength": 4}, [
        '"ab"', '"abcd"', '"a"', '"abcde"', '"日本"', '"日"', '"a\\nb"', '"\\u00e9\\u00e9"', '"🎉🎉🎉🎉"', '"\\\\\\\\"', '"\\\\"']),
    ("pattern", {"type": "string", "pattern": "^[A-Z]{2}-\\d{3,4}(/[a-z]+)?$"}, [
        '"AB-123"', '"AB-1234"', '"AB-12345"', '"AB-123/x"', '"AB-123/xyz"', '"AB-123/"', '"ab-123"', '"AB123"', '" AB-123"']),
    ("pattern_inside", {"type": "string", "pattern": "ab+c|^x$"}, ['"abc"', '"zabbbcz"', '"x"', '"xx"', '"ac"', '""']),
    ("pattern_quotes", {"type": "string", "pattern": "^[\"\\\\\\n]+.$"}, ['"\\"a"', '"\\\\a"', '"\\nz"', '"a"', '"\\"\\n"']),
    ("pattern_not", {"type": "string", "pattern": "^[^a-z]*$"}, ['""', '"ABC"', '"A1é日"', '"Abc"']),
    ("range", {"type": "integer", "minimum": -12, "maximum": 105}, [
        "-12", "-13", "0", "9", "10", "99", "100", "105", "106", "110", "1000", "-1", "-9", "-10", "-0", "00", "1.0", "+1"]),
    ("range_from", {"type": "integer", "minimum": 27}, ["26", "27", "30", "99", "100", "1000000", "3", "-27"]),
    ("range_to", {"type": "integer", "exclusiveMaximum": -5}, ["-6", "-5", "-4", "-10", "-99999", "0", "5"]),
    ("range_open", {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}, ["0", "1", "9", "10", "-1"]),
    ("number_range", {"type": "number", "minimum": 0, "maximum": 1}, [
        "0", "1", "0.5", "1.0", "1.1", "-0.1", "0.999999", "1.00001", "2", "10", "0.0"]),
    ("number_wide", {"type": "number", "minimum": -20, "exclusiveMaximum": 3}, [
        "-20", "-20.0", "-20.5", "-19.99", "2.999", "3", "3.0", "0", "-1", "1.5", "-21", "30"]),
    ("multiple", {"type": "integer", "multipleOf": 7}, ["0", "7", "-7", "14", "8", "1001", "1002", "-14", "70000007", "700000001"]),
    ("multiple_range", {"type": "integer", "multipleOf": 300, "minimum": -300, "exclusiveMaximum": 900}, [
        "-600", "-300", "0", "300", "600", "900", "1", "301"]),
    ("multiple_number", {"type": "number", "multipleOf": 5, "exclusiveMinimum": -5, "maximum": 12}, [
        "-5", "0", "5", "10", "12", "15", "7"]),
    ("number", {"type": "number"}, ["0", "-0.5", "1e5", "1E-7", "12.25", "1.", ".5", "01", "+1", "1e", "-", "1.5e+10", "\"1\""]),
    ("additional", {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"],
                    "additionalProperties": {"type": "string"}}, [
        '{"id": 1}', '{"id": 1, "x": "y"}', '{"id": 1, "x": "y", "idx": "z", "i": ""}', '{"id": 1, "x": 2}',
        '{"id": 1, "id": "x"}', '{"x": "y"}', '{"id": 1, "é": "z"}', '{"id": 1, "": "z"}']),
    ("map", {"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", '{"a": 1}', '{"a": 1, "b\\"": 2}', '{"a": "b"}']),
    ("any_object", {"type": "object"}, [
        "{}", '{"a": 1}', '{"a": [1, {"b": null}], "c": "d"}', "[]", '"a"', "{'a': 1}", '{"a"}', '{"a": tru}', '{"a": [1, 2}']),
    ("anything", {}, ["1", '"a"', "[]", "[1, [2, {}]]", "{}", "null", "true", "", "a", "[1 2]"]),
    ("nested", {"type": "object", "properties": {"items": {"type": "array", "items": PERSON, "maxItems": 2}, "of": {"$ref": "#/definitions/n"}},
                "required": ["items", "of"], "definitions": {"n": {"type": "integer", "minimum": 0}}, **CLOSED}, [
        '{"items": [], "of": 0}', '{"items": [{"name": "a", "age": 1}], "of": 2}', '{"items": [{"name": "a"}], "of": 2}',
        '{"items": [], "of": -1}']),
    ("date", {"type": "string", "format": "date"}, ['"2024-02-28"', '"2024-13-01"', '"24-01-01"', '"2024-01-01T"']),
    ("uuid", {"type": "string", "format": "uuid"}, [
        '"123e4567-e89b-12d3-a456-426614174000"', '"123e4567e89b12d3a456426614174000"', '"123e4567-e89b-12d3-a456-42661417400g"']),
    ("title", {"title": "T", "description": "D", "type": "boolean", "default": True, "examples": [False]}, ["true", "false", "1"]),
]


def is_valid(schema, text):
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).is_valid(value)


# One token for each byte and an end, so that only grammars decide.
def by_xgrammar(schema, texts):
    try:
        grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=True)
    except Exception as why:
        print("xgrammar refuses", schema, why)
        return [None] * len(texts)
    info = xgrammar.TokenizerInfo([bytes([b]) for b in range(256)] + [b"</s>"], stop_token_ids=[256])
    compiled = xgrammar.GrammarCompiler(info).compile_grammar(grammar)
    found = []
    for text in texts:
        matcher = xgrammar.GrammarMatcher(compiled)
        found.append(all(matcher.accept_token(b) for b in text.encode()) and matcher.accept_token(256))
    return found


class Bytes:
    """A tokenizer of bytes, as llguidance wants one."""
    eos_token_id, bos_token_id = 256, None
    tokens = [bytes([b]) for b in range(256)] + [b"</s>"]
    special_token_ids = [256]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


def by_llguidance(schema, texts):
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))
    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        first = llguidance.LLMatcher(tokenizer, grammar)
        if first.is_error():
            raise ValueError(first.get_error())
    except Exception as why:
        print("llguidance refuses", schema, why)
        return [None] * len(texts)
    found = []
    for text in texts:
        matcher, data = llguidance.LLMatcher(tokenizer, grammar), list(text.encode())
        found.append(matcher.validate_tokens(data) == len(data) and matcher.consume_tokens(data) and matcher.is_accepting())
    return found


def main():
    cases = []
    for name, schema, texts in CASES:
        valid = [is_valid(schema, text) for text in texts]
        x, l = by_xgrammar(schema, texts), by_llguidance(schema, texts)
        rows = [{"text": t, "valid": v, "xgrammar": a, "llguidance": b} for t, v, a, b in zip(texts, valid, x, l)]
        cases.append({"name": name, "schema": schema, "texts": rows})
    versions = {name: importlib.metadata.version(name) for name in ("jsonschema", "xgrammar", "llguidance")}
    OUT.write_text(json.dumps({"versions": versions, "cases": cases}, indent=1) + "\n")
    print(sum(len(case["texts"]) for case in cases), "texts")


main()
