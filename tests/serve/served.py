"""A qrun server for the length of a with block, and requests to it. Python's standard library alone.

The programs that use it are started as PROGRAM QRUN MODEL.
"""
import contextlib
import http.client
import json
import os
import random
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

QRUN, MODEL = sys.argv.pop(1), sys.argv.pop(1)
PROMPTS = ["Once upon a time", "The dog", "She opened", "A small boat", "Hello", "In the garden", "The king said"]


class Server:
    """A server on a free port; its exit code is in .code afterwards, its log in .lines(). seed: of requests that have
    none, so that equal ones have equal answers; None: the server draws them."""

    def __init__(self, *options, model=MODEL, tls=None, environment=None, pass_fds=(), wrapper=(), seed=0):
        self.options, self.model, self.tls = list(options), model, tls
        if seed is not None:
            self.options += ["--seed", str(seed)]
        self.environment = environment
        self.pass_fds = pass_fds
        self.wrapper = list(wrapper)

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [*self.wrapper, QRUN, "serve", "--model", self.model, "--port", "0", "--threads", "2", *self.options],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.environment, pass_fds=self.pass_fds)
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise RuntimeError(f"the server did not start: {self.lines()}")
        self.port = int(line.rsplit(":", 1)[1])
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.code = self.process.wait(60)
        self.process.stdout.close()
        self.end_of_log = self.lines()
        self.log.close()

    def lines(self):
        self.log.seek(0)
        return self.log.read().splitlines()

    def socket(self):
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        return plain if self.tls is None else self.tls.wrap_socket(plain, server_hostname="localhost")

    def connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.sock = self.socket()
        return connection

    def ask(self, path, body=None, headers=None, method=None):
        """(status, parsed JSON or text, headers) of one request."""
        connection = self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, data, headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = answer.headers.get("Content-Type") == "application/json"
        return answer.status, json.loads(text) if is_json else text, answer.headers

    def stream(self, path, body):
        """The JSON of a streamed answer's events."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(body | {"stream": True}))
        pieces = list(events(connection.getresponse()))
        connection.close()
        return pieces

    def metric(self, name):
        for line in self.ask("/metrics")[1].splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise KeyError(name)

    def wait_until_idle(self):
        for _ in range(600):
            if self.metric("qrun:requests_open") == 0 and self.metric("vllm:kv_cache_usage_perc") == 0:
                return True
            time.sleep(0.05)
        return False


def post(path, body):
    """The bytes of a request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def reset(client):
    """Closing the socket sends a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def events(connection):
    """The JSON of a stream's events up to [DONE]."""
    for line in connection:
        line = line.decode().strip()
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


def random_request(number):
    choose = random.Random(number)
    request = {"prompt": choose.choice(PROMPTS) + " " * (number % 2), "max_tokens": choose.randint(1, 40),
               "logprobs": choose.choice([0, 3])}
    if number % 3:
        request |= {"temperature": choose.choice([0.0, 0.7, 1.2]), "top_p": 0.95, "seed": number, "n": 1 + number % 3}
    if number % 5 == 0:
        request["stop"] = ["."]
    if number % 7 == 0:
        request |= {"repetition_penalty": 1.2, "min_p": 0.05, "top_k": 50}
    return request


def generate(requests):
    """What qrun generate answers: {(request, sample): (text, finish reason, log probabilities)}."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([QRUN, "generate", "--model", MODEL, "--prompts", "-", "--output", "-", "--quiet",
                           "--seed", "0"],
                          input=lines, capture_output=True, text=True, check=True)
    answers = {}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        logprobs = [token["logprob"] for token in answer["logprobs"]]
        answers[answer["index"], answer["sample"]] = (answer["text"], answer["finish_reason"], logprobs)
    return answers


def sanitized():
    """Whether the program was built with AddressSanitizer."""
    with open(QRUN, "rb") as program:
        return b"__asan_init" in program.read()


def many_descriptors():
    """As many as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.contextmanager
def copied_model(**changes):
    """A copy of the model's folder; changes are members of tokenizer_config or generation_config."""
    with tempfile.TemporaryDirectory() as folder:
        for name in os.listdir(MODEL):
            shutil.copy(os.path.join(MODEL, name), folder)
        for name, members in changes.items():
            path = os.path.join(folder, f"{name}.json")
            with open(path) as file:
                content = json.load(file)
            with open(path, "w") as file:
                json.dump(content | members, file)
        yield folder


@contextlib.contextmanager
def certificate():
    """(certificate, key, a context that trusts it) of a host called localhost; None where there is no openssl."""
    with tempfile.TemporaryDirectory() as folder:
        cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        try:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                            "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
                           check=True, capture_output=True)
        except FileNotFoundError:
            yield None
            return
        yield cert, key, ssl.create_default_context(cafile=cert)
