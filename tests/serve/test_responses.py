"""POST /v1/responses, as OpenAI's Responses API has it without stored state: against the answers of
/v1/chat/completions, whole and streamed.

    test_responses.py QRUN MODEL
"""
import json
import unittest

from served import Server, copied_model
from test_messages import CHAT_TOOLS, PLAIN, SCHEMA

ASK = {"max_output_tokens": 20, "input": "Hello"}
TOOLS = [{"type": "function", "name": "see", "description": "looks", "parameters": SCHEMA},
         {"type": "function", "name": "now", "parameters": {"type": "object"}}]


def stream(server, request):
    connection = server.connect()
    connection.request("POST", "/v1/responses", json.dumps(request | {"stream": True}))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    events = []
    for i, block in enumerate(text.split("\n\n")[:-1]):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}" and events[-1]["sequence_number"] == i, block
    return events


def assemble(events):
    """The response at the end, which has the items that the events before it make."""
    first, second, *middle, last = events
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress"), events[:2]
    assert first["response"] == second["response"] and first["response"]["status"] == "in_progress", first
    assert first["response"]["output"] == [] and first["response"]["usage"] is None, first
    items, text, open_item = [], "", None
    for event in middle:
        kind = event["type"].removeprefix("response.")
        assert event["output_index"] == len(items) - (kind != "output_item.added"), event
        if kind == "output_item.added":
            assert open_item is None and event["item"]["status"] == "in_progress", event
            open_item, text = event["item"], ""
            items.append(None)
            continue
        if kind == "output_item.done":
            item = event["item"]
            assert item["id"] == open_item["id"] and item["type"] == open_item["type"], event
            assert text == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]), event
            items[-1], open_item = item, None
            continue
        assert event["item_id"] == open_item["id"], event
        if kind.endswith(".delta"):
            text += event["delta"]
        elif kind in ("content_part.added", "content_part.done"):
            assert event["content_index"] == 0 and event["part"]["text"] == text, event
        else:
            assert kind in ("output_text.done", "reasoning_text.done", "function_call_arguments.done"), event
            assert event.get("text", event.get("arguments")) == text, event
    assert open_item is None and last["type"] == f"response.{last['response']['status']}", last
    assert last["response"]["output"] == items, last
    return last["response"]


def without_ids(response):
    items = [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in response["output"]]
    cached = response["usage"].pop("input_tokens_details")["cached_tokens"]
    assert 0 <= cached < response["usage"]["input_tokens"], response
    return {name: value for name, value in response.items() if name not in ("id", "created_at")} | {"output": items}


