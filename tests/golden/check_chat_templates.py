"""Holds chat templates against transformers itself: each one renders 20 conversations, once by apply_chat_template of a
tokenizer that transformers opened from a folder, once by qrun from the same folder.

    cmake --build --preset dev --target render_chat
    python tests/golden/check_chat_templates.py build/dev/tests/loaders/render_chat FOLDER…

A folder holds templates as *.jinja, and as *.json with "cases" of {"name", "template"}. They are not part of the
repository: collections are in llama.cpp (models/templates), trl (trl/chat_templates), axolotl and vLLM (examples).

For each conversation the texts must be equal, or both must refuse. Where qrun alone refuses, the message must name
what it does not support; these are listed and counted apart. The exit code is 1 where a text differs, or where qrun
renders what Jinja2 refuses. Needs transformers 5 and jinja2 >= 3.1.6.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

from transformers import PreTrainedTokenizerFast

# Refusals of qrun that name what it does not support.
NAMED = ("is not supported", "unknown filter", "unknown test", "templates cannot change values", "steps to render",
         "beyond 64 bits")

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city, now & then <br>.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "City \"name\", e.g. São Paulo"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": ["integer", "null"], "default": 1, "minimum": 0.5, "maximum": 10.0}},
        "required": ["city"]},
    "return": {"type": "object", "description": "what it found"}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Searches.", "parameters": {"type": "object", "properties": {
        "query": {"type": "array", "items": {"type": "string"}},
        "options": {"type": "object", "properties": {"exact": {"type": "boolean"}}}}}}}
USER = {"role": "user", "content": "What is the weather in Paris?"}


def call(arguments, name="get_weather", identifier="call12345"):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, name="get_weather", identifier="call12345"):
    return {"role": "tool", "tool_call_id": identifier, "name": name, "content": content}


def talk(*texts, system=None):
    messages = [] if system is None else [{"role": "system", "content": system}]
    return messages + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


CALLED = [USER, {"role": "assistant", "content": "", "tool_calls": [call({"city": "Paris", "days": 2, "x": 1.0})]},
          result('{"temperature": 20.0, "sky": "clear"}')]

# messages, and optionally tools, arguments and whether the prompt for an answer is added
CONVERSATIONS = [
    dict(messages=talk("Hi")),
    dict(messages=talk("Hi", "Hello!", "How are you?", system="Be kind."), add_generation_prompt=True),
    dict(messages=talk("Hi", "Hello!", "How are you?", "Well.", "Bye", "Bye!")),
    dict(messages=talk("", "", "", system=""), add_generation_prompt=True),
    dict(messages=talk("  spaces \n\n", "\tand lines\n", " \u3000日本語 ñ 🙂 \u200d\u2028 é", system=" sys \n")),
    dict(messages=[{"role": "user", "content": [{"type": "text", "text": "Two "}, {"type": "text", "text": "parts"}]},
                   {"role": "assistant", "content": [{"type": "text", "text": "One"}]},
                   {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}],
         add_generation_prompt=True),
    dict(messages=[USER], tools=[WEATHER], add_generation_prompt=True),
    dict(messages=talk("Hi", system="Use tools.") , tools=[WEATHER, SEARCH], add_generation_prompt=True),
    dict(messages=CALLED, tools=[WEATHER], add_generation_prompt=True),
    dict(messages=CALLED + [{"role": "assistant", "content": "20 °C and clear."}, {"role": "user", "content": "Thanks"}],
         tools=[WEATHER, SEARCH], add_generation_prompt=True),
    dict(messages=[{"role": "system", "content": "S"}, USER,
                   {"role": "assistant", "content": None, "tool_calls": [
                       call({"city": "Paris"}, identifier="aaaaaaaa1"),
                       call({"query": ["a", "b"], "options": {"exact": True, "n": None}}, "search", "bbbbbbbb2")]},
                   result("rain", identifier="aaaaaaaa1"), result("[1, 2]", "search", "bbbbbbbb2"),
                   {"role": "assistant", "content": "It rains."}], tools=[WEATHER, SEARCH]),
    dict(messages=[USER, {"role": "assistant", "content": "I look.", "tool_calls": [call('{"city": "Paris"}')]},
                   result("rain")], tools=[WEATHER], add_generation_prompt=True),
    dict(messages=[USER, {"role": "assistant", "content": "", "tool_calls": [
        {"name": "get_weather", "arguments": {"city": "Oslo", "days": 10.0}}]}, {"role": "tool", "content": "snow"}],
         tools=[WEATHER]),
    dict(messages=[USER, {"role": "assistant", "reasoning_content": "Think.\n", "content": "Sunny."}, USER],
         add_generation_prompt=True),
    dict(messages=[USER, {"role": "assistant", "reasoning": "Why?", "content": "Sunny."}]),
    dict(messages=[USER, {"role": "assistant", "thinking": "Hm.", "content": None, "tool_calls": [call({"city": "X"})]},
                   result("hot"), {"role": "assistant", "thinking": "So.", "content": "Hot."}], tools=[WEATHER]),
    dict(messages=[USER, {"role": "assistant", "content": "<think>\nold\n</think>\n\nSunny."}, USER],
         arguments={"enable_thinking": False, "reasoning_effort": "high"}, add_generation_prompt=True),
    dict(messages=talk("What do they say?", system="Answer from the documents."), add_generation_prompt=True,
         arguments={"documents": [{"title": "A", "text": "first"}, {"doc_id": 2, "title": "B", "text": "second"}],
                    "enable_thinking": True}),
    dict(messages=[{"role": "developer", "content": "Dev"}, USER, {"role": "assistant", "content": "A"},
                   {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}, {"role": "user", "content": "D"}]),
    dict(messages=[{"role": "assistant", "content": "I begin."}, USER, {"role": "system", "content": "Late."}],
         tools=[], add_generation_prompt=True),
]


def collect(folders):
    templates = {}
    for folder in map(pathlib.Path, folders):
        for path in sorted(folder.rglob("*.jinja")):
            templates.setdefault(path.read_text(encoding="utf-8"), path.name)
        for path in sorted(folder.rglob("*.json")):
            data = json.loads(path.read_text(encoding="utf-8"))
            for case in data.get("cases", []) if isinstance(data, dict) else []:
                templates.setdefault(case["template"], case["name"])
    return [(name, text) for text, name in templates.items()]


def write_folder(folder, template):
    folder.mkdir()
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "unk_token": "<unk>", "image_token": "<image>", "extra_special_tokens": {"video_token": "<video>"}}))
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}}))


def expect(tokenizer, conversation):
    """The text, or None and why transformers refuses."""
    arguments = conversation.get("arguments", {})
    try:
        return tokenizer.apply_chat_template(
            json.loads(json.dumps(conversation["messages"])), tools=conversation.get("tools"), tokenize=False,
            add_generation_prompt=conversation.get("add_generation_prompt", False), **arguments), None
    except Exception as error:  # whatever Jinja2 or Python raises
        return None, f"{type(error).__name__}: {error}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--show", type=int, default=10, help="how many differences are shown in full")
    options = parser.parse_args()
    templates = collect(options.folders)
    program = subprocess.Popen([options.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    counts, refusals, differing = collections.Counter(), collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as temporary:
        for number, (name, template) in enumerate(templates):
            folder = pathlib.Path(temporary) / str(number)
            write_folder(folder, template)
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
            for index, conversation in enumerate(CONVERSATIONS, 1):
                wanted, why = expect(tokenizer, conversation)
                request = {"folder": str(folder), **conversation}
                program.stdin.write(json.dumps(request).encode() + b"\n")
                program.stdin.flush()
                got = json.loads(program.stdout.readline())
                if wanted is not None and got.get("text") == wanted:
                    counts["equal"] += 1
                elif wanted is None and "error" in got:
                    counts["refused by both"] += 1
                elif wanted is not None and any(word in got.get("error", "") for word in NAMED):
                    counts["refused by name"] += 1
                    refusals[name, got["error"].split(": ", 1)[1]] += 1
                else:
                    counts["different"] += 1
                    differing[name] += 1
                    if counts["different"] <= options.show:
                        print(f"--- {name}, conversation {index}\n  wanted {wanted!r} {why or ''}\n  got    {got!r}")
    for (name, message), n in sorted(refusals.items()):
        print(f"refused by name: {name}: {message} ({n} conversations)")
    print(len(templates), "templates,", sum(counts.values()), "renderings:", dict(counts))
    if differing:
        print("different:", dict(differing))
    sys.exit(bool(differing) or not templates)


if __name__ == "__main__":
    main()
