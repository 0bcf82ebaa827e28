"""A headless Chromium that tests drive by its own protocol (Chrome DevTools), with nothing to resolve names by."""

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from websockets.sync.client import connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = "no Chromium on the PATH (Debian: apt-get install chromium)"
AXE = os.environ.get("OBLIVIONIS_AXE", "")
NO_AXE = "OBLIVIONIS_AXE names no axe.min.js (npm install axe-core)"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-component-update", "--disable-background-networking", "--disable-dev-shm-usage"),
    *("--remote-debugging-port=0", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
)
KEYS = {"Tab": 9, "Enter": 13, " ": 32}
SECONDS = 60


class Tab:
    """A tab. Since the last page: `said`, errors of its console, of scripts, and what its policy blocked; `asked`, the
    hosts that it asked."""

    def __init__(self, socket):
        self.socket = socket
        self.number, self.events, self.said, self.asked = 0, [], [], set()
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """The result of a command; what happened meanwhile is noted."""
        answer = self._send(method, **params)
        assert "error" not in answer, answer
        return answer["result"]

    def _send(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while (message := self._next()).get("id") != self.number:
            pass
        return message

    def _next(self):
        message = json.loads(self.socket.recv(timeout=SECONDS))
        if "method" in message:
            self._note(message["method"], message["params"])
        return message

    def _note(self, event, given):
        self.events.append(event)
        if event == "Network.requestWillBeSent" and given["request"]["url"].startswith(("http", "ws")):
            self.asked.add(urlsplit(given["request"]["url"]).netloc)
        elif event == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.said.append(given["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.said.append(str(given["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and given["type"] in ("error", "assert"):
            self.said.append(str(given["args"]))

    def wait(self, event):
        """Until `event` happens, after what was noted before."""
        while event not in self.events:
            self._next()

    def go(self, address):
        """Load a page."""
        for past in (self.events, self.said, self.asked):
            past.clear()
        self.call("Page.navigate", url=address)
        self.wait("Page.loadEventFired")

    def js(self, expression):
        """The value of an expression, a promise's once it has one."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression):
        """Wait until an expression is true, in this page or the one that follows it."""
        late = time.monotonic() + SECONDS
        while True:
            found = self._send("Runtime.evaluate", expression=expression, returnByValue=True)
            if found.get("result", {}).get("result", {}).get("value"):
                return
            assert time.monotonic() < late, f"waited in vain until {expression}"
            time.sleep(0.05)

    def window(self, width, height=900, *, dark=False):
        """Size of the window in CSS pixels, and the colours that the reader prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key, *, shift=False):
        """Press a key."""
        given = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"Enter": "\r", " ": " "}.get(key)
        given |= {"modifiers": 8 if shift else 0} | ({"text": text} if text else {})
        self.call("Input.dispatchKeyEvent", type="keyDown", **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", **{k: v for k, v in given.items() if k != "text"})

    def write(self, text):
        """Type a text where the focus is."""
        self.call("Input.insertText", text=text)

    def over(self, width):
        """What reaches beyond a window of this width (a phone's own grows with it), but what can be moved by itself."""
        return self.js(
            f"""[document.documentElement, ...document.querySelectorAll('body *')].filter(
              e => Math.max(e.getBoundingClientRect().right, e.tagName === 'HTML' ? e.scrollWidth : 0) > {width} + 1
                && !e.closest('div.wide, pre')).map(e => e.tagName + '.' + e.className)"""
        )

    def faults(self):
        """What axe finds in the page that is serious or critical: rule and element."""
        self.js(Path(AXE).read_text(encoding="utf-8") + "; 0")
        return self.js(
            """axe.run().then(found => found.violations.filter(v => ['serious', 'critical'].includes(v.impact))
               .flatMap(v => v.nodes.map(n => v.id + ': ' + n.html.slice(0, 200))))"""
        )

    def picture(self, path, *, whole=True):
        """A screenshot of the page, or of what the window shows of it."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(folder):
    """A tab of a Chromium whose profile lies in `folder`."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = iter(process.stderr.readline, "")
        port = next(m[1] for line in said if (m := re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", line)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS) as answer:
            page = next(t for t in json.load(answer) if t["type"] == "page")
        with connect(page["webSocketDebuggerUrl"], max_size=None, open_timeout=SECONDS) as socket:
            yield Tab(socket)
    finally:
        process.terminate()
        process.wait(30)