class Responses(unittest.TestCase):
    def same(self, server, request):
        status, whole, headers = server.ask("/v1/responses", request)
        self.assertEqual(status, 200, whole)
        self.assertEqual((headers["X-Request-Id"], whole["object"], whole["store"]), (whole["id"], "response", False))
        self.assertEqual(without_ids(assemble(stream(server, request))), without_ids(json.loads(json.dumps(whole))))
        return whole

    def test_the_answer_is_that_of_a_chat(self):
        chat = {"messages": [{"role": "user", "content": "Hello"}]}
        with Server() as server:
            for n, more in ((20, {}), (20, {"temperature": 0.9, "top_p": 0.9, "seed": 3}), (200, {"top_k": 20})):
                expected = server.ask("/v1/chat/completions", chat | {"max_tokens": n} | more)[1]
                response = self.same(server, {"input": "Hello", "max_output_tokens": n} | more)
                item, = response["output"]
                choice = expected["choices"][0]
                is_cut = choice["finish_reason"] == "length"
                self.assertEqual([item["type"], item["role"], item["content"][0]["text"]],
                                 ["message", "assistant", choice["message"]["content"]])
                self.assertEqual((response["status"], response["incomplete_details"], item["status"]),
                                 ("incomplete", {"reason": "max_output_tokens"}, "incomplete") if is_cut
                                 else ("completed", None, "completed"))
                self.assertEqual(response["usage"]["output_tokens"], expected["usage"]["completion_tokens"])
                self.assertEqual(response["usage"]["total_tokens"], expected["usage"]["total_tokens"])
                self.assertEqual(response["usage"]["output_tokens_details"], {"reasoning_tokens": 0})
                self.assertEqual((response["max_output_tokens"], response["temperature"]), (n, more.get("temperature")))

    def test_required_calls(self):
        with copied_model(tokenizer_config={"chat_template": PLAIN}) as model, \
                Server("--temperature", "2", model=model) as server:
            calls = []
            for seed in range(8):
                request = ASK | {"tools": TOOLS, "max_output_tokens": 100, "seed": seed}
                named = self.same(server, request | {"tool_choice": {"type": "function", "name": "see"}})
                call, = named["output"]
                self.assertEqual((call["type"], call["name"], named["status"]), ("function_call", "see", "completed"))
                self.assertEqual(type(json.loads(call["arguments"])["blue"]), bool)
                self.assertEqual(named["tool_choice"], {"type": "function", "name": "see"})
                self.assertEqual(named["tools"], TOOLS)
                required = self.same(server, request | {"tool_choice": "required"})
                if required["status"] == "incomplete":  # "now" takes whatever is said, however long
                    continue
                call, = required["output"]
                self.assertEqual((call["type"], call["name"] in ("see", "now")), ("function_call", True))
                calls.append(call)
            self.assertGreater(len(calls), 1)
            call = calls[-1]
            # As it came, with its result, the call is part of the next request.
            status, answer, _ = server.ask("/v1/responses", ASK | {"tools": TOOLS, "input": [
                {"role": "user", "content": "Hello"}, call,
                {"type": "function_call_output", "call_id": call["call_id"], "output": "yes"}]})
            self.assertEqual(status, 200, answer)

    def test_thoughts(self):
        with copied_model(tokenizer_config={"chat_template": PLAIN + "<think>\n"}) as model, Server(model=model) as server:
            chat = server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20})
            response = self.same(server, ASK)
            item, = response["output"]
            self.assertEqual((item["type"], item["summary"]), ("reasoning", []))
            self.assertGreater(response["usage"]["output_tokens"], 0)
            self.assertEqual(response["usage"]["output_tokens_details"],
                             {"reasoning_tokens": response["usage"]["output_tokens"]})
            self.assertEqual(item["content"], [{"type": "reasoning_text",
                                                "text": chat[1]["choices"][0]["message"]["reasoning_content"]}])
            status, answer, _ = server.ask("/v1/responses", ASK | {"input": [{"role": "user", "content": "Hello"}, item]})
            self.assertEqual(status, 200, answer)

    def test_forms(self):
        with Server() as server:
            form = {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}}
            response = self.same(server, ASK | {"max_output_tokens": 60, "text": form | {"verbosity": "low"}})
            self.assertEqual(set(json.loads(response["output"][0]["content"][0]["text"])), {"blue"})
            response = self.same(server, ASK | {"max_output_tokens": 200, "text": {"format": {"type": "json_object"}}})
            self.assertTrue(response["output"][0]["content"][0]["text"].startswith("{"))
            self.same(server, ASK | {"text": {"format": {"type": "text"}}})


