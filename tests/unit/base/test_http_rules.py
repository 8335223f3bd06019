"""What the HTTP client refuses, stops and does not send, against real servers on the loopback interface."""

from __future__ import annotations

import contextlib
import gc
import gzip
import http.server
import os
import resource
import socket
import ssl
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.faults.server import make_certificate
from headrace.base.http_client import HttpClient
from headrace.base.http_error import HttpError
from headrace.base.http_settings import HttpSettings
from headrace.base.network_rules import NetworkPlan, NetworkRules

LOOPBACK = ["127.0.0.1"]


@pytest.fixture
def make_client(client_type: type[HttpClient]) -> Iterator[Callable[..., HttpClient]]:
    """Makes clients that may contact what `allow` says, by default 127.0.0.1, and closes them."""
    clients: list[HttpClient] = []

    def make(network: NetworkPlan | None = None, **settings: Any) -> HttpClient:
        rules = NetworkRules(network or NetworkPlan(allow=LOOPBACK))
        clients.append(client_type(HttpSettings(**settings), rules=rules))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


class Trap:
    """Takes connections on one loopback address, and remembers them."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self._socket.settimeout(0.05)
        self.port = self._socket.getsockname()[1]

    def is_quiet(self) -> bool:
        """Return whether nobody has connected."""
        try:
            self._socket.accept()[0].close()
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


@pytest.fixture
def trap() -> Iterator[Trap]:
    """A server at 127.0.0.2, where no test has any business."""
    trap = Trap("127.0.0.2")
    yield trap
    trap.close()


def refused(client: HttpClient, url: str) -> str:
    """Return the code with which a GET is refused for good."""
    with pytest.raises(HttpError) as caught:
        client.get(url)
    assert caught.value.permanent
    assert str(caught.value).startswith(f"{caught.value.code}: ")
    return caught.value.code


def test_loopback_has_to_be_allowed(client_type: Any, trap: Trap) -> None:
    """A client without rules of the operator's does not connect to this machine, by GET or by POST."""
    client = client_type(HttpSettings())
    url = f"http://127.0.0.2:{trap.port}/"
    assert refused(client, url) in ("ssrf.port", "ssrf.address")
    with pytest.raises(HttpError, match=r"^ssrf\."):
        client.post(url, b"", {})
    client.close()
    assert trap.is_quiet()


def test_a_redirect_is_judged_before_anything_is_sent(server: Any, make_client: Any, trap: Trap) -> None:
    """A server that may be contacted cannot lead to one that may not, at the first hop or at the third."""
    server.routes["/1"] = lambda handler: handler.answer(302, Location="/2")
    server.routes["/2"] = lambda handler: handler.answer(307, Location=f"http://127.0.0.2:{trap.port}/")
    for path in ("/1", "/2"):
        assert refused(make_client(), f"{server.url}{path}") in ("ssrf.port", "ssrf.address")
    assert trap.is_quiet()


def test_a_redirect_does_not_change_what_is_allowed_later(server: Any, make_client: Any, trap: Trap) -> None:
    """After a refusal the client serves on, and refuses again."""
    server.routes["/away"] = lambda handler: handler.answer(302, Location=f"http://127.0.0.2:{trap.port}/")
    server.routes["/a"] = lambda handler: handler.answer(200, b"image")
    client = make_client()
    for _ in range(2):
        refused(client, f"{server.url}/away")
        assert client.get(f"{server.url}/a").body == b"image"
    assert trap.is_quiet()


def test_names_are_judged_by_their_addresses(server: Any, make_client: Any) -> None:
    """`localhost` passes where its addresses do, or where it is named; the connection goes to one that was judged."""
    server.routes["/a"] = lambda handler: handler.answer(200, b"image")
    url = f"http://localhost:{server.server_port}/a"
    for allow in (["127.0.0.1", "::1"], ["localhost"], [f"localhost:{server.server_port}"]):
        assert make_client(NetworkPlan(allow=allow)).get(url).body == b"image"
    assert refused(make_client(NetworkPlan(allow=["127.0.0.9"], ports=[server.server_port])), url) == "ssrf.address"


def test_deny_closes_what_is_allowed(server: Any, make_client: Any) -> None:
    """A denied address is not contacted although its network is allowed."""
    network = NetworkPlan(allow=["127.0.0.0/8"], deny=[f"127.0.0.1:{server.server_port}"])
    assert refused(make_client(network), f"{server.url}/a") == "ssrf.denied"
    assert server.requests == []


