"""The page at "/" in headless Chromium, over its DevTools protocol: a conversation on the shipped model, stop, regenerate,
the live view, settings, a phone's width, light and dark, names for screen readers. Skipped (77) without Chromium.

    test_page.py QRUN MODEL [FOLDER]        screenshots go to FOLDER
"""
import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

FOLDER = sys.argv.pop(3) if len(sys.argv) > 3 else None
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    print("SKIPPED: there is no Chromium")
    sys.exit(77)

from served import Server  # noqa: E402  it takes the arguments


class Browser:
    """A page of Chromium; call() runs a method of the DevTools protocol."""

    def __init__(self, profile):
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
             "--remote-debugging-port=0", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "DevTools listening on" in line:
                port = int(line.split("ws://")[1].split("/")[0].split(":")[1])
                break
        else:
            raise RuntimeError("Chromium did not start")
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/json")
        page = next(p for p in json.loads(connection.getresponse().read()) if p["type"] == "page")
        path = page["webSocketDebuggerUrl"].split(str(port), 1)[1]
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
                            "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                            "Sec-WebSocket-Version: 13\r\n\r\n".encode())
        self.input = b""
        while b"\r\n\r\n" not in self.input:
            self.input += self.socket.recv(4096)
        self.input = self.input.split(b"\r\n\r\n", 1)[1]
        self.number, self.events = 0, []

    def take(self, n):
        while len(self.input) < n:
            piece = self.socket.recv(65536)
            if not piece:
                raise RuntimeError("Chromium is gone")
            self.input += piece
        taken, self.input = self.input[:n], self.input[n:]
        return taken

    def message(self):
        text, last = b"", False
        while not last:
            first, length = self.take(2)
            length &= 127
            if length > 125:
                length = int.from_bytes(self.take(2 if length == 126 else 8), "big")
            text += self.take(length)
            last = first & 128
        return json.loads(text)

    def call(self, method, **params):
        self.number += 1
        data = json.dumps({"id": self.number, "method": method, "params": params}).encode()
        n = len(data)
        size = bytes([128 | n]) if n < 126 else bytes([254]) + n.to_bytes(2, "big") if n < 65536 else \
            bytes([255]) + n.to_bytes(8, "big")
        self.socket.sendall(b"\x81" + size + b"\0\0\0\0" + data)
        while True:
            message = self.message()
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def js(self, code):
        result = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, condition, what, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.js(condition):
                return
            time.sleep(0.05)
        raise AssertionError(f"not in {seconds} s: {what}: {self.js('document.body.innerText')}")

    def key(self, key, **more):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **more)

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def colours(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, name):
        if FOLDER is not None:
            os.makedirs(FOLDER, exist_ok=True)
            with open(os.path.join(FOLDER, f"{name}.png"), "wb") as file:
                file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        self.process.stderr.close()


