"""A headless Chromium, driven over a pipe: no network, no other package."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.conftest import PATIENCE_S

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_WORDS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--disable-background-networking",
    "--remote-debugging-pipe", "--hide-scrollbars",
)  # fmt: skip


class Browser:
    """One page of it. `errors`: what its console and its exceptions said."""

    def __init__(self, width: int = 1280, height: int = 800) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (theirs_in, self._out), (self._in, theirs_out) = os.pipe(), os.pipe()
        words = [CHROMIUM or "chromium", *_WORDS, f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}", "about:blank"]
        # Chromium reads commands from descriptor 3 and writes to 4; what is to become these must not be one of them.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
        silent = os.open(os.devnull, os.O_RDWR)
        becomes = [(os.POSIX_SPAWN_DUP2, end, at) for end, at in ((silent, 1), (silent, 2), (ends[0], 3), (ends[1], 4))]
        self._pid = os.posix_spawnp(words[0], words, os.environ, file_actions=becomes, setsid=True)
        for end in (theirs_in, theirs_out, silent, *ends):
            os.close(end)
        self._read, self._number, self._session = b"", 0, ""
        self.errors: list[str] = []
        target = next(t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self(f"{domain}.enable")
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | ({"sessionId": self._session} if self._session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._read:
            assert select.select([self._in], [], [], max(0, end - time.monotonic()))[0], "the browser does not answer"
            more = os.read(self._in, 1 << 20)
            assert more, "the browser ended"
            self._read += more
        first, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        said, of = message.get("method"), message.get("params", {})
        if said == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(of["exceptionDetails"])[:2000])
        elif said == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(of["args"])[:2000])
        elif said == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(of["entry"])[:2000])
        return message

    def open(self, page: Path, view: str = "") -> None:
        """Show a page, from afresh, and wait until it says that it is ready."""
        self("Page.navigate", url="about:blank")
        self("Page.navigate", url=page.as_uri() + (f"#{view}" if view else ""))
        self.wait("document.documentElement?.dataset.ready")

    def wait(self, condition: str) -> Any:
        """Until a JavaScript expression holds; returns what it is."""
        end = time.monotonic() + PATIENCE_S
        while not (value := self.js(condition)):
            assert time.monotonic() < end, f"{condition} never held: {self.errors}"
            time.sleep(0.02)
        return value

    def js(self, expression: str) -> Any:
        """What a JavaScript expression, which may be a promise, gives, as plain data."""
        done = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            self("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self("Input.dispatchKeyEvent", type="keyUp", key=key)

    def mouse(self, what: str, x: float, y: float, **more: Any) -> None:
        """Send one event of the mouse: mouseMoved, mousePressed, mouseReleased or mouseWheel."""
        self("Input.dispatchMouseEvent", type=what, x=x, y=y, **more)

    def picture(self, file: Path) -> None:
        """Write what is seen as PNG."""
        file.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png")["data"]))
