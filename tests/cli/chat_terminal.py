"""qrun chat at a terminal without control sequences: lines of any length, editing, signals, and the terminal's own
settings back at every end. chat_editor.py has those that redraw.

    python3 chat_terminal.py path/to/qrun path/to/model
"""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

QRUN, MODEL = sys.argv[1:3]
SECONDS = 60
TIOCGPTN = 0x80045430  # the number of a terminal of Linux, which Python does not name
n_checks = 0


def check(condition, what, shown=b""):
    global n_checks
    n_checks += 1
    if not condition:
        sys.exit(f"FAILED: {what}; on the terminal: {shown[-2000:]!r}")


class Chat:
    """A conversation over a terminal of its own."""

    model = MODEL
    environment = {"TERM": "dumb"}
    prompt = b"\r\n> "

    def __init__(self, *options):
        self.shown = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ.update(self.environment)
            os.execv(QRUN, ["qrun", "chat", "--model", self.model, "--temperature", "0", *options])
        self.usual = termios.tcgetattr(self.master)
        self.wait_for(self.prompt)

    def read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            try:
                self.shown += os.read(self.master, 65536)
            except OSError:  # the program has ended
                return False
        return True

    def wait_for(self, text, begin=0):
        end = time.monotonic() + SECONDS
        while text not in self.shown[begin:]:
            check(time.monotonic() < end, f"{text!r} appears", self.shown)
            if not self.read(0.1):
                break
        check(text in self.shown[begin:], f"{text!r} appears", self.shown)

    def send(self, data):
        """Sends bytes while it reads what is echoed."""
        while data:
            n = 0
            if select.select([], [self.master], [], 0.05)[1]:
                n = os.write(self.master, data[:1024])
            data = data[n:]
            self.read(0)

    def say(self, data):
        """Sends a line and returns what is shown up to the next prompt, without the echo."""
        begin = len(self.shown)
        self.send(data)
        self.wait_for(self.prompt, begin)
        return self.shown[begin:-len(self.prompt)].partition(b"\r\n")[2]

    def end(self, code):
        finish = time.monotonic() + SECONDS
        while self.read(0.1) and time.monotonic() < finish:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                break
        else:
            _, status = os.waitpid(self.pid, 0)
        check(os.waitstatus_to_exitcode(status) == code, f"exit code {code}, not {os.waitstatus_to_exitcode(status)}",
              self.shown)
        os.close(self.master)


def number_of(master):
    return int.from_bytes(fcntl.ioctl(master, TIOCGPTN, bytes(4)), sys.byteorder)


def is_usual(chat):
    return termios.tcgetattr(chat.master)[3] == chat.usual[3]


def wait_until(condition, what, chat):
    end = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < end:
        chat.read(0.05)
    check(condition(), what, chat.shown)


def piped(text, *options):
    command = [QRUN, "chat", "--model", MODEL, "--temperature", "0", *options]
    return subprocess.run(command, input=text, capture_output=True, check=False)


def answer_to(text, *options):
    return piped(text + b"\n", *options).stdout.rstrip(b"\n").replace(b"\n", b"\r\n")


def test_long_line():
    """A pasted line of 100 KB is one message: the count of its tokens is that of a pipe."""
    line = b" ".join(b"word%d" % i for i in range(13000))
    check(len(line) > 100_000, "the line is long")
    expected = piped(line + b"\n").stderr.strip()
    check(b"tokens" in expected, f"a pipe counts its tokens: {expected!r}")
    chat = Chat()
    said = chat.say(line + b"\n")
    check(expected in said, f"{expected!r} is said", said)
    check(line[-3000:] in chat.shown.replace(b"\r\n", b""), "it is echoed to its end", chat.shown)
    check(b"/reset" not in said, "no advice that would not help", said)
    chat.send(b"\x04")
    chat.end(0)


def test_several_lines():
    """Lines that are pasted together are messages one after another."""
    chat = Chat("--max-tokens", "3")
    begin = len(chat.shown)
    chat.send(b"Hello!\nHow are you?\n/exit\n")
    chat.end(0)
    answers = piped(b"Hello!\nHow are you?\n", "--max-tokens", "3").stdout.split(b"\n")
    for answer in answers:
        check(answer in chat.shown[begin:], f"{answer!r} is there", chat.shown)


