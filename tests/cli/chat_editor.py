"""qrun chat at a terminal that redraws: the keys of libedit, history, and messages of several lines.

    python3 chat_editor.py path/to/qrun path/to/model path/to/an/empty/folder
"""

import fcntl
import json
import os
import pathlib
import signal
import stat
import struct
import sys
import termios

import chat_terminal
from chat_terminal import Chat, answer_to, check, is_usual, number_of, wait_until

STATE = pathlib.Path(sys.argv[3])
SAVED = STATE / "saved.jsonl"
HISTORY = STATE / "qrun" / "chat_history"
LEFT, RIGHT, UP, DOWN, HOME, END = b"\x1b[D", b"\x1b[C", b"\x1b[A", b"\x1b[B", b"\x01", b"\x05"
SHORT = ("--max-tokens", "6")


class Edited(Chat):
    environment = {"TERM": "xterm", "NO_COLOR": "1", "XDG_STATE_HOME": str(STATE), "HOME": str(STATE)}
    def messages(self):
        """What the model was sent."""
        self.say(b"/save " + str(SAVED).encode() + b"\r")
        return [m["content"] for m in json.loads(SAVED.read_text())["messages"] if m["role"] == "user"]

    def send_until(self, data, text):
        begin = len(self.shown)
        self.send(data)
        self.wait_for(text, begin)

    def leave(self):
        self.send(b"\x04")
        self.end(0)
        last_on, last_off = self.shown.rfind(b"\x1b[?2004h"), self.shown.rfind(b"\x1b[?2004l")
        check(last_off > last_on, "pasted text is no longer marked", self.shown)


def test_keys():
    chat = Edited(*SHORT)
    typed = {
        b"Hllo!" + LEFT * 4 + b"e": "Hello!",
        b"ello!" + HOME + b"H" + END + b"!": "Hello!!",
        b"Hello! there\x17\x7f": "Hello!",
        b"once\x15Hello!": "Hello!",
        b"Hello! and more" + LEFT * 9 + b"\x0b": "Hello!",
        "tägx面🥖".encode() + LEFT * 2 + b"\x7f": "täg面🥖",
        "a面".encode() + b"\x7fb": "ab",
        b"x\xffy": "x\ufffdy",
    }
    for keys in typed:
        chat.say(keys + b"\r")
    check(chat.messages() == list(typed.values()), f"{chat.messages()} is what was typed", chat.shown)
    said = Edited(*SHORT)
    check(said.say(b"Hllo!" + LEFT * 4 + b"e\r").split(b"\r\n")[0].endswith(answer_to(b"Hello!", *SHORT)),
          "the answer is that to a pipe", said.shown)
    said.leave()
    chat.leave()


def test_several_lines():
    chat = Edited(*SHORT)
    chat.say(b"\x1b[200~one\rtwo\rthree\nfour\x1b[31m\x07\t!\x1b[201~ tail\r")
    chat.say(b"a\x1b\rb\x1b\nc\r")
    chat.send_until(b'"""first\r', "… ".encode())
    chat.send_until(b"second\r", "… ".encode())
    chat.say(b'third"""\r')
    chat.say(b'"""whole"""\r')
    expected = ["one\ntwo\nthree\nfour[31m\t! tail", "a\nb\nc", "first\nsecond\nthird", "whole"]
    check(chat.messages() == expected, f"{chat.messages()} are whole", chat.shown)
    # One that is given up leaves nothing.
    chat.send_until(b'"""first\r', "… ".encode())
    chat.send_until(b"second", b"second")
    chat.send_until(b"\x03", b"Ctrl-C again, Ctrl-D or /exit leaves)" + chat.prompt)
    check(chat.messages() == expected, f"{chat.messages()} has no more", chat.shown)
    chat.leave()


def test_long_paste():
    """100 KB at once are one message, however the terminal marks them."""
    line = b" ".join(b"word%d" % i for i in range(13000))
    expected = chat_terminal.piped(line + b"\n").stderr.strip()
    chat = Edited()
    check(expected in chat.say(b"\x1b[200~" + line + b"\x1b[201~\r"), f"{expected!r} is said", chat.shown)
    lines = b"\r".join(line[i:i + 70] for i in range(0, 7000, 70))
    chat.say(b"\x1b[200~" + lines + b"\x1b[201~\r")
    chat.leave()


def test_history():
    HISTORY.unlink()
    chat = Edited(*SHORT)
    chat.say(b"Hello!\r")
    chat.say(b"\x1b[200~one\\\rtwo\x1b[201~\r")
    chat.say(UP * 2 + b"!\r")
    check(chat.messages() == ["Hello!", "one\\\ntwo", "Hello!!"], "what was typed comes back", chat.shown)
    check(stat.S_IMODE(HISTORY.stat().st_mode) == 0o600, "its owner alone reads it")
    check(stat.S_IMODE(HISTORY.parent.stat().st_mode) == 0o700, "and its folder")
    check(HISTORY.read_text() == f"Hello!\none\\\\\\ntwo\nHello!!\n/save {SAVED}\n", f"its lines: {HISTORY.read_text()!r}")
    chat.leave()
    # Another program, another day; a search.
    chat = Edited(*SHORT)
    chat.say(UP * 3 + b"\r")
    chat.send_until(b"\x12Hello!!", b"Hello!!")
    chat.say(b"\r")
    check(chat.messages() == ["one\\\ntwo", "Hello!!"], f"{chat.messages()} comes from the file", chat.shown)
    chat.leave()
    before = HISTORY.read_bytes()
    chat = Edited("--no-history", *SHORT)
    chat.say(b"secret\r")
    chat.leave()
    check(HISTORY.read_bytes() == before, "--no-history keeps nothing")
    other = STATE / "other"
    chat = Edited("--history", str(other), *SHORT)
    chat.say(b"secret\r")
    chat.leave()
    check(HISTORY.read_bytes() == before and other.read_text() == "secret\n", "--history names another file")
    check(stat.S_IMODE(other.stat().st_mode) == 0o600, "which its owner alone reads")
    # It stays short: the newest thousand.
    HISTORY.write_text("".join(f"line {i}\n" for i in range(5000)))
    chat = Edited(*SHORT)
    chat.leave()
    check(HISTORY.read_text() == "".join(f"line {i}\n" for i in range(4000, 5000)), "the newest thousand lines stay")
    # What stands in its way is said, once, and nothing else.
    HISTORY.unlink()
    HISTORY.symlink_to(other)
    chat = Edited(*SHORT)
    check(b"symbolic link" in chat.shown, "a link is not followed", chat.shown)
    chat.say(b"Hello!\r")
    chat.leave()
    check(chat.shown.count(b"symbolic link") == 1 and other.read_text() == "secret\n", "and said once", chat.shown)
    HISTORY.unlink()


