"""A headless Chromium, driven through its DevTools protocol over a pair of pipes: no library is needed for that."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WHY_NOT = "no headless Chromium here (Debian: apt-get install chromium)"
PATIENCE = 90.0  # seconds for one answer; machines may be busy


class Browser:
    """One browser with one page. A context manager."""

    def __init__(self, width: int = 1280, height: int = 860) -> None:
        assert EXECUTABLE is not None, WHY_NOT
        self._folder = tempfile.mkdtemp(prefix="stator-browser-")
        from_us, self._out = os.pipe()
        self._in, to_us = os.pipe()
        # The protocol's ends are descriptors 3 and 4 of the browser; ours are moved out of the way first.
        high = [os.dup(fd) if fd in (3, 4) else fd for fd in (from_us, to_us)]
        options = "--headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-extensions"
        self._pid = os.posix_spawn(
            EXECUTABLE,
            [
                EXECUTABLE,
                *options.split(),
                "--remote-debugging-pipe",
                "--disable-dev-shm-usage",
                f"--user-data-dir={self._folder}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,
        )
        for fd in {from_us, to_us, *high}:
            os.close(fd)
        self._number = 0
        self._buffer = b""
        self.complaints: list[str] = []  # errors of the page's script, and what it wanted from outside
        target = next(t for t in self._ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- the protocol

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._ask(method, self._session, **parameters)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError("the browser does not answer")
            read = os.read(self._in, 1 << 20)
            if not read:
                raise EOFError("the browser has gone")
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"].get("exception", parameters)))
        if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(parameters["entry"]["text"]))
        if event.get("method") == "Network.requestWillBeSent":
            address = parameters["request"]["url"]
            if not address.startswith(("file:", "about:", "data:")):
                self.complaints.append(f"asked for {address}")

    # -- what a reader does

    def open(self, path: Path, part: str = "") -> None:
        self.send("Page.navigate", url="about:blank")  # another part of the same file is not loaded anew
        self.send("Page.navigate", url=path.as_uri() + (f"#{part}" if part else ""))
        self.wait_for(part)

    def evaluate(self, script: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until something is true of the page."""
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.02)

    def wait_for(self, part: str) -> None:
        """Until a part of the page has been drawn."""
        self.wait(f"document.documentElement?.dataset.shown === {json.dumps(part and f'#{part}')}")

    def click(self, selector: str, number: int = 0) -> None:
        """Click the middle of an element, as a mouse does."""
        at = self.middle(selector, number)
        self.mouse("mousePressed", at)
        self.mouse("mouseReleased", at)

    def middle(self, selector: str, number: int = 0) -> list[float]:
        """Where an element is, once it is there and nothing lies over it."""
        element = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        self.wait(f"!!{element}")
        look = (
            f"(() => {{ const it = {element}; it.scrollIntoView({{block: 'center'}});"
            "const b = it.getBoundingClientRect();"
            "const at = [b.x + b.width / 2, b.y + b.height / 2];"
            "return it.contains(document.elementFromPoint(...at)) && at; })()"
        )
        self.wait(look)
        at: list[float] = self.evaluate(look)
        return at

    def mouse(self, kind: str, at: list[float]) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.send("Input.insertText", text=text)

    def text(self, selector: str = "main") -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
