"""A headless Chromium, spoken to by its DevTools protocol over two pipes: no driver, no port, no package.

`--remote-debugging-pipe` makes Chromium read commands from file descriptor 3 and write answers to 4, each a JSON object that
ends with a zero byte (https://chromedevtools.github.io/devtools-protocol/).
"""

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

_FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
_PATIENCE_SECONDS = 120


def find_chromium() -> str | None:
    """Return the browser's command, or None if there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Chromium:
    """One browser with one page.

    Attributes:
        complaints: What the page wrote to the console as warning or error, exceptions, and refused loads.
    """

    def __init__(self, command: str, profile: Path) -> None:
        commands_out, self._commands = os.pipe()
        self._answers, answers_in = os.pipe()
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()
        # The shell puts the pipes where Chromium looks for them.
        script = f'exec "$0" "$@" 3<&{commands_out} 4>&{answers_in}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, command, *_FLAGS, *root, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands_out, answers_in), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands_out)
        os.close(answers_in)
        self._received = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(
        self, page: Path | str, *, width: int = 1280, height: int = 900, dark: bool = False, script: bool = True
    ) -> None:
        """Load a file, or what is at an address, and wait until it is loaded, and drawn where scripts run."""
        self.complaints.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self._loaded = False
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not self._loaded:
            self._next()
        if script:
            self.evaluate(
                "new Promise(done => { const look = () => document.documentElement.dataset.drawn !== undefined ? done(true)"
                " : setTimeout(look, 20); look(); })"
            )

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Write what the page looks like as PNG."""
        shot = self.call(
            "Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": self._extent()} if whole else {})
        )
        file.write_bytes(base64.b64decode(shot["data"]))

    def print_pdf(self, file: Path) -> None:
        """Write the page as it would be printed on A4."""
        printed = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        file.write_bytes(base64.b64decode(printed["data"]))

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def _extent(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium did not answer within {_PATIENCE_SECONDS} s")
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError(f"Chromium ended with status {self._process.wait()}")
            self._received += part
        message, self._received = self._received.split(b"\0", 1)
        told: dict[str, Any] = json.loads(message)
        self._listen(told)
        return told

    def _listen(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"].get("exception", told["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(part.get("value", part)) for part in told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {told['message']}")
