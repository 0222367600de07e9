"""qrun serve as clients see it: the answers of qrun generate, whole and streamed, errors, the end of the server.

    test_serve.py QRUN MODEL
"""
import base64
import gzip
import json
import math
import os
import signal
import socket
import struct
import subprocess
import tempfile
import unittest

from served import MODEL, QRUN, Server, certificate, copied_model, post

class Answers(unittest.TestCase):
    def test_a_stream_is_the_whole_answer_in_pieces(self):
        request = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "logprobs": True,
                   "top_logprobs": 2, "n": 2, "temperature": 0.9, "seed": 5}
        with Server() as server:
            status, whole, _ = server.ask("/v1/chat/completions", request)
            self.assertEqual(status, 200)
            pieces = server.stream("/v1/chat/completions", request | {"stream_options": {"include_usage": True}})
        texts, tokens, reasons, roles = ["", ""], [[], []], [None, None], [0, 0]
        for piece in pieces[:-1]:
            for choice in piece["choices"]:
                i = choice["index"]
                texts[i] += choice["delta"].get("content", "")
                roles[i] += "role" in choice["delta"]
                tokens[i] += choice["logprobs"]["content"] if choice["logprobs"] else []
                reasons[i] = choice["finish_reason"] or reasons[i]
        for i, choice in enumerate(sorted(whole["choices"], key=lambda choice: choice["index"])):
            self.assertEqual(texts[i], choice["message"]["content"])
            self.assertEqual(tokens[i], choice["logprobs"]["content"])
            self.assertEqual(reasons[i], choice["finish_reason"])
            self.assertEqual(roles[i], 1)
            joined = b"".join(bytes(token["bytes"]) for token in choice["logprobs"]["content"])
            self.assertEqual(joined.decode(), choice["message"]["content"])
        self.assertEqual(pieces[-1]["choices"], [])
        self.assertEqual(pieces[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])

    def test_answers_in_a_form(self):
        """JSON that fits, whole and in pieces, for chats and completions."""
        schema = {"type": "object", "properties": {"blue": {"type": "boolean"}, "why": {"type": "string", "maxLength": 12}},
                  "required": ["blue", "why"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        with Server() as server:
            for seed in range(4):
                request = {"messages": [{"role": "user", "content": "Is the sea blue?"}], "temperature": 1, "seed": seed,
                           "max_tokens": 80, "response_format": form}
                status, whole, _ = server.ask("/v1/chat/completions", request)
                self.assertEqual((status, whole["choices"][0]["finish_reason"]), (200, "stop"), whole)
                text = whole["choices"][0]["message"]["content"]
                value = json.loads(text)
                self.assertEqual((list(value), type(value["blue"]), len(value["why"]) <= 12), (["blue", "why"], bool, True))
                pieces = server.stream("/v1/chat/completions", request)
                self.assertEqual("".join(p["choices"][0]["delta"].get("content", "") for p in pieces), text)
            status, whole, _ = server.ask("/v1/completions", {
                "prompt": "One, two,", "max_tokens": 80, "response_format": {"type": "json_schema", "json_schema": {
                    "schema": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3}}}})
            self.assertLessEqual(len(json.loads(whole["choices"][0]["text"])), 3)
            whole = server.ask("/v1/completions", {"prompt": "One, two,", "max_tokens": 8, "response_format": {
                "type": "json_schema", "json_schema": {"schema": {"type": "integer", "const": 1.0}}}})[1]
            self.assertEqual(whole["choices"][0]["text"], "1")

    def test_a_schema_with_too_many_ways(self):
        """The schema is at fault, so clients need not ask again: before the first piece, and after it."""
        ways = {"type": "string", "pattern": "^([a-z ]?){4200}$"}
        late = {"properties": {"a": {"const": "one two three"}, "b": ways}, "required": ["a", "b"]}
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 60}
        with Server() as server:
            for schema in (ways, late):
                request = chat | {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
                status, whole, _ = server.ask("/v1/chat/completions", request)
                error = whole["error"]
                self.assertEqual((status, error["type"], error["param"]),
                                 (400, "invalid_request_error", "response_format"), error)
                self.assertIn("the schema has too many ways", error["message"])
            pieces = server.stream("/v1/chat/completions", request)
            self.assertTrue(len(pieces) > 1 and all("choices" in piece for piece in pieces[:-1]), pieces)
            self.assertEqual(pieces[-1], whole)

    def test_a_form_that_is_none(self):
        schema = {"json_schema": {"schema": {"properties": {"a": {"not": {}}}}}}
        forms = ["json_object", 3, [], {}, {"type": 3}, {"type": "xml"}, {"type": "json_object", "schema": {}},
                 {"type": "json_schema"}, {"type": "json_schema", "json_schema": 3}, {"type": "json_schema"} | schema]
        requests = (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                    ("/v1/completions", {"prompt": "a"}))
        with Server() as server:
            for path, request in requests:
                for form in forms:
                    status, answer, _ = server.ask(path, request | {"response_format": form})
                    error = answer["error"]
                    self.assertEqual((status, error["type"], error["param"]),
                                     (400, "invalid_request_error", "response_format"), (form, error))

    def test_endpoints(self):
        with Server("--model-name", "tiny") as server:
            self.assertEqual(server.ask("/health")[:2], (200, {"status": "ok"}))
            status, page, headers = server.ask("/")
            self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
            self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
            self.assertNotIn("http", page.replace("http-equiv", ""), "the page loads nothing from elsewhere")
            self.assertEqual([model["id"] for model in server.ask("/v1/models")[1]["data"]], ["tiny"])
            ids = server.ask("/tokenize", {"prompt": "Hello there", "add_special_tokens": False})[1]["tokens"]
            self.assertEqual(server.ask("/detokenize", {"tokens": ids})[1]["prompt"].strip(), "Hello there")
            self.assertEqual(server.ask("/tokenize", {"prompt": "", "add_special_tokens": False})[1],
                             {"count": 0, "tokens": []})
            self.assertEqual(server.ask("/detokenize", {"tokens": []})[1]["prompt"], "")
            both = server.ask("/v1/completions", {"prompt": ["The dog", ids], "max_tokens": 3, "n": 2})[1]
            self.assertEqual([choice["index"] for choice in both["choices"]], [0, 1, 2, 3])
            self.assertEqual(both["usage"]["completion_tokens"], 12)
            self.assertGreater(server.metric("vllm:generation_tokens_total"), 0)

    def test_refusals_have_a_reason(self):
        chat = {"messages": [{"role": "user", "content": "a"}]}
        cases = [
            (400, "/v1/completions", {"prompt": "a", "nonsense": 1}, "nonsense"),
            (400, "/v1/completions", {"prompt": "a", "temperature": -1}, "temperature"),
            (400, "/v1/completions", {"prompt": "a " * 5000}, "context"),
            (400, "/v1/completions", {"prompt": "a " * (1 << 20)}, "far more than the context"),
            (400, "/v1/completions", b"{\"prompt\": \"a\"", "not a JSON object"),
            (400, "/v1/completions", b"[" * 5000, "nested too deeply"),
            (400, "/v1/completions", b"{\"prompt\": \"\xff\xfe\"}", "UTF-8"),
            (400, "/tokenize", {"prompt": 3}, "prompt"),
            (400, "/detokenize", {"tokens": [1 << 30]}, "token"),
            (400, "/detokenize", {"tokens": ["a"]}, "a list of ids"),
            (400, "/v1/completions", {"prompt": "a", "logit_bias": {"99999": 1}}, "99999 is not a token of this model"),
            (400, "/v1/chat/completions", {"messages": [{"role": "user"}]}, 'the role "user", has no "content"'),
            (413, "/v1/completions", b" " * ((16 << 20) + 1), "16777216 bytes here (--max-body)"),
            (404, "/v1/chat/completions", chat | {"model": "gpt-9"}, "gpt-9"),
            (404, "/v1/nothing", {}, "no such endpoint"),
            (400, "/v1/embeddings", {"input": "a", "pooling": "max"}, "mean"),
            (400, "/v1/completions", {"prompt": "a", "max_tokens": 0, "n": 2}, "nothing"),
            (400, "/v1/chat/completions", chat | {"response_format": {"type": "json_schema"}}, "json_schema"),
            (400, "/v1/chat/completions", chat | {"response_format": {"type": "xml"}}, '"type" is "text"'),
            (400, "/v1/chat/completions", chat | {"response_format": {"type": "json_schema", "json_schema": {
                "schema": {"properties": {"a": {"not": {}}}}}}}, '#/properties/a: "not" is not supported'),
            (400, "/v1/completions", {"prompt": "a", "response_format": {"type": "json_object"}, "ignore_eos": True},
             "ignore_eos"),
            (403, "/v1/adapters", {"name": "a", "path": "a"}, "folder"),
            (405, "/v1/models", {}, "GET"),
            (405, "/v1/completions", None, "POST"),
        ]
        with Server() as server:
            for status, path, body, part in cases:
                answer = server.ask(path, body)
                self.assertEqual(answer[0], status, (path, body if len(str(body)) < 99 else "long", answer[1]))
                self.assertIn(part, answer[1]["error"]["message"])
            self.assertEqual(server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[0], 200)
            packed = gzip.compress(b'{"prompt": "a", "max_tokens": 1}')
            answer = server.ask("/v1/completions", packed, {"Content-Encoding": "gzip"})
            self.assertEqual((answer[0], "bodies in gzip are not read" in answer[1]["error"]["message"]), (415, True))

    def test_options_that_could_not_work_are_refused_at_once(self):
        for code, part, *options in ((2, "an origin such as", "--allow-origin", "example.org"),
                                     (2, "an origin such as", "--allow-origin", "https://example.org/"),
                                     (3, "there is no such folder", "--adapter-folder", "none"),
                                     (3, "there is no such folder", "--adapter-folder", MODEL + "/config.json")):
            done = subprocess.run([QRUN, "serve", "--model", MODEL, "--port", "0", *options], capture_output=True,
                                  text=True, timeout=20)
            self.assertEqual((done.returncode, part in done.stderr, done.stdout), (code, True, ""), done.stderr)

    def test_a_key_where_one_is_asked_for(self):
        with tempfile.NamedTemporaryFile("w") as key:
            key.write("secret\n")
            key.flush()
            with Server("--api-key-file", key.name) as server:
                for header in (None, "Bearer", "Bearer wrong", "Bearer secrets", "secret", "Bearer secre"):
                    headers = {"Authorization": header} if header else {}
                    self.assertEqual(server.ask("/v1/models", headers=headers)[0], 401, header)
                self.assertEqual(server.ask("/v1/models", headers={"Authorization": "Bearer secret"})[0], 200)
                self.assertEqual(server.ask("/health")[0], 200)


class Seeds(unittest.TestCase):
    request = {"prompt": "Once", "max_tokens": 24, "temperature": 1, "ignore_eos": True}

    @staticmethod
    def texts(answer):
        return [choice["text"] for choice in answer["choices"]]

    def test_a_drawn_seed(self):
        request = self.request
        with Server(seed=None) as server:
            for more in ({}, {"seed": None}, {"seed": -1}):
                asked = [server.ask("/v1/completions", request | more) for _ in range(3)]
                texts = [self.texts(answer)[0] for _, answer, _ in asked]
                self.assertGreater(len(set(texts)), 1, more)
                again = server.ask("/v1/completions", request | {"seed": int(asked[0][2]["X-Seed"])})
                self.assertEqual((self.texts(again[1])[0], again[2]["X-Seed"]), (texts[0], None))
            _, answer, head = server.ask("/v1/completions", request | {"prompt": ["Once"] * 4, "n": 2})
            self.assertGreater(len(set(self.texts(answer))), 5)
            last = server.ask("/v1/completions", request | {"seed": int(head["X-Seed"]) + 3, "n": 2})[1]
            self.assertEqual(self.texts(last), self.texts(answer)[6:])
            chat = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 3}
            self.assertTrue(server.ask("/v1/chat/completions", chat | {"stream": True})[2]["X-Seed"].isdigit())
            self.assertIsNone(server.ask("/v1/embeddings", {"input": "Once"})[2]["X-Seed"])

    def test_a_seed_of_the_command_line(self):
        with Server(seed=3) as server:
            asked = [server.ask("/v1/completions", self.request | more) for more in ({}, {"seed": -1}, {"seed": 3})]
            self.assertEqual({(self.texts(answer)[0], head["X-Seed"]) for _, answer, head in asked},
                             {(self.texts(asked[0][1])[0], None)})


