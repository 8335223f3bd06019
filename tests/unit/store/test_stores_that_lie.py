"""A store, or a proxy before it, that sends more than it was asked for, or a list that does not end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.base.errors import FetchFailed, SourceError
from headrace.store.objects import Bucket

BEGIN = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>same</NextContinuationToken>"
ONE = b"<Contents><Key>a/%d.jpg</Key><Size>5</Size><LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents>"
#: What it says to send, and how much of it its client took.
LONG = 1 << 30


class Liar(BaseHTTPRequestHandler):
    """Answers each list with a page and the name of another one, and each part of an object with far more."""

    protocol_version = "HTTP/1.1"
    num_sent = num_pages = 0

    def do_GET(self) -> None:
        """Answer."""
        if "list-type" in self.path:
            type(self).num_pages += 1
            page = BEGIN + b"".join(ONE % number for number in range(1_000)) + b"</ListBucketResult>"
            self._begin(200, len(page))
            self.wfile.write(page)
            return
        self._begin(206, LONG)
        with suppress(OSError):
            for _ in range(LONG >> 20):
                self.wfile.write(bytes(1 << 20))
                type(self).num_sent += 1 << 20
        self.close_connection = True

    def _begin(self, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Range", "bytes 0-99/100")
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Give a bucket of such a store."""
    pytest.importorskip("obstore")
    Liar.num_sent = Liar.num_pages = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in {"ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "ACCESS_KEY_ID": "a",
                            "SECRET_ACCESS_KEY": "b", "REGION": "us-east-1"}.items():  # fmt: skip
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        yield Bucket("s3://photos")
        server.shutdown()


def test_more_than_was_asked_for_is_not_taken(bucket: Bucket) -> None:
    """The answer is given up before it fills the memory."""
    with pytest.raises(FetchFailed, match=r"object\.(short|failed)"):
        bucket.get("a/1.jpg", 0, 100, '"e"')
    assert Liar.num_sent < LONG // 4


def test_a_list_without_end_ends(bucket: Bucket) -> None:
    """It is said as soon as names have come three times, and not tried again."""
    with pytest.raises(SourceError, match="lists the same names again and again"):
        bucket.list_objects("a")
    assert Liar.num_pages <= 10
