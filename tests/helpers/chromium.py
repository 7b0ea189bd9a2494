# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that opens one file, driven over its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)

# Seconds until an answer counts as none.
_PATIENCE = 120.0


class Browser:
    """One window of 1200 x 800 pixels, in a process of its own; a context manager.

    Attributes:
        events: What the browser told by itself: requests, messages of the console.
    """

    def __init__(self, profile: Path, *flags: str) -> None:
        assert PROGRAM is not None
        out_read, out_write = os.pipe()
        in_read, in_write = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        shell = f'exec 3<&{in_read} 4>&{out_write}; exec "$@"'
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run")
        options += ("--disable-dev-shm-usage", "--remote-debugging-pipe", *flags)
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", PROGRAM, *options, f"--user-data-dir={profile}"],
            pass_fds=(in_read, out_write),
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(in_read)
        os.close(out_write)
        self._in, self._out = in_write, out_read
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, path: Path) -> None:
        """Opens a file, and waits until it is there."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")
        size = {"width": 1200, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=path.as_uri())
        while not any(map(self._is_loaded, self.events)):
            self._receive()

    def _is_loaded(self, event: dict[str, Any]) -> bool:
        is_mine = event.get("sessionId") == self._session
        return is_mine and event["method"] == "Page.loadEventFired"

    def call(self, method: str, **parameters: Any) -> Any:
        """The answer to a command of the DevTools protocol."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._out], [], [], max(end - time.monotonic(), 0))
            data = os.read(self._out, 1 << 16) if ready else b""
            if not data:
                raise TimeoutError("the browser does not answer")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        if "method" in answer:
            self.events.append(answer)
        return answer

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is, as plain data."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def answer(self, expression: str) -> Any:
        """What a promise of JavaScript comes to, as plain data."""
        done = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def choose(self, selector: str, *paths: Path) -> None:
        """Gives files to an element that takes some, as a user does who picks them."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        found = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=found, files=[str(path) for path in paths])

    def until(self, expression: str, wanted: Any = True) -> None:
        """Waits for an expression to be what is wanted."""
        end = time.monotonic() + _PATIENCE
        while (found := self.value(expression)) != wanted:
            assert time.monotonic() < end, (expression, found, self.complaints())
            time.sleep(0.02)

    def calm(self, milliseconds: int = 250) -> None:
        """Waits until the page has done what it had put off for less, and has drawn.

        Its own timers tell: a busy machine delays them as it delays the page's.
        """
        after = "setTimeout(() => requestAnimationFrame(() => setTimeout(done)), %d)"
        wait = f"new Promise((done) => {after % milliseconds})"
        done = self.call("Runtime.evaluate", expression=wait, awaitPromise=True)
        assert "exceptionDetails" not in done, done

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """One event of the mouse: mousePressed, mouseMoved, mouseReleased, mouseWheel."""
        button = {"button": "left", "clickCount": 1} if kind != "mouseWheel" else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button, **more)

    def click(self, selector: str) -> None:
        """A click in the middle of the first element that fits."""
        x, y = self.middle(selector)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def middle(self, selector: str) -> tuple[float, float]:
        """Where the middle of an element is in the window."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.value(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box})")
        return x, y

    def keys(self, text: str) -> None:
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """A key that is no letter."""
        code = {"Enter": 13, "Escape": 27}[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path) -> None:
        """The window as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def requested(self) -> list[str]:
        """The addresses that were asked for."""
        asked = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in asked]

    def complaints(self) -> list[str]:
        """What the console says: errors, refused styles and programs."""
        said = [e["params"] for e in self.events if e["method"] == "Log.entryAdded"]
        thrown = [e["params"] for e in self.events if e["method"] == "Runtime.exceptionThrown"]
        return [str(params) for params in said + thrown]