def test_commands():
    chat = Edited(*SHORT)
    check(b"Alt-Enter" in chat.say(b"/he\t\r"), "Tab completes", chat.shown)
    check(b"did you mean /reset?" in chat.say(b"/rest\r"), "the nearest command", chat.shown)
    chat.say(b"Hello!\r")
    chat.say(b"/save " + str(SAVED).encode() + b"\r")
    chat.say(b"/reset\r")
    check(b"(a conversation of 1 message)" in chat.say(b"/load " + str(SAVED).encode() + b"\r"), "/load", chat.shown)
    chat.say(b"And then?\r")
    check(chat.messages() == ["Hello!", "And then?"], "it continues", chat.shown)
    chat.leave()


def test_ends():
    """However it ends, the terminal is what it was, and does not mark what is pasted."""
    for number, code in ((signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGQUIT, -signal.SIGQUIT),
                         (signal.SIGABRT, -signal.SIGABRT)):
        chat = Edited()
        chat.send(b"half a line")
        chat.wait_for(b"half a line")
        slave = os.open(f"/dev/pts/{number_of(chat.master)}", os.O_RDWR | os.O_NOCTTY)
        os.kill(chat.pid, number)
        wait_until(lambda: is_usual(chat), f"the terminal is restored after signal {number}", chat)
        os.close(slave)
        chat.end(code)
        check(chat.shown.rfind(b"\x1b[?2004l") > chat.shown.rfind(b"\x1b[?2004h"), "marks are off", chat.shown)
    chat = Edited()
    chat.send_until(b"half", b"half")
    chat.send_until(b"\x03", b"Ctrl-C again, Ctrl-D or /exit leaves)" + chat.prompt)
    chat.send(b"\x03")
    chat.end(0)


def test_stop_and_resize():
    chat = Edited(*SHORT)
    chat.send_until(b"Hel", b"Hel")
    chat.send(b"\x1a")
    _, status = os.waitpid(chat.pid, os.WUNTRACED)
    check(os.WIFSTOPPED(status) and is_usual(chat), "Ctrl-Z gives the terminal back", chat.shown)
    begin = len(chat.shown)
    os.kill(chat.pid, signal.SIGCONT)
    chat.wait_for(b"> Hel", begin)  # drawn again
    fcntl.ioctl(chat.master, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 30, 0, 0))
    chat.say(b"lo!\r")
    chat.say(b"a long line that is wider than thirty columns\r")
    check(chat.messages() == ["Hello!", "a long line that is wider than thirty columns"], "nothing is lost", chat.shown)
    chat.leave()


def test_typed_ahead():
    """What is typed and pasted while an answer is written waits, and stays whole."""
    chat = Edited("--max-tokens", "60")
    chat.send(b"Once\rtwice\r\x1b[200~one\rtwo\x1b[201~\r")
    wait_until(lambda: chat.shown.count(chat.prompt) >= 4, "three answers", chat)
    check(chat.messages() == ["Once", "twice", "one\ntwo"], f"{chat.messages()} are three", chat.shown)
    chat.leave()


def test_interrupted_answer():
    """Ctrl-C stops the answer, which is kept as far as it came, and the conversation continues."""
    folder = STATE / "long"  # a model that never stops early
    folder.mkdir()
    for file in pathlib.Path(chat_terminal.MODEL).iterdir():
        (folder / file.name).symlink_to(file.resolve())
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text('{"min_new_tokens": 450}')

    class Long(Edited):
        model = str(folder)

    def answers(chat):
        chat.say(b"/save " + str(SAVED).encode() + b"\r")
        return [m["content"] for m in json.loads(SAVED.read_text())["messages"] if m["role"] == "assistant"]

    whole = Long("--threads", "1")
    whole.say(b"Hello!\r")
    whole_answer = answers(whole)[0]
    whole.leave()
    chat, stopped = Long("--threads", "1"), whole_answer
    for _ in range(20):  # a busy machine may read it too late
        chat.say(b"/reset\r")
        chat.send_until(b"Hello!\r", whole_answer[:10].encode())
        chat.send_until(b"\x03", chat.prompt)
        stopped = answers(chat)[0]
        if stopped != whole_answer:
            break
    check(len(stopped) < len(whole_answer) and whole_answer.startswith(stopped), f"{stopped!r} was stopped", chat.shown)
    chat.say(b"And then?\r")
    check(len(answers(chat)) == 2, "the conversation continues", chat.shown)
    chat.leave()


if __name__ == "__main__":
    for test in (test_keys, test_several_lines, test_long_paste, test_history, test_commands, test_ends,
                 test_stop_and_resize, test_typed_ahead, test_interrupted_answer):
        test()
    print(f"{chat_terminal.n_checks} checks")
