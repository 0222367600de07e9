"""What the tests of the package share."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["QRUN_SOURCE"])
QRUN = os.environ["QRUN"]
MODEL = str(SOURCE / "examples" / "model")
PIRATE = str(SOURCE / "examples" / "finetune" / "pirate.jsonl")
SECONDS = 60  # for what takes a moment; a busy machine may need more


def program(*arguments, text=None, code=0):
    """stdout of the program."""
    done = subprocess.run([QRUN, *arguments], input=text, capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise AssertionError(f"qrun {' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


def lines_of(*arguments, **options):
    return [json.loads(line) for line in program(*arguments, **options).splitlines()]


def python(code, **options):
    """Another interpreter that runs `code`, with the package imported and the model's path in MODEL."""
    head = f"import os, signal, sys, threading, time\nimport qrun\nMODEL = {MODEL!r}\nPIRATE = {PIRATE!r}\n"
    return subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **options)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def expect(self, process, code, *said):
        """The process ends with this exit code and prints these lines."""
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            self.fail(f"it does not end: {process.communicate()}")
        self.assertEqual(process.returncode, code, (out, err))
        self.assertEqual(out.split("\n")[:-1], list(said), err)
        return err


def main():
    if os.environ.get("QRUN_SANITIZE") and not os.environ.get("LD_PRELOAD"):
        print("skipped: a Python without the sanitizer's run-time library cannot load the library")
        sys.exit(77)
    unittest.main(module="__main__", verbosity=1)
