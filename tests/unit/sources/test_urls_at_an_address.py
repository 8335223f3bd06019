"""A list of URLs that a web server has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.base.errors import SourceError
from headrace.sources.urls import UrlList

PAGES: dict[str, bytes] = {}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer with a page, lead from /moved to /lists/a.txt, or say that there is none."""
        page = PAGES.get(self.path)
        self.send_response(302 if self.path == "/moved" else 404 if page is None else 200)
        if self.path == "/moved":
            self.send_header("Location", "/lists/a.txt")
        self.send_header("Content-Length", str(len(page or b"")))
        self.end_headers()
        self.wfile.write(page or b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """Return the address of a server on the loopback interface: the operator may name any."""
    PAGES.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_lines_are_urls_or_relative_to_the_list(server: str) -> None:
    """Without comments and empty lines, as in a file; a name is looked for beside the list."""
    PAGES["/lists/a.txt"] = b"\xef\xbb\xbf# today\n\nhttps://e.com/1.jpg\n  2.jpg \r\n/3.jpg\n../4.jpg?v=1\n"
    found = [entry.payload for entry in UrlList(f"{server}/lists/a.txt").entries()]
    assert found == ["https://e.com/1.jpg", f"{server}/lists/2.jpg", f"{server}/3.jpg", f"{server}/4.jpg?v=1"]
    assert UrlList(f"{server}/lists/a.txt").where == f"the list {server}/lists/a.txt"


def test_no_secret_of_the_address_is_shown(server: str) -> None:
    """Neither in ids, nor where the list is named."""
    PAGES["/a.txt?sig=SECRET"] = b"1.jpg\n"
    address = f"{server.replace('//', '//me:HIDDEN@')}/a.txt?sig=SECRET"
    source = UrlList(address)
    (entry,) = source.entries()
    assert entry.payload.endswith("/1.jpg")
    assert not any(secret in text for secret in ("SECRET", "HIDDEN") for text in (entry.id, source.where))


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (None, "answered 404, expected 200"),
        (b"# nothing\n", "names no URL"),
        (b"1.jpg\nmailto:me@e.com\n", "entry 2 is not a URL"),
        (b"a.jpg\na b.jpg\n", "entry 2 is not a URL"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_before_the_run(server: str, page: bytes | None, said: str) -> None:
    """With the address, and what is wrong."""
    if page is not None:
        PAGES["/a.txt"] = page
    with pytest.raises(SourceError, match=said):
        UrlList(f"{server}/a.txt").entries()


def test_a_server_that_is_not_there_is_said_so(server: str) -> None:
    """Not as a file that is missing."""
    with pytest.raises(SourceError, match="cannot be downloaded"):
        UrlList("http://127.0.0.1:1/a.txt").entries()


def test_a_redirect_is_followed(server: str) -> None:
    """Names stay relative to the address that was asked for."""
    PAGES["/lists/a.txt"] = b"1.jpg\n"
    assert [entry.payload for entry in UrlList(f"{server}/moved").entries()] == [f"{server}/1.jpg"]
