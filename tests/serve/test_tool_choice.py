"""Calls that a client requires: with the calls of each family of models, and at a temperature at which the shipped model
writes nonsense, the answer is a call of a tool of the request, with arguments that its "parameters" accept.

    test_tool_choice.py QRUN MODEL [seeds]     jsonschema checks the arguments too, where it is there
"""
import contextlib
import json
import os
import pathlib
import random
import sys
import unittest

from served import Server, copied_model

try:
    import jsonschema
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
    import check_schemas
except ImportError:
    jsonschema = None

N_SEEDS = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 4
CHAT = [{"role": "user", "content": "Hello"}]


def template(call, begin="", end=""):
    """One that writes a call of a message as `call`, between `begin` and `end`."""
    return ("{%- for m in messages %}{{ '|' ~ m.role ~ '|' }}{{ m.content or '' }}{% if m.tool_calls %}" + begin +
            "{% for c in m.tool_calls %}{% set f = c.function %}" + call + "{% endfor %}" + end +
            "{% endif %}{% endfor %}{% if add_generation_prompt %}|assistant|{% endif %}")


ARGUMENTS = "{{ f.arguments | tojson }}"
TAGS = ("<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k }}>\n{{ v }}\n"
        "</parameter>\n{% endfor %}</function>\n</tool_call>")
