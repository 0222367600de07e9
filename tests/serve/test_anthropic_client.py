"""qrun serve as Anthropic's own Python client sees it. Skipped (77) where the package `anthropic` is not installed.

    test_anthropic_client.py QRUN MODEL
"""
import sys

try:
    import anthropic
except ImportError:
    print("SKIPPED: the Python package anthropic is not installed")
    sys.exit(77)

import json
import tempfile

from served import Server, copied_model
from test_messages import PLAIN, SCHEMA, TOOLS

ASK = dict(model="model", max_tokens=10, messages=[{"role": "user", "content": "Hello"}])


def client_of(server, **options):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", max_retries=0, **{"api_key": "none"} | options)


def check_messages(client):
    whole = client.messages.create(**ASK, system=[{"type": "text", "text": "Be kind."}])
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 10, whole
    assert whole._request_id == whole.id
    with client.messages.stream(**ASK, system="Be kind.") as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text and final.stop_reason == "max_tokens", final
    assert final.usage.output_tokens == 10 and final.usage.input_tokens > 0, final.usage
    kinds = [event.type for event in client.messages.create(**ASK, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-1] == "message_stop", kinds
    count = client.messages.count_tokens(model="model", messages=ASK["messages"])
    assert count.input_tokens > 0, count
    model, = client.models.list()
    assert (model.id, model.type, model.display_name) == ("model", "model", "model") and model == client.models.retrieve("model"), model


def check_a_loop_of_tools(client):
    """As an agent runs it: a call, its result, and an answer, with what came before as it came."""
    messages = list(ASK["messages"])
    for choice in ({"type": "any"}, {"type": "tool", "name": "see"}, {"type": "none"}):
        ask = dict(ASK, max_tokens=80, messages=messages, tools=TOOLS, tool_choice=choice)
        whole = client.messages.create(**ask)
        with client.messages.stream(**ask) as stream:
            final = stream.get_final_message()
        for a, b in zip(whole.content, final.content, strict=True):
            assert a.model_dump(exclude={"id", "citations"}) | {"parsed_output": 0} == \
                b.model_dump(exclude={"id", "citations"}) | {"parsed_output": 0}, (a, b)
        messages.append({"role": "assistant", "content": final.content})
        calls = [block for block in final.content if block.type == "tool_use"]
        assert (final.stop_reason == "tool_use") == bool(calls) == (choice["type"] != "none"), final
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": "yes"} for call in calls] or "Well?"})


def check_a_form(client):
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = client.messages.create(**ASK | {"max_tokens": 60}, output_config=form)
    assert set(json.loads(answer.content[0].text)) == {"blue"}, answer


def refused(kind, part, make):
    try:
        make()
    except kind as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"{kind} was expected")


def check_errors(client):
    refused(anthropic.NotFoundError, "nope", lambda: client.messages.create(**ASK | {"model": "nope"}))
    refused(anthropic.BadRequestError, "temperature", lambda: client.messages.create(**ASK, extra_body={"temperature": -1}))
    refused(anthropic.BadRequestError, '"image" is not supported', lambda: client.messages.create(**ASK | {"messages": [
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]}))


def check_error_in_a_stream():
    with copied_model() as model:
        with open(f"{model}/config.json") as config:
            vocab = json.load(config)["vocab_size"]
        with open(f"{model}/generation_config.json", "w") as file:
            json.dump({"no_repeat_ngram_size": 1, "suppress_tokens": list(range(3, vocab - 5)) + [0, 1, 2]}, file)
        with Server(model=model, seed=1) as server:
            stream = client_of(server).messages.create(**ASK | {"model": server.ask("/v1/models")[1]["data"][0]["id"]}, stream=True)
            refused(anthropic.APIStatusError, "leave no token", lambda: list(stream))


def check_keys():
    with tempfile.NamedTemporaryFile("w") as key:
        key.write("secret\n")
        key.flush()
        with Server("--api-key-file", key.name) as server:
            client_of(server, api_key="secret").messages.create(**ASK)
            client_of(server, api_key=None, auth_token="secret").messages.create(**ASK)
            refused(anthropic.AuthenticationError, "key", lambda: client_of(server, api_key="no").messages.create(**ASK))


def main():
    with Server(seed=1) as server:
        client = client_of(server)
        check_messages(client)
        check_a_form(client)
        check_errors(client)
    with copied_model(tokenizer_config={"chat_template": PLAIN}) as model, \
            Server("--model-name", "model", "--temperature", "1", model=model, seed=1) as server:
        check_a_loop_of_tools(client_of(server))
    check_error_in_a_stream()
    check_keys()


main()
