"""qrun serve on two ranks that share each layer: the answers of one, ranks that wait without being taken for dead, and one
that dies.

    test_serve_ranks.py QRUN MODEL
"""
import concurrent.futures
import os
import signal
import time
import unittest

from served import Server, random_request

SHARED = ("--tensor-parallel", "2")


def others_of(process):
    """The ranks that a server has started."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
        return [int(child) for child in children.read().split()]


class Ranks(unittest.TestCase):
    def test_answers_are_those_of_one_rank(self):
        requests = [random_request(number) for number in range(24)]
        with Server() as alone:
            wanted = [alone.ask("/v1/completions", body)[1]["choices"] for body in requests]
            embedding = alone.ask("/v1/embeddings", {"input": "The sea"})[1]["data"]
        with Server(*SHARED) as server:
            with concurrent.futures.ThreadPoolExecutor(8) as clients:
                answers = list(clients.map(lambda body: server.ask("/v1/completions", body)[1]["choices"], requests))
            self.assertEqual(server.ask("/v1/embeddings", {"input": "The sea"})[1]["data"], embedding)
        self.assertEqual(answers, wanted)
        self.assertEqual(server.code, 0, server.end_of_log)

    def test_ranks_stream_their_rows(self):
        as_stored = ("--quant", "bf16")
        requests = [random_request(number) for number in range(6)]
        with Server(*as_stored) as alone:
            wanted = [alone.ask("/v1/completions", body)[1]["choices"] for body in requests]
        with Server(*SHARED, *as_stored, "--offload", "parameters") as server:
            answers = [server.ask("/v1/completions", body)[1]["choices"] for body in requests]
        self.assertEqual(answers, wanted)
        self.assertEqual(server.code, 0, server.end_of_log)

    def test_ranks_wait_for_requests(self):
        with Server(*SHARED, "--collective-timeout", "2") as server:
            first = server.ask("/v1/completions", {"prompt": "The sea", "max_tokens": 5})[1]["choices"]
            time.sleep(5)
            self.assertEqual(server.ask("/v1/completions", {"prompt": "The sea", "max_tokens": 5})[1]["choices"], first)
            others = others_of(server.process)
            self.assertEqual(len(others), 1)
        self.assertEqual(server.code, 0, server.end_of_log)
        self.assertFalse(os.path.exists(f"/proc/{others[0]}"), "the other rank has ended")

    def test_a_rank_that_dies_ends_the_server(self):
        with Server(*SHARED, "--collective-timeout", "2") as server:
            os.kill(others_of(server.process)[0], signal.SIGKILL)
            server.process.wait(60)
        self.assertNotEqual(server.code, 0)
        said = [line for line in server.end_of_log if "rank 1 ended without a word" in line]
        self.assertEqual(len(said), 1, server.end_of_log)


if __name__ == "__main__":
    unittest.main()
