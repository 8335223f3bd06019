"""The HTTP client against a real server."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pycurl
import pytest

from headrace.base import dialing, look_ups
from headrace.base.errors import SettingsError, Shortage
from headrace.base.http_answer import is_permanent
from headrace.base.http_client import HttpClient
from headrace.base.http_error import HttpError, failure_of, strip_secrets
from headrace.base.http_settings import HttpSettings
from headrace.base.network_rules import NetworkPlan, NetworkRules
from headrace.base.shortage import shortage_of

#: What these servers are on.
LOOPBACK = NetworkRules(NetworkPlan(allow=["127.0.0.1"]))


@pytest.fixture
def make_client(client_type: type[HttpClient]) -> Iterator[Callable[..., HttpClient]]:
    """Makes clients and closes them."""
    clients: list[HttpClient] = []

    def make(**settings: Any) -> HttpClient:
        clients.append(client_type(HttpSettings(**settings), rules=LOOPBACK))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def redirect(to: str, status: int = 302) -> Callable[[Any], None]:
    """Answers with another address."""
    return lambda handler: handler.answer(status, Location=to)


def test_get_returns_status_and_body(server: Any, make_client: Any) -> None:
    """A GET brings the body as it was sent, byte by byte."""
    body = bytes(range(256)) * 1000
    server.routes["/a"] = lambda handler: handler.answer(200, body)
    response = make_client().get(f"{server.url}/a?size=1")
    assert (response.status, response.body) == (200, body)
    assert (server.requests[0].method, server.requests[0].path) == ("GET", "/a?size=1")


def test_get_says_who_asks(server: Any, make_client: Any) -> None:
    """The user agent names headrace, so that an operator of the server can tell whose load it is."""
    server.routes["/a"] = lambda handler: handler.answer()
    make_client().get(f"{server.url}/a")
    assert server.requests[0].headers["User-Agent"].startswith("headrace/")


@pytest.mark.parametrize("status", [200, 204, 400, 404, 429, 500, 503])
def test_every_status_is_an_answer(server: Any, make_client: Any, status: int) -> None:
    """An error status is returned, not raised: the caller knows what it means."""
    server.routes["/a"] = lambda handler: handler.answer(status)
    assert make_client().get(f"{server.url}/a").status == status


def test_connection_is_kept_alive(server: Any, make_client: Any) -> None:
    """Requests of one client, GET and POST, go over one connection."""
    server.routes["/a"] = lambda handler: handler.answer(200, b"x")
    client = make_client()
    for _ in range(3):
        client.get(f"{server.url}/a")
        client.post(f"{server.url}/a", b"y", {})
    assert len({request.connection for request in server.requests}) == 1


def test_new_connections_are_told(client_type: Any, server: Any) -> None:
    """Only a request that had to open a connection is told of, with a time; also one that failed after that."""
    server.routes["/a"] = lambda handler: handler.answer(200, b"x" * 100)
    told: list[tuple[int, float]] = []
    client = client_type(HttpSettings(max_bytes=10), lambda number, seconds: told.append((number, seconds)), LOOPBACK)
    with pytest.raises(HttpError):
        client.get(f"{server.url}/a")
    server.routes["/b"] = lambda handler: handler.answer(200, b"x")
    client.get(f"{server.url}/b")
    client.get(f"{server.url}/b")
    client.close()
    assert sum(number for number, _ in told) == len({request.connection for request in server.requests})
    assert all(0 < seconds < 60 for _, seconds in told)


def test_a_server_that_is_not_there_opens_nothing(client_type: Any) -> None:
    """A refused connection is no connection."""
    told: list[int] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/"
        client = client_type(HttpSettings(), lambda number, seconds: told.append(number), LOOPBACK)
        with pytest.raises(HttpError):
            client.get(address)
        client.close()
    assert told == []


def test_connection_survives_an_error_status(server: Any, make_client: Any) -> None:
    """An answer of 404 does not cost the connection."""
    server.routes["/no"] = lambda handler: handler.answer(404, b"no")
    client = make_client()
    client.get(f"{server.url}/no")
    client.get(f"{server.url}/no")
    assert len({request.connection for request in server.requests}) == 1


def test_a_server_that_hung_up_is_asked_again(server: Any, make_client: Any) -> None:
    """A connection that the server closed while idle is replaced without an error."""

    def last(handler: Any) -> None:
        handler.close_connection = True
        handler.answer(200, b"x")

    server.routes["/a"] = last
    client = make_client()
    assert [client.get(f"{server.url}/a").status for _ in range(2)] == [200, 200]
    assert len({request.connection for request in server.requests}) == 2


def test_post_sends_body_and_headers(server: Any, make_client: Any) -> None:
    """A POST carries body and headers as given, and waits for no "100 Continue"."""
    server.routes["/done"] = lambda handler: handler.answer(201)
    body = b"\x00binary" * 1000
    response = make_client().post(f"{server.url}/done", body, {"Content-Type": "image/png", "X-Key": "clé"})
    (request,) = server.requests
    assert (response.status, request.method, request.body) == (201, "POST", body)
    assert request.headers["Content-Type"] == "image/png"
    assert request.headers["X-Key"].encode("latin-1").decode() == "clé"
    assert "Expect" not in request.headers


def test_get_after_post_has_no_body(server: Any, make_client: Any) -> None:
    """Nothing of a POST, neither body nor headers, is left for the GET after it."""
    server.routes["/a"] = lambda handler: handler.answer()
    client = make_client()
    client.post(f"{server.url}/a", b"secret", {"X-Key": "1"})
    client.get(f"{server.url}/a")
    request = server.requests[1]
    assert (request.method, request.body) == ("GET", b"")
    assert not {"X-Key", "Content-Length", "Content-Type"} & set(request.headers)


def test_posts_do_not_share_bodies(server: Any, make_client: Any) -> None:
    """A short or empty body after a long one is sent at its own length."""
    server.routes["/a"] = lambda handler: handler.answer()
    client = make_client()
    for body in (b"long" * 100, b"s", b""):
        client.post(f"{server.url}/a", body, {})
    assert [request.body for request in server.requests] == [b"long" * 100, b"s", b""]


@pytest.mark.parametrize("character", ["\r", "\n", "\0"])
def test_a_header_cannot_bring_further_headers(server: Any, make_client: Any, character: str) -> None:
    """A line break in a header's value is an error, not a header that somebody else wrote."""
    with pytest.raises(HttpError, match="line break") as caught:
        make_client().post(f"{server.url}/a", b"", {"X-Key": f"1{character}X-Evil: 2"})
    assert caught.value.permanent
    assert server.requests == []


