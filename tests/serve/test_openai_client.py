"""qrun serve as OpenAI's own Python client sees it. Skipped (77) where the package `openai` is not installed.

    test_openai_client.py QRUN MODEL
"""
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request

try:
    import openai
except ImportError:
    print("SKIPPED: the Python package openai is not installed")
    sys.exit(77)

MESSAGES = [{"role": "user", "content": "Hello"}]


def check_chat(client):
    options = dict(model="model", messages=MESSAGES, max_tokens=8, n=2, seed=1, temperature=0.8)
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.usage.completion_tokens == 16 and whole.choices[0].finish_reason == "length"
    assert len(whole.choices[1].logprobs.content[0].top_logprobs) == 2
    texts, usage = ["", ""], None
    for event in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
        usage = event.usage or usage
    assert texts == [choice.message.content for choice in whole.choices], texts
    assert usage.total_tokens == whole.usage.total_tokens


def check_completions(client):
    answer = client.completions.create(model="model", prompt=["Once upon", "A"], max_tokens=5, logprobs=1,
                                       temperature=0)
    assert len(answer.choices) == 2
    logprobs = answer.choices[0].logprobs
    assert "".join(logprobs.tokens) == answer.choices[0].text
    assert logprobs.text_offset[0] == 0 and len(logprobs.token_logprobs) == 5


def check_prompts(client):
    scored = client.completions.create(model="model", prompt="Once upon a time", max_tokens=0, echo=True, logprobs=1)
    logprobs = scored.choices[0].logprobs
    assert scored.choices[0].text == "Once upon a time" and logprobs.token_logprobs[0] is None
    assert len(logprobs.tokens) == scored.usage.prompt_tokens
    biased = client.completions.create(model="model", prompt="A", max_tokens=3, temperature=0, logit_bias={"5": -100})
    assert biased.usage.completion_tokens == 3
    for options in ({}, {"encoding_format": "float"}):     # the client asks for base64 by itself
        vectors = client.embeddings.create(model="model", input=["a dog", "a cat"], **options)
        assert [item.index for item in vectors.data] == [0, 1]
        assert abs(sum(x * x for x in vectors.data[0].embedding) - 1) < 1e-5