def test_editing():
    expected = answer_to(b"Hello!", "--max-tokens", "8")
    check(len(expected) > 0, "there is an answer")
    for typed in (b"Hello!", b"Hellx\x7fo!", b"Hell\xc3\xa4\x7fo!", b"once\x15Hello!", b"Hello! there\x17\x7f",
                  b"He\x1b[D\x1bOAllo!", b"He\x04llo!", b"Hel\x07lo!"):
        chat = Chat("--max-tokens", "8")
        said = chat.say(typed + b"\n")
        check(said.startswith(expected), f"{typed!r} is Hello!, not {said!r}")
        check(b"\x1b" not in chat.shown and b"\x07" not in chat.shown, "no control character is echoed", chat.shown)
        chat.send(b"\x04")
        chat.end(0)


def test_invalid_text():
    chat = Chat("--max-tokens", "2")
    check(b"not UTF-8: byte 3 " in chat.say(b"ab\xff\n"), "what is no UTF-8 is refused", chat.shown)
    chat.send(b"\x04")
    chat.end(0)


def test_context_end():
    """An answer that the context ends is not said to end at --max-tokens."""
    chat = Chat("--context", "64")
    said = chat.say(b"Hello!\n")
    for _ in range(20):
        if b"the conversation fills the context of 64 tokens; /reset starts a new one" in said:
            break
        check(b"--max-tokens" not in said, "no advice about --max-tokens", said)
        said = chat.say(b"And then?\n")
    check(b"/reset starts a new one, and a larger --context allows longer ones" in said, "what helps is said", said)
    said = chat.say(b"And then?\n")
    check(b"the prompt is the whole conversation, and /reset starts a new one" in said, "why it is too long", said)
    chat.say(b"/clear\n")
    check(b"not taken" not in chat.say(b"Hello!\n"), "/clear helps", chat.shown)
    chat.send(b"\x04")
    chat.end(0)
    chat = Chat("--max-tokens", "2")
    check(b"the answer ends at 2 tokens; --max-tokens allows longer ones" in chat.say(b"Hello!\n"), "--max-tokens",
          chat.shown)
    chat.send(b"\x04")
    chat.end(0)


def test_ends():
    """However the program ends while somebody types, the terminal is what it was."""
    chat = Chat()
    check(not is_usual(chat), "the terminal's line editing is off")
    chat.send(b"half\x03")
    chat.wait_for(b"Ctrl-C again")
    chat.send(b"\x03")
    chat.end(0)
    for number, code in ((signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGQUIT, -signal.SIGQUIT),
                         (signal.SIGABRT, -signal.SIGABRT)):
        chat = Chat()
        chat.send(b"half a line")
        # A second descriptor keeps the terminal when its last program ends.
        slave = os.open(f"/dev/pts/{number_of(chat.master)}", os.O_RDWR | os.O_NOCTTY)
        os.kill(chat.pid, number)
        wait_until(lambda: is_usual(chat), f"the terminal is restored after signal {number}", chat)
        os.close(slave)
        chat.end(code)


def test_stop():
    """Ctrl-Z gives the shell its terminal, and coming back takes it again."""
    chat = Chat("--max-tokens", "2")
    chat.send(b"Hel")
    chat.wait_for(b"> Hel")
    chat.send(b"\x1a")
    _, status = os.waitpid(chat.pid, os.WUNTRACED)
    check(os.WIFSTOPPED(status), "it stops", chat.shown)
    check(is_usual(chat), "the terminal is the shell's", chat.shown)
    os.kill(chat.pid, signal.SIGCONT)
    wait_until(lambda: not is_usual(chat), "and ours again", chat)
    expected = answer_to(b"Hello!", "--max-tokens", "2")
    check(chat.say(b"lo!\n").startswith(expected), "what was typed is kept", chat.shown)
    chat.send(b"\x04")
    chat.end(0)


if __name__ == "__main__":
    for test in (test_long_line, test_several_lines, test_editing, test_invalid_text, test_context_end, test_ends,
                 test_stop):
        test()
    print(f"{n_checks} checks")
