#!/usr/bin/env python3
"""What HTTP adds: qrun serve beside qrun generate, the same requests on the same machine, taking turns.

    QRUN=build/release/cli/qrun bench/serve.py --model FOLDER -- --quant nf4-dq --quant-head int8
    QRUN=… LLAMA_SERVER=… bench/serve.py --model FOLDER --gguf Q4_0.gguf -- --quant-head int8

1. Throughput at --clients clients: each sends its requests one after the other, streamed, and reads them to the end.
   Beside it `qrun generate` with the same requests and as many sequences at once. To be at least 0.98 of it. The
   clients are one thread that reads bytes and looks at little of them, because they share the machine's processors.
2. Time to the first token of a prompt that is in the cache, as a client sees it: from its first byte to that of the
   answer's first event. Beside it the engine's own, from the request's submission to its first token, which the
   server writes to its log. The difference of each request is what HTTP adds; to be at most 1 ms.
3. With --gguf, both for llama-server too, once for each file: the same clients and the same requests, in turn.

Prompts are random ids, so any model will do; bench/random_model.py makes one. What follows -- goes to both programs.
"""

import argparse
import json
import pathlib
import random
import re
import selectors
import signal
import socket
import statistics
import subprocess
import tempfile
import time

import measuring


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--gguf", type=pathlib.Path, action="append", default=[], help="for llama-server")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=2, help="of each client, in a round")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--cached-tokens", type=int, default=512, help="of the prompt whose first token is timed")
    parser.add_argument("--first-tokens", type=int, default=30, help="how often it is timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("engine", nargs="*", help="options of both programs")
    return parser.parse_args()


def make_requests(options, n, n_prompt, n_tokens):
    vocab = json.loads((options.model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    choose = random.Random(1)
    for _ in range(n):
        ids = [choose.randrange(vocab // 2, vocab - 300) for _ in range(n_prompt)]
        yield {"prompt": ids, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0}


def context(options):
    return max(options.prompt_tokens + options.decode_tokens, options.cached_tokens + 2)


def engine_options(options):
    return ["--model", options.model, "--threads", options.threads, "--max-sequences", options.clients,
            "--context", context(options), *options.engine]


# ---- qrun generate ---------------------------------------------------------------------------------------------------


def generate_rate(qrun, options, requests):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as prompts, tempfile.TemporaryDirectory() as folder:
        for request in requests:
            line = dict(request)
            line["token_ids"] = line.pop("prompt")
            prompts.write(json.dumps(line) + "\n")
        prompts.flush()
        command = [qrun, "generate", *engine_options(options), "--prompts", prompts.name, "--output",
                   pathlib.Path(folder) / "answers.jsonl", "--stats"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        measuring.stop(done.stderr.strip())
    return json.loads(done.stderr.strip().splitlines()[-1])["tokens_per_second"]


# ---- The servers -----------------------------------------------------------------------------------------------------


class Server:
    def __init__(self, command):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=self.log,
                                        text=True)
        self.port = 0

    def lines(self):
        self.log.seek(0)
        return self.log.read().splitlines() or ["it said nothing"]

    def failed(self):
        self.process.wait()
        measuring.stop("the server did not start: " + self.lines()[-1])

    def socket(self):
        made = socket.create_connection(("127.0.0.1", self.port), timeout=600)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def qrun_server(qrun, options):
    server = Server([qrun, "serve", *engine_options(options), "--port", 0])
    line = server.process.stdout.readline()
    if not line:
        server.failed()
    server.port = int(line.rsplit(":", 1)[1])
    return server


def free_port():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def llama_server(program, gguf, options):
    """It has a context for all sequences together, and says on /health that the model is loaded."""
    port = free_port()
    server = Server([program, "-m", gguf, "-t", options.threads, "-tb", options.threads, "-np", options.clients,
                     "-c", context(options) * options.clients, "--host", "127.0.0.1", "--port", port])
    server.port = port
    while server.process.poll() is None:
        try:
            with server.socket() as made:
                made.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                if b" 200 " in made.recv(1 << 16).split(b"\r\n")[0]:
                    return server
        except OSError:
            pass
        time.sleep(0.1)
    return server.failed()


def post(request):
    body = json.dumps(request | {"stream": True}).encode()
    return (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


END = b"data: [DONE]\n\n\r\n0\r\n\r\n"


class Client:
    """One request after the other: on one connection with qrun, each on one of its own with llama-server, which closes
    them."""

    def __init__(self, server, messages, keeps):
        self.server, self.messages, self.keeps = server, messages, keeps
        self.socket, self.tail = None, b""

    def send_next(self):
        if self.socket is None:
            self.socket = self.server.socket()
        self.tail = b""
        self.socket.sendall(self.messages.pop(0))

    def read(self):
        """Whether the answer has ended."""
        piece = self.socket.recv(1 << 16)
        if not piece:
            measuring.stop("the server closed a connection: " + self.server.lines()[-1])
        self.tail = (self.tail + piece)[-len(END):]
        return self.tail == END

    def close(self):
        self.socket.close()
        self.socket = None


def serve_rate(server, options, requests, keeps=True):
    """Tokens per second of all requests, those of a client in a row."""
    messages = [post(request) for request in requests]
    n_tokens = sum(request["max_tokens"] for request in requests)
    waiting = selectors.DefaultSelector()
    clients = [Client(server, messages[i::options.clients], keeps) for i in range(options.clients)]
    begin = time.monotonic()
    for client in clients:
        client.send_next()
        waiting.register(client.socket, selectors.EVENT_READ, client)
    n_open = len(clients)
    while n_open > 0:
        for key, _ in waiting.select():
            client = key.data
            if not client.read():
                continue
            if not client.messages or not client.keeps:
                waiting.unregister(client.socket)
                client.close()
            if client.messages:
                client.send_next()
                if not client.keeps:
                    waiting.register(client.socket, selectors.EVENT_READ, client)
            else:
                n_open -= 1
    return n_tokens / (time.monotonic() - begin)


def first_tokens(server, request, n, keeps=True):
    """Seconds as a client sees it, of each time; the first one fills the cache and does not count."""
    message = post(request)
    seen = []
    client = server.socket()
    for _ in range(n + 1):
        begin = time.monotonic()
        client.sendall(message)
        received = client.recv(1 << 16)
        while b"data: " not in received:
            received += client.recv(1 << 16)
        seen.append(time.monotonic() - begin)
        while not received.endswith(END):
            received += client.recv(1 << 16)
        if not keeps:   # connected before the time begins
            client.close()
            client = server.socket()
    client.close()
    return seen[1:]


def engine_first_tokens(server, n):
    """The last n that qrun's log has."""
    time.sleep(0.2)     # its last line
    own = [float(found) for line in server.lines() for found in re.findall(r"first_token_seconds=(\S+)", line)]
    return own[-n:]


# ---- The measurement -------------------------------------------------------------------------------------------------


def measure_llama(program, gguf, options, requests, cached):
    server = llama_server(program, gguf, options)
    rate = serve_rate(server, options, requests, keeps=False)
    first = first_tokens(server, cached, options.first_tokens, keeps=False)
    server.close()
    return {"serve": rate, "first": statistics.median(first)}


def measure_qrun(qrun, options, requests, cached):
    one = {"generate": generate_rate(qrun, options, requests)}
    server = qrun_server(qrun, options)
    one["serve"] = serve_rate(server, options, requests)
    seen = first_tokens(server, cached, options.first_tokens)
    one["added"] = [1000 * (client - own) for client, own in zip(seen, engine_first_tokens(server, len(seen)))]
    one["first"] = statistics.median(seen)
    server.close()
    return one


def main():
    options = arguments()
    qrun = measuring.program("QRUN", "qrun")
    llama = measuring.program("LLAMA_SERVER", "llama-server") if options.gguf else None
    machine = measuring.machine()
    requests = list(make_requests(options, options.clients * options.requests, options.prompt_tokens,
                                  options.decode_tokens))
    cached = next(make_requests(options, 1, options.cached_tokens, 1))
    rounds, others = [], {path.stem: [] for path in options.gguf}
    for number in range(options.rounds + 1):    # the first one brings the files into the page cache
        one = measure_qrun(qrun, options, requests, cached)
        other = {path.stem: measure_llama(llama, path, options, requests, cached) for path in options.gguf}
        if number == 0:
            continue
        rounds.append(one)
        print(f"round {number}: generate {one['generate']:.1f}, serve {one['serve']:.1f} tokens/s", end="")
        for name, measured in other.items():
            others[name].append(measured)
            print(f", llama-server {name} {measured['serve']:.1f}", end="")
        print(flush=True)

    ratio = measuring.summary([one["serve"] / one["generate"] for one in rounds])
    added = measuring.summary([value for one in rounds for value in one["added"]])
    del added["values"]
    print(f"\n{options.clients} clients: {ratio['median']:.3f} of qrun generate's tokens/s "
          f"({ratio['least']:.3f} - {ratio['most']:.3f}); goal 0.98")
    print(f"first token of {options.cached_tokens} cached tokens: "
          f"{1000 * statistics.median(one['first'] for one in rounds):.2f} ms, of which HTTP "
          f"{added['median']:.3f} ms ({added['least']:.3f} - {added['most']:.3f}); goal 1 ms")
    for name, measured in others.items():
        rates = measuring.summary([ours["serve"] / theirs["serve"] for ours, theirs in zip(rounds, measured)])
        first = measuring.summary([theirs["first"] for theirs in measured])
        print(f"llama-server, {name}: qrun makes {rates['median']:.2f} x its tokens/s "
              f"({rates['least']:.2f} - {rates['most']:.2f}); its first token takes {1000 * first['median']:.2f} ms")
    measuring.write_result("serve", {
        "machine": machine, "qrun": measuring.version([qrun, "--version"]),
        "llama_server": measuring.version([llama, "--version"]) if llama else None, "clients": options.clients,
        "threads": options.threads, "options": options.engine, "serve_of_generate": ratio, "added_ms": added,
        "rounds": [{key: one[key] for key in ("generate", "serve", "first")} for one in rounds], "others": others})


if __name__ == "__main__":
    main()