# By family: the template, and names that special tokens of the model get.
FAMILIES = {
    "hermes": (template('<tool_call>\n{"name": "{{ f.name }}", "arguments": ' + ARGUMENTS + "}\n</tool_call>"), {}),
    "special tags": (template('<tool_call>{"name": "{{ f.name }}", "arguments": ' + ARGUMENTS + "}</tool_call>"),
                     {"<|system|>": "<tool_call>", "<|user|>": "</tool_call>"}),
    "llama": (template('{"name": "{{ f.name }}", "parameters": ' + ARGUMENTS + "}"), {}),
    "python tag": (template('<|python_tag|>{"name": "{{ f.name }}", "parameters": ' + ARGUMENTS + "}"),
                   {"<|system|>": "<|python_tag|>"}),
    "mistral": (template('{"name": "{{ f.name }}", "arguments": ' + ARGUMENTS + ', "id": "{{ c.id }}"}',
                         "[TOOL_CALLS] [", "]"), {"<|system|>": "[TOOL_CALLS]"}),
    "mistral 3": (template("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]" + ARGUMENTS),
                  {"<|system|>": "[TOOL_CALLS]", "<|user|>": "[ARGS]"}),
    "harmony": (template("<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>" + ARGUMENTS),
                {"<|system|>": "<|channel|>", "<|user|>": "<|message|>"}),
    "tags": (template(TAGS), {}),
    "seed": (template("<seed:tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}"
                      "<parameter={{ k }}>{{ v }}</parameter>\n{% endfor %}</function>\n</seed:tool_call>"),
             {"<|system|>": "<seed:tool_call>", "<|user|>": "</seed:tool_call>"}),
    "glm 4.5": (template("\n<tool_call>{{ f.name }}\n{% for k, v in f.arguments | items %}<arg_key>{{ k }}</arg_key>\n"
                         "<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>"), {}),
    "glm 4.7": (template("<tool_call>{{ f.name }}{% for k, v in f.arguments | items %}<arg_key>{{ k }}</arg_key>"
                         "<arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>"),
                {"<|system|>": "<arg_key>", "<|user|>": "</arg_key>"}),
    "minimax": (template('<invoke name="{{ f.name }}">\n{% for k, v in f.arguments | items %}'
                         '<parameter name="{{ k }}">{{ v }}</parameter>\n{% endfor %}</invoke>\n',
                         "\n<minimax:tool_call>\n", "</minimax:tool_call>"), {"<|user|>": "<minimax:tool_call>"}),
    "deepseek": (template("<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>" + ARGUMENTS + "<｜tool▁call▁end｜>",
                          "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
                 {"<|system|>": "<｜tool▁sep｜>", "<|user|>": "<｜tool▁call▁begin｜>"}),
    "deepseek r1": (template("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n" + ARGUMENTS +
                             "\n```<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), {}),
    "kimi": (template("<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>" + ARGUMENTS + "<|tool_call_end|>",
                      "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
             {"<|system|>": "<|tool_calls_section_begin|>", "<|user|>": "<|tool_call_argument_begin|>"}),
    "granite": (template('{"name": "{{ f.name }}", "arguments": ' + ARGUMENTS + "}", "<|tool_call|>[", "]"),
                {"<|system|>": "<|tool_call|>"}),
    "granite in any order": (template("<|tool_call|>[{{ f | tojson }}]"), {}),
}
WITHOUT_QUOTES = ["tags", "seed", "glm 4.5", "glm 4.7", "minimax"]
GEMMA = template("<start_function_call>call:{{ f.name }}{}<end_function_call>")
BOOK = {"type": "object", "properties": {
    "title": {"type": "string"}, "year": {"type": "integer", "minimum": 1, "maximum": 2100},
    "tags": {"type": "array", "items": {"enum": ["a", "</tool_call>", 'q"']}, "maxItems": 2},
    "kind": {"type": "string", "enum": ["novel", "long poem"]}, "shelf": {"const": 9007199254740991}},
    "required": ["year", "kind", "shelf"], "additionalProperties": False}
RECURSIVE = {"type": "object", "properties": {"node": {"$ref": "#/$defs/node"}}, "required": ["node"], "$defs": {
    "node": {"type": ["object", "null"], "properties": {"next": {"$ref": "#/$defs/node"}}}}}


def tool(name, parameters=None, **more):
    return {"type": "function", "function": {"name": name, **({} if parameters is None else {"parameters": parameters}),
                                             **more}}


TOOLS = [tool("book", BOOK, strict=True), tool("follow.chain", RECURSIVE), tool("now"), tool("any_at-all", {})]
NO_TEXTS = [tool("book", BOOK | {"properties": {k: v for k, v in BOOK["properties"].items() if k != "title"}})]


@contextlib.contextmanager
def family(name, text=None):
    """A server of a model that calls tools so."""
    written, renamed = FAMILIES[name] if text is None else (text, {})
    with copied_model(tokenizer_config={"chat_template": written}) as model:
        path = os.path.join(model, "tokenizer.json")
        with open(path) as file:
            content = file.read()
        for old, new in renamed.items():
            content = content.replace(json.dumps(old), json.dumps(new))
        with open(path, "w") as file:
            file.write(content)
        with Server("--max-tokens", "300", "--temperature", "2", model=model) as server:
            yield server


def is_fitting(arguments, schema):
    value = json.loads(arguments)
    if jsonschema is not None:
        jsonschema.Draft202012Validator(schema if schema is not None else {"maxProperties": 0}).validate(value)
    return isinstance(value, dict) and (schema is not None or value == {})


def streamed(server, request):
    """The choices of a streamed answer, as those of a whole one."""
    found = {}
    for piece in server.stream("/v1/chat/completions", request):
        for choice in piece["choices"]:
            message, _ = found.setdefault(choice["index"], ({"content": None, "tool_calls": []}, None))
            message["content"] = choice["delta"].get("content") or message["content"]
            message["tool_calls"] += choice["delta"].get("tool_calls", [])
            found[choice["index"]] = (message, choice["finish_reason"])
    return [found[i] for i in sorted(found)]


def facts(message):
    return message.get("content") or None, [call["function"] for call in message.get("tool_calls", [])]


class ToolChoice(unittest.TestCase):
    def check_call(self, call, called, schemas):
        function = call["function"]
        self.assertIn(function["name"], [called] if called else schemas)
        self.assertTrue(is_fitting(function["arguments"], schemas[function["name"]]), function)

    def check(self, server, tools, called, reason, **more):
        """The number of whole calls among the answers to a few requests."""
        schemas = {t["function"]["name"]: t["function"].get("parameters") for t in tools}
        choice = {"type": "function", "function": {"name": called}} if called else "required"
        n_whole = 0
        for seed in range(N_SEEDS):
            request = {"messages": CHAT, "tools": tools, "tool_choice": choice, "seed": seed, "n": 2, **more}
            status, whole, _ = server.ask("/v1/chat/completions", request)
            self.assertEqual(status, 200, whole)
            for c in whole["choices"]:
                if c["finish_reason"] == "length":    # perhaps within the marker after a call, which is whole then
                    for call in c["message"].get("tool_calls", []):
                        self.check_call(call, called, schemas)
                    continue
                self.assertEqual((c["finish_reason"], c["message"]["content"], len(c["message"]["tool_calls"])),
                                 (reason, None, 1), c)
                self.assertNotIn("reasoning_content", c["message"])
                self.check_call(c["message"]["tool_calls"][0], called, schemas)
                n_whole += 1
            if seed == 0:
                parts = streamed(server, request)
                self.assertEqual([facts(message) for message, _ in parts],
                                 [facts(c["message"]) for c in whole["choices"]])
                self.assertEqual([r for _, r in parts], [c["finish_reason"] for c in whole["choices"]])
        return n_whole

    def test_families(self):
        for name in FAMILIES:
            with self.subTest(name), family(name) as server:
                self.assertGreater(self.check(server, TOOLS, None, "tool_calls"), 0)
                tools = NO_TEXTS if name in WITHOUT_QUOTES else TOOLS    # nonsense hardly ever ends
                self.assertGreater(self.check(server, tools, "book", "stop"), 0)
                self.assertEqual(self.check(server, TOOLS, "now", "stop", parallel_tool_calls=False), 2 * N_SEEDS)

    def test_random_schemas(self):
        if jsonschema is None:
            self.skipTest("there is no jsonschema")
        for name in FAMILIES:
            choose, n_whole = random.Random(name), 0
            with self.subTest(name), family(name) as server:
                for _ in range(N_SEEDS):
                    properties = {f"p{i}": check_schemas.schema_of(choose, 2) for i in range(choose.randint(0, 3))}
                    if name in WITHOUT_QUOTES:     # a schema says no more of such texts
                        properties = {k: {"type": "string"} if isinstance(v, dict) and v.get("type") == "string" else v
                                      for k, v in properties.items()}
                    schema = {"type": "object", "properties": properties, "required": list(properties)[:1],
                              "additionalProperties": False} | {"$defs": check_schemas.whole_schema(choose)["$defs"]}
                    n_whole += self.check(server, [tool("f", schema), tool("g", schema)], None, "tool_calls")
                self.assertGreater(n_whole, 0)

    def test_thoughts(self):
        """Where the prompt begins a thought, it ends before the call."""
        thinking = FAMILIES["hermes"][0].replace("|assistant|{% endif %}", "|assistant|<think>\n{% endif %}")
        with family("hermes", thinking) as server:
            self.assertEqual(self.check(server, TOOLS, "now", "stop"), 2 * N_SEEDS)

    def test_names(self):
        quoted = tool('say "é" \\ /')
        with family("hermes") as server:
            self.assertEqual(self.check(server, [quoted], None, "tool_calls"), 2 * N_SEEDS)
        with family("tags") as server:
            status, answer, _ = server.ask("/v1/chat/completions", {"messages": CHAT, "tools": [quoted],
                                                                    "tool_choice": "required"})
            self.assertEqual((status, answer["error"]["param"]), (400, "tools"), answer)
            self.assertIn("without quotes", answer["error"]["message"])

    def refused(self, server, member, part, **request):
        status, answer, _ = server.ask("/v1/chat/completions", {"messages": CHAT, "tool_choice": "required", **request})
        self.assertEqual((status, answer["error"]["param"]), (400, member), answer)
        self.assertIn(part, answer["error"]["message"])

    def test_parameters_with_too_many_ways(self):
        ways = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^([a-z ]?){4200}$"}}, "required": ["a"]}
        with family("hermes") as server:
            self.refused(server, "tools", "the schema has too many ways", tools=[tool("f", ways)])

    def test_refusals(self):
        odd = {"type": "object", "properties": {"a": {"not": {}}}}
        with family("hermes") as server:
            self.refused(server, "tool_choice", "there are no")
            self.refused(server, "tool_choice", '"x" is none of', tools=TOOLS,
                         tool_choice={"type": "function", "function": {"name": "x"}})
            self.refused(server, "tool_choice", '"required", {', tools=TOOLS, tool_choice={"type": "custom"})
            self.refused(server, "tools", "at most 256 tools", tools=[tool(f"f{i}", {"type": "object"}) for i in range(257)])
            self.refused(server, "tools", 'request: "parameters" of "g": #/properties/a: "not" is not supported',
                         tools=[tool("f"), tool("g", odd)])
            self.refused(server, "tools", '"type": "object"', tools=[tool("f", {"type": "string"})])
            self.refused(server, "tools", "a tool must be", tools=[{"name": "f"}])
            self.refused(server, "response_format", '"tools" is not supported', tools=TOOLS,
                         response_format={"type": "json_object"})
            self.assertEqual(server.ask("/v1/chat/completions", {     # of tools that are not called
                "messages": CHAT, "tools": [tool("f"), tool("g", odd)], "max_tokens": 1,
                "tool_choice": {"type": "function", "function": {"name": "f"}}})[0], 200)
        with family("tags") as server:
            self.refused(server, "tools", '#/properties/a: "maxLength" is not supported of a text', tools=[tool(
                "f", {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}})])
        for text, part in ((GEMMA, "call:name{key:value}"), (template("(calls {{ f.name }})"), "does not show"),
                           (template("<tool_call>{{ f.name }}\n<arg_key>"), "is not read here"),
                           (template("<|tool_call_start|>[{{ f.name }}()]<|tool_call_end|>"), "name(key=value)"),
                           (template("<tool_call>{{ f.name }}()"), "is not read here")):
            with family("", text) as server:
                self.refused(server, "tool_choice", part, tools=TOOLS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
