"""Runs the image server outside, and makes the certificate that it may need."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from benchmarks.faults import image_server
from benchmarks.faults.image_server import ServerSettings, Start
from benchmarks.faults.outside import OutsideProgram


class Server:
    """Runs the server for the length of a `with` block.

    Args:
        settings: How it behaves.
        images: Served at `/images/0`, `/images/1`, ...

    Attributes:
        url: Where it listens, once entered.
    """

    def __init__(self, settings: ServerSettings, images: Sequence[bytes]) -> None:
        self._settings = settings
        self._num_images = len(images)
        message = msgspec.msgpack.encode(Start(settings, list(images)))
        # By path, without the folder on its path (-P): it needs nothing of headrace, and starts faster without.
        self._program = OutsideProgram("-P", image_server.__file__, message=len(message).to_bytes(8, "big") + message)
        self.url = ""

    def __enter__(self) -> Server:
        self._program.__enter__()
        scheme = "https" if self._settings.certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{int(self._program.answer)}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.__exit__(kind, error, trace)

    def image_urls(self) -> list[str]:
        """Return the address of each image."""
        return [f"{self.url}/images/{number}" for number in range(self._num_images)]

    @property
    def callback_url(self) -> str:
        """Where results are posted."""
        return f"{self.url}/results"


def make_certificate() -> str | None:
    """Return a file with a new key and certificate for 127.0.0.1, made by `openssl`; None where that is missing.

    The file is removed when this process ends.
    """
    folder = tempfile.mkdtemp(prefix="headrace-tls-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "server.pem"
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path)]
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command = ["openssl", "req", "-x509", *key, *subject, "-out", f"{path}.crt"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return str(path)