class Translation(unittest.TestCase):
    def test_prompts(self):
        """The same prompt as of a chat."""
        user = lambda content: {"role": "user", "content": content}
        hello = user("Hello")
        call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "see", "arguments": '{"n": 0.5}', "status": "completed"}
        output = {"type": "function_call_output", "call_id": "c1", "output": "it is"}
        think = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
        said = {"type": "message", "id": "m", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "Yes", "annotations": []}]}
        chat_call = lambda id: {"id": id, "type": "function", "function": {"name": "see", "arguments": '{"n": 0.5}'}}
        chat_said = {"role": "assistant", "content": None, "tool_calls": [chat_call("c1")]}
        result = lambda id: {"role": "tool", "tool_call_id": id, "name": "see", "content": "it is"}
        system = {"role": "system", "content": "Be kind."}
        cases = [
            ({"input": "Hello", "instructions": "Be kind."}, {"messages": [system, hello]}),
            ({"input": [hello]}, {"messages": [hello]}),
            ({"input": [user([])]}, {"messages": [user("")]}),
            ({"input": [hello, said | {"content": []}, hello]}, {"messages": [hello, {"role": "assistant", "content": ""}, hello]}),
            ({"input": [{"role": "developer", "content": "Be kind."}, user([{"type": "input_text", "text": "Hel"},
                                                                            {"type": "input_text", "text": "lo"}])]},
             {"messages": [system, hello]}),
            ({"input": [hello, said, user("So?")]}, {"messages": [hello, {"role": "assistant", "content": "Yes"}, user("So?")]}),
            ({"input": [hello, call, output], "tools": TOOLS}, {"messages": [hello, chat_said, result("c1")], "tools": CHAT_TOOLS}),
            ({"input": [hello, think, said, call, call | {"call_id": "c2"}, output | {"call_id": "c2", "output": [
                {"type": "input_text", "text": "it is"}]}, output, user("So?")]},
             {"messages": [hello, {"role": "assistant", "content": "Yes", "reasoning_content": "Hm.",
                                   "tool_calls": [chat_call("c1"), chat_call("c2")]}, result("c2"), result("c1"), user("So?")]}),
            ({"input": [hello, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}, call, output]},
             {"messages": [hello, chat_said | {"reasoning_content": "Hm."}, result("c1")]}),
            ({"input": "Hello", "reasoning": {"effort": "minimal", "summary": "auto"}},
             {"messages": [hello], "chat_template_kwargs": {"reasoning_effort": "low"}}),
            ({"input": "Hello", "reasoning": {"effort": "none"}},
             {"messages": [hello], "chat_template_kwargs": {"enable_thinking": False}}),
            ({"input": "Hello", "tools": TOOLS, "tool_choice": "none", "store": True, "include": ["reasoning.encrypted_content"],
              "previous_response_id": None, "background": False, "stream_options": {"include_obfuscation": False},
              "reasoning": None, "prompt_cache_key": "k"}, {"messages": [hello]}),
        ]
        with copied_model(tokenizer_config={"chat_template": PLAIN}) as model, Server(model=model) as server:
            for request, chat in cases:
                with self.subTest(request):
                    status, answer, _ = server.ask("/v1/responses", {"max_output_tokens": 12, "temperature": 0} | request)
                    self.assertEqual(status, 200, answer)
                    status, expected, _ = server.ask("/v1/chat/completions", {"max_tokens": 12, "temperature": 0} | chat)
                    self.assertEqual(status, 200, expected)
                    self.assertEqual(answer["usage"]["input_tokens"], expected["usage"]["prompt_tokens"])
                    self.assertEqual("".join(item["content"][0]["text"] for item in answer["output"]),
                                     expected["choices"][0]["message"]["content"])


