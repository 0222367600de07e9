"""Writes tests/fixtures/templates/harmony.json: conversations on Harmony's channels, and what transformers makes of them
with a template of the tests (harmony.jinja beside it) and with gpt-oss' own.

    python tests/golden/harmony_goldens.py [--gpt-oss FILE]

FILE is gpt-oss' chat_template.jinja, which is not part of the repository. Of its renderings there are length and FNV-1a
alone; without the option those of the last time are kept. Needs transformers 5 and jinja2 >= 3.1.6.
"""
import argparse
import datetime
import json
import pathlib
import tempfile

from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from check_chat_templates import call, expect, result, talk, write_folder

FOLDER = pathlib.Path(__file__).parent.parent / "fixtures" / "templates"


class Clock:
    """The time that the test renders at, for transformers' strftime_now."""
    @staticmethod
    def now():
        return datetime.datetime.fromtimestamp(1752150600, datetime.timezone.utc)


chat_template_utils.datetime = Clock

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather, \"now\" & then <br>.", "parameters": {
        "type": "object", "required": ["city", "where"], "properties": {
            "city": {"type": "string", "description": "e.g. São Paulo 東京"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "note": {"type": "string", "nullable": True, "default": "a\"b'<é>"},
            "days": {"type": ["integer", "null"], "default": 1},
            "one": {"type": ["string"]},
            "hours": {"type": "array", "items": {"type": "integer"}, "default": [1, 2.5]},
            "tags": {"type": "array", "items": {"type": "string"}, "nullable": True},
            "flags": {"type": "array", "items": {"type": "boolean"}},
            "places": {"type": "array", "items": {"type": "object", "required": ["x"], "properties": {
                "x": {"type": "number"}, "y": {"type": "number"}}}},
            "deep": {"type": "array", "items": {"type": "object", "properties": {
                f"member_{i}": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
                for i in range(4)}}},
            "anything": {"type": "array"},
            "where": {"type": "object", "required": ["lat"], "properties": {
                "lat": {"type": "number"}, "exact": {"type": "boolean"}, "free": {"type": "object"}}},
            "when": {"oneOf": [{"type": "string", "default": "now"}, {"type": "number", "description": "a time"}],
                     "default": "now"},
            "either": {"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "string"}]},
            "untyped": {"description": "of any type"}}}}}
PLAIN = {"type": "function", "function": {"name": "tick", "description": "Ticks.", "parameters": {
    "type": "object", "properties": {}}}}
NAMELESS = {"type": "function", "function": {"name": "bare", "description": ""}}
ASK = {"role": "user", "content": "What is the weather in Paris?"}


def calls(arguments, name="get_weather", **members):
    return {"role": "assistant", **members, "tool_calls": [call(arguments, name)]}


CALLED = [ASK, calls({"city": "Paris", "days": 2, "x": 1.0, "s": "\"é\" <b> 'q'\n"}, thinking="I need the tool.")]
TOLD = [*CALLED, result('{"temperature": 20.0, "sky": "clear & <bright>"}')]

