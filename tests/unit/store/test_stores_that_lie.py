"""A store, or a proxy before it, that sends more than it was asked for, or a list that does not end."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.base.errors import FetchFailed, FetchRejected, SourceError
from headrace.store import objects
from headrace.store.objects import Bucket

BEGIN = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>same</NextContinuationToken>"
ONE = b"<Contents><Key>a/%d.jpg</Key><Size>5</Size><LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents>"
BARE = ONE.replace(b"<Size>", b"<ETag>e</ETag><Size>") % 1
#: What it says to send, and how much of it its client took.
LONG = 1 << 30


class Liar(BaseHTTPRequestHandler):
    """Answers each list with a page and the name of another one, and each part of an object with far more."""

    protocol_version = "HTTP/1.1"
    num_sent = num_pages = 0
    num_names = 1_000
    #: Lists leave the quotes of ETags out, as Azure's do, and parts are given with If-Match in quotes alone.
    is_bare = False
    #: What it refuses, with which status and code.
    refused: re.Pattern[str] | None = None
    refusal = (403, "AccessDenied")

    def do_HEAD(self) -> None:
        """Answer."""
        is_refused = self.refused is not None and self.refused.search(self.path)
        self._begin(self.refusal[0] if is_refused else 200, 0)

    def do_GET(self) -> None:
        """Answer."""
        if self.refused is not None:
            said = b"<Error><Code>%s</Code></Error>" % self.refusal[1].encode()
            is_refused = self.refused.search(self.path)
            self._begin(self.refusal[0] if is_refused else 206, len(said) if is_refused else 100)
            self.wfile.write(said if is_refused else bytes(100))
            return
        if self.is_bare:
            self._answer_bare()
            return
        if "list-type" in self.path:
            type(self).num_pages += 1
            page = BEGIN + b"".join(ONE % number for number in range(self.num_names)) + b"</ListBucketResult>"
            self._begin(200, len(page))
            self.wfile.write(page)
            return
        self._begin(206, LONG)
        with suppress(OSError):
            for _ in range(LONG >> 20):
                self.wfile.write(bytes(1 << 20))
                type(self).num_sent += 1 << 20
        self.close_connection = True

    def _answer_bare(self) -> None:
        if "list-type" in self.path:
            page = b"<ListBucketResult><IsTruncated>false</IsTruncated>" + BARE + b"</ListBucketResult>"
            self._begin(200, len(page))
            self.wfile.write(page)
            return
        is_wanted = self.headers.get("If-Match") == '"e"'
        self._begin(206 if is_wanted else 412, 100 if is_wanted else 0)
        self.wfile.write(bytes(100) if is_wanted else b"")

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
    Liar.num_sent, Liar.num_pages, Liar.num_names = 0, 0, 1_000
    Liar.is_bare, Liar.refused, Liar.refusal = False, None, (403, "AccessDenied")
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


def test_a_list_of_empty_pages_without_end_ends(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library asks for ever, and Ctrl-C did not end it."""
    monkeypatch.setattr(objects, "_MOST_LIST_SECONDS", 0.3)
    Liar.num_names = 0
    with pytest.raises(SourceError, match=r"object\.failed: .* gave less than 1,000 names .*, and no end"):
        bucket.list_objects("a")
    assert Liar.num_pages > 1


def test_an_etag_without_quotes_is_that_of_answers(bucket: Bucket) -> None:
    """Every object of Azure counted as replaced before."""
    Liar.is_bare = True
    (one,) = bucket.list_objects("a")
    assert bucket.get(one.path, 0, 100, one.etag).data == bytes(100)


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_refused_alone_is_rejected_and_a_refusal_of_everything_is_not(bucket: Bucket, status: int) -> None:
    """Keys that ran out in the middle of a run cost no item: the run stops, and another one goes on."""
    Liar.refused, Liar.refusal = re.compile("2.jpg"), (status, "AccessDenied")
    with pytest.raises(FetchFailed, match=r"object\.forbidden: .*; nothing was read yet"):
        bucket.get("a/2.jpg", 0, 100, None)
    bucket.get("a/1.jpg", 0, 100, None)
    with pytest.raises(FetchRejected, match=r"object\.forbidden"):
        bucket.get("a/2.jpg", 0, 100, None)
    Liar.refused = re.compile("jpg")
    for name in ("a/1.jpg", "a/2.jpg"):
        with pytest.raises(FetchFailed, match=r"object\.forbidden: .*; what was read before is refused now"):
            bucket.get(name, 0, 100, None)
    Liar.refused = re.compile("2.jpg")
    assert bucket.get("a/1.jpg", 0, 100, None).data == bytes(100)
    with pytest.raises(FetchRejected, match=r"object\.forbidden"):
        bucket.get("a/2.jpg", 0, 100, None)


