"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's Messages API has them: against the answers of
/v1/chat/completions, whole and streamed.

    test_messages.py QRUN MODEL
"""
import json
import tempfile
import unittest

from served import Server, copied_model, post, reset

ASK = {"max_tokens": 20, "messages": [{"role": "user", "content": "Hello"}]}
# Writes all that a conversation has, so that the number of its tokens tells what arrived.
PLAIN = """{% for t in tools or [] %}[tool {{ t.function.name }}: {{ t.function.description }} {{ t.function.parameters |
tojson }}]{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.reasoning_content or '' }}{{ m.content or '' }}{% for
c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{{ c.id }}{% endfor %}{{ m.name or '' }}{{ m.tool_call_id or '' }}<|end|>{% endfor %}{%
if enable_thinking is defined %}thinks {{ enable_thinking }} {{ thinking_budget }}{% endif %}{{ reasoning_effort or ''
}}<|assistant|>"""
SCHEMA = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"], "additionalProperties": False}
TOOLS = [{"name": "see", "description": "looks", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
         {"type": "custom", "name": "now", "input_schema": {"type": "object"}}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "see", "description": "looks", "parameters": SCHEMA}},
              {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]


def stream(server, request):
    """The events of a stream, and the message that they make, put together as Anthropic's clients do."""
    connection = server.connect()
    connection.request("POST", "/v1/messages", json.dumps(request | {"stream": True}))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status != 200:
        return answer.status, json.loads(text)
    events = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}", block
    return events, assemble(events)


def assemble(events):
    assert events[0]["type"] == "message_start" and events[1]["type"] == "ping", events[:2]
    message, open_block, texts = json.loads(json.dumps(events[0]["message"])), None, []
    assert message["content"] == [] and message["stop_reason"] is None, message
    for event in events[1:]:
        kind = event["type"]
        if kind == "content_block_start":
            assert open_block is None and event["index"] == len(message["content"]), event
            open_block, texts = event["content_block"], []
            message["content"].append(open_block)
        elif kind == "content_block_delta":
            assert event["index"] == len(message["content"]) - 1 and open_block is not None, event
            delta = event["delta"]
            assert delta["type"] == {"text": "text_delta", "thinking": "thinking_delta",
                                     "tool_use": "input_json_delta"}[open_block["type"]], event
            texts.append(delta.get("text", delta.get("thinking", delta.get("partial_json"))))
        elif kind == "content_block_stop":
            text = "".join(texts)
            if open_block["type"] == "tool_use":
                assert open_block["input"] == {}, open_block
                open_block["input"] = json.loads(text)
            else:
                open_block[open_block["type"]] += text
            open_block = None
        elif kind == "message_delta":
            assert open_block is None, event
            message |= event["delta"]
            message["usage"] |= event["usage"]
        else:
            assert kind in ("ping", "message_stop"), event
    assert kind == "message_stop", events[-1]
    return message


def some_of(client):
    """Bytes that arrive."""
    data = client.recv(65536)
    assert data, "the server has closed the connection"
    return data


def without(message, *names):
    return {name: value for name, value in message.items() if name not in ("id", "usage", *names)}