@pytest.fixture
def secure_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Starts an HTTPS server that redirects to an address."""
    certificate = make_certificate()
    if certificate is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("openssl is not installed")
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    started: list[http.server.HTTPServer] = []

    def start(location: str) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        started.append(server)
        return f"https://127.0.0.1:{server.server_port}/"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def test_no_redirect_from_https_to_http(secure_server: Any, server: Any, make_client: Any) -> None:
    """What was asked for under TLS is not fetched in the clear."""
    url = secure_server(f"{server.url}/a")
    assert refused(make_client(), url) == "ssrf.downgrade"
    assert server.requests == []


def test_a_redirect_in_any_bytes_has_an_end(server: Any, make_client: Any) -> None:
    """A Location that is not UTF-8 is followed where it leads or refused, never an error of our own."""
    server.routes["/1"] = lambda handler: handler.answer(302, Location="/caf\xe9")
    server.routes["/caf%E9"] = lambda handler: handler.answer(200, b"image")
    server.routes["/caf\xe9"] = server.routes["/caf%E9"]
    assert make_client().get(f"{server.url}/1").body == b"image"
    server.routes["/2"] = lambda handler: handler.answer(302, Location="http://caf\xe9.test/")
    assert refused(make_client(), f"{server.url}/2") == "ssrf.url"


def test_a_redirect_takes_no_password_along(server: Any, make_client: Any) -> None:
    """User and password of an address go to its server and not on."""
    server.routes["/1"] = lambda handler: handler.answer(302, Location="/2")
    server.routes["/2"] = lambda handler: handler.answer(200)
    make_client().get(f"http://user:secret@127.0.0.1:{server.server_port}/1")
    assert ["Authorization" in request.headers for request in server.requests] == [True, False]


def test_user_names_in_addresses_of_strangers(make_client: Any) -> None:
    """An address with a user name is refused before its name is looked up, and the password is not told."""
    with pytest.raises(HttpError) as caught:
        make_client(NetworkPlan()).get("http://user:secret@nowhere.invalid/")
    assert caught.value.code == "ssrf.credentials"
    assert "secret" not in str(caught.value)


def test_proxies_of_the_environment_are_not_used(
    server: Any, make_client: Any, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would resolve names itself, so that one in the environment is left alone."""
    monkeypatch.delenv("no_proxy", raising=False)
    for name in ("http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.2:{trap.port}")
    server.routes["/a"] = lambda handler: handler.answer(200, b"image")
    assert make_client().get(f"{server.url}/a").body == b"image"
    assert trap.is_quiet()