ENTER = {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
IDLE = "document.getElementById('send').textContent === 'Send'"
ANSWERS = "document.querySelectorAll('.message.assistant .text')"


def say(page, text):
    page.js("document.getElementById('text').focus()")
    page.call("Input.insertText", text=text)
    page.key("Enter", **ENTER)


def check_conversation(page, server):
    page.until("document.getElementById('model').length === 1", "the model's name")
    page.js("document.getElementById('system').value = 'You are kind.'")
    page.js("document.getElementById('max_tokens').value = 60; document.getElementById('seed').value = 3")
    for n, text in enumerate(["Hello!", "I feel sad today.", "Can you tell me a story about a dog?"], 1):
        say(page, text)
        page.until(f"{ANSWERS}.length === {n} && {IDLE}", f"answer {n}")
    first = page.js(f"{ANSWERS}[2].textContent")
    assert len(first) > 10, first
    # The page says what the engine answers to the same conversation.
    messages = page.js("JSON.stringify(conversation)")
    chat = [{"role": "system", "content": "You are kind."}] + json.loads(messages)[:-1]
    answer = server.ask("/v1/chat/completions", {"messages": chat, "max_tokens": 60, "seed": 3})[1]
    assert answer["choices"][0]["message"]["content"] == first, (answer, first)
    assert page.js("document.getElementById('said').textContent") == first
    # Regenerate: the same with the same seed, and another with another.
    page.js("document.getElementById('again').click()")
    page.until(f"{ANSWERS}.length === 3 && {IDLE}", "the answer again")
    assert page.js(f"{ANSWERS}[2].textContent") == first
    page.js("document.getElementById('seed').value = 4; document.getElementById('again').click()")
    page.until(f"{ANSWERS}.length === 3 && {IDLE}", "another answer")
    assert page.js(f"{ANSWERS}[2].textContent") != first
    assert page.js("conversation.length") == 6


def check_stop(page, server):
    """Escape ends the answer, and its compute. Four others keep the engine busy, so that there is time for it."""
    page.js("document.getElementById('max_tokens').value = ''; document.getElementById('clear').click()")
    begun = server.metric("qrun:requests_finished_total")
    page.js("""fetch('v1/completions', {method: 'POST', signal: (window.busy = new AbortController()).signal, body:
            JSON.stringify({prompt: 'Once', n: 64, max_tokens: 400, ignore_eos: true, logprobs: 20})}).catch(() => 0), 0""")
    page.until("document.getElementById('running').textContent !== '0'", "the live view of what runs")
    say(page, "Tell me a long story.")
    page.until("document.getElementById('send').textContent === 'Stop'", "an answer that can be stopped")
    page.picture("busy")
    assert page.js(f"{ANSWERS}.length") == 1
    page.key("Escape", code="Escape", windowsVirtualKeyCode=27)
    page.until(IDLE, "the end after Escape")
    page.js("window.busy.abort()")
    assert server.wait_until_idle()
    assert server.metric("qrun:requests_finished_total") >= begun + 1


def check_live_view(page):
    page.until("document.querySelectorAll('#pages i.cached').length > 0", "pages that are kept for reuse")
    assert page.js("document.querySelectorAll('#pages i').length") == 256
    assert page.js("document.querySelectorAll('#memory dd').length") >= 6
    assert "planned" in page.js("document.getElementById('plan').getAttribute('aria-label')")
    assert page.js("document.getElementById('graph').firstElementChild.getAttribute('d')").startswith("M")


def check_names(page):
    """Everything that can be reached by keyboard has a name."""
    page.js("document.getElementById('sampling').open = document.getElementById('access').open = true")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles, n = {"button", "textbox", "spinbutton", "combobox", "image", "img", "main", "complementary"}, 0
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in roles and not node.get("ignored"):
            n += 1
            assert node.get("name", {}).get("value"), node
    assert n >= 15, n
    page.js("document.getElementById('text').focus()")
    reached = set()
    for _ in range(25):
        page.key("Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.add(page.js("document.activeElement.id"))
    assert {"send", "again", "model", "system", "temperature", "seed", "clear", "messages"} <= reached, reached
    page.js("document.getElementById('sampling').open = document.getElementById('access').open = false")
    page.js("document.getElementById('text').focus()")


def check_layout(page, name):
    """Nothing is wider than the page, and controls are large enough for a finger."""
    assert page.js("document.documentElement.scrollWidth <= innerWidth"), name
    assert page.js("[...document.querySelectorAll('button')].filter(b => b.offsetWidth && b.offsetHeight < 40).length") == 0
    page.picture(name)


def main():
    with tempfile.TemporaryDirectory() as profile, Server("--max-sequences", "24") as server:
        page = Browser(profile)
        try:
            for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
                page.call(f"{domain}.enable")
            page.size(1100, 900)
            page.colours("light")
            address = f"http://127.0.0.1:{server.port}/"
            page.call("Page.navigate", url=address)
            page.until("document.readyState === 'complete'", "the page")
            check_conversation(page, server)
            check_live_view(page)
            check_names(page)
            check_layout(page, "light")
            page.colours("dark")
            check_layout(page, "dark")
            page.size(390, 780, phone=True)
            check_layout(page, "phone")
            page.js("document.getElementById('show').click()")
            assert page.js("document.getElementById('show').getAttribute('aria-expanded')") == "true"
            check_layout(page, "phone-settings")
            page.js("document.getElementById('show').click()")
            page.size(1100, 900)
            page.colours("light")
            check_stop(page, server)
            page.js("document.getElementById('temperature').value = -1")
            say(page, "Hello")
            page.until("document.querySelector('.message.error') !== null", "what the server refuses")
            for event in page.events:
                assert event["method"] != "Runtime.exceptionThrown", event
                if event["method"] == "Network.requestWillBeSent":
                    url = event["params"]["request"]["url"]
                    assert url.startswith((address, "data:")), url
                if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                    assert "400" in event["params"]["entry"]["text"], event
        finally:
            page.close()
    assert server.code == 0
    print("the page works")


main()
