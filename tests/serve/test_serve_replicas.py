"""qrun serve with copies of the model behind one queue: the answers of one copy, dealt to all, and one engine to clients.

    test_serve_replicas.py QRUN MODEL
"""
import concurrent.futures
import os
import re
import subprocess
import tempfile
import unittest

from served import MODEL, QRUN, Server, generate, post, random_request

COPIES = 3


def replicas(*options):
    return Server("--data-parallel", str(COPIES), *options)


def dealt(server):
    """How many requests each replica got so far."""
    lines = server.ask("/metrics")[1]
    return [int(n) for n in re.findall(r'^qrun:replica_requests_total\{replica="\d+"\} (\d+)$', lines, re.M)]


class Replicas(unittest.TestCase):
    def test_answers_are_those_of_one(self):
        requests = [random_request(number) for number in range(40)]
        wanted = generate(requests)
        with replicas() as server:
            with concurrent.futures.ThreadPoolExecutor(12) as clients:
                answers = list(clients.map(lambda body: server.ask("/v1/completions", body)[1]["choices"], requests))
            for number, choices in enumerate(answers):
                for sample, choice in enumerate(choices):
                    text, reason, logprobs = wanted[number, sample]
                    self.assertEqual((choice["text"], choice["finish_reason"]), (text, reason))
                    got = [float(f"{value:.9g}") for value in choice["logprobs"]["token_logprobs"]]
                    self.assertEqual(got, logprobs)
            counts = dealt(server)
            self.assertEqual((len(counts), sum(counts)), (COPIES, len(requests)))
            self.assertTrue(all(count > 0 for count in counts), counts)
            self.assertTrue(server.wait_until_idle())
            self.assertEqual(server.metric("qrun:requests_finished_total"), len(requests))
            live = server.ask("/live")[1]
            self.assertEqual(live["completion_tokens"], server.metric("vllm:generation_tokens_total"))
            self.assertEqual(sum(live["memory"]["plan"].values()), live["memory"]["planned_bytes"])
        self.assertEqual(server.code, 0, server.end_of_log)

    def test_streams_and_several_prompts(self):
        body = {"prompt": ["The sea", "The dog", "A cat", "Hello"], "max_tokens": 12, "temperature": 0}
        with Server() as alone:
            wanted = [choice["text"] for choice in alone.ask("/v1/completions", body)[1]["choices"]]
            memory = alone.ask("/live")[1]["memory"]
        with replicas() as server:
            self.assertEqual([choice["text"] for choice in server.ask("/v1/completions", body)[1]["choices"]], wanted)
            self.assertEqual(sorted(dealt(server)), [1, 1, 2])
            texts = [""] * len(wanted)
            for piece in server.stream("/v1/completions", body):
                for choice in piece["choices"]:
                    texts[choice["index"]] += choice["text"]
            self.assertEqual(texts, wanted)
            weights = server.ask("/live")[1]["memory"]["plan"]["weights"]
            self.assertEqual(weights, COPIES * memory["plan"]["weights"])

    def test_conversations_stay(self):
        """A conversation goes to the copy that has read it, though others have had fewer requests."""
        with replicas() as server:
            chat = [{"role": "user", "content": "Tell me of the sea, the harbour and the ships. " * 4}]
            for turn in range(4):
                body = {"messages": chat, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
                status, answer, _ = server.ask("/v1/chat/completions", body)
                self.assertEqual(status, 200, answer)
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached > 0, turn > 0)
                chat += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
                self.assertTrue(server.wait_until_idle())
            self.assertEqual(sorted(dealt(server)), [0, 0, 4])

    def test_clients_that_leave(self):
        endless = {"prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 8}
        with replicas() as server:
            clients = [server.socket() for _ in range(6)]
            for client in clients:
                client.sendall(post("/v1/completions", endless))
            for client in clients:
                client.recv(1)
            self.assertEqual(sum(dealt(server)), 6)
            for client in clients:
                client.close()
            self.assertTrue(server.wait_until_idle())
            self.assertEqual(server.metric("vllm:num_requests_running"), 0)
        self.assertEqual(server.code, 0, server.end_of_log)

    def test_adapters_are_loaded_by_all(self):
        with tempfile.TemporaryDirectory() as folder:
            data = os.path.join(folder, "data.jsonl")
            with open(data, "w") as file:
                file.write('{"prompt": "Once upon a time", "completion": " arr matey arr"}\n')
            subprocess.run([QRUN, "finetune", "--model", MODEL, "--data", data, "--out", os.path.join(folder, "pirate"),
                            "--max-steps", "30", "--learning-rate", "1e-2", "--seq-len", "64", "--quiet"], check=True,
                           capture_output=True)
            request = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
            with replicas("--adapter-folder", folder) as server:
                plain = server.ask("/v1/completions", request)[1]["choices"][0]["text"]
                for _ in range(2):
                    self.assertEqual(server.ask("/v1/adapters", {"name": "p", "path": "pirate"})[0], 200)
                    before = dealt(server)
                    bodies = [request | {"model": "p"}] * (2 * COPIES)
                    adapted = {server.ask("/v1/completions", body)[1]["choices"][0]["text"] for body in bodies}
                    self.assertEqual(len(adapted), 1)
                    self.assertNotIn(plain, adapted)
                    self.assertEqual([after - n for after, n in zip(dealt(server), before)].count(0), 0)
                    self.assertEqual(server.ask("/v1/adapters/p", method="DELETE")[:2], (200, {"adapters": []}))
                    self.assertEqual(server.ask("/v1/completions", bodies[0])[0], 404)
            self.assertEqual(server.code, 0, server.end_of_log)

    def test_one_queue(self):
        """--max-waiting is of all copies together, and what is refused is refused once."""
        with replicas("--max-sequences", "1", "--max-waiting", "1") as server:
            body = {"prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": COPIES + 1}
            with server.socket() as first:
                first.sendall(post("/v1/completions", body))
                first.recv(1)
                self.assertEqual(server.ask("/v1/completions", {"prompt": "x", "max_tokens": 1})[0], 429)
            self.assertTrue(server.wait_until_idle())
        done = subprocess.run([QRUN, "serve", "--model", MODEL, "--data-parallel", "2", "--tensor-parallel", "2"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--data-parallel and --tensor-parallel exclude each other", done.stderr)
        done = subprocess.run([QRUN, "serve", "--model", MODEL, "--data-parallel", "2", "--memory", "1MiB"],
                              capture_output=True, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