def test_a_proxy_that_was_asked_for(server: Any, make_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With proxy = true the proxy of the environment is sent everything, names unresolved; the rest of the rules hold."""
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "*")
    server.routes["http://photos.test/a.jpg"] = lambda handler: handler.answer(200, b"by proxy")
    client = make_client(NetworkPlan(proxy=True))
    assert client.get("http://photos.test/a.jpg").body == b"by proxy"
    assert refused(client, "http://127.0.0.1/") == "ssrf.address"
    assert refused(client, "http://photos.test:22/") == "ssrf.port"
    assert len(server.requests) == 1


def compressed(body: bytes, encoding: str, *, times: int = 1) -> Callable[[Any], None]:
    """Answers with a body that claims to be encoded."""
    for _ in range(times):
        body = gzip.compress(body)
    return lambda handler: handler.answer(200, body, **{"Content-Encoding": encoding})


def test_it_asks_for_what_is_not_compressed(server: Any, make_client: Any) -> None:
    """A download says that it takes no encoding."""
    server.routes["/a"] = lambda handler: handler.answer(200, b"image")
    make_client().get(f"{server.url}/a")
    assert server.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    "encoding", ["gzip", "GZIP", "br", "zstd", "deflate", "x-gzip", "gzip, gzip", "compress", "new"]
)
def test_an_encoded_body_is_refused(server: Any, make_client: Any, encoding: str) -> None:
    """A body that claims an encoding all the same is refused by its name."""
    server.routes["/a"] = compressed(b"image", encoding)
    with pytest.raises(HttpError, match=f"^http.encoding: .*{encoding.lower()}") as caught:
        make_client().get(f"{server.url}/a")
    assert caught.value.permanent


def test_identity_is_no_encoding(server: Any, make_client: Any) -> None:
    """A server that says `identity`, or nothing after the colon, sends the body as it is; so is one that only looks packed."""
    packed = gzip.compress(b"image")
    for value in ("identity", "Identity ", ""):
        server.routes["/a"] = lambda handler, value=value: handler.answer(200, packed, **{"Content-Encoding": value})
        assert make_client().get(f"{server.url}/a").body == packed


@pytest.mark.full
def test_a_compressed_bomb_costs_nothing(server: Any, make_client: Any) -> None:
    """A few megabytes that would become a gigabyte are refused as what they are."""
    packer = zlib.compressobj(1, wbits=31)
    tenth = bytes(10**8)
    bomb = b"".join(packer.compress(tenth) for _ in range(10)) + packer.flush()
    assert len(bomb) < 10**7
    server.routes["/bomb"] = lambda handler: handler.answer(200, bomb, **{"Content-Encoding": "gzip"})
    del tenth
    client = make_client()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refused(client, f"{server.url}/bomb") == "http.encoding"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def raw(*parts: bytes, pause: float = 0.0, end: bool = True) -> Callable[[Any], None]:
    """Answers with bytes as they are."""

    def send(handler: Any) -> None:
        for part in parts:
            handler.wfile.write(part)
            if pause and handler.server.over.wait(pause):
                break
        handler.close_connection = end

    return send


HEAD = b"HTTP/1.1 200 OK\r\n"


def test_a_length_that_promises_too_much(server: Any, make_client: Any) -> None:
    """A body shorter than its Content-Length is worth another try, one that is said to be too long none."""
    server.routes["/short"] = raw(HEAD + b"Content-Length: 100\r\n\r\n", b"x" * 50)
    with pytest.raises(HttpError, match=r"^http\.incomplete: ") as caught:
        make_client().get(f"{server.url}/short")
    assert not caught.value.permanent
    server.routes["/huge"] = raw(HEAD + b"Content-Length: 99999999999999999\r\n\r\n", b"x")
    assert refused(make_client(max_bytes=1000), f"{server.url}/huge") == "http.too_large"


def test_a_length_that_promises_too_little(server: Any, make_client: Any) -> None:
    """What comes beyond the Content-Length is not part of the body."""
    server.routes["/long"] = raw(HEAD + b"Content-Length: 5\r\n\r\nimagemore", b"and more")
    client = make_client()
    assert client.get(f"{server.url}/long").body == b"image"
    assert client.get(f"{server.url}/long").body == b"image"


@pytest.mark.parametrize(
    "lengths", [b"Content-Length: 5\r\nContent-Length: 9\r\n", b"Content-Length: -1\r\n", b"Content-Length: x\r\n"]
)
def test_lengths_that_contradict_one_another(server: Any, make_client: Any, lengths: bytes) -> None:
    """A length that is none is an error with a code, or ends with the connection; it is no crash."""
    server.routes["/a"] = raw(HEAD + lengths + b"\r\n", b"image", b"more")
    with contextlib.suppress(HttpError):
        assert b"imagemore".startswith(make_client().get(f"{server.url}/a").body)


@pytest.mark.parametrize("head", [b"\r\n", b"Transfer-Encoding: chunked\r\n\r\n"], ids=["to the end", "chunked"])
def test_a_stream_without_end_is_cut(server: Any, make_client: Any, head: bytes) -> None:
    """A body without length is read up to max_bytes and no further."""
    sent: list[int] = []

    def endless(handler: Any) -> None:
        handler.wfile.write(HEAD + head)
        piece = b"x" * 10_000 if head == b"\r\n" else b"2710\r\n" + b"x" * 10_000 + b"\r\n"
        while not handler.server.over.is_set():
            handler.wfile.write(piece)
            sent.append(len(piece))

    server.routes["/a"] = endless
    assert refused(make_client(max_bytes=100_000), f"{server.url}/a") == "http.too_large"
    assert sum(sent) < 50 * 10**6  # what fits into the buffers on the way


@pytest.mark.parametrize("case", ["lines", "one line", "many answers"])
def test_headers_are_limited(server: Any, make_client: Any, case: str) -> None:
    """Headers without end are an error, soon and without filling the memory."""
    parts = {
        "lines": (HEAD, *[b"X-Header: " + b"x" * 1000 + b"\r\n"] * 100_000),
        "one line": (HEAD + b"X-Header: ", *[b"x" * 10_000] * 10_000),
        "many answers": (*[b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"] * 1_000_000,),
    }
    server.routes["/a"] = raw(*parts[case])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HttpError) as caught:
        make_client(timeout_seconds=20).get(f"{server.url}/a")
    assert caught.value.code in ("http.failed", "http.timeout", "http.too_large")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_what_is_no_http_is_refused(server: Any, make_client: Any) -> None:
    """Another service's greeting is no body (HTTP 0.9 is not spoken)."""
    server.routes["/a"] = raw(b"SSH-2.0-OpenSSH_9.2\r\n", b"secret")
    with pytest.raises(HttpError, match=r"^http\.failed: "):
        make_client().get(f"{server.url}/a")


def test_a_slow_drip_ends_before_the_timeout(server: Any, make_client: Any) -> None:
    """A server that sends less than the minimum for slow_seconds is given up, and tried again later."""
    server.routes["/slow"] = raw(HEAD + b"Content-Length: 100000\r\n\r\n", *[b"x"] * 100_000, pause=0.05)
    client = make_client(timeout_seconds=60, slow_seconds=1, min_bytes_per_second=1000)
    began = time.monotonic()
    with pytest.raises(HttpError, match=r"^http\.slow: ") as caught:
        client.get(f"{server.url}/slow")
    assert not caught.value.permanent
    assert time.monotonic() - began < 30


def test_a_receiver_may_think(server: Any, make_client: Any) -> None:
    """The minimum rate is for downloads: a POST may wait for its answer, also after a GET of the same client."""
    server.routes["/a"] = lambda handler: handler.answer(200, b"image")
    server.routes["/think"] = lambda handler: (handler.server.over.wait(2.5), handler.answer(204))
    client = make_client(slow_seconds=1, min_bytes_per_second=10**6)
    client.get(f"{server.url}/a")
    assert client.post(f"{server.url}/think", b"result", {}).status == 204


def test_one_timeout_for_all_redirects(server: Any, make_client: Any) -> None:
    """Redirects that take their time share the time of one request."""

    def slowly(handler: Any) -> None:
        handler.server.over.wait(0.25)
        handler.answer(302, Location="/a")

    server.routes["/a"] = slowly
    began = time.monotonic()
    with pytest.raises(HttpError, match=r"^http\.timeout: "):
        make_client(timeout_seconds=0.6, max_redirects=20).get(f"{server.url}/a")
    assert time.monotonic() - began < 30
    assert len(server.requests) <= 4


def test_a_name_that_is_no_name(make_client: Any) -> None:
    """A host that no name server is asked for is an error with a code: too long a label, too long a name."""
    for host in ("a" * 300 + ".invalid", ".".join(["a" * 60] * 10)):
        with pytest.raises(HttpError, match=r"^http\.resolve: "):
            make_client(NetworkPlan()).get(f"http://{host}/")


def sockets() -> set[int]:
    """Return the descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
        except OSError:
            continue
    return found


def test_one_descriptor_for_a_connection(server: Any, make_client: Any) -> None:
    """A connection holds one descriptor, which child processes do not inherit, and none when the client is closed."""
    server.routes["/close"] = lambda handler: (setattr(handler, "close_connection", True), handler.answer(200))
    server.routes["/a"] = lambda handler: handler.answer(200)
    client = make_client()
    ports = {server.server_port}

    def ours() -> list[int]:
        found = []
        for number in sockets():
            try:  # the server's thread closes its ends meanwhile
                with socket.socket(fileno=os.dup(number)) as copy:
                    if copy.getpeername()[1] in ports:
                        found.append(number)
            except (OSError, IndexError, TypeError):
                continue
        return found

    for _ in range(20):
        client.get(f"{server.url}/close")
        client.get(f"{server.url}/a")
    assert len(ours()) == 1
    assert not os.get_inheritable(ours()[0])
    client.close()
    assert ours() == []


def test_look_ups_leave_no_thread(server: Any, make_client: Any) -> None:
    """The thread of a look-up ends with it."""
    server.routes["/a"] = lambda handler: handler.answer(200)
    for _ in range(5):
        make_client(NetworkPlan(allow=["localhost"])).get(f"http://localhost:{server.server_port}/a")
    give_up_at = time.monotonic() + 60
    while any(thread.name == "headrace-lookup" for thread in threading.enumerate()):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def test_a_look_up_without_a_thread_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no thread can be started names are not resolved, and as soon as one can, they are again."""
    from headrace.base import look_ups

    monkeypatch.setattr(look_ups, "_places", threading.BoundedSemaphore(1))
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "headrace-lookup":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(3):
        with pytest.raises(look_ups.Unresolved, match="can't start new thread"):
            look_ups.look_up("localhost", 80, 5.0)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert look_ups.look_up("localhost", 80, 5.0)


def test_look_ups_that_hang_are_bounded(make_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When as many look-ups hang as may, a name is told so within the time for it, and no thread is added."""
    from headrace.base import look_ups

    monkeypatch.setattr(look_ups, "_places", threading.BoundedSemaphore(1))
    look_ups._places.acquire()
    client = make_client(NetworkPlan(allow=["localhost"]), connect_timeout_seconds=0.05)
    with pytest.raises(HttpError, match=r"^http\.resolve: .*others hang"):
        client.get("http://localhost:1/")
    look_ups._places.release()
    with pytest.raises(HttpError, match=r"^http\.(connect|resolve|timeout): "):
        client.get("http://localhost:1/")


def test_a_client_goes_with_its_last_reference(server: Any) -> None:
    """A client that nobody closes holds no connection once it is forgotten, without the garbage collector's help."""
    server.routes["/a"] = lambda handler: handler.answer(200)
    client = HttpClient(HttpSettings(), rules=NetworkRules(NetworkPlan(allow=LOOPBACK)))
    gc.disable()
    try:
        client.get(f"{server.url}/a")
        handle = weakref.ref(client._resting[0].curl)
        del client
        assert handle() is None
    finally:
        gc.enable()