class Prompts(unittest.TestCase):
    """What is said of a prompt: its log-probabilities, and its embedding."""

    def test_top_logprobs(self):
        """As many as asked for, and the token's own, also where texts differ in case alone or are parts of characters."""
        request = {"prompt": "Once \u00fc \U0001f642", "max_tokens": 60, "temperature": 3, "seed": 2,
                   "ignore_eos": True}
        with Server() as server:
            lists = server.ask("/v1/completions", request | {"logprobs": 5, "echo": True})[1]["choices"][0]["logprobs"]
            places = list(zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"]))
            more = server.ask("/v1/completions", request | {"logprobs": 20, "echo": True})[1]["choices"][0]["logprobs"]
            for (token, logprob, top), best in zip(places[1:], more["top_logprobs"][1:]):
                expected = dict(sorted(best.items(), key=lambda item: -item[1])[:5]) | {token: logprob}
                self.assertEqual(top, expected)
            names = [token for token in lists["tokens"] if token.startswith("bytes:")]
            self.assertIn("\\xc3", "".join(names))
            keys = [key for _, _, top in places[1:] for key in top]
            self.assertTrue(any(a != b and a.lower() == b.lower() for _, _, top in places[1:] for a in top
                                for b in top))
            self.assertNotIn("\ufffd", "".join(keys))
            none = server.ask("/v1/completions", request | {"logprobs": 0})[1]["choices"][0]["logprobs"]
            self.assertEqual([list(top) for top in none["top_logprobs"]], [[token] for token in none["tokens"]])
            part = server.ask("/tokenize", {"prompt": "\u00fc"})[1]["tokens"][-1]
            chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "logit_bias": {str(part): 100},
                    "temperature": 0, "logprobs": True}
            token = server.ask("/v1/chat/completions", chat)[1]["choices"][0]["logprobs"]["content"][0]
            self.assertEqual((token["token"], token["bytes"]), ("\ufffd", [0xBC]))

    def test_echo(self):
        request = {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0, "logprobs": 2}
        with Server() as server:
            plain = server.ask("/v1/completions", request)[1]["choices"][0]
            echo = server.ask("/v1/completions", request | {"echo": True})[1]["choices"][0]
            self.assertEqual(echo["text"], request["prompt"] + plain["text"])
            n = len(echo["logprobs"]["tokens"]) - 5
            for name in ("tokens", "token_logprobs", "top_logprobs"):
                self.assertEqual(echo["logprobs"][name][n:], plain["logprobs"][name])
            self.assertIsNone(echo["logprobs"]["token_logprobs"][0])
            self.assertTrue(all(value < 0 for value in echo["logprobs"]["token_logprobs"][1:]))
            for token, offset in list(zip(echo["logprobs"]["tokens"], echo["logprobs"]["text_offset"]))[1:]:
                self.assertEqual(echo["text"][offset:offset + len(token)], token)
            # Names of special tokens count where the client wrote them; the token that begins a text has no place in it.
            special = {"prompt": "ab<|end|>! h\u00e9<|end|>", "max_tokens": 2, "logprobs": 0, "echo": True, "temperature": 0}
            answer = server.ask("/v1/completions", special)[1]
            choice, n_prompt = answer["choices"][0], answer["usage"]["prompt_tokens"]
            self.assertTrue(choice["text"].startswith(special["prompt"]))
            self.assertEqual(choice["logprobs"]["tokens"][3:5], ["<|end|>", "!"])
            self.assertEqual(choice["logprobs"]["text_offset"][n_prompt], len(special["prompt"]))
            for token, offset in list(zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]))[1:n_prompt]:
                if not token.startswith("bytes:"):  # a part of a character
                    self.assertEqual(choice["text"][offset:offset + len(token)], token)
            offsets = []
            for piece in server.stream("/v1/completions", special):
                offsets += (piece["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]
            self.assertEqual(offsets, choice["logprobs"]["text_offset"])
            # The continuation scored as a prompt has the bits that it had when it was generated.
            ids = server.ask("/tokenize", {"prompt": echo["text"]})[1]["tokens"]
            for prompt in (ids, [ids], echo["text"]):
                scored = server.ask("/v1/completions", request | {"prompt": prompt, "max_tokens": 0, "echo": True})[1]
                choice = scored["choices"][0]
                self.assertEqual(choice["text"], echo["text"])
                self.assertEqual(choice["logprobs"], echo["logprobs"])
                self.assertEqual((choice["finish_reason"], scored["usage"]["completion_tokens"]), ("length", 0))
            # Several prompts and samples, whole and streamed.
            both = request | {"prompt": [ids[:3], "The dog"], "n": 2, "echo": True}
            whole = server.ask("/v1/completions", both)[1]["choices"]
            parts = ["", "", "", ""], [[], [], [], []]
            for piece in server.stream("/v1/completions", both):
                for choice in piece["choices"]:
                    parts[0][choice["index"]] += choice["text"]
                    parts[1][choice["index"]] += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
            self.assertEqual(parts[0], [choice["text"] for choice in whole])
            self.assertEqual(parts[1], [choice["logprobs"]["token_logprobs"] for choice in whole])
            silent = server.ask("/v1/completions", {"prompt": ids, "max_tokens": 2, "echo": True, "temperature": 0})[1]
            self.assertTrue(silent["choices"][0]["text"].startswith(echo["text"]))
            self.assertIsNone(silent["choices"][0]["logprobs"])
            self.assertEqual(server.ask("/v1/completions", {"prompt": "a", "max_tokens": 0})[1]["choices"][0]["text"], "")

    def test_perplexity_of_eval(self):
        text = "Once upon a time there was a little dog. The dog was happy, and ran into the garden."
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            done = subprocess.run([QRUN, "eval", "--model", MODEL, "--text", file.name, "--json"], capture_output=True,
                                  text=True, check=True)
        with Server() as server:
            choice = server.ask("/v1/completions", {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0})[1]
        values = choice["choices"][0]["logprobs"]["token_logprobs"][1:]
        expected = json.loads(done.stdout)
        self.assertEqual(len(values), expected["tokens"])
        self.assertLess(abs(-sum(values) / len(values) - expected["mean_nll"]), 1e-6)

    def test_embeddings(self):
        with Server() as server:
            for pooling in ("last", "mean"):
                request = {"input": ["The dog", "A cat", [5, 6, 7]], "pooling": pooling}
                answer = server.ask("/v1/embeddings", request)[1]
                self.assertEqual([item["index"] for item in answer["data"]], [0, 1, 2])
                coded = server.ask("/v1/embeddings", request | {"encoding_format": "base64"})[1]
                for plain, other in zip(answer["data"], coded["data"]):
                    values = base64.b64decode(other["embedding"])
                    decoded = struct.unpack(f"<{len(values) // 4}f", values)
                    rounded = struct.unpack(f"{len(decoded)}f", struct.pack(f"{len(decoded)}f", *plain["embedding"]))
                    self.assertEqual(rounded, decoded)
                    self.assertAlmostEqual(math.hypot(*decoded), 1, places=5)
                self.assertGreater(answer["usage"]["prompt_tokens"], 6)
            one = server.ask("/v1/embeddings", {"input": "The dog"})[1]["data"]
            last = server.ask("/v1/embeddings", {"input": ["x", "The dog"], "pooling": "last"})[1]["data"]
            self.assertEqual(one[0]["embedding"], last[1]["embedding"])

    def test_logit_bias(self):
        with Server() as server:
            token = server.ask("/tokenize", {"prompt": " dog", "add_special_tokens": False})[1]["tokens"][0]
            request = {"prompt": "Once", "max_tokens": 6, "temperature": 0, "logprobs": 0}
            forced = server.ask("/v1/completions", request | {"logit_bias": {str(token): 100}})[1]["choices"][0]
            self.assertEqual(set(forced["logprobs"]["tokens"]), {" dog"})
            plain = server.ask("/v1/completions", request)[1]["choices"][0]
            first = server.ask("/tokenize", {"prompt": plain["logprobs"]["tokens"][0], "add_special_tokens": False})[1]
            other = server.ask("/v1/completions", request | {"logit_bias": {str(first["tokens"][0]): -100}})[1]
            self.assertNotEqual(other["choices"][0]["logprobs"]["tokens"][0], plain["logprobs"]["tokens"][0])


HERMES = """{%- for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{{ m.content or '' }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% if think %}<think>
{% endif %}{% endif %}{# <think> {{ reasoning_content }} #}"""
LLAMA = """{%- for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{% if m.tool_calls %}{"name": "{{
m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{
m.content }}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}}}}}]


class Parts(unittest.TestCase):
    """Answers of models that think aloud and call tools. The shipped model does neither, so rules of
    generation_config.json make it say what such a model would."""

    def answers(self, template, answer, request):
        """The whole message and finish reason, and the same from the pieces of a stream."""
        with Server() as server:
            ids = server.ask("/tokenize", {"prompt": answer, "add_special_tokens": False})[1]["tokens"]
        end = 1     # what follows the longest part of the answer wins
        biases = [[(ids + [end])[:i + 1], 40.0 + 30.0 * i] for i in range(len(ids) + 1)]
        with copied_model(tokenizer_config={"chat_template": template}, generation_config={"sequence_bias": biases}) \
                as model, Server("--max-tokens", "200", "--temperature", "0", model=model) as server:
            status, whole, _ = server.ask("/v1/chat/completions", request)
            self.assertEqual(status, 200, whole)
            pieces = server.stream("/v1/chat/completions", request)
        message = {"role": "assistant", "content": ""}
        for piece in pieces:
            for choice in piece["choices"]:
                for name, value in choice["delta"].items():
                    if name == "tool_calls":
                        for call in value:
                            self.assertEqual(call.pop("index"), len(message.setdefault(name, [])))
                            message[name].append(call)
                    elif name != "role":
                        message[name] = message.get(name, "") + value
                reason = choice["finish_reason"]
        if message["content"] == "" and "tool_calls" in message:
            message["content"] = None
        streamed = message, reason
        choice = whole["choices"][0]
        for m in (choice["message"], message):
            for call in m.get("tool_calls", []):
                self.assertRegex(call.pop("id"), "^[a-zA-Z0-9]{9}$")
                self.assertEqual(call.pop("type"), "function")
        self.assertEqual((choice["message"], choice["finish_reason"]), streamed)
        return streamed

    def test_hermes(self):
        chat = {"messages": [{"role": "user", "content": "Hello"}]}
        call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
        message, reason = self.answers(HERMES, "I look." + call, chat | {"tools": TOOLS})
        self.assertEqual((message["content"], reason), ("I look.", "tool_calls"))
        self.assertEqual(message["tool_calls"],
                         [{"function": {"name": "weather", "arguments": '{"city": "Rome"}'}}])
        message, reason = self.answers(HERMES, "I look." + call, chat)     # no tools: text
        self.assertEqual((message["content"], reason), ("I look." + call, "stop"))
        message, reason = self.answers(HERMES, call[:40], chat | {"tools": TOOLS})
        self.assertEqual((message["content"], reason), (call[:40], "stop"))

    def test_llama(self):
        chat = {"messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS}
        message, reason = self.answers(LLAMA, '{"name": "weather", "parameters": {"city": "Rome"}}', chat)
        self.assertEqual((message["content"], reason, len(message["tool_calls"])), (None, "tool_calls", 1))

    def test_thoughts(self):
        chat = {"messages": [{"role": "user", "content": "Hello"}], "chat_template_kwargs": {"think": True}}
        template = HERMES.replace("{# <think> {{ reasoning_content }} #}", "")
        template = template.replace("{{ m.content or '' }}",
                                    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
                                    "{{ m.content or '' }}")
        message, reason = self.answers(template, "Well.</think>Hello you", chat)
        self.assertEqual(message, {"role": "assistant", "content": "Hello you", "reasoning_content": "Well."})
        chat["chat_template_kwargs"]["think"] = False
        message, reason = self.answers(template, "<think>Well.</think>Hello you", chat)
        self.assertEqual((message["content"], message["reasoning_content"], reason), ("Hello you", "Well.", "stop"))

    def test_calls_come_back_as_json(self):
        """Clients send the arguments of earlier calls as text; the template sees JSON."""
        chat = [{"role": "user", "content": "a"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]}]
        with copied_model(tokenizer_config={"chat_template": HERMES}) as model, Server(model=model) as server:
            request = {"messages": chat, "max_tokens": 1, "tools": TOOLS}
            as_text = server.ask("/v1/chat/completions", request)[1]["usage"]["prompt_tokens"]
            chat[1]["tool_calls"][0]["function"]["arguments"] = {"x": 1}
            self.assertEqual(server.ask("/v1/chat/completions", request)[1]["usage"]["prompt_tokens"], as_text)


class Service(unittest.TestCase):
    def test_weights_that_are_cut_short(self):
        """The server ends with the reason, and not by SIGBUS, whose handler a thread must not block."""
        with tempfile.TemporaryDirectory() as folder:
            quantised = os.path.join(folder, "model")
            subprocess.run([QRUN, "quantize", "--model", MODEL, "--out", quantised], check=True, capture_output=True)
            server = Server("--offload", "parameters", model=quantised)
            with server:
                request = {"prompt": "Once upon a time", "max_tokens": 20}
                self.assertEqual(server.ask("/v1/completions", request)[0], 200)
                long = request | {"max_tokens": 400, "ignore_eos": True}
                waiting, streaming = server.connect(), server.connect()
                waiting.request("POST", "/v1/completions", json.dumps(long))
                streaming.request("POST", "/v1/completions", json.dumps(long | {"stream": True}))
                stream = streaming.getresponse()
                self.assertIn(b"data: ", stream.readline())
                os.truncate(os.path.join(quantised, "model.safetensors"), 5000)
                answer = waiting.getresponse()
                self.assertEqual(answer.status, 500)
                self.assertIn(b"the server has failed", answer.read())
                self.assertIn(b"the server has failed", stream.read())
                waiting.close()
                streaming.close()
                server.process.wait(60)
            self.assertEqual(server.code, 3, server.end_of_log)
            self.assertIn("it was cut short while it was read", server.end_of_log[-1])

    def test_adapters_come_and_go(self):
        with tempfile.TemporaryDirectory() as folder:
            self.make_adapter(os.path.join(folder, "pirate"))
            done = subprocess.run([QRUN, "serve", "--model", MODEL, "--port", "0", "--model-name", "base", "--adapter",
                                   f"base={folder}/pirate"], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, "an adapter has the name of the model" in done.stderr), (2, True), done)
            with Server("--adapter-folder", folder, "--model-name", "base") as server:
                request = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
                plain = server.ask("/v1/completions", request)[1]["choices"][0]["text"]
                self.assertEqual(server.ask("/v1/completions", request | {"model": "p"})[0], 404)
                for round_number in range(3):
                    status, answer, _ = server.ask("/v1/adapters", {"name": "p", "path": "pirate"})
                    self.assertEqual((status, answer), (200, {"adapters": [{"name": "p", "loaded_here": True}]}), answer)
                    adapted = server.ask("/v1/completions", request | {"model": "p"})[1]["choices"][0]["text"]
                    self.assertNotEqual(adapted, plain)
                    self.assertEqual(server.ask("/v1/completions", request | {"model": "base"})[1]["choices"][0]["text"],
                                     plain)
                    with server.socket() as busy:
                        busy.sendall(post("/v1/completions", request | {"model": "p", "stream": True, "n": 64,
                                                                        "max_tokens": 200, "ignore_eos": True}))
                        busy.recv(1)
                        status, answer, _ = server.ask("/v1/adapters/p", method="DELETE")
                        self.assertEqual(status, 409, answer)
                        self.assertIn("still uses it", answer["error"]["message"])
                    self.assertTrue(server.wait_until_idle())
                    self.assertEqual(server.ask("/v1/adapters/p", method="DELETE")[:2], (200, {"adapters": []}))
                    self.assertEqual(server.ask("/v1/completions", request | {"model": "p"})[0], 404)
                for status, body in ((400, {"name": "a b", "path": "pirate"}), (400, {"name": "a", "path": "../x"}),
                                     (400, {"name": "a", "path": "/etc"}), (409, {"name": "base", "path": "pirate"}),
                                     (404, {"name": "a", "path": "nothing"}), (400, {"name": "a"}),
                                     (400, {"name": "a", "path": "pirate", "more": 1})):
                    self.assertEqual(server.ask("/v1/adapters", body)[0], status, body)
                self.assertEqual(server.ask("/v1/adapters/none", method="DELETE")[0], 404)
            self.assertEqual(server.code, 0)

    def make_adapter(self, folder):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as data:
            data.write(json.dumps({"prompt": "Once upon a time", "completion": " arr matey arr"}) + "\n")
            data.flush()
            subprocess.run([QRUN, "finetune", "--model", MODEL, "--data", data.name, "--out", folder, "--max-steps", "30",
                            "--learning-rate", "1e-2", "--seq-len", "64", "--quiet"], check=True, capture_output=True)

    def test_tls(self):
        with certificate() as made:
            if made is None:
                self.skipTest("there is no openssl to make a certificate with")
            cert, key, trust = made
            request = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "temperature": 0}
            with Server() as server:
                plain = server.ask("/v1/chat/completions", request)[1]["choices"]
            with Server("--tls-cert", cert, "--tls-key", key, tls=trust) as server:
                self.assertEqual(server.ask("/v1/chat/completions", request)[1]["choices"], plain)
                pieces = server.stream("/v1/chat/completions", request)
                text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
                self.assertEqual(text, plain[0]["message"]["content"])
            self.assertEqual(server.code, 0)
            for part, *options in (("go together", "--tls-cert", cert),
                                   ("the file has none in PEM", "--tls-cert", cert, "--tls-key", cert),
                                   ("the certificate none: No such file", "--tls-cert", "none", "--tls-key", key)):
                done = subprocess.run([QRUN, "serve", "--model", MODEL, "--port", "0", *options], capture_output=True,
                                      text=True, timeout=60)
                self.assertNotEqual(done.returncode, 0, options)
                self.assertIn(part, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_sockets_and_readiness_of_systemd(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket() as listening, \
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            path = os.path.join(folder, "notify")
            notified.bind(path)
            notified.settimeout(60)
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            port = listening.getsockname()[1]
            # as systemd does: the socket is descriptor 3, and LISTEN_PID is the process itself
            start = f'exec 3<&{listening.fileno()}; export LISTEN_PID=$$; exec "$@"'
            environment = os.environ | {"LISTEN_FDS": "1", "NOTIFY_SOCKET": path}
            with Server(environment=environment, pass_fds=[listening.fileno()],
                        wrapper=["sh", "-c", start, "sh"]) as server:
                self.assertEqual(server.port, port)
                self.assertEqual(notified.recv(100), b"READY=1")
                self.assertEqual(server.ask("/health")[0], 200)
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(notified.recv(100), b"STOPPING=1")
            self.assertEqual(server.code, 0)
        with Server(environment=os.environ | {"LISTEN_FDS": "1", "LISTEN_PID": "1"}) as server:
            self.assertEqual(server.ask("/health")[0], 200)     # meant for another process

    def test_a_line_for_every_request(self):
        secret = "xyzzy plugh"
        with Server() as server:
            server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": secret}], "max_tokens": 4})
            server.ask("/v1/completions", {"prompt": secret, "nonsense": secret})
            server.ask("/" + secret.replace(" ", "%20") + "?q=" + secret.replace(" ", "%20"))
        lines = [line for line in server.end_of_log if line.startswith("time=")]
        self.assertEqual(len(lines), 3)
        fields = [dict(part.split("=", 1) for part in line.split()) for line in lines]
        self.assertEqual([f["status"] for f in fields], ["200", "400", "404"])
        self.assertEqual([f["method"] for f in fields], ["POST", "POST", "GET"])
        self.assertEqual((fields[0]["completion_tokens"], fields[0]["left"]), ("4", "false"))
        self.assertNotIn("xyzzy", "".join(lines[:2]))
        self.assertNotIn("q=", lines[2])

    def test_pages_of_other_origins(self):
        def ask(server, origin, method=None):
            return server.ask("/v1/models", headers={"Origin": origin} if origin else {}, method=method)
        with Server() as server:
            own = f"http://127.0.0.1:{server.port}"
            self.assertEqual([ask(server, origin)[0] for origin in (None, own, "https://example.org", "null")],
                             [200, 200, 403, 403])
            self.assertNotIn("Access-Control-Allow-Origin", ask(server, own)[2])
            # A page may give its name the address of this machine: its origin is the host then.
            for host, expected in (("localhost", 200), ("a.LOCALHOST", 200), ("[::1]", 200), ("evil.example", 403),
                                   ("notlocalhost", 403), ("localhost.evil.example", 403), ("1.evil.example", 403)):
                headers = {"Host": f"{host}:{server.port}", "Origin": f"http://{host}:{server.port}"}
                self.assertEqual(server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers)[0], expected, host)
        with Server("--host", "0.0.0.0") as server:
            headers = {"Host": "here.example", "Origin": "http://here.example"}
            self.assertEqual(server.ask("/v1/models", headers=headers)[0], 200)
        with Server("--allow-origin", "https://example.org") as server:
            status, _, headers = ask(server, "https://example.org", "OPTIONS")
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "https://example.org"))
            self.assertEqual([ask(server, origin)[0] for origin in ("https://example.org", "https://example.com")],
                             [200, 403])
            unread = {"Origin": "https://example.org", "Content-Encoding": "gzip"}
            status, _, headers = server.ask("/v1/completions", {"prompt": "a"}, unread)
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (415, "https://example.org"))

    def test_live_view(self):
        with Server() as server:
            server.ask("/v1/completions", {"prompt": "Once upon a time " * 20, "max_tokens": 4, "n": 2})
            self.assertTrue(server.wait_until_idle())   # the numbers are published after a step
            live = server.ask("/live")[1]
            pages = live["pages"]
            self.assertEqual(pages["used"] + pages["shared"] + pages["cached"] + pages["free"], pages["total"])
            self.assertGreater(pages["cached"], 0)
            self.assertEqual(live["completion_tokens"], 8)
            self.assertEqual(sum(live["memory"]["plan"].values()), live["memory"]["planned_bytes"])


class End(unittest.TestCase):
    def test_ids_are_those_of_no_other_start(self):
        """Clients file what they were told under its id."""
        ids = set()
        for _ in range(2):
            with Server() as server:
                ids |= {server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[1]["id"] for _ in range(2)}
        self.assertEqual(len(ids), 4)

    def test_what_runs_is_finished(self):
        with Server() as server:
            with server.socket() as client:
                client.sendall(post("/v1/completions", {"prompt": "Once", "max_tokens": 120, "ignore_eos": True,
                                                        "stream": True}))
                received = client.recv(1)
                server.process.send_signal(signal.SIGTERM)
                while piece := client.recv(65536):
                    received += piece
                self.assertIn(b"[DONE]", received)
            self.assertEqual(server.process.wait(30), 0)
        self.assertEqual(server.code, 0)

    def test_what_takes_too_long_is_cancelled(self):
        with Server("--drain-seconds", "0", "--max-sequences", "1") as server:
            with server.socket() as client:
                client.sendall(post("/v1/completions", {"prompt": "Once", "max_tokens": 200, "ignore_eos": True,
                                                        "n": 64, "stream": True}))
                client.recv(1)
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(30), 0)

    def test_an_address_that_is_taken(self):
        with Server() as server:
            second = subprocess.run([QRUN, "serve", "--model", MODEL, "--port", str(server.port)],
                                    capture_output=True, text=True, timeout=60)
            self.assertNotEqual(second.returncode, 0)
            self.assertIn(f"port {server.port}: another program does; port 0 takes a free one", second.stderr)
        nowhere = subprocess.run([QRUN, "serve", "--model", MODEL, "--host", "no.such.invalid", "--port", "0"],
                                 capture_output=True, text=True, timeout=60)
        self.assertNotEqual(nowhere.returncode, 0)
        self.assertEqual(nowhere.stderr.count("\n"), 1, nowhere.stderr)
        self.assertIn("no address of this machine", nowhere.stderr)


if __name__ == "__main__":
    unittest.main()