class Refusals(unittest.TestCase):
    def test_refusals_have_a_reason(self):
        hello = {"role": "user", "content": "a"}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        items = lambda *more: {"input": [hello, *more]}
        cases = [
            ({"input": None}, "input", "a text or a list of items"), ({"input": []}, "input", "a text or a list of items"),
            ({"input": 3}, "input", "a text or a list of items"), (items("a"), "input", "item 2"),
            (items({}), "input", 'item 2 of "input": "role" can be'), (items({"role": "robot", "content": "a"}), "input", '"role" can be'),
            (items({"role": "user"}), "input", '"content" must be'), (items({"role": "user", "content": [3]}), "input", "not supported"),
            (items({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}), "input", '"input_image" is not supported'),
            (items({"role": "user", "content": [{"type": "input_file"}]}), "input", '"input_file" is not supported'),
            (items({"type": "item_reference", "id": "x"}), "input", '"item_reference" is not supported'),
            (items({"type": "web_search_call"}), "input", '"web_search_call" is not supported'),
            (items({"type": 3}), "input", 'type "?"'),
            (items({"type": "function_call", "call_id": "c", "name": "f"}), "input", '"arguments", all texts'),
            (items(call | {"arguments": "no"}), "input", "must be a JSON object in a text"),
            (items(call | {"arguments": {}}), "input", '"arguments", all texts'),
            (items(*[call] * 257), "", "at most 256 calls"),
            (items({"type": "function_call_output", "call_id": "c", "output": "a"}), "input", 'call_id "c"'),
            (items(call, {"type": "function_call_output", "call_id": "d", "output": "a"}), "input", 'call_id "d"'),
            (items(call, {"type": "function_call_output", "call_id": "c"}), "input", 'an "output"'),
            (items(call, {"type": "function_call_output", "call_id": "c", "output": 3}), "", "must be a text or a list"),
            (items(call, {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}), "input", '"input_image"'),
            (items({"type": "reasoning", "summary": [3]}), "input", 'must have a "text"'),
            ({"instructions": 3}, "instructions", "must be a text"),
            ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored here"),
            ({"conversation": "c"}, "conversation", "nothing is stored here"),
            ({"background": True}, "background", "not supported"), ({"prompt": {"id": "p"}}, "prompt", "not supported"),
            ({"include": "a"}, "include", "list of texts"), ({"include": ["message.output_text.logprobs"]}, "include", "logprobs"),
            ({"tools": 3}, "tools", "must be a list"), ({"tools": [3]}, "tools", 'type "?"'),
            ({"tools": [{"type": "web_search"}]}, "tools", '"web_search" are not supported'),
            ({"tools": [{"type": "custom", "name": "f"}]}, "tools", '"custom" are not supported'),
            ({"tools": [{"type": "function"}]}, "tools", 'a "name"'), ({"tools": CHAT_TOOLS}, "tools", 'a "name"'),
            ({"tool_choice": "any"}, "tool_choice", '"tool_choice" can be'),
            ({"tool_choice": "required"}, "tool_choice", 'there are no "tools"'),
            ({"tool_choice": {"type": "function", "name": "g"}, "tools": TOOLS}, "tool_choice", '"g" is none of'),
            ({"tool_choice": {"type": "web_search"}, "tools": TOOLS}, "tool_choice", '"tool_choice" can be'),
            ({"text": 3}, "text", "must be an object"), ({"text": {"format": {"type": "xml"}}}, "text.format", '"format" of "text"'),
            ({"text": {"format": {"type": "json_schema"}}}, "text.format", '"format" of "text"'),
            ({"text": {"format": {"type": "json_schema", "schema": {"properties": {"a": {"not": {}}}}}}}, "text.format", '"not" is not'),
            ({"text": {"format": {"type": "json_object"}}, "tools": TOOLS}, "text.format", 'with "tools" is not supported'),
            ({"reasoning": 3}, "reasoning", "must be an object"), ({"reasoning": {"effort": "huge"}}, "reasoning", '"effort" can be'),
            ({"max_output_tokens": "a"}, None, "max_tokens"), ({"max_output_tokens": -1}, None, "max_tokens"),
            ({"temperature": -1}, None, "temperature"), ({"stream": 1}, "stream", "true or false"),
            ({"nonsense": 1}, "nonsense", "not a member"), ({"messages": []}, "input", "not a member"),
            ({"n": 2}, "n", "not a member"), ({"top_logprobs": 2}, "top_logprobs", "not supported"),
            ({"input": "a " * (1 << 20)}, None, "far more than the context"),
            (b"{", None, "not a JSON object"), (b"[]", None, "not a JSON object"),
            (b'{"input": "a", "input": "b"}', "input", "given twice"),
        ]
        with Server() as server:
            for change, member, part in cases:
                with self.subTest(str(change)[:200]):
                    status, answer, _ = server.ask("/v1/responses", change if isinstance(change, bytes) else ASK | change)
                    self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"), answer)
                    self.assertIn(part, answer["error"]["message"])
                    self.assertEqual(answer["error"]["param"], member or None)
            self.assertEqual(server.ask("/v1/responses", ASK | {"model": "gpt-9"})[0], 404)
            self.assertEqual(server.ask("/v1/responses")[0], 405)
            self.assertEqual(server.ask("/v1/responses/resp_1")[0], 404)
            self.assertEqual(server.ask("/v1/responses", ASK)[0], 200)

    def test_an_error_in_a_stream(self):
        """Few tokens are allowed, each once: no further one is left."""
        with copied_model() as model:
            with open(f"{model}/config.json") as config:
                vocab = json.load(config)["vocab_size"]
            with open(f"{model}/generation_config.json", "w") as file:
                json.dump({"no_repeat_ngram_size": 1, "suppress_tokens": list(range(3, vocab - 5)) + [0, 1, 2]}, file)
            with Server(model=model) as server:
                events = stream(server, ASK)
        self.assertEqual([events[0]["type"], events[-1]["type"]], ["response.created", "response.failed"])
        response = events[-1]["response"]
        self.assertEqual((response["status"], response["error"]["code"]), ("failed", "server_error"))
        self.assertIn("leave no token", response["error"]["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
