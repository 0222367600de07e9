"""qrun serve among many clients, some of which leave, and some of which mean no good: answers stay those of qrun generate,
compute ends with its client, nobody else waits, and memory and pages are as before.

    test_serve_clients.py QRUN MODEL

`Load.test_memory_after_many_requests` makes 600 requests; QRUN_MANY_REQUESTS=10000 is the long form, by hand.
"""
import contextlib
import json
import os
import random
import select
import signal
import socket
import threading
import time
import unittest

from served import (PROMPTS, Server, certificate, copied_model, events, generate, many_descriptors, post, random_request, reset,
                    sanitized)

N_CLIENTS = 200
ENDLESS = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}


def in_threads(n, function):
    """Runs function(i) for every i in a thread of its own; the failures."""
    failures = []

    def run(i):
        try:
            function(i)
        except Exception as problem:    # a thread's exception would be lost
            failures.append(f"{i}: {problem!r}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


class Load(unittest.TestCase):
    def test_same_bits_as_generate_at_any_load(self):
        requests = [random_request(i) for i in range(N_CLIENTS)]
        expected = generate(requests)
        received = {}

        def client(i):
            choose = random.Random(1000 + i)
            time.sleep(choose.random() * 0.3)
            if i % 5 == 3:      # leaves in the middle of a stream
                with server.socket() as s:
                    s.sendall(post("/v1/completions", requests[i] | {"stream": True, "max_tokens": 200}))
                    s.recv(choose.randint(1, 400))
                    if i % 2:
                        reset(s)
            elif i % 5 == 4:    # leaves before there is anything
                with server.socket() as s:
                    s.sendall(post("/v1/completions", requests[i] | {"max_tokens": 200, "n": 8}))
                    time.sleep(choose.random() * 0.05)
            elif i % 5 == 2:    # reads pieces
                parts = {}
                for piece in server.stream("/v1/completions", requests[i]):
                    for choice in piece["choices"]:
                        text, logprobs, _ = parts.get(choice["index"], ("", [], None))
                        logprobs += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
                        parts[choice["index"]] = (text + choice["text"], logprobs, choice["finish_reason"])
                for index, (text, logprobs, reason) in parts.items():
                    received[i, index] = (text, reason, logprobs)
            else:
                status, answer, _ = server.ask("/v1/completions", requests[i])
                assert status == 200, answer
                for choice in answer["choices"]:
                    received[i, choice["index"]] = (choice["text"], choice["finish_reason"],
                                                    choice["logprobs"]["token_logprobs"])

        # A small pool: sequences wait, share and are preempted.
        with Server("--max-sequences", "9", "--context", "256") as server:
            self.assertEqual(in_threads(N_CLIENTS, client), [])
            self.assertTrue(server.wait_until_idle())
        self.assertEqual(server.code, 0)
        self.assertGreaterEqual(len(received), N_CLIENTS // 5 * 3)
        for key, (text, reason, logprobs) in received.items():
            self.assertEqual((text, reason), expected[key][:2], key)
            # generate prints as many digits as tell a float from its neighbours
            self.assertEqual([f"{value:.9g}" for value in logprobs], [f"{value:.9g}" for value in expected[key][2]], key)

    def test_requests_of_all_kinds_at_once(self):
        """Of few slots: prompts alone end with a step, samples begin with one, and the first forms come while it runs."""
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
        hello = {"messages": [{"role": "user", "content": "Hello"}]}
        kinds = [("/v1/embeddings", {"input": ["a", "The dog"] * 4}), ("/v1/completions", {"prompt": PROMPTS, "max_tokens": 0}),
                 ("/v1/chat/completions", hello | {"n": 4, "max_tokens": 9}), ("/v1/messages", hello | {"max_tokens": 9}),
                 ("/v1/responses", {"input": "Hello", "max_output_tokens": 9}), ("/v1/messages/count_tokens", hello),
                 ("/v1/completions", {"prompt": PROMPTS, "max_tokens": 3, "n": 2}), ("/v1/chat/completions", hello | {
                     "max_tokens": 30, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}})]

        def ask(number):
            choose = random.Random(number)
            path, body = choose.choice(kinds)
            can_stream = path not in ("/v1/embeddings", "/v1/messages/count_tokens") and choose.random() < 0.5
            status, answer, _ = server.ask(path, body | ({"stream": True} if can_stream else {}))
            assert status == 200, answer

        with Server("--max-sequences", "5", "--temperature", "1") as server:
            self.assertEqual(in_threads(16, lambda i: [ask(16 * k + i) for k in range(12)]), [])
            self.assertTrue(server.wait_until_idle())
        self.assertEqual(server.code, 0)

    def test_memory_after_many_requests(self):
        n = int(os.environ.get("QRUN_MANY_REQUESTS", "600"))

        def resident():
            with open(f"/proc/{server.process.pid}/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

        def client(worker):
            choose = random.Random(worker)
            for i in range(n // 2 // 8):
                request = random_request(worker * 1000 + i) | {"stream": choose.random() < 0.5, "max_tokens": 30}
                with server.socket() as s:
                    s.sendall(post("/v1/completions", request))
                    if choose.random() < 0.6:
                        s.settimeout(60)
                        s.recv(choose.randint(1, 2000))
                    if choose.random() < 0.3:
                        reset(s)

        with Server("--max-sequences", "16") as server:
            self.assertEqual(in_threads(8, client), [])
            self.assertTrue(server.wait_until_idle())
            before = resident()
            self.assertEqual(in_threads(8, client), [])
            self.assertTrue(server.wait_until_idle())
            if not sanitized():     # which keeps what was freed
                self.assertLess(resident() - before, 8 << 10, f"KiB more after {n // 2} requests more")
            self.assertEqual(server.metric("qrun:kv_pages_used"), 0)
            self.assertLessEqual(server.metric("qrun:connections"), 2)


class Leaving(unittest.TestCase):
    def test_who_leaves_costs_nothing_more(self):
        with Server() as server:
            for stream in (False, True):
                with contextlib.ExitStack() as stack:
                    for _ in range(10):
                        client = stack.enter_context(server.socket())
                        client.sendall(post("/v1/completions", ENDLESS | {"stream": stream, "n": 4}))
                        if stream:
                            client.recv(1)
                self.assertTrue(server.wait_until_idle())
            computed = server.metric("qrun:steps_total")
            time.sleep(0.3)
            self.assertEqual(server.metric("qrun:steps_total"), computed)

    def test_compute_ends_within_a_step(self):
        """With slow steps: the client leaves when it has the tokens of three, so the fourth is the last."""
        slow = os.environ | {"QRUN_FORCE_ISA": "c"}
        request = ENDLESS | {"stream": True, "n": 64, "logprobs": 0}
        counts = []
        for _ in range(8):      # a machine may be too busy to tell the server in time
            with Server(environment=slow) as server:
                connection = server.connect()
                connection.request("POST", "/v1/completions", json.dumps(request))
                n_first = 0
                for piece in events(connection.getresponse()):
                    n_first += piece["choices"][0]["index"] == 0
                    if n_first == 3:
                        break
                connection.sock.close()
                connection.close()
                self.assertTrue(server.wait_until_idle())
                counts.append(int(server.metric("qrun:steps_total")))
            if counts[-1] <= 4:
                break
        self.assertLessEqual(min(counts), 4, counts)
        self.assertGreaterEqual(min(counts), 3, counts)


# A template that takes long: millions of steps, and few of memory.
SLOW = ("{% if slow %}{% for i in range(3000) %}{% for j in range(400) %}{% if i == j %}{% endif %}{% endfor %}"
        "{% endfor %}{% endif %}{% if fails %}{{ raise_exception('the end') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}")
BODY_BYTES = 1 << 20


def slow_request(**members):
    """A chat that takes long to read, as large as a body may be."""
    arguments = {"slow": True} | members.pop("arguments", {})
    request = {"messages": [{"role": "user", "content": "Hello"}], "chat_template_kwargs": arguments} | members
    return post("/v1/chat/completions", json.dumps(request).encode().ljust(BODY_BYTES))


class TooLate(Exception):
    """The slow request was read before the test could look."""


def check_unread(client):
    if select.select([client], [], [], 0)[0]:
        raise TooLate


def while_it_is_read(test):
    """Tries again where the machine was too busy to look in time; a server that waits is never seen in time."""
    def attempts(self):
        for _ in range(7):
            with contextlib.suppress(TooLate):
                test(self)
                return
        self.fail("nothing else was done while a request was read")
    return attempts


class Reading(unittest.TestCase):
    """Requests are read beside the loop: one that takes long holds up nobody's tokens."""

    @contextlib.contextmanager
    def server(self, *options):
        with copied_model(tokenizer_config={"chat_template": SLOW}) as model:
            with Server("--max-body", str(BODY_BYTES), *options, model=model) as server:
                yield server
            self.assertEqual(server.code, 0)

    def wait_for(self, server, n_open, slow):
        """Until so many requests are open, while the slow one is read."""
        while server.metric("qrun:requests_open") != n_open:
            check_unread(slow)
            time.sleep(0.01)

    @while_it_is_read
    def test_tokens_go_on(self):
        with self.server("--max-sequences", "2") as server, server.socket() as stream, server.socket() as slow:
            stream.sendall(post("/v1/completions", ENDLESS | {"stream": True, "n": 64}))
            stream.recv(1)
            slow.sendall(slow_request(arguments={"fails": True}))
            self.wait_for(server, 2, slow)
            begin = server.metric("qrun:steps_total")
            while server.metric("qrun:steps_total") < begin + 3:
                check_unread(slow)
            self.assertEqual(server.ask("/health")[0], 200)
            check_unread(slow)
            self.assertIn(b" 400 ", slow.recv(100))

    @while_it_is_read
    def test_small_requests_do_not_wait_for_large_ones(self):
        with self.server() as server, server.socket() as slow:
            slow.sendall(slow_request(max_tokens=2))
            self.wait_for(server, 1, slow)
            self.assertEqual(server.ask("/v1/completions", {"prompt": "Once", "max_tokens": 2})[0], 200)
            self.assertEqual(server.ask("/tokenize", {"prompt": "Once"})[0], 200)
            check_unread(slow)
            self.assertIn(b" 200 ", slow.recv(100))

    @while_it_is_read
    def test_who_leaves_meanwhile(self):
        n_tokens = 64 * 200
        with self.server() as server:
            with server.socket() as first:
                first.sendall(slow_request(n=64, max_tokens=200, ignore_eos=True))
                self.wait_for(server, 1, first)
                with server.socket() as second:     # waits for the first one
                    second.sendall(slow_request(max_tokens=2))
                    self.wait_for(server, 2, first)
                self.wait_for(server, 1, first)
                check_unread(first)
            self.assertTrue(server.wait_until_idle())
            self.assertLess(server.metric("vllm:generation_tokens_total"), n_tokens)
            self.assertEqual(server.ask("/v1/completions", {"prompt": "Once", "max_tokens": 2})[0], 200)

    def check_end(self, drain, status):
        with self.server("--drain-seconds", drain) as server:
            with server.socket() as slow:
                slow.sendall(slow_request(max_tokens=2))
                self.wait_for(server, 1, slow)
                server.process.send_signal(signal.SIGTERM)
                answer = slow.recv(100)
            self.assertEqual(server.process.wait(60), 0)
        if drain == "0" and b" 200 " in answer:
            raise TooLate
        self.assertIn(status, answer)

    @while_it_is_read
    def test_the_end_meanwhile(self):
        self.check_end("0", b" 503 ")
        self.check_end("60", b" 200 ")

    @while_it_is_read
    def test_limits_hold(self):
        with self.server("--max-waiting", "2") as server, contextlib.ExitStack() as stack:
            clients = [stack.enter_context(server.socket()) for _ in range(2)]
            for i, client in enumerate(clients):
                client.sendall(slow_request(max_tokens=2))
                self.wait_for(server, i + 1, clients[0])
            self.assertEqual(server.ask("/v1/completions", b" " * (BODY_BYTES + 1))[0], 413)
            status = server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[0]
            check_unread(clients[0])
            self.assertEqual(status, 429)


class Attacks(unittest.TestCase):
    def check_answers(self, server):
        """Others are answered, and soon."""
        begin = time.monotonic()
        status, answer, _ = server.ask("/v1/completions", {"prompt": "Once", "max_tokens": 3, "temperature": 0})
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 3))
        self.assertLess(time.monotonic() - begin, 10)

    def test_answers_to_closed_sockets(self):
        """Requests whose answers find nobody: writing to them must not end the server."""
        with Server() as server:
            for _ in range(30):
                with server.socket() as client:
                    client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
                    reset(client)
            self.check_answers(server)

    def check_bytes_while_an_answer_is_sent(self, server):
        stream = post("/v1/completions", ENDLESS | {"max_tokens": 60, "stream": True})
        with server.socket() as client:
            client.sendall(stream)
            client.recv(1)
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3 + b"x" * 5000)
            received = b""
            while received.count(b'{"status":"ok"}') < 3:     # the pipelined requests are answered in order
                piece = client.recv(65536)
                self.assertTrue(piece, received[-200:])
                received += piece
            self.assertLess(received.index(b"[DONE]"), received.index(b'{"status":"ok"}'))
        with server.socket() as client:
            client.sendall(stream)
            if server.tls is None:
                client.shutdown(socket.SHUT_WR)
                with contextlib.suppress(OSError):
                    client.recv(1)
        with server.socket() as client:
            client.sendall(stream)
            client.recv(1)
            reset(client)
        self.assertTrue(server.wait_until_idle())
        self.check_answers(server)

    def test_bytes_while_an_answer_is_sent(self):
        """A second request behind a stream, halves of connections, and resets: nobody else notices."""
        with Server() as server:
            self.check_bytes_while_an_answer_is_sent(server)

    def test_a_burst(self):
        """Requests that are with the engine are counted once; those that are handed over at the moment, perhaps twice:
        one for each of the two threads that do it."""
        with Server("--max-sequences", "2", "--max-waiting", "60") as server:
            clients = [server.socket() for _ in range(58)]
            for number, client in enumerate(clients):
                client.sendall(post("/v1/completions", {"prompt": f"a {number}", "max_tokens": 8, "ignore_eos": True}))
            self.assertEqual({client.recv(65536)[:12] for client in clients}, {b"HTTP/1.1 200"})
            for client in clients:
                client.close()

    def test_many_answers(self):
        """All answers of a request count, and those that run at once need not wait."""
        with Server("--max-sequences", "2", "--max-waiting", "6") as server, server.socket() as busy:
            ask = {"prompt": ["a", "b"], "max_tokens": 2}
            self.assertEqual(server.ask("/v1/completions", ask | {"n": 4})[0], 200)
            status, answer, _ = server.ask("/v1/completions", ask | {"n": 5})
            self.assertEqual(status, 400)
            self.assertIn("asks for 10 answers; 8 may run and wait at once (--max-waiting)", answer["error"]["message"])
            busy.sendall(post("/v1/completions", ENDLESS | {"max_tokens": 400, "n": 6}))
            while server.metric("vllm:num_requests_running") < 2:
                time.sleep(0.01)
            self.assertEqual(server.ask("/v1/completions", ask | {"n": 4})[0], 429)

    def test_resets(self):
        """A client that goes away with a reset has left, whether it was answered, waited for a whole answer or for its
        turn, or had sent a next request."""
        with Server("--max-sequences", "1") as server:
            for more in (b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"):
                with server.socket() as runs, server.socket() as waits:
                    for client in (runs, waits):
                        client.sendall(post("/v1/completions", ENDLESS | {"max_tokens": 240, "n": 40}) + more)
                    while server.metric("vllm:num_requests_waiting") < 60:
                        time.sleep(0.01)
                    before = server.metric("vllm:generation_tokens_total")
                    for client in (waits, runs):
                        reset(client)
                self.assertTrue(server.wait_until_idle())
                self.assertLess(server.metric("vllm:generation_tokens_total") - before, 240 * 10)

    def test_the_same_over_tls(self):
        with certificate() as made:
            if made is None:
                self.skipTest("there is no openssl to make a certificate with")
            cert, key, trust = made
            with Server("--tls-cert", cert, "--tls-key", key, tls=trust) as server:
                self.check_bytes_while_an_answer_is_sent(server)
                with socket.create_connection(("127.0.0.1", server.port)) as plain:     # no TLS at all
                    plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                    with contextlib.suppress(OSError):
                        self.assertNotIn(b"200", plain.recv(1000))
                self.check_answers(server)
            self.assertEqual(server.code, 0)

    def test_malformed_http(self):
        junk = random.Random(3)
        host = b" HTTP/1.1\r\nHost: x\r\n"
        cases = [b"\0" * 100, b"GET\r\n\r\n", b"POST /v1/completions" + host + b"Content-Length: -5\r\n\r\n",
                 b"POST /v1/completions" + host + b"Content-Length: 99999999999999999999\r\n\r\n",
                 b"POST /v1/completions" + host + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                 b"POST /v1/completions" + host + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n",
                 b"POST /v1/completions" + host + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n",
                 b"POST /v1/completions" + host + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 500,
                 b"GET /" + b"a" * 200000 + host + b"\r\n", b"GET / HTTP/9.9\r\nA: b\r\n" * 50,
                 b"GET /" + host + b"A: " + b"b" * 200000 + b"\r\n\r\n", b"GET /" + host + b"A: b\r\n" * 200 + b"\r\n",
                 b"PUT /" + host + b"\r\n", b"OPTIONS *" + host + b"\r\n", b"GET / HTTP/1.1\nHost: x\n\n"]
        cases += [bytes(junk.randrange(256) for _ in range(400)) for _ in range(40)]
        with Server() as server:
            for case in cases:
                with server.socket() as client:
                    received = b""
                    with contextlib.suppress(OSError):
                        client.sendall(case)
                        client.shutdown(socket.SHUT_WR)
                        while piece := client.recv(65536):
                            received += piece
                    self.assertNotIn(b" 200 ", received[:20], case[:60])
                    self.assertIn(received[:9], (b"", b"HTTP/1.1 "), case[:60])
            self.check_answers(server)

    def test_bodies(self):
        with Server("--max-body", "1MiB") as server:
            with server.socket() as client:     # 64 MiB: refused by its length, before it is read
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 67108864\r\n\r\n")
                self.assertIn(b" 413 ", client.recv(100))
            with server.socket() as client:     # the client that sends on still gets its answer
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 67108864\r\n\r\n")
                with contextlib.suppress(OSError):
                    for _ in range(20):
                        client.sendall(b"x" * 65536)
                self.assertIn(b" 413 ", client.recv(100))
            with server.socket() as client:     # in chunks without an end
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
                received = b""
                with contextlib.suppress(OSError):
                    for _ in range(1024):
                        client.sendall(b"10000\r\n" + b"y" * 65536 + b"\r\n")
                with contextlib.suppress(OSError):
                    received = client.recv(100)
                self.assertIn(received[:12], (b"", b"HTTP/1.1 413"))
            for body, word in ((b"[" * 900000, "JSON"), (b'{"prompt":' * 90000, "JSON"), (b"\xff" * 1000, "UTF-8"),
                               (b'{"prompt": "\xc3\x28"}', "UTF-8"), (b'{"prompt": "a\\u0000b"}', "U+0000"),
                               (b'{"prompt": "\\ud800"}', "")):
                status, answer, _ = server.ask("/v1/completions", body)
                self.assertEqual(status, 400, body[:40])
                self.assertIn(word, answer["error"]["message"])
            with server.socket() as client:     # a body in chunks is one
                body = post("/x", {"prompt": "Once", "max_tokens": 1}).partition(b"\r\n\r\n")[2]
                chunks = b"".join(b"%x;a=b\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7])
                                  for i in range(0, len(body), 7))
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                               b"Transfer-Encoding: chunked\r\n\r\n")
                self.assertIn(b"100 Continue", client.recv(100))
                client.sendall(chunks + b"0\r\nTrailer: t\r\n\r\n")
                self.assertIn(b" 200 ", client.recv(1000))
            self.check_answers(server)

    def test_idle_and_slow_connections(self):
        """2,000 idle connections, and requests that never become whole, make way for those that ask."""
        many_descriptors()
        with Server("--max-connections", "1500") as server, contextlib.ExitStack() as stack:
            slow = [stack.enter_context(server.socket()) for _ in range(100)]
            for client in slow:
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-")
            for _ in range(2000):
                stack.enter_context(server.socket())
            self.check_answers(server)
            for client in slow:
                with contextlib.suppress(OSError):
                    client.sendall(b"L")
            self.check_answers(server)
            self.assertLessEqual(server.metric("qrun:connections"), 1500)
            # One that asks is not closed for those that do not.
            busy = stack.enter_context(server.socket())
            busy.sendall(post("/v1/completions", ENDLESS | {"stream": True}))
            received = busy.recv(1)
            for _ in range(1600):
                stack.enter_context(server.socket())
            while b"[DONE]" not in received:
                piece = busy.recv(65536)
                self.assertTrue(piece)
                received += piece
            self.check_answers(server)

    def test_no_more_descriptors(self):
        """With fewer descriptors than clients the server lives on, and answers those that it has room for."""
        many_descriptors()
        with Server(wrapper=["sh", "-c", 'ulimit -n 150; exec "$@"', "sh"]) as server, contextlib.ExitStack() as stack:
            for _ in range(400):
                stack.enter_context(server.socket())
            self.check_answers(server)

    def test_a_full_queue(self):
        with Server("--max-sequences", "1", "--max-waiting", "1") as server, contextlib.ExitStack() as stack:
            busy = stack.enter_context(server.socket())
            busy.sendall(post("/v1/completions", ENDLESS | {"n": 2, "stream": True}))
            busy.recv(1)
            status, answer, headers = server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})
            self.assertEqual((status, headers["Retry-After"]), (429, "1"))
            self.assertIn("waiting", answer["error"]["message"])
            busy.close()
            self.assertTrue(server.wait_until_idle())

    def test_an_answer_that_nobody_reads(self):
        """More than 1 MiB that a client does not read ends its request; the pages are free again."""
        with Server() as server:
            with server.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.sendall(post("/v1/completions", ENDLESS | {"n": 256, "stream": True, "logprobs": 20,
                                                                   "max_tokens": 400}))
                client.recv(1)
                self.assertTrue(server.wait_until_idle())
            self.check_answers(server)
        left = [line for line in server.end_of_log if "left=true" in line]
        self.assertEqual(len(left), 1, left)

    def test_signals_among_clients(self):
        with Server("--drain-seconds", "20") as server:
            with contextlib.ExitStack() as stack:
                idle = [stack.enter_context(server.socket()) for _ in range(20)]
                idle[0].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(20), 0)


if __name__ == "__main__":
    unittest.main()
