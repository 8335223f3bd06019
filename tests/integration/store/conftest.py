"""An S3 server (moto), and a proxy before it that is slow, refuses, or does odd things."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start moto's server and return its port."""
    program = Path(sys.executable).with_name("moto_server")
    if not program.exists():
        pytest.fail("moto_server is not installed") if os.environ.get("CI") else pytest.skip(
            "moto_server is not installed"
        )
    port = free_port()
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([str(program), "-H", "127.0.0.1", "-p", str(port)], stdout=output, stderr=output)
    give_up_at = time.monotonic() + 90
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            if process.poll() is not None or time.monotonic() > give_up_at:
                process.kill()
                pytest.fail(f"moto_server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
    yield port
    process.terminate()
    process.wait(20)


@dataclass
class Proxy:
    """What the proxy does, and what it saw."""

    onward: int
    port: int = 0
    latency_seconds: float = 0.0
    bytes_per_second: float = 0.0
    """0: as fast as it goes."""
    refuse: dict[str, list[int]] = field(default_factory=dict)
    """{end of a path: statuses of its next answers}."""
    cut_bodies: int = 0
    """How many bodies are cut off in the middle."""
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, path and headers of each request."""
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    before: Any = None
    """Called with the path before a request is handed on."""


class Handler(BaseHTTPRequestHandler):
    """Hands requests on to the server, as the proxy says."""

    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        """Answer one request."""
        proxy: Proxy = self.server.proxy  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with proxy.lock:
            proxy.seen.append((self.command, self.path, dict(self.headers)))
            proxy.at_once += 1
            proxy.most_at_once = max(proxy.most_at_once, proxy.at_once)
        try:
            self._answer(proxy, body)
        finally:
            with proxy.lock:
                proxy.at_once -= 1

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server calls them so

    def _answer(self, proxy: Proxy, body: bytes) -> None:
        time.sleep(proxy.latency_seconds)
        path = self.path.partition("?")[0]
        if proxy.before:
            proxy.before(path)
        refused = next((left for end, left in proxy.refuse.items() if path.endswith(end) and left), None)
        if refused:
            self.send_response(refused.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        onward = HTTPConnection("127.0.0.1", proxy.onward)
        onward.request(self.command, self.path, body, dict(self.headers))
        answer = onward.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self._send(proxy, content)

    def _send(self, proxy: Proxy, content: bytes) -> None:
        if proxy.cut_bodies and self.command == "GET" and len(content) > 100:
            proxy.cut_bodies -= 1
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        for start in range(0, len(content), 65_536):
            part = content[start : start + 65_536]
            if proxy.bytes_per_second:
                time.sleep(len(part) / proxy.bytes_per_second)
            self.wfile.write(part)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def s3(s3_server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Return a proxy before the server; the environment leads there, as a user's would."""
    proxy = Proxy(onward=s3_server)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.proxy = proxy  # type: ignore[attr-defined]
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    proxy.port = server.server_address[1]
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTTESTTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-key")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield proxy
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def bucket(s3: Proxy, s3_server: int) -> Iterator[Any]:
    """Return a client of an empty bucket called `photos`."""
    import boto3

    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{s3_server}", region_name="us-east-1")
    client.create_bucket(Bucket="photos")
    yield client
    for found in client.list_objects_v2(Bucket="photos").get("Contents", []):
        client.delete_object(Bucket="photos", Key=found["Key"])
    client.delete_bucket(Bucket="photos")