def test_what_is_refused_first_is_rejected_where_something_else_is_known_to_be_readable(bucket: Bucket) -> None:
    """As the index of a shard, which was read before another process opened the store."""
    Liar.refused, Liar.refusal = re.compile("2.jpg"), (403, "AccessDenied")
    bucket.note_readable("a/1.jpg")
    with pytest.raises(FetchRejected, match=r"object\.forbidden"):
        bucket.get("a/2.jpg", 0, 100, None)


@pytest.mark.parametrize(("status", "code"), [(400, "ExpiredToken"), (403, "RequestTimeTooSkewed")])
def test_keys_that_ran_out_are_said(bucket: Bucket, status: int, code: str) -> None:
    """With what to do; another try may succeed."""
    Liar.refused, Liar.refusal = re.compile("jpg"), (status, code)
    with pytest.raises(FetchFailed, match=rf"object\.credentials: .* \({code}\); renew them"):
        bucket.get("a/1.jpg", 0, 100, None)


@pytest.mark.parametrize("took", ["403.217µs", "403ms", "401.5ms", "404.1s"])
def test_how_long_a_request_took_is_no_status(bucket: Bucket, took: str) -> None:
    """One of a thousand failures would be rejected for ever."""
    said = RuntimeError(f"Generic S3 error: Error performing GET http://h/a in {took} - HTTP error: broken pipe")
    assert str(bucket._explain(said, "s3://photos/a")).startswith("object.failed: s3://photos/a could not")


def test_a_server_without_tls_is_allowed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As emulators are; without it nothing is sent, and the variable is named."""
    pytest.importorskip("obstore")
    for name, value in {"ACCOUNT_NAME": "a", "ACCOUNT_KEY": "YQ=="}.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    monkeypatch.setattr(objects, "PAUSES", (0.0,))
    monkeypatch.setenv("AZURE_ENDPOINT", "http://127.0.0.1:1/a")
    with pytest.raises(SourceError, match="gave no answer; check the network"):
        Bucket("az://photos").list_objects("a")
    bucket = Bucket("az://photos")
    said = RuntimeError("Generic Azure error: HTTP error: builder error")
    assert "AZURE_ALLOW_HTTP=true" in str(bucket._explain(said, "az://photos/a"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENDPOINT", "nonsense"),
        ("ENDPOINT", "127.0.0.1:1"),
        ("ENDPOINT_URL", "https://h:99999"),
        ("ENDPOINT_URL_S3", "nonsense"),
        ("SESSION_TOKEN", "very\nsecret"),
        ("ACCESS_KEY_ID", "very\nsecret"),
    ],
)
def test_what_the_library_panics_over_is_an_error(
    bucket: Bucket, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own one passes every `except Exception`."""
    monkeypatch.setenv(f"AWS_{name}", value)
    if name.startswith("ENDPOINT"):
        with pytest.raises(SourceError, match=f"AWS_{name} is no address of a server"):
            Bucket("s3://photos")
        return
    opened = Bucket("s3://photos")
    with pytest.raises(SourceError, match=r"AWS_.*line breaks") as caught:
        opened.list_objects("a")
    assert "secret" not in str(caught.value)
    for ask in (lambda: opened.get("a", 0, 1, None), lambda: opened.put("a", b"x")):
        with pytest.raises(FetchRejected, match=r"AWS_.*line breaks"):
            ask()


@pytest.mark.parametrize(
    ("store", "name", "url"),
    [
        ("s3://photos", "AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1"),
        ("s3://photos", "AWS_ENDPOINT_URL", "HTTP://127.0.0.1:1"),
        ("gs://photos", "GOOGLE_BASE_URL", "http://127.0.0.1:1"),
        ("az://photos", "AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1/a"),
    ],
)
def test_a_server_is_asked_without_tls_where_its_address_says_so(
    bucket: Bucket, store: str, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each name that the library reads."""
    monkeypatch.setattr(objects, "PAUSES", (0.0,))
    for other, value in {"GOOGLE_SKIP_SIGNATURE": "true", "AZURE_STORAGE_ACCOUNT_NAME": "a",
                         "AZURE_STORAGE_ACCOUNT_KEY": "YQ==", name: url}.items():  # fmt: skip
        monkeypatch.setenv(other, value)
    if name != "AWS_ENDPOINT_URL":
        monkeypatch.delenv("AWS_ENDPOINT_URL")
    with pytest.raises(SourceError, match="gave no answer; check the network"):
        Bucket(store).list_objects("a")


def test_a_name_that_the_library_does_not_read_allows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another server would be asked without TLS."""
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    monkeypatch.setenv("AWS_STORAGE_ENDPOINT", "http://127.0.0.1:1")
    assert not objects._allows_http("AWS", [f"AWS_{name}" for name in objects._ENDPOINTS["s3"]])