class Messages(unittest.TestCase):
    def same(self, server, request):
        """The whole answer, which is also what a stream makes."""
        status, whole, headers = server.ask("/v1/messages", request)
        self.assertEqual(status, 200, whole)
        self.assertEqual((headers["request-id"], whole["type"], whole["role"]), (whole["id"], "message", "assistant"))
        _, streamed = stream(server, request)
        for message in (whole, streamed):     # the ids of calls are made of the message's
            for block in message["content"]:
                self.assertRegex(block.pop("id", "a12345678"), "^[a-zA-Z0-9]{9}$")
        self.assertEqual(without(streamed), without(whole))
        total = ("input_tokens", "cache_read_input_tokens")
        self.assertEqual(sum(streamed["usage"][n] for n in total), sum(whole["usage"][n] for n in total))
        self.assertEqual(streamed["usage"]["output_tokens"], whole["usage"]["output_tokens"])
        return whole

    def test_the_answer_is_that_of_a_chat(self):
        with Server() as server:
            for more in ({}, {"temperature": 0.9, "top_p": 0.9, "top_k": 20, "seed": 3}, {"max_tokens": 200}):
                chat = server.ask("/v1/chat/completions", ASK | more)[1]
                message = self.same(server, ASK | more)
                choice = chat["choices"][0]
                self.assertEqual(message["content"], [{"type": "text", "text": choice["message"]["content"]}])
                self.assertEqual(message["stop_reason"], {"length": "max_tokens", "stop": "end_turn"}[choice["finish_reason"]])
                self.assertIsNone(message["stop_sequence"])
                self.assertEqual(message["usage"]["output_tokens"], chat["usage"]["completion_tokens"])
                self.assertEqual(message["model"], "model")
            nothing = self.same(server, ASK | {"max_tokens": 0})
            self.assertEqual((nothing["content"], nothing["stop_reason"]), ([], "max_tokens"))

    def test_stop_sequences(self):
        with Server() as server:
            text = self.same(server, ASK)["content"][0]["text"]
            stops = ["never there", text[5:8], text[4:8]]
            message = self.same(server, ASK | {"stop_sequences": stops})
            self.assertEqual((message["stop_reason"], message["stop_sequence"]), ("stop_sequence", text[4:8]))
            self.assertEqual(message["content"][0]["text"], text[:4])
            whole = self.same(server, ASK | {"stop_sequences": []})
            self.assertEqual((whole["content"][0]["text"], whole["stop_sequence"]), (text, None))

    def test_what_the_cache_had_is_no_input(self):
        long = ASK | {"max_tokens": 2, "messages": [{"role": "user", "content": "Once upon a time there was a dog. " * 9}]}
        with Server() as server:
            first, again = (server.ask("/v1/messages", long)[1]["usage"] for _ in range(2))
            count = server.ask("/v1/messages/count_tokens", {"messages": long["messages"]})[1]["input_tokens"]
            self.assertEqual((first["input_tokens"], first["cache_read_input_tokens"]), (count, 0))
            self.assertGreater(again["cache_read_input_tokens"], 0)
            self.assertEqual(again["input_tokens"] + again["cache_read_input_tokens"], count)
            words = {"messages": [{"role": "user", "content": "a " * 3000}]}      # more than the context has
            self.assertGreater(server.ask("/v1/messages/count_tokens", words)[1]["input_tokens"], 2000)
            self.assertEqual(server.ask("/v1/messages", ASK | words)[0], 400)
            events, _ = stream(server, long)
            self.assertEqual(events[0]["message"]["usage"] | {"output_tokens": 2}, again)


