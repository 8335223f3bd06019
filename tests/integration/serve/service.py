"""`headrace serve` in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


class Service:
    """A command that serves, in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "serve", *arguments, "--port", "0"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.said = ""
        self.url = re.search(r"http://[^;]+", self.read_until("listening on http://"))[0]

    def read_until(self, text: str) -> str:
        """Read what it says up to the line that has this text, and return that line."""
        line = ""
        while text not in line:
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line
        return line

    def ask(self, target: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, object]]:
        """Return status and JSON of an answer."""
        request = urllib.request.Request(self.url + target, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def wait_until_ready(self) -> None:
        """Wait until it says that it is ready."""
        until = time.monotonic() + 60
        while self.ask("/readyz")[0] != 200:
            assert time.monotonic() < until, self.ask("/readyz")
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal; return exit status, and what was printed."""
        self.process.send_signal(number)
        out, said = self.process.communicate(timeout=60)
        return self.process.returncode, out, self.said + said
