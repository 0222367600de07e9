"""qrun serve as HTTP and as the events of a stream: deadlines, methods, connections, errors in the middle of an answer.

    test_serve_protocol.py QRUN MODEL
"""
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from served import Server, copied_model, post

GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
ENDLESS = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}


def read_to_end(client):
    """All that comes until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            received += piece
    return received


def read_head(client):
    """The bytes of one head, and not one more."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        byte = client.recv(1)
        assert byte, received
        received += byte
    return received


def fields(head):
    lines = head.decode().split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}


def read_whole(client):
    """(status, fields, body) of an answer with a length."""
    head = read_head(client)
    length = int(fields(head)["content-length"])
    body = b""
    while len(body) < length:
        body += client.recv(length - len(body))
    return int(head.split()[1]), fields(head), body


class Deadlines(unittest.TestCase):
    def test_requests_that_take_too_long_to_arrive(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        starts = [b"PO", head, head + b"Content-Length: 100\r\n\r\n{",
                  head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"]
        with Server("--request-seconds", "1", "--idle-seconds", "600") as server:
            for start in starts:
                with server.socket() as client:
                    begin = time.monotonic()
                    client.sendall(start)
                    received = read_to_end(client)
                    self.assertEqual(received.split(b"\r\n")[0], b"HTTP/1.1 408 Request Timeout", start)
                    self.assertIn(b"Connection: close", received)
                    self.assertGreaterEqual(time.monotonic() - begin, 1)
            with server.socket() as client:     # a byte now and then does not help
                client.settimeout(0.05)
                received = b""
                for byte in (head + b"X: " + b"y" * 20000).decode():
                    with contextlib.suppress(OSError):
                        client.sendall(byte.encode())
                    with contextlib.suppress(TimeoutError):
                        received = client.recv(100)
                        break
                self.assertTrue(received.startswith(b"HTTP/1.1 408 "), received)
            with server.socket() as client:     # a request that has arrived may take longer
                client.sendall(post("/v1/completions", ENDLESS | {"n": 64}))
                self.assertEqual(read_whole(client)[0], 200)

    def test_idle_connections(self):
        with Server("--idle-seconds", "4", "--request-seconds", "600") as server:    # the first byte is not that late
            with server.socket() as fresh, server.socket() as used:
                used.sendall(GET_HEALTH)
                self.assertEqual(read_whole(used)[0], 200)
                self.assertEqual(read_to_end(fresh), b"")
                self.assertEqual(read_to_end(used), b"")

    def test_an_answer_that_nobody_reads(self):
        """It is larger than what sockets hold."""
        with Server("--idle-seconds", "4", "--request-seconds", "600", "--max-body", "64MiB") as server:
            word = server.ask("/tokenize", {"prompt": "Once upon a time", "add_special_tokens": False})[1]["tokens"]
            request = post("/detokenize", {"tokens": word * 1000000})
            with server.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.sendall(request)
                for _ in range(1200):
                    if server.metric("qrun:connections") == 1:
                        break
                    time.sleep(0.1)
                self.assertEqual(server.metric("qrun:connections"), 1)
        self.assertEqual(sum("left=true" in line for line in server.end_of_log), 1)


class Heads(unittest.TestCase):
    def test_what_is_refused_and_why(self):
        chunks = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        cases = [(b"GET /health HTTP/1.1\r\n\r\n", 400, "one Host header"),
                 (b"GET /health HTTP/1.1\nHost: x\n\n", 400, "CR LF"),
                 (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n", 400, "Content-Length"),
                 (chunks + b"zz\r\n", 400, "its size in hexadecimal"),
                 (chunks + b"1\r\nabc\r\n", 400, "longer than it says"),
                 (b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n", 505, "speaks HTTP/1.1")]
        with Server() as server:
            for head, expected, why in cases:
                with server.socket() as client:
                    client.sendall(head)
                    status, _, body = read_whole(client)
                    self.assertEqual(status, expected, head)
                    self.assertIn(why, json.loads(body)["error"]["message"])
            with server.socket() as client:     # the host of the path counts, and not the other
                target = f"http://127.0.0.1:{server.port}/health"
                client.sendall(f"GET {target} HTTP/1.1\r\nHost: x.example\r\n\r\n".encode())
                self.assertEqual(read_whole(client)[0], 200)


class Methods(unittest.TestCase):
    def test_head(self):
        """The head that GET has, and no body: what follows is the next answer."""
        with Server() as server, server.socket() as client:
            for path in (b"/health", b"/", b"/v1/models", b"/metrics"):
                client.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
                get = read_whole(client)
                client.sendall(b"HEAD " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
                head = read_head(client)
                self.assertEqual((int(head.split()[1]), fields(head)["content-type"]), (200, get[1]["content-type"]))
                if path != b"/metrics":
                    self.assertEqual(fields(head)["content-length"], str(len(get[2])))
            client.sendall(b"HEAD /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n" + GET_HEALTH)
            head = read_head(client)
            self.assertEqual((int(head.split()[1]), fields(head)["allow"]), (405, "POST"))
            self.assertEqual(read_whole(client)[0], 200)
        self.assertEqual(sum("method=HEAD" in line for line in server.end_of_log), 5)

    def test_methods_that_a_path_has(self):
        with Server() as server:
            for method, path, allowed in (("GET", "/v1/completions", "POST"), ("DELETE", "/v1/models", "GET, HEAD"),
                                          ("PUT", "/v1/adapters", "GET, HEAD, POST"),
                                          ("PATCH", "/v1/adapters/x", "DELETE")):
                status, answer, headers = server.ask(path, method=method)
                self.assertEqual((status, headers["Allow"]), (405, allowed), path)
                self.assertIn(allowed, answer["error"]["message"])
            status, text, headers = server.ask("/v1/adapters", method="OPTIONS")
            self.assertEqual((status, text, headers["Allow"]), (200, "", "GET, HEAD, POST"))
            self.assertEqual(server.ask("/nothing", method="OPTIONS")[0], 404)

    def test_a_browser_asks_before_it_asks(self):
        """OpenAI's client for browsers sends headers of its own."""
        asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang"}
        with Server("--allow-origin", "https://example.org") as server:
            status, _, headers = server.ask("/v1/chat/completions", headers=asked, method="OPTIONS")
            self.assertEqual((status, headers["Access-Control-Allow-Headers"]),
                             (200, asked["Access-Control-Request-Headers"]))
            asked["Access-Control-Request-Headers"] = "x" * 600
            headers = server.ask("/v1/chat/completions", headers=asked, method="OPTIONS")[2]
            self.assertEqual(headers["Access-Control-Allow-Headers"], "Authorization, Content-Type")

    def test_paths(self):
        with Server("--model-name", "org/ä model") as server:
            for path in ("/v1/models", "/v1/models/", "//v1//models", "/v1/models?a=b"):
                self.assertEqual(server.ask(path)[1]["data"][0]["id"], "org/ä model", path)
            self.assertEqual(server.ask("/v1//completions/", {"prompt": "a", "max_tokens": 1})[0], 200)
            status, model, _ = server.ask("/v1/models/org%2F%C3%A4%20model")
            self.assertEqual((status, model["id"], model["object"]), (200, "org/ä model", "model"))
            for name in ("nothing", "%", "%4", "%00", "%ff%fe", "x" * 1000):
                status, answer, _ = server.ask("/v1/models/" + name)
                self.assertEqual((status, answer["error"]["code"]), (404, "model_not_found"), name)
            status, answer, _ = server.ask("/v1/nothing")
            self.assertEqual((status, answer["error"]["code"]), (404, None))

    def test_headers_in_any_case(self):
        with tempfile.NamedTemporaryFile("w") as key:
            key.write("secret\n")
            key.flush()
            with Server("--api-key-file", key.name) as server:
                for name, value in (("authorization", "bearer secret"), ("AUTHORIZATION", "BEARER secret")):
                    self.assertEqual(server.ask("/v1/models", headers={name: value})[0], 200)
                self.assertEqual(server.ask("/v1/models", headers={"authorization": "bearer Secret"})[0], 401)


class Connections(unittest.TestCase):
    def test_http_1_0(self):
        body = json.dumps({"prompt": "Once", "max_tokens": 3, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n" % len(body)
        with Server() as server:
            for more in (b"", b"Connection: keep-alive\r\n"):   # a stream ends with its connection
                with server.socket() as client:
                    client.sendall(head + more + b"\r\n" + body)
                    received = read_to_end(client)
                    self.assertNotIn(b"Transfer-Encoding", received)
                    self.assertIn(b"Connection: close", received)
                    self.assertTrue(received.endswith(b"data: [DONE]\n\n"), received)
            with server.socket() as client:
                client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                self.assertTrue(read_to_end(client).endswith(b'{"status":"ok"}'))
            with server.socket() as client:
                for _ in range(3):
                    client.sendall(b"GET /health HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
                    status, sent, _ = read_whole(client)
                    self.assertEqual((status, sent["connection"]), (200, "keep-alive"))

    def test_a_connection_is_kept(self):
        """Also after answers that are errors, whole or streamed."""
        with Server() as server:
            connection = server.connect()
            sock = connection.sock
            for path, body, status in (("/v1/completions", {"prompt": "a", "max_tokens": 1}, 200),
                                       ("/v1/completions", {"prompt": 5}, 400), ("/v1/nothing", {}, 404),
                                       ("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}, 200),
                                       ("/tokenize", {"prompt": "a"}, 200)):
                connection.request("POST", path, json.dumps(body))
                answer = connection.getresponse()
                answer.read()
                self.assertEqual(answer.status, status, path)
                self.assertIs(connection.sock, sock)
            connection.close()

    def test_expectations(self):
        body = json.dumps({"prompt": "Once", "max_tokens": 1}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nContent-Length: %d\r\n\r\n"
        with Server("--max-body", "1MiB") as server:
            with server.socket() as client:
                client.sendall(head % len(body))
                self.assertEqual(read_head(client), b"HTTP/1.1 100 Continue\r\n\r\n")
                client.sendall(body)
                self.assertEqual(read_whole(client)[0], 200)
            with server.socket() as client:     # nobody waits for a body that would be refused
                client.sendall(head % (1 << 30))
                self.assertEqual(read_whole(client)[0], 413)

    def test_curl(self):
        if shutil.which("curl") is None:
            self.skipTest("there is no curl")
        with Server() as server, tempfile.NamedTemporaryFile("w") as large:
            def curl(path, *options):
                done = subprocess.run(["curl", "-sS", "--max-time", "60", *options,
                                       f"http://127.0.0.1:{server.port}{path}"], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                return done.stdout
            self.assertTrue(curl("/health", "--head").startswith("HTTP/1.1 200 OK\n"))
            self.assertTrue(curl("/health", "--http1.0").startswith('{"status"'))
            json.dump({"prompt": "Once", "max_tokens": 1, "user": "x" * (3 << 20)}, large)   # curl expects 100 here
            large.flush()
            self.assertEqual(json.loads(curl("/v1/completions", "-d", "@" + large.name))["object"], "text_completion")
            streamed = curl("/v1/completions", "-N", "-d", json.dumps(ENDLESS | {"stream": True, "max_tokens": 3}))
            self.assertTrue(streamed.endswith("data: [DONE]\n\n"), streamed)


class Streams(unittest.TestCase):
    def test_usage(self):
        request = {"messages": [{"role": "user", "content": "Once upon a time there was a dog. " * 6}],
                   "max_tokens": 4, "temperature": 0}
        with Server() as server:
            first = server.ask("/v1/chat/completions", request)[1]["usage"]
            second = server.ask("/v1/chat/completions", request)[1]["usage"]
            self.assertEqual(first["prompt_tokens_details"]["cached_tokens"], 0)
            cached = second["prompt_tokens_details"]["cached_tokens"]
            self.assertTrue(0 < cached < second["prompt_tokens"], second)
            self.assertEqual(second["total_tokens"], second["prompt_tokens"] + second["completion_tokens"])
            pieces = server.stream("/v1/chat/completions", request | {"stream_options": {"include_usage": True}})
            self.assertEqual((pieces[-1]["choices"], pieces[-1]["usage"]), ([], second))
            for piece in pieces[:-1]:
                self.assertIsNone(piece["usage"])
                self.assertEqual(len(piece["choices"]), 1)
            for options in ({}, {"stream_options": {"include_usage": False, "include_obfuscation": False}}):
                for piece in server.stream("/v1/chat/completions", request | options):
                    self.assertNotIn("usage", piece)
            for options in ({"stream_options": {"include_usage": True}},
                            {"stream": True, "stream_options": {"nonsense": True}},
                            {"stream": True, "stream_options": 3}):
                status, answer, _ = server.ask("/v1/chat/completions", request | options)
                self.assertEqual((status, answer["error"]["param"]), (400, "stream_options"))

    def test_pieces(self):
        request = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "temperature": 0,
                   "ignore_eos": True}
        with Server() as server:
            connection = server.connect()
            connection.request("POST", "/v1/chat/completions", json.dumps(request | {"stream": True}))
            answer = connection.getresponse()
            self.assertEqual(answer.headers["Content-Type"], "text/event-stream")
            self.assertEqual(answer.headers["X-Accel-Buffering"], "no")
            identity = answer.headers["X-Request-Id"]
            answer.read()
            connection.close()
            pieces = server.stream("/v1/chat/completions", request)
            self.assertEqual({piece["object"] for piece in pieces}, {"chat.completion.chunk"})
            self.assertEqual(len({(piece["id"], piece["created"], piece["model"]) for piece in pieces}), 1)
            self.assertNotEqual(pieces[0]["id"], identity)
            self.assertTrue(identity.startswith("chatcmpl-"))
            reasons = [piece["choices"][0]["finish_reason"] for piece in pieces]
            self.assertEqual((set(reasons[:-1]), reasons[-1]), ({None}, "length"))
            roles = [piece["choices"][0]["delta"].get("role") for piece in pieces]
            self.assertEqual((roles[0], set(roles[1:])), ("assistant", {None}))
            text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
            stop = text.strip().split()[1]
            stopped = server.stream("/v1/chat/completions", request | {"stop": stop})
            self.assertEqual(stopped[-1]["choices"][0]["finish_reason"], "stop")
            whole = server.ask("/v1/chat/completions", request | {"stop": stop})[1]
            self.assertEqual(whole["choices"][0]["finish_reason"], "stop")
            self.assertRegex(whole["id"], "^chatcmpl-")

    def test_where_an_answer_may_end(self):
        """min_tokens and stop_token_ids, as vLLM has them."""
        with Server() as server:
            for path, prompt in (("/v1/completions", {"prompt": "Once upon a time"}),
                                 ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})):
                request = prompt | {"max_tokens": 24, "temperature": 0, "min_tokens": 24}
                choice = lambda answer: answer["choices"][0]
                text = lambda answer: choice(answer).get("text") or choice(answer)["message"]["content"]
                status, whole, _ = server.ask(path, request)
                self.assertEqual((status, whole["usage"]["completion_tokens"]), (200, 24), whole)
                tokens = server.ask("/tokenize", {"prompt": text(whole), "add_special_tokens": False})[1]["tokens"]
                stop = {"stop_token_ids": [tokens[6]], "min_tokens": None}
                status, stopped, _ = server.ask(path, request | stop)
                self.assertEqual((status, choice(stopped)["finish_reason"]), (200, "stop"), stopped)
                self.assertLess(stopped["usage"]["completion_tokens"], 8)
                self.assertTrue(text(whole).startswith(text(stopped)))
                longer = server.ask(path, request | stop | {"min_tokens": 12})[1]
                self.assertGreaterEqual(longer["usage"]["completion_tokens"], 12)
                pieces = server.stream(path, request | stop)
                self.assertEqual(pieces[-1]["choices"][0]["finish_reason"], "stop")
                for options, message in (({"min_tokens": -1}, "min_tokens must be from 0"),
                                         ({"min_tokens": 25}, "`min_tokens=25` is more than `max_tokens=24`"),
                                         ({"min_tokens": "two"}, '"min_tokens"'),
                                         ({"stop_token_ids": "two"}, '"stop_token_ids" must be an array of token ids'),
                                         ({"stop_token_ids": [10**6]}, "token 1000000 is outside the vocabulary of ")):
                    status, answer, _ = server.ask(path, request | options)
                    self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"), answer)
                    self.assertIn(message, answer["error"]["message"])

    def test_an_error_in_the_middle(self):
        """Five tokens are allowed, each once: the sixth cannot be chosen."""
        with Server() as server:
            allowed = server.ask("/tokenize", {"prompt": "dog cat boat king garden", "add_special_tokens": False})[1]
        with copied_model() as model:
            with open(f"{model}/config.json") as config:
                vocab = json.load(config)["vocab_size"]
            rules = {"no_repeat_ngram_size": 1,
                     "suppress_tokens": sorted(set(range(vocab)) - set(allowed["tokens"][:5]))}
            with open(f"{model}/generation_config.json", "w") as file:
                json.dump(rules, file)
            with Server(model=model) as server:
                request = {"prompt": "Once", "max_tokens": 20, "temperature": 0}
                status, whole, _ = server.ask("/v1/completions", request)
                self.assertEqual((status, whole["error"]["type"]), (500, "server_error"))
                self.assertIn("leave no token", whole["error"]["message"])
                connection = server.connect()
                connection.request("POST", "/v1/completions", json.dumps(request | {"stream": True}))
                answer = connection.getresponse()
                streamed = answer.read().decode()
                self.assertEqual(answer.status, 200)
                pieces = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
                self.assertGreater(len(pieces), 1)
                self.assertEqual(pieces[-1], whole)
                self.assertTrue(all("choices" in piece for piece in pieces[:-1]))
                self.assertNotIn("[DONE]", streamed)
                connection.request("GET", "/health")    # the connection is as good as before
                self.assertEqual(connection.getresponse().status, 200)
                connection.close()
        self.assertEqual(sum("failed=true" in line for line in server.end_of_log), 1)

    def test_what_the_server_ends_is_an_error(self):
        """An answer that is cut short must not pass for a whole one."""
        endless = ENDLESS | {"n": 64}
        with Server("--drain-seconds", "0", "--max-sequences", "1") as server:
            with server.socket() as streamed, server.socket() as whole:
                streamed.sendall(post("/v1/completions", endless | {"stream": True}))
                streamed.recv(1)
                whole.sendall(post("/v1/completions", endless))
                while server.metric("qrun:requests_open") < 2:
                    time.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
                status, _, body = read_whole(whole)
                self.assertEqual((status, json.loads(body)["error"]["message"]), (503, "the server is shutting down"))
                received = read_to_end(streamed)
                self.assertIn(b'"message":"the server is shutting down"', received)
                self.assertNotIn(b"cancelled", received)
            self.assertEqual(server.process.wait(60), 0)


if __name__ == "__main__":
    unittest.main()
