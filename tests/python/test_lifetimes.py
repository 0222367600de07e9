"""Objects that are closed in any order, threads, forks, Ctrl-C, and the end of the interpreter."""

import gc
import os
import resource
import signal
import threading
import time
import unittest

import common
import qrun
from common import MODEL, python

LONG = {"prompt": "Once", "max_tokens": 480, "ignore_eos": True}


class Lifetimes(common.Case):
    def test_any_order(self):
        model = qrun.Model(MODEL)
        tokenizer, chat, stream = model.tokenizer, model.chat(), model.stream(LONG)
        next(stream)
        model.close()
        with self.assertRaisesRegex(qrun.CancelledError, "the model was closed"):
            list(stream)
        for use in (lambda: model.generate("x"), lambda: chat.say("x"), lambda: model.info, lambda: model.stream("x"),
                    lambda: tokenizer.encode("x"), lambda: model.tokenize("x")):
            with self.assertRaisesRegex(qrun.ArgumentError, "is closed"):
                use()
        model.close()
        stream.close()
        tokenizer.close()
        # What is forgotten is closed by the collector, in its own order.
        for _ in range(3):
            model = qrun.Model(MODEL, n_threads=1)
            stream, tokenizer = model.stream(LONG), model.tokenizer
            cycle = [model, stream, tokenizer]
            cycle.append(cycle)
            del model, stream, tokenizer, cycle
            gc.collect()

    def test_odd_paths(self):
        """A path of bytes that are not UTF-8, as Python has them."""
        odd = os.fsdecode(os.fsencode(self.folder) + b"/mod\xffel")
        os.symlink(MODEL, odd)
        for path in (odd, os.fsencode(odd), common.pathlib.Path(odd)):
            with qrun.Model(path, n_threads=1) as model:
                self.assertEqual(model.generate("x", max_tokens=1).completion_tokens, 1)

    def test_used_while_closed(self):
        """Closing waits for nobody's pointer to be in use."""
        for _ in range(5):
            model = qrun.Model(MODEL, n_threads=1)
            failures, tokenizer = [], model.tokenizer

            def use():
                try:
                    while True:
                        tokenizer.decode(tokenizer.encode("Once upon a time " * 50))
                        model.generate("x", max_tokens=3)
                except qrun.Error as failure:
                    failures.append(failure)

            threads = [threading.Thread(target=use) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.05)
            model.close()
            for thread in threads:
                thread.join(common.SECONDS)
            self.assertEqual({type(failure) for failure in failures} - {qrun.ArgumentError, qrun.CancelledError}, set())
            self.assertEqual(len(failures), 4)

    def test_threads(self):
        """Many threads over one model: the answers are those of one."""
        with qrun.Model(MODEL) as model:
            prompts = [f"{word} {number}" for word in ("The fox", "A boat", "My friend") for number in range(8)]
            expected = [model.generate(prompt, max_tokens=12).text for prompt in prompts]
            found = {}

            def ask(number):
                found[number] = model.generate(prompts[number], max_tokens=12).text

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(prompts))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(common.SECONDS)
            self.assertEqual([found[number] for number in range(len(prompts))], expected)

    def test_nothing_stays(self):
        """Requests that end, are forgotten, or whose model is closed leave nothing."""
        def use():
            model.generate(["x"] * 300, max_tokens=1)
            for _ in range(50):
                stream = model.stream(LONG)
                next(stream)
                del stream
            for _ in range(5):
                with qrun.Model(MODEL, n_threads=1) as other:
                    other.generate("x", max_tokens=1)
            gc.collect()

        with qrun.Model(MODEL, n_threads=1) as model:
            use()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for _ in range(4):
                use()
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if not os.environ.get("QRUN_SANITIZE"):
            self.assertLess(grown, 8 * 1024, "KiB")
        self.assertEqual(len(qrun._session._flights), 0)

    def test_exception_in_a_listener(self):
        """It comes out where the caller is, and never goes through C."""
        def refuse(done, total):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            qrun.Model(MODEL, progress=refuse)
        told = []
        with qrun.Model(MODEL, progress=lambda done, total: told.append((done, total, threading.current_thread()))) as m:
            self.assertEqual(told[-1][0], told[-1][1])
            self.assertEqual({thread for _, _, thread in told}, {threading.current_thread()})
            self.assertEqual(m.generate("x", max_tokens=1).completion_tokens, 1)

    def test_fork(self):
        """A child is refused by a message and ends; it can open a model of its own; the parent goes on."""
        self.expect(python("""
model = qrun.Model(MODEL)
stream = model.stream("Once", max_tokens=400, ignore_eos=True)
next(stream)
child = os.fork()
if child == 0:
    for use in (lambda: model.generate("x"), lambda: model.tokenize("x"), lambda: model.info, lambda: next(stream)):
        try:
            use()
            print("worked", flush=True)
        except qrun.ArgumentError as refused:
            assert "os.fork()" in str(refused), refused
    stream.close()
    model.close()
    with qrun.Model(MODEL) as own:
        print(len(own.generate("x", max_tokens=3).token_ids), flush=True)
    sys.exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, len("".join(stream)) > 100, flush=True)
"""), 0, "3", "0 True")

    def test_end_of_interpreter(self):
        """Nothing waits for an answer that nobody reads, and nothing crashes."""
        for code in ("model = qrun.Model(MODEL); s = model.stream('Once', max_tokens=500, ignore_eos=True); next(s)",
                     "qrun.Model(MODEL).stream('Once', max_tokens=500, ignore_eos=True)",
                     "model = qrun.Model(MODEL); model.generate('x', max_tokens=2); sys.exit(0)"):
            self.assertEqual(self.expect(python(code), 0), "")

    def test_end_of_loop(self):
        """A loop that ends before what was begun in it: nobody is told, and nothing is printed."""
        self.assertEqual(self.expect(python("""
import asyncio
model = qrun.Model(MODEL)
async def begin():
    global stream
    stream = model.astream("Once", max_tokens=300, ignore_eos=True)
    await stream.__anext__()
    task = asyncio.ensure_future(model.agenerate(["Once"] * 8, max_tokens=300, ignore_eos=True))
    await asyncio.sleep(0.01)
    task.cancel()
asyncio.run(begin())
print(len(model.generate("x", max_tokens=2).token_ids))
while not model._session.is_idle:
    time.sleep(0.01)
"""), 0, "2"), "")

    def test_interrupt(self):
        """Ctrl-C is KeyboardInterrupt at once, in whatever call, and what was opened still works."""
        process = python("""
signal.signal(signal.SIGINT, signal.default_int_handler)
model = qrun.Model(MODEL)
for wait in (lambda: model.generate([{"prompt": "Once", "max_tokens": 500, "ignore_eos": True}] * 600),
             lambda: [None for stream in [model.stream("x", max_tokens=400, ignore_eos=True)]
                      for _ in range(10**6) for _ in [list(stream), time.sleep(0.01)]]):
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        wait()
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
while not model._session.is_idle or model.stats.n_running + model.stats.n_waiting > 0:
    time.sleep(0.01)
print(model.stats.n_running, model.stats.n_waiting, len(model.generate("x", max_tokens=2).token_ids))
""")
        self.expect(process, 0, "interrupted", "interrupted", "0 0 2")

    def test_interrupt_ends_a_script(self):
        process = python("model = qrun.Model(MODEL)\nprint('begun', flush=True)\n"
                         "model.generate([{'prompt': 'Once', 'max_tokens': 500, 'ignore_eos': True}] * 3000)")
        self.assertEqual(process.stdout.readline(), "begun\n")
        time.sleep(0.2)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=common.SECONDS)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_without_library(self):
        process = python("qrun.Model(MODEL)", env={**os.environ, "QRUN_LIBRARY": "/nowhere/libqrun.so.0"})
        self.assertIn("QRUN_LIBRARY names the library", self.expect(process, 1))


if __name__ == "__main__":
    common.main()