def check_tools(client):
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
    chat = MESSAGES + [{"role": "assistant", "content": "a", "tool_calls": [
        {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}] + MESSAGES
    answer = client.chat.completions.create(model="model", messages=chat, tools=tools, max_tokens=4)
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].finish_reason == "length"


CALLING = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>{% endfor %}<|assistant|>"""


def check_required_call(client):
    """Of a model whose template shows how it calls tools."""
    schema = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"],
              "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}]
    ask = dict(model="model", messages=MESSAGES, tools=tools, max_tokens=100)
    answer = client.chat.completions.create(**ask, tool_choice="required")
    assert answer.choices[0].finish_reason == "tool_calls", answer
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "f" and set(json.loads(call.function.arguments)) == {"blue"}, answer
    named = {"type": "function", "function": {"name": "f"}}
    with client.chat.completions.stream(**ask, tool_choice=named) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert answer.choices[0].finish_reason == "stop", answer
    assert set(answer.choices[0].message.tool_calls[0].function.parsed_arguments) == {"blue"}, answer


def final_of(client, **ask):
    """The response of a stream, whose text deltas make its text."""
    with client.responses.stream(**ask) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        return text, stream.get_final_response()


def check_responses(client):
    ask = dict(model="model", input="Hello", instructions="Be kind.", max_output_tokens=60)
    whole = client.responses.create(**ask)
    text, final = final_of(client, **ask)
    assert whole.status == final.status == "completed", (whole, final)
    assert whole.output_text == text == final.output_text != "", (whole, text)
    assert final.usage.total_tokens == whole.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens
    cut = client.responses.create(**ask | {"max_output_tokens": 3})
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens"), cut
    kinds = [event.type for event in client.responses.create(**ask | {"max_output_tokens": 3}, stream=True)]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.incomplete"), kinds
    more = client.responses.create(**ask | {"input": [{"role": "user", "content": "Hello"}, *whole.output,
                                                      {"role": "user", "content": "And you?"}]})
    assert more.usage.input_tokens > whole.usage.total_tokens - 5, more
    schema = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"],
              "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": schema}}
    assert set(json.loads(client.responses.create(**ask, text=form).output_text)) == {"blue"}
    for wrong, member in ((dict(previous_response_id="resp_1"), "previous_response_id"),
                          (dict(tools=[{"type": "web_search"}]), "tools")):
        try:
            client.responses.create(**ask, **wrong)
        except openai.BadRequestError as error:
            assert error.body["param"] == member, error.body
        else:
            raise AssertionError(f"{wrong} was accepted")


def check_calls_of_responses(client):
    """As an agent runs it: calls and their results, with what came before as it came."""
    schema = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"],
              "additionalProperties": False}
    tools = [{"type": "function", "name": "f", "description": "d", "strict": True, "parameters": schema}]
    items = [{"role": "user", "content": "Hello"}]
    for choice in ("required", {"type": "function", "name": "f"}):
        ask = dict(model="model", input=items, tools=tools, tool_choice=choice, max_output_tokens=100)
        whole = client.responses.create(**ask)
        _, final = final_of(client, **ask)
        calls = [item for item in final.output if item.type == "function_call"]
        assert [item.arguments for item in whole.output if item.type == "function_call"] == \
            [call.arguments for call in calls], (whole, final)
        assert all(set(json.loads(call.arguments)) == {"blue"} for call in calls), calls
        assert len(calls) == 1, final
        items = items + final.output + [
            {"type": "function_call_output", "call_id": call.call_id, "output": "yes"} for call in calls]
    last = client.responses.create(**ask | {"input": items, "tool_choice": "none", "max_output_tokens": 9})
    assert [item.type for item in last.output] == ["message"], last


def check_form(client):
    schema = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    answer = client.chat.completions.create(model="model", messages=MESSAGES, response_format=form, max_tokens=60)
    assert set(json.loads(answer.choices[0].message.content)) == {"blue"}, answer


def check_errors(client):
    for wrong, kind, member in ((dict(model="nope", messages=MESSAGES), openai.NotFoundError, "model"),
                                (dict(model="model", messages=[]), openai.BadRequestError, "messages"),
                                (dict(model="model", messages=MESSAGES, response_format={"type": "json_object"},
                                      tools=[{"type": "function", "function": {"name": "f"}}]),
                                 openai.BadRequestError, "response_format"),
                                (dict(model="model", messages=MESSAGES, logit_bias={"1": 500}), openai.BadRequestError,
                                 "logit_bias")):
        try:
            client.chat.completions.create(**wrong)
        except kind as error:
            assert error.body["param"] == member, error.body
        else:
            raise AssertionError(f"{wrong} was accepted")


def check_details(client):
    assert client.models.retrieve("model").id == "model"
    try:
        client.models.retrieve("no/such model")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error.body
    else:
        raise AssertionError("there is such a model")
    long = [{"role": "user", "content": "Once upon a time there was a dog. " * 6}]
    for _ in range(2):
        answer = client.chat.completions.create(model="model", messages=long, max_tokens=2)
    assert answer.usage.prompt_tokens_details.cached_tokens > 0
    assert answer._request_id == answer.id
    with client.chat.completions.create(model="model", messages=long, max_tokens=200, stream=True) as stream:
        next(stream)    # and leaves


def check_error_in_a_stream(folder):
    """Few tokens are allowed, each once: the stream ends with an error."""
    with open(folder / "config.json") as config:
        vocab = json.load(config)["vocab_size"]
    rules = {"no_repeat_ngram_size": 1, "suppress_tokens": list(range(3, vocab - 5)) + [0, 1, 2]}
    (folder / "generation_config.json").write_text(json.dumps(rules))
    n_pieces = 0
    with serving(folder) as (address, client):
        try:
            for _ in client.completions.create(model=folder.name, prompt="Once", max_tokens=20, stream=True):
                n_pieces += 1
        except openai.APIError as error:
            assert "leave no token" in error.message, error
        else:
            raise AssertionError("the stream has no error")
    assert n_pieces > 0


def check_metrics(address):
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        print("prometheus_client is not installed: /metrics is not parsed")
        return
    text = urllib.request.urlopen(f"{address}/metrics").read().decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert "vllm:num_requests_running" in names and "vllm:generation_tokens" in names, names


@contextlib.contextmanager
def serving(model):
    server = subprocess.Popen([sys.argv[1], "serve", "--model", model, "--port", "0", "--quiet", "--seed", "0"],
                              stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        yield address, openai.OpenAI(base_url=f"{address}/v1/", api_key="none", max_retries=0)
    finally:
        server.terminate()
    assert server.wait(30) == 0


def main():
    with serving(sys.argv[2]) as (address, client):
        assert [model.id for model in client.models.list()] == ["model"]
        check_chat(client)
        check_completions(client)
        check_prompts(client)
        check_tools(client)
        check_form(client)
        check_responses(client)
        check_errors(client)
        check_details(client)
        check_metrics(address)
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(shutil.copytree(sys.argv[2], pathlib.Path(folder) / "model"))
        config = json.loads((copy / "tokenizer_config.json").read_text())
        (copy / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": CALLING}))
        with serving(copy) as (_, client):
            check_required_call(client)
            check_calls_of_responses(client)
        (copy / "tokenizer_config.json").write_text(json.dumps(config))
        check_error_in_a_stream(copy)


main()