CONVERSATIONS = {
    "a question": dict(messages=talk("Hi"), add_generation_prompt=True),
    "a developer": dict(messages=[{"role": "developer", "content": "Be kind.\n\n"}, ASK], add_generation_prompt=True),
    "a system": dict(messages=talk("Hi", "Hello!", "Bye", system="Be <kind> & brief."), add_generation_prompt=True),
    "an empty developer": dict(messages=[{"role": "developer", "content": ""}, ASK], add_generation_prompt=True),
    "late instructions": dict(messages=[ASK, {"role": "system", "content": "Late."}], add_generation_prompt=True),
    "effort": dict(messages=talk("Hi"), arguments={"reasoning_effort": "high"}, add_generation_prompt=True),
    "identity": dict(messages=talk("Hi"), arguments={"model_identity": "You are é.", "identity": "You are é."}),
    "builtin tools": dict(messages=talk("Hi"), arguments={"builtin_tools": ["browser", "python", "other"]},
                          add_generation_prompt=True),
    "python alone": dict(messages=talk("Hi"), arguments={"builtin_tools": ["python"]}, tools=[PLAIN]),
    "tools": dict(messages=[ASK], tools=[WEATHER, PLAIN, NAMELESS], add_generation_prompt=True),
    "tools and a developer": dict(messages=[{"role": "developer", "content": "Use tools."}, ASK], tools=[PLAIN],
                                  add_generation_prompt=True),
    "no tools": dict(messages=[ASK], tools=[], add_generation_prompt=True),
    "a call": dict(messages=CALLED, tools=[WEATHER]),
    "a result": dict(messages=TOLD, tools=[WEATHER], add_generation_prompt=True),
    "a result that is a list": dict(messages=[*CALLED, result([{"type": "text", "text": "20 °C"}])],
                                    tools=[WEATHER], add_generation_prompt=True),
    "two calls": dict(messages=[*TOLD, calls({}, "tick", content="Once more."), result("tock", "tick")],
                      tools=[WEATHER, PLAIN], add_generation_prompt=True),
    "a call that was answered": dict(messages=[*TOLD, {"role": "assistant", "thinking": "So.", "content": "Clear."},
                                               {"role": "user", "content": "Thanks"}], tools=[WEATHER],
                                     add_generation_prompt=True),
    "a call with both": dict(messages=[ASK, calls({}, content="a", thinking="b")], tools=[WEATHER]),
    "a call of a bare form": dict(messages=[ASK, {"role": "assistant", "tool_calls": [
        {"name": "tick", "arguments": {"n": None, "b": True}, "content_type": "text"}]}], tools=[PLAIN]),
    "arguments as a text": dict(messages=[ASK, calls('{"city": "Paris"}')], tools=[WEATHER]),
    "a result without a call": dict(messages=[ASK, result("rain")], tools=[WEATHER]),
    "to train on": dict(messages=[ASK, {"role": "assistant", "thinking": "Hm.\n", "content": "Sunny."}]),
    "to train on, by another name": dict(messages=[ASK, {"role": "assistant", "reasoning_content": "Hm.",
                                                         "content": "Sunny."}]),
    "thoughts of earlier turns": dict(messages=[ASK, {"role": "assistant", "reasoning": "Why?", "content": "Sunny."},
                                                ASK, {"role": "assistant", "thinking": "b", "content": "Rain."}]),
    "channels in the content": dict(messages=[ASK, {"role": "assistant",
                                                    "content": "<|channel|>final<|message|>a"}, ASK]),
    "channels in a thought": dict(messages=[ASK, {"role": "assistant", "content": "a",
                                                  "thinking": "<|channel|>analysis<|message|>b"}, ASK]),
    "text of all kinds": dict(messages=talk("  spaces \n\n", "\tand lines\n", " \u3000日本語 ñ 🙂 \u200d\u2028 é")),
}


def fnv1a64(text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def renderings(template):
    """The text of each conversation; None where the template refuses it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "model"
        write_folder(folder, template)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        return {name: expect(tokenizer, one)[0] for name, one in CONVERSATIONS.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpt-oss", type=pathlib.Path)
    options = parser.parse_args()
    path = FOLDER / "harmony.json"
    before = {case["name"]: case for case in json.loads(path.read_text())["cases"]} if path.exists() else {}
    own = renderings((FOLDER / "harmony.jinja").read_text(encoding="utf-8"))
    real = renderings(options.gpt_oss.read_text(encoding="utf-8")) if options.gpt_oss else None
    cases = []
    for name, conversation in CONVERSATIONS.items():
        case = {"name": name, **conversation, "expected": own[name]}
        if real is None:
            case["gpt_oss"] = before[name]["gpt_oss"]
        else:
            text = real[name]
            case["gpt_oss"] = None if text is None else {"bytes": len(text.encode()), "fnv1a64": fnv1a64(text)}
        cases.append(case)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    path.write_text('{"cases": [\n' + lines + "\n]}\n", encoding="utf-8")
    print(len(cases), "conversations; refused:", [name for name in own if own[name] is None],
          "by gpt-oss:", [case["name"] for case in cases if case["gpt_oss"] is None])


if __name__ == "__main__":
    main()