def test_redirects_are_followed(server: Any, make_client: Any) -> None:
    """A GET follows as many redirects as allowed, and the bodies on the way do not count."""
    server.routes["/1"] = redirect("/2", 301)
    server.routes["/2"] = lambda handler: handler.answer(307, b"moved", Location="/3")
    server.routes["/3"] = lambda handler: handler.answer(200, b"here")
    assert make_client(max_redirects=2).get(f"{server.url}/1").body == b"here"


def test_redirects_are_limited(server: Any, make_client: Any) -> None:
    """One redirect more than allowed is a permanent error."""
    server.routes["/loop"] = redirect("/loop")
    with pytest.raises(HttpError, match="redirects") as caught:
        make_client(max_redirects=2).get(f"{server.url}/loop")
    assert caught.value.permanent
    assert len(server.requests) == 3


def test_no_redirects_means_none(server: Any, make_client: Any) -> None:
    """With max_redirects = 0 the first redirect is an error."""
    server.routes["/1"] = redirect("/2")
    with pytest.raises(HttpError):
        make_client(max_redirects=0).get(f"{server.url}/1")
    assert len(server.requests) == 1


def test_a_redirect_cannot_lead_to_a_file(server: Any, make_client: Any) -> None:
    """A server cannot make a worker read its own disk."""
    server.routes["/1"] = redirect("file:///etc/passwd")
    with pytest.raises(HttpError) as caught:
        make_client().get(f"{server.url}/1")
    assert caught.value.permanent


def test_post_is_not_redirected(server: Any, make_client: Any) -> None:
    """A POST answers with the redirect itself, also after a GET that followed one."""
    server.routes["/1"] = redirect("/2", 307)
    server.routes["/2"] = lambda handler: handler.answer()
    client = make_client()
    client.get(f"{server.url}/1")
    server.requests.clear()
    assert client.post(f"{server.url}/1", b"x", {}).status == 307
    assert [request.path for request in server.requests] == ["/1"]