class Translation(unittest.TestCase):
    """What of a request reaches the model: the same prompt as of a chat."""

    def check(self, server, message, chat):
        counted = server.ask("/v1/messages/count_tokens", message)
        self.assertEqual(counted[0], 200, counted[1])
        status, answer, _ = server.ask("/v1/messages", {"max_tokens": 12, "temperature": 0} | message)
        self.assertEqual(status, 200, answer)
        status, expected, _ = server.ask("/v1/chat/completions", {"max_tokens": 12, "temperature": 0} | chat)
        self.assertEqual(status, 200, expected)
        usage = answer["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], counted[1]["input_tokens"])
        self.assertEqual(counted[1], {"input_tokens": expected["usage"]["prompt_tokens"]})
        text = "".join(block["text"] for block in answer["content"])
        self.assertEqual(text, expected["choices"][0]["message"]["content"])

    def test_prompts(self):
        text = lambda *texts: [{"type": "text", "text": t, "cache_control": {"type": "ephemeral"}} for t in texts]
        user = lambda content: {"role": "user", "content": content}
        hello, call = user("Hello"), {"type": "tool_use", "id": "c1", "name": "see", "input": {"blue": True, "n": 0.5}}
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "it is"}
        chat_call = {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "see", "arguments": '{"blue": true, "n": 0.5}'}}]}
        chat_result = {"role": "tool", "tool_call_id": "c1", "name": "see", "content": "it is"}
        said = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"},
                                                 {"type": "redacted_thinking", "data": "x"}, *text("Yes"), call]}
        cases = [
            ({"messages": [user(text("Hel", "lo"))]}, {"messages": [hello]}),
            ({"messages": [hello], "system": "Be kind."}, {"messages": [{"role": "system", "content": "Be kind."}, hello]}),
            ({"messages": [hello], "system": text("Be ", "kind.")},
             {"messages": [{"role": "system", "content": "Be kind."}, hello]}),
            ({"messages": [hello, user("You")]}, {"messages": [user("Hello\n\nYou")]}),
            ({"messages": [hello, {"role": "assistant", "content": [call]}, user([result])], "tools": TOOLS},
             {"messages": [hello, chat_call, chat_result], "tools": CHAT_TOOLS}),
            ({"messages": [hello, said, user([result | {"content": text("it ", "is"), "is_error": True}, *text("So?")])]},
             {"messages": [hello, chat_call | {"content": "Yes", "reasoning_content": "Hm."},
                           chat_result | {"content": "Error: it is"}, user("So?")]}),
            ({"messages": [hello, {"role": "assistant", "content": [call]}, user([result | {"is_error": True}])]},
             {"messages": [hello, chat_call, chat_result | {"content": "Error: it is"}]}),
            ({"messages": [hello, {"role": "assistant", "content": [call]},
                           user([{"type": "tool_result", "tool_use_id": "c1", "is_error": True}])]},
             {"messages": [hello, chat_call, chat_result | {"content": "Error: "}]}),
            ({"messages": [user([])]}, {"messages": [user("")]}),
            ({"messages": [hello, {"role": "assistant", "content": []}, hello]},
             {"messages": [hello, {"role": "assistant", "content": ""}, hello]}),
            ({"messages": [hello, {"role": "assistant", "content": [said["content"][1]]}, hello]},
             {"messages": [hello, {"role": "assistant", "content": ""}, hello]}),
            ({"messages": [hello, {"role": "assistant", "content": [call]}, user([result | {"content": None}])]},
             {"messages": [hello, chat_call, chat_result | {"content": ""}]}),
            ({"messages": [hello], "tools": TOOLS, "tool_choice": {"type": "none"}}, {"messages": [hello]}),
            ({"messages": [hello], "tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
             {"messages": [hello], "tools": CHAT_TOOLS}),
            ({"messages": [hello], "thinking": {"type": "enabled", "budget_tokens": 2048}},
             {"messages": [hello], "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 2048}}),
            ({"messages": [hello], "thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
             {"messages": [hello], "chat_template_kwargs": {"enable_thinking": True}}),
            ({"messages": [hello], "thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
             {"messages": [hello], "chat_template_kwargs": {"reasoning_effort": "high"}}),
            ({"messages": [hello, {"role": "assistant", "content": [call]}, user([result | {"content": [
                {"type": "tool_reference", "tool_name": "now"}, {"type": "tool_reference", "tool_name": "x"}]}])],
              "tools": [TOOLS[0] | {"defer_loading": True}, TOOLS[1] | {"defer_loading": True}]},
             {"messages": [hello, chat_call, chat_result | {
                 "content": "The tool now can be called now.\nThe tool x can be called now.\n"}], "tools": CHAT_TOOLS[1:]}),
            ({"messages": [hello], "tools": [TOOLS[0] | {"defer_loading": True}]}, {"messages": [hello]}),
            ({"messages": [hello], "metadata": {"user_id": "u"}, "context_management": {"edits": []}, "tools": [],
              "mcp_servers": []}, {"messages": [hello]}),
        ]
        with copied_model(tokenizer_config={"chat_template": PLAIN}) as model, \
                Server("--model-name", "m", model=model) as server:
            for message, chat in cases:
                with self.subTest(message):
                    self.check(server, message, chat)

    def test_a_system_after_others(self):
        """As Claude Code sends it; templates such as Qwen3.5's take one at the beginning alone."""
        message = lambda role, content: {"role": role, "content": content}
        late = [message("user", "Hello"), message("system", "Be kind."), message("user", "You"), message("assistant", "Yes"),
                message("system", "Be brief."), message("user", [{"type": "text", "text": "So?"}]), message("system", "Now.")]
        moved = [message("system", "S"), message("user", "Hello\n\nBe kind.\n\nYou"), message("assistant", "Yes"),
                 message("user", "Be brief.\n\nSo?\n\nNow.")]
        strict = "{% for m in messages[1:] if m.role == 'system' %}{{ raise_exception('late') }}{% endfor %}" + PLAIN
        for template, expected in ((PLAIN, [message("system", "S"), *late[:5], message("user", "So?"), late[6]]), (strict, moved)):
            with copied_model(tokenizer_config={"chat_template": template}) as model, Server(model=model) as server:
                self.check(server, {"system": "S", "messages": late}, {"messages": expected})
                self.assertEqual(server.ask("/v1/chat/completions", {"messages": late})[0], 200 if template == PLAIN else 400)

    def test_an_answer_that_continues_a_message(self):
        """As of its text alone, with the template's words around all but its end."""
        template = "{% for m in messages %}[{{ m.role }}] {{ m.content SPACE}}.\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
        hello = {"role": "user", "content": "Hello"}
        for space, begun, text in (("", "Yes, I am", "Yes, I am"), ("", "Yes, I ", "Yes, I "), ("| trim", "Yes, I ", "Yes, I"),
                                   ("", "qrun_continues_here e", "qrun_continues_here e")):
            with copied_model(tokenizer_config={"chat_template": template.replace("SPACE", space)}) as model, \
                    Server(model=model) as server:
                ids = server.ask("/tokenize", {"prompt": f"[user] Hello.\n[assistant] {text}", "add_special_tokens": False})[1]
                expected = server.ask("/v1/completions", {"prompt": ids["tokens"], "max_tokens": 20})[1]
                ask = {"max_tokens": 20, "messages": [hello, {"role": "assistant", "content": begun}]}
                status, message, _ = server.ask("/v1/messages", ask)
                self.assertEqual(status, 200, message)
                self.assertEqual("".join(b["text"] for b in message["content"]), expected["choices"][0]["text"])
                self.assertEqual(stream(server, ask)[1]["content"], message["content"])
                self.assertEqual(server.ask("/v1/messages/count_tokens", ask)[1], {"input_tokens": ids["count"]})
                chat = server.ask("/v1/chat/completions", ask | {"continue_final_message": True, "add_generation_prompt": False})[1]
                self.assertEqual(chat["choices"][0]["message"]["content"], expected["choices"][0]["text"])
                self.assertEqual(chat["usage"]["prompt_tokens"], ids["count"])
                self.assertNotEqual(server.ask("/v1/chat/completions", ask)[1]["usage"]["prompt_tokens"], ids["count"])
        without = "{% for m in messages[:-1] %}{{ m.content }}{% endfor %}"
        with copied_model(tokenizer_config={"chat_template": without}) as model, Server(model=model) as server:
            status, answer, _ = server.ask("/v1/messages", ask)
            self.assertEqual(status, 400)
            self.assertIn("does not write its text as it is", answer["error"]["message"])

    def test_a_form(self):
        with Server() as server:
            status, answer, _ = server.ask("/v1/messages", ASK | {"max_tokens": 60, "output_config": {
                "format": {"type": "json_schema", "schema": SCHEMA}}})
            self.assertEqual((status, answer["stop_reason"]), (200, "end_turn"), answer)
            self.assertEqual(set(json.loads(answer["content"][0]["text"])), {"blue"})


class Tools(Messages):
    test_the_answer_is_that_of_a_chat = test_stop_sequences = test_what_the_cache_had_is_no_input = None

    def test_required_calls(self):
        with copied_model(tokenizer_config={"chat_template": PLAIN}) as model, \
                Server("--temperature", "2", model=model) as server:
            calls = []
            for seed in range(8):
                request = ASK | {"tools": TOOLS, "max_tokens": 100, "seed": seed}
                message = self.same(server, request | {"tool_choice": {"type": "tool", "name": "see"}})
                block, = message["content"]
                self.assertEqual((block["type"], block["name"], type(block["input"]["blue"])), ("tool_use", "see", bool))
                self.assertEqual(message["stop_reason"], "tool_use")
                message = self.same(server, request | {"tool_choice": {"type": "any"}})
                if message["stop_reason"] == "max_tokens":  # "now" takes whatever is said, however long
                    continue
                self.assertEqual([b["type"] for b in message["content"]], ["tool_use"])
                self.assertIn(message["content"][0]["name"], ("see", "now"))
                self.assertEqual(message["stop_reason"], "tool_use")
                calls.append(request)
            self.assertGreater(len(calls), 1)
            # A call that goes back to the server, with its result, is part of the next prompt.
            call = server.ask("/v1/messages", calls[-1] | {"tool_choice": {"type": "any"}})[1]["content"]
            status, answer, _ = server.ask("/v1/messages", ASK | {"tools": TOOLS, "messages": ASK["messages"] + [
                {"role": "assistant", "content": call}, {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": call[0]["id"], "content": "yes"}]}]})
            self.assertEqual(status, 200, answer)

    def test_a_cut_call_is_text(self):
        with copied_model(tokenizer_config={"chat_template": PLAIN}) as model, Server(model=model) as server:
            message = self.same(server, ASK | {"tools": TOOLS, "max_tokens": 3, "tool_choice": {"type": "any"}})
            self.assertEqual((message["content"][0]["type"], message["stop_reason"]), ("text", "max_tokens"))

    def test_thoughts(self):
        """A prompt that begins a thought, and an answer that never ends it."""
        thinking = PLAIN + "<think>\n"
        with copied_model(tokenizer_config={"chat_template": thinking}) as model, Server(model=model) as server:
            chat = server.ask("/v1/chat/completions", ASK)[1]["choices"][0]["message"]
            message = self.same(server, ASK)
            self.assertEqual(message["content"], [
                {"type": "thinking", "thinking": chat["reasoning_content"], "signature": ""}])
            self.assertTrue(chat["reasoning_content"])
            message = self.same(server, ASK | {"tools": TOOLS, "max_tokens": 90, "tool_choice": {"type": "tool", "name": "see"}})
            self.assertEqual(message["content"][0]["type"], "tool_use")

    def test_who_waits_hears_of_it(self):
        """Behind a request that does not end, a stream begins all the same."""
        with copied_model(config={"max_position_embeddings": 100000}) as model, \
                Server("--max-sequences", "1", model=model) as server, server.socket() as busy, \
                server.socket() as client, server.socket() as other:
            busy.sendall(post("/v1/completions", {"prompt": "a", "ignore_eos": True, "max_tokens": 99000, "stream": True}))
            busy.recv(1)
            client.sendall(post("/v1/messages", ASK | {"stream": True}))
            other.sendall(post("/v1/responses", {"input": "Hello", "max_output_tokens": 9, "stream": True}))
            heard = heard_by_other = b""
            while heard.count(b"event: ping") < 2:      # the second one 5 seconds after the first
                heard += some_of(client)
            self.assertNotIn(b"content_block", heard)
            while b"response.in_progress" not in heard_by_other:
                heard_by_other += some_of(other)
            self.assertNotIn(b"output_item", heard_by_other)
            reset(busy)
            busy.close()
            while b"message_stop" not in heard:
                heard += some_of(client)
            while b"response.incomplete" not in heard_by_other:
                heard_by_other += some_of(other)
            self.assertEqual(heard.count(b"event: message_start"), 1)
            self.assertEqual(heard_by_other.count(b"event: response.created"), 1)
            usage = json.loads(heard.split(b"event: message_delta\ndata: ")[1].split(b"\n")[0])["usage"]
            self.assertEqual(usage["input_tokens"], server.ask("/v1/messages/count_tokens", ASK)[1]["input_tokens"])


class Refusals(unittest.TestCase):
    def test_refusals_have_a_reason(self):
        hello = {"role": "user", "content": "a"}
        said = lambda *content, role="user": {"messages": [hello, {"role": role, "content": list(content)}]}
        call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
        cases = [
            ({"messages": [hello], "max_tokens": None}, '"max_tokens" is missing'),
            ({"max_tokens": "many"}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"),
            ({"messages": None}, "list of messages"), ({"messages": []}, "list of messages"),
            ({"messages": [1]}, 'message 1: "role" can be'), ({"messages": {"role": "user"}}, "list of messages"),
            ({"messages": [{"role": "robot", "content": "a"}]}, 'message 1: "role" can be "user"'),
            ({"messages": [hello, {"role": "user"}]}, 'message 2: "content" must be'),
            ({"messages": [hello, {"role": "user", "content": 3}]}, 'message 2: "content" must be'),
            (said("a"), 'message 2: a block of content must be an object'),
            (said({"text": "a"}), 'with a "type"'), (said({"type": "text"}), "is not supported"),
            (said({"type": "image", "source": {}}), 'content of type "image" is not supported'),
            (said({"type": "document", "source": {}}), 'content of type "document" is not supported'),
            (said({"type": "thinking", "thinking": "a"}), 'content of type "thinking"'),
            (said(call), 'content of type "tool_use"'),
            ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}, hello]}, '"server_tool_use"'),
            (said({"type": "tool_result", "tool_use_id": "c"}), 'no "tool_use" with id "c"'),
            (said({"type": "tool_result"}), 'must have a "tool_use_id"'),
            (said(call | {"input": "{}"}, role="assistant"), '"input" of a "tool_use" must be an object'),
            (said(call | {"id": 3}, role="assistant"), 'must have "id" and "name"'),
            (said({"type": "thinking", "thinking": 3}, role="assistant"), '"thinking" must be a text'),
            (said({"type": "text", "text": "a"}, call, role="assistant"), "has a text and no calls"),
            (said({"type": "text", "text": "a"}, role="assistant") | {"tools": TOOLS, "tool_choice": {"type": "any"}},
             "neither JSON in a form nor a required call"),
            (said({"type": "text", "text": "a"}, role="assistant") | {"output_config": {
                "format": {"type": "json_schema", "schema": SCHEMA}}}, "neither JSON in a form nor a required call"),
            (said(*[call] * 257, role="assistant"), "at most 256 calls"),
            ({"messages": [hello, {"role": "assistant", "content": [call]}, {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}]}]}, '"image" is not supported'),
            ({"messages": [hello, {"role": "assistant", "content": [call]}, {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": 3}]}]}, "the result of a call must be"),
            ({"messages": [hello, {"role": "assistant", "content": [call]}, hello, {"role": "assistant", "content": "b"},
                           {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}]}, "has no \"tool_use\""),
            ({"system": 3}, '"system" must be'), ({"system": [{"type": "image"}]}, '"image" is not supported'),
            ({"system": [3]}, "is not supported"),
            ({"stop_sequences": "a"}, "must be a list of texts"), ({"stop_sequences": [3]}, "must be a list of texts"),
            ({"tools": 3}, '"tools" must be a list'), ({"tools": [3]}, 'a tool must have a "name"'),
            ({"tools": [{"name": "f"}]}, 'an "input_schema"'),
            ({"tools": [{"name": "f", "input_schema": 3}]}, 'an "input_schema"'),
            ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, '"web_search_20250305" are not supported'),
            ({"tool_choice": "any"}, '"tool_choice" can be'), ({"tool_choice": {"type": "any"}}, 'there are no "tools"'),
            ({"tool_choice": {"type": "tool", "name": "g"}, "tools": TOOLS}, '"g" is none of'),
            ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, '"tool_choice" can be'),
            ({"thinking": {"type": "deep"}}, '"thinking" can be'), ({"thinking": 3}, '"thinking" can be'),
            ({"thinking": {"type": "enabled", "budget_tokens": "a"}}, '"budget_tokens" must be'),
            ({"output_config": 3}, '"output_config" must be'), ({"output_config": {"depth": 3}}, '"depth" is not a member'),
            ({"output_config": {"effort": "huge"}}, '"effort" can be'),
            ({"output_config": {"format": {"type": "xml"}}}, '"format" of "output_config"'),
            ({"container": "c"}, '"container" is not supported'), ({"nonsense": 1}, '"nonsense" is not a member'),
            ({"stop": ["a"]}, '"stop" is not a member'), ({"n": 2}, '"n" is not a member'),
            ({"temperature": -1}, "temperature"), ({"top_k": "a"}, "top_k"), ({"stream": 1}, '"stream" must be'),
            ({"messages": [{"role": "user", "content": "a " * (1 << 20)}]}, "far more than the context"),
            (b"{", "not a JSON object"), (b"[]", "not a JSON object"), (b"[" * 5000, "nested too deeply"),
            (b'{"max_tokens": 1, "max_tokens": 2, "messages": []}', '"max_tokens" is given twice'),
        ]
        with Server() as server:
            for change, part in cases:
                with self.subTest(str(change)[:200]):
                    body = change if isinstance(change, bytes) else ASK | change
                    status, answer, _ = server.ask("/v1/messages", body)
                    self.assertEqual((status, answer["type"], answer["error"]["type"]),
                                     (400, "error", "invalid_request_error"), answer)
                    self.assertIn(part, answer["error"]["message"])
                    if isinstance(change, dict) and not {"max_tokens", "temperature", "top_k"} & set(change):
                        status, counted, _ = server.ask("/v1/messages/count_tokens", body)
                        self.assertEqual(status, 400, counted)
                        self.assertIn(part, counted["error"]["message"])
            status, answer, _ = server.ask("/v1/messages", ASK | {"model": "claude-9"})
            self.assertEqual((status, answer["error"]["type"]), (404, "not_found_error"))
            self.assertIn("claude-9", answer["error"]["message"])
            status, answer, headers = server.ask("/v1/messages")
            self.assertEqual((status, answer["type"], headers["Allow"]), (405, "error", "POST"))
            status, answer, _ = server.ask("/v1/messages", b" " * ((16 << 20) + 1))
            self.assertEqual((status, answer["type"]), (413, "error"))
            self.assertEqual(server.ask("/v1/messages", ASK)[0], 200)

    def test_too_many_wait(self):
        with Server("--max-sequences", "1", "--max-waiting", "1") as server, server.socket() as busy:
            busy.sendall(post("/v1/completions", {"prompt": "a", "ignore_eos": True, "n": 2, "stream": True}))
            busy.recv(1)
            status, answer, headers = server.ask("/v1/messages", ASK)
            self.assertEqual((status, answer["error"]["type"], headers["Retry-After"]), (429, "rate_limit_error", "1"))

    def test_an_error_in_a_stream(self):
        """Few tokens are allowed, each once: no further one is left."""
        with copied_model() as model:
            with open(f"{model}/config.json") as config:
                vocab = json.load(config)["vocab_size"]
            with open(f"{model}/generation_config.json", "w") as file:
                json.dump({"no_repeat_ngram_size": 1, "suppress_tokens": list(range(3, vocab - 5)) + [0, 1, 2]}, file)
            with Server(model=model) as server:
                connection = server.connect()
                connection.request("POST", "/v1/messages", json.dumps(ASK | {"stream": True}))
                blocks = connection.getresponse().read().decode().split("\n\n")[:-1]
                connection.close()
        self.assertTrue(blocks[0].startswith("event: message_start"), blocks[0])
        name, data = blocks[-1].split("\n")
        event = json.loads(data.removeprefix("data: "))
        self.assertEqual((name, event["type"], event["error"]["type"]), ("event: error", "error", "api_error"))
        self.assertIn("leave no token", event["error"]["message"])

    def test_keys(self):
        with tempfile.NamedTemporaryFile("w") as key:
            key.write("secret\n")
            key.flush()
            with Server("--api-key-file", key.name) as server:
                for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": ""}, {"x-api-key": "Bearer secret"}):
                    status, answer, _ = server.ask("/v1/messages", ASK, headers)
                    self.assertEqual((status, answer["error"]["type"]), (401, "authentication_error"), headers)
                for headers in ({"x-api-key": "secret", "anthropic-version": "2023-06-01"}, {"Authorization": "Bearer secret"}):
                    self.assertEqual(server.ask("/v1/messages?beta=true", ASK, headers)[0], 200)


if __name__ == "__main__":
    unittest.main(verbosity=2)