def chunked(body: bytes) -> Callable[[Any], None]:
    """Sends a body without telling its length first."""

    def send(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for start in range(0, len(body), 1000):
            chunk = body[start : start + 1000]
            handler.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")

    return send


def with_length(body: bytes) -> Callable[[Any], None]:
    """Sends a body after its length."""
    return lambda handler: handler.answer(200, body)


@pytest.mark.parametrize("how", [with_length, chunked])
def test_a_body_of_the_limit_passes(server: Any, make_client: Any, how: Any) -> None:
    """A body of exactly max_bytes is whole, with and without Content-Length."""
    server.routes["/a"] = how(b"x" * 5000)
    assert len(make_client(max_bytes=5000).get(f"{server.url}/a").body) == 5000


@pytest.mark.parametrize("how", [with_length, chunked])
def test_a_body_over_the_limit_is_refused(server: Any, make_client: Any, how: Any) -> None:
    """One byte more than max_bytes is a permanent error, with and without Content-Length."""
    server.routes["/a"] = how(b"x" * 5001)
    with pytest.raises(HttpError) as caught:
        make_client(max_bytes=5000).get(f"{server.url}/a")
    assert caught.value.permanent


def test_a_client_serves_on_after_an_error(server: Any, make_client: Any) -> None:
    """What one request met does not show in the next."""
    server.routes["/large"] = chunked(b"x" * 50_000)
    server.routes["/a"] = lambda handler: handler.answer(200, b"fine")
    client = make_client(max_bytes=5000)
    with pytest.raises(HttpError):
        client.get(f"{server.url}/large")
    assert client.get(f"{server.url}/a").body == b"fine"


def test_a_slow_drip_ends_at_the_timeout(server: Any, make_client: Any) -> None:
    """A server that sends a byte now and then does not hold a worker for longer than the timeout."""

    def drip(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        while not server.over.wait(0.01):
            handler.wfile.write(b"x")

    server.routes["/slow"] = drip
    start = time.monotonic()
    with pytest.raises(HttpError, match="timed out") as caught:
        make_client(timeout_seconds=0.2).get(f"{server.url}/slow")
    assert time.monotonic() - start >= 0.2
    assert not caught.value.permanent


def test_a_timeout_under_a_millisecond_is_a_limit(server: Any, make_client: Any) -> None:
    """A tiny timeout is not rounded to 0, which would mean none."""
    server.routes["/never"] = lambda handler: handler.server.over.wait()
    with pytest.raises(HttpError, match=r"^http\.timeout: "):
        make_client(timeout_seconds=1e-4).get(f"{server.url}/never")


def test_a_body_that_breaks_off_is_an_error(server: Any, make_client: Any) -> None:
    """Half a body is worth another try, never a result."""

    def half(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"x" * 50)
        handler.close_connection = True

    server.routes["/half"] = half
    with pytest.raises(HttpError) as caught:
        make_client().get(f"{server.url}/half")
    assert not caught.value.permanent


def test_nobody_listening_is_worth_another_try(make_client: Any) -> None:
    """A refused connection is not permanent: servers restart."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(HttpError) as caught:
        make_client().get(f"http://127.0.0.1:{port}/")
    assert not caught.value.permanent


@pytest.mark.parametrize(
    "url", ["ftp://host/a", "file:///etc/passwd", "gopher://host", "http://", "http://ho st/", "x\0y"]
)
def test_a_bad_address_is_permanent(make_client: Any, url: str) -> None:
    """Other schemes and what is no address are refused for good."""
    with pytest.raises(HttpError) as caught:
        make_client().get(url)
    assert caught.value.permanent


def test_an_address_beyond_ascii_is_encoded(server: Any, make_client: Any) -> None:
    """Characters beyond ASCII are percent-encoded as UTF-8; what is encoded already stays."""
    server.routes["/caf%C3%A9/a%20b"] = lambda handler: handler.answer(200, b"ok")
    assert make_client().get(f"{server.url}/café/a%20b?q=1&r=%C3%A9").body == b"ok"
    assert server.requests[0].path == "/caf%C3%A9/a%20b?q=1&r=%C3%A9"


def test_errors_hold_no_secrets(server: Any, make_client: Any) -> None:
    """User, password and query do not appear in a message, for they end up in logs and dead letters."""
    server.routes["/a"] = redirect(f"{server.url}/a?token=hidden")
    host = server.url.removeprefix("http://")
    with pytest.raises(HttpError) as caught:
        make_client().get(f"http://user:hidden@{host}/a?token=hidden")
    assert "hidden" not in str(caught.value)
    assert f"http://{host}/a?..." in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@example.com:8443/a/b.jpg?sig=secret#secret", "https://example.com:8443/a/b.jpg?..."),
        ("http://example.com", "http://example.com"),
        ("http://[::1]:80/a", "http://[::1]:80/a"),
        ("file:///data/a.jpg", "file:///data/a.jpg"),
        ("data/a.jpg", "data/a.jpg"),
        ("http://host:port/secret", "(unreadable address)"),
        ("http://[::1/secret", "(unreadable address)"),
    ],
)
def test_without_secrets(url: str, shown: str) -> None:
    """Scheme, host, port and path remain of an address."""
    assert strip_secrets(url) == shown


def test_without_secrets_is_short() -> None:
    """An address that holds a whole image is shown by its beginning."""
    shown = strip_secrets("data:image/png;base64," + "A" * 10**6)
    assert shown.startswith("data:image/png;base64,AAAA")
    assert len(shown) < 250


def test_permanent_statuses() -> None:
    """Redirects and errors of the client are permanent, but for those that ask to come again; the rest is not."""
    again = [status for status in range(300, 600) if not is_permanent(status)]
    assert again == [408, 425, 429, *range(500, 600)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timeout_seconds", 0),
        ("connect_timeout_seconds", -1),
        ("max_bytes", 0),
        ("max_redirects", -1),
        ("max_redirects", 21),
    ],
)
def test_settings_are_checked(key: str, value: int) -> None:
    """An impossible limit is refused with key, value and what is allowed."""
    with pytest.raises(SettingsError, match=rf"{key} = {value} is not possible; allowed: .*0"):
        HttpSettings(**{key: value})


@pytest.fixture
def use_up_files() -> Iterator[Callable[[], None]]:
    """Takes all file handles that this process may still have, and gives them back."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def use_up() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 256), limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))

    yield use_up
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("method", ["get", "post"])
def test_no_file_handles_are_no_fault_of_the_server(
    client_type: Any, use_up_files: Callable[[], None], host: str, method: str
) -> None:
    """Neither an address nor a name is blamed where this process may open no more sockets."""
    rules = NetworkRules(NetworkPlan(allow=["127.0.0.1", "::1", "localhost"]))
    client = client_type(HttpSettings(), rules=rules)
    url = f"http://{host}:8080/x"
    use_up_files()
    with pytest.raises(OSError, match="no socket could be opened") as raised:
        client.get(url) if method == "get" else client.post(url, b"{}", {})
    assert shortage_of(raised.value) == "shortage.files"
    client.close()


def test_a_file_that_is_closed_meanwhile_makes_no_fault_of_the_server(
    client_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no file handle for the socket, and there are some again when the failure is looked at."""
    client = client_type(HttpSettings(), rules=LOOPBACK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/"

        def refuse(*_: Any) -> None:
            raise OSError(errno.ENFILE, "as the system says it")

        with monkeypatch.context() as patch:
            patch.setattr(dialing.socket, "socket", refuse)
            with pytest.raises(OSError, match=f"{address} was not called: no socket could be opened") as raised:
                client.get(address)
        assert raised.value.errno == errno.ENFILE
        with pytest.raises(HttpError, match=r"http\.connect"):  # and this one is its fault
            client.get(address)
    client.close()


@pytest.mark.parametrize(("lacks", "code"), [
    (MemoryError(), "shortage.memory"),
    (OSError(errno.EMFILE, "Too many open files"), "shortage.files"),
])  # fmt: skip
def test_a_look_up_that_lacks_something_is_no_fault_of_the_server(
    client_type: Any, monkeypatch: pytest.MonkeyPatch, lacks: Exception, code: str
) -> None:
    """Whoever waits for the name is told at once what is short."""

    def refuse(*_: Any, **__: Any) -> None:
        raise lacks

    monkeypatch.setattr(look_ups.socket, "getaddrinfo", refuse)
    client = client_type(HttpSettings(), rules=LOOPBACK)
    with pytest.raises(Shortage, match=f"{code}: http://photos.test/x was not called"):
        client.get("http://photos.test/x")
    client.close()


@pytest.mark.parametrize(("code", "says"), [(100, "the head of the answer"), (99, "libcurl failed, error 99")])
def test_what_libcurl_has_no_words_for_is_said(code: int, says: str) -> None:
    """A reason never ends with the address."""
    failed = failure_of(pycurl.error(code, ""), "http://a.example/b", 0)
    assert str(failed).startswith(f"http.failed: http://a.example/b: {says}")
