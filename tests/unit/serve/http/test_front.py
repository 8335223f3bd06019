"""The front over real sockets: what good clients get."""

import asyncio
import http.client
import logging
import os
import queue
import resource
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import urllib3

from headrace.base.clock import SystemClock
from headrace.base.errors import SettingsError
from headrace.serve.http.connection import Connection
from headrace.serve.http.front import Front
from headrace.serve.http.limits import Limits
from headrace.serve.http.request import Answer, Request
from headrace.serve.http.routes import Routes
from headrace.serve.http.shared import Shared
from headrace.testing import FakeClock


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 5_000_000])
def test_a_body_comes_back_as_it_was_sent(serve: Any, size: int) -> None:
    """Bodies of any size arrive whole, several on one connection."""
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    client = http.client.HTTPConnection(*serve().address, timeout=60)
    for _ in range(3):
        client.request("POST", "/echo", body)
        answer = client.getresponse()
        assert (answer.status, answer.read() == body) == (200, True)
    client.close()


def test_a_chunked_body_comes_back_as_it_was_sent(serve: Any) -> None:
    """Chunks are joined, and the connection goes on."""
    client = http.client.HTTPConnection(*serve().address, timeout=60)
    for _ in range(2):
        client.request("POST", "/echo", iter([b"ab", b"c" * 100_000, b"d"]), encode_chunked=True)
        assert client.getresponse().read() == b"ab" + b"c" * 100_000 + b"d"
    client.close()


def test_another_thread_answers(serve: Any, connect: Any, later: Any) -> None:
    """A handler may return nothing; the first answer is sent, and later ones are dropped."""
    client = connect(serve()).send(b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
    request = later.wait()
    assert bytes(request.body) == b"abc"
    assert request.answer(Answer(202, b"first"))
    assert not request.answer(Answer(500, b"second"))
    answer = client.read()
    assert (answer.status, answer.body) == (202, b"first")


def test_many_answers_of_other_threads_all_arrive(serve: Any, connect: Any, later: Any) -> None:
    """Answers to requests of many connections, from several threads, each reach their own client."""
    front = serve()
    clients = [connect(front) for _ in range(50)]
    for number, client in enumerate(clients):
        client.send(b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n%02d" % number)
    later.wait(len(clients))

    def answer(part: int) -> None:
        for request in later.requests[part::5]:
            request.answer(Answer(200, bytes(request.body)))

    threads = [threading.Thread(target=answer, args=(part,)) for part in range(5)]
    for thread in threads:
        thread.start()
    assert [client.read().body for client in clients] == [b"%02d" % number for number in range(50)]
    for thread in threads:
        thread.join()


def test_a_body_that_somebody_still_reads_is_not_overwritten(serve: Any, connect: Any, later: Any) -> None:
    """A view that outlives its answer keeps its bytes: the buffer serves no other request."""
    client = connect(serve())
    views = []
    for number in range(3):
        client.send(b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n" + b"%d" % number * 5000)
        request = later.wait()
        views.append(request.body)
        request.answer(Answer(200))
        client.read()
    assert [view[0] for view in views] == [ord("0"), ord("1"), ord("2")]


def test_a_handler_that_raises_costs_one_request(serve: Any, connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets a coded 500, the log the place, and the connection goes on."""
    client = connect(serve())
    answer = client.send(b"GET /fails HTTP/1.1\r\nHost: a\r\n\r\n").read()
    assert (answer.status, answer.json["code"]) == (500, "http.handler")
    assert "conftest.py" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert client.send(b"GET /name/on HTTP/1.1\r\nHost: a\r\n\r\n").read().body == b"on"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Answer(200, headers=(("Location", "a\r\nSet-Cookie: b"),)), "http.answer"),
        (Answer(200, None), "http.answer"),
        ("text", "http.handler"),
    ],
)
def test_an_answer_that_cannot_be_sent_is_a_500(
    routes: Routes, serve: Any, connect: Any, answer: Any, code: str
) -> None:
    """A line break in a header begins no other header; what is no answer ends neither loop nor connection."""
    routes.add("GET", "/odd", lambda request: answer)
    client = connect(serve())
    for _ in range(2):
        got = client.send(b"GET /odd HTTP/1.1\r\nHost: a\r\n\r\n").read()
        assert (got.status, got.json["code"]) == (500, code)
        assert "set-cookie" not in got.headers


def test_head_gets_the_headers_alone(serve: Any, connect: Any) -> None:
    """HEAD is answered as GET, with the length and without the body."""
    client = connect(serve()).send(b"HEAD /name/abc HTTP/1.1\r\nHost: a\r\n\r\n")
    assert client.read(has_body=False).headers["content-length"] == "3"
    assert client.send(b"GET /name/on HTTP/1.1\r\nHost: a\r\n\r\n").read().body == b"on"


def test_an_http_1_0_client_is_served_and_the_connection_closed(serve: Any, connect: Any) -> None:
    """HTTP/1.0 needs no Host, and gets one answer."""
    client = connect(serve()).send(b"GET /name/a HTTP/1.0\r\n\r\n")
    answer = client.read()
    assert (answer.status, answer.body, answer.headers["connection"]) == (200, b"a", "close")
    assert client.is_closed()


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        (b"/name/a%20%C3%A9", 200, "a é".encode()),
        (b"http://example.org/name/a?b=c", 200, b"a"),
        (b"/name/a%zz", 400, None),
        (b"/name/%ff", 400, None),
        (b"/name/%00", 400, None),
        (b"ftp://example.org/a", 400, None),
        (b"*", 404, None),
        (b"/nothing", 404, None),
        (b"/echo", 405, None),
    ],
)
def test_targets(serve: Any, connect: Any, target: bytes, status: int, body: bytes | None) -> None:
    """Paths are decoded; what is no path is refused with a code."""
    answer = connect(serve()).send(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n").read()
    assert answer.status == status
    assert answer.body == body if body is not None else answer.json["code"].startswith("http.")


def test_expect_100_continue(serve: Any, connect: Any) -> None:
    """The client is asked for its body, unless the request is refused."""
    front = serve()
    client = connect(front).send(b"POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n")
    client.send(b"Content-Length: 3\r\n\r\n")
    assert client.read().status == 100
    assert client.send(b"abc").read().body == b"abc"
    refused = connect(front).send(
        b"POST /full HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    )
    assert refused.read().status == 429
    assert refused.is_closed()


def test_a_token_is_asked_for_except_by_probes(serve: Any, connect: Any) -> None:
    """Without the token: 401, and the connection goes on; `/livez` needs none."""
    client = connect(serve(token="secret"))
    refused = client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").read()
    assert (refused.status, refused.json["code"], refused.headers["www-authenticate"]) == (401, "http.token", "Bearer")
    request = b"POST /echo HTTP/1.1\r\nHost: a\r\nAuthorization: %s\r\nContent-Length: 3\r\n\r\nabc"
    assert client.send(request % b"Bearer wrong").read().status == 401
    assert client.send(request % b"Basic secret").read().status == 401
    assert client.send(request % b"bearer secret").read().body == b"abc"
    assert client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").read().status == 200


def test_an_empty_token_is_the_callers_error() -> None:
    """It would keep nobody out."""
    with pytest.raises(SettingsError, match=r"http\.token: the token is empty"):
        Front(Routes(), token="")


def test_tls(serve: Any, connect: Any, tmp_path: Path) -> None:
    """HTTPS, also for a large body; clients without TLS or with 1.1 are turned away."""
    front = serve(tls=certificate(tmp_path))
    pool = urllib3.PoolManager(ca_certs=str(tmp_path / "cert.pem"))
    body = bytes(range(256)) * 4096
    for _ in range(2):
        answer = pool.request("POST", f"{front.url.replace('127.0.0.1', 'localhost')}/echo", body=body, retries=False)
        assert (answer.status, answer.data == body) == (200, True)
    pool.clear()
    assert connect(front).send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").is_closed()


def test_tls_files_that_do_not_fit_are_the_callers_error(tmp_path: Path) -> None:
    """They are named before anything is served."""
    _, key = certificate(tmp_path)
    with pytest.raises(SettingsError, match=r"http\.tls: .*missing\.pem"):
        Front(Routes(), tls=(str(tmp_path / "missing.pem"), key))


def certificate(folder: Path) -> tuple[str, str]:
    """Return files of a certificate for localhost and its key."""
    files = str(folder / "cert.pem"), str(folder / "key.pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", files[0], "-keyout", files[1]]
    try:
        subprocess.run([*command.split(), *names], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    assert ssl.create_default_context(cafile=files[0])
    return files


def test_an_address_in_use_is_the_callers_error(serve: Any) -> None:
    """`start` raises it, with the address and what to do."""
    front = serve()
    with pytest.raises(SettingsError, match=r"http\.address: .*another program has this port"):
        Front(Routes(), port=front.address[1]).start()


def test_fronts_may_share_a_port(serve: Any, connect: Any) -> None:
    """With `reuse_port` several processes can listen on it."""
    first = serve(reuse_port=True)
    second = serve(reuse_port=True, port=first.address[1])
    assert second.address == first.address
    assert connect(second).send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").read().status == 200


def test_a_full_front_closes_an_idle_connection_or_refuses(serve: Any, connect: Any, later: Any) -> None:
    """The oldest idle connection makes room; with none idle the new client gets 503 and when to come again."""
    front = serve(Limits(connections=2))
    idle = connect(front).send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
    assert idle.read().status == 200
    busy = [connect(front) for _ in range(2)]
    for client in busy:
        client.send(b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na")
        later.wait()
    assert idle.is_closed()
    refused = connect(front).read()
    assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (503, "http.connections", "1")


def test_a_loop_that_is_held_up_is_late(serve: Any, connect: Any) -> None:
    """`lateness` grows while a handler blocks, and is 0 again when the loop turns."""
    clock = FakeClock()
    front = serve(clock=clock)
    is_held, may_go = threading.Event(), threading.Event()
    front.call_soon(lambda: (is_held.set(), may_go.wait()))
    assert is_held.wait(60)
    clock.advance(5)
    assert front.lateness > 4
    may_go.set()
    client = connect(front)
    while front.lateness:
        assert client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").read().status == 200


def test_connections_wait_while_there_are_no_descriptors(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The front says so, closes an idle connection, and lets the others in as soon as it can."""
    front = serve()
    idle = connect(front).send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
    assert idle.read().status == 200
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket() for _ in range(2)]
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        for client in waiting:
            client.settimeout(60)
            client.connect(front.address)
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert idle.is_closed()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for client in waiting:
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        client.close()
    assert caplog.text.count("http.accept") >= 1
    assert front.counts["http.accept"] >= 1


def test_draining_answers_what_is_there_and_what_is_on_its_way(serve: Any, connect: Any, later: Any) -> None:
    """No new connection gets in; kept ones end with their next answer, and the drain with the last."""
    front = serve()
    kept, waiting = connect(front), connect(front)
    assert kept.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").read().status == 200
    waiting.send(b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na")
    request = later.wait()
    assert not front.drain(0.01)
    assert kept.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").read().headers["connection"] == "close"
    with pytest.raises(ConnectionRefusedError):
        connect(front)
    request.answer(Answer(200))
    assert waiting.read().headers["connection"] == "close"
    assert front.drain(60)


def test_close_ends_everything(serve: Any, connect: Any, later: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Clients are cut off, their handlers hear of it, and nothing is complained about."""
    caplog.set_level(logging.WARNING)
    front = serve()
    client = connect(front).send(b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na")
    request = later.wait()
    front.close()
    assert client.is_closed()
    assert (request.is_gone, later.gone) == (True, [request])
    assert request.answer(Answer(200))
    front.close()
    assert caplog.records == []


def test_an_old_connection_is_closed_with_its_next_answer(serve: Any, connect: Any) -> None:
    """Its client hears it with the answer, so that no request is lost; a young one goes on."""
    clock = FakeClock()
    client = connect(serve(Limits(connection_seconds=8.0), clock=clock))
    ask = b"GET /name/x HTTP/1.1\r\nHost: a\r\n\r\n"
    for seconds, expected in ((0.0, None), (5.9, None), (4.2, "close")):  # the first finds it open
        clock.advance(seconds)
        answer = client.send(ask).read()
        assert (answer.status, answer.headers.get("connection")) == (200, expected)
    assert client.socket.recv(1) == b""


def test_a_request_counts_from_when_it_came_and_not_from_when_it_was_read(
    serve: Any, connect: Any, routes: Routes
) -> None:
    """Where many come at once, the last is read long after: the time until then is a part of its client's wait."""
    clock, may_go_on, is_held = FakeClock(), threading.Event(), threading.Event()
    received: list[int] = []

    def hold(request: Request) -> Answer:
        is_held.set()
        assert may_go_on.wait(60)
        return Answer(200)

    def take_a_second(request: Request) -> Answer:
        received.append(request.received_ns)
        clock.advance(1.0)
        return Answer(200)

    routes.add("GET", "/hold", hold)
    routes.add("GET", "/second", take_a_second)
    front = serve(clock=clock)
    first, *others = [connect(front) for _ in range(4)]
    for client in others:
        assert client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").read().status == 200
    first.send(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
    assert is_held.wait(60)
    for client in others:
        client.send(b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
    may_go_on.set()
    assert [client.read().status for client in (first, *others)] == [200] * 4
    assert received == [received[0]] * 3


def test_what_comes_alone_need_not_wait_for_company(serve: Any, connect: Any, routes: Routes) -> None:
    """A call after reading is made within the handler where nothing else is there, and from other threads soon."""
    called: list[str] = []
    done = threading.Event()

    def handle(request: Request) -> Answer:
        front.call_after_reading(lambda: called.append("after reading"))
        called.append("handled")
        return Answer(200)

    routes.add("GET", "/alone", handle)
    front = serve()
    client = connect(front)
    assert client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").read().status == 200
    assert client.send(b"GET /alone HTTP/1.1\r\nHost: a\r\n\r\n").read().status == 200
    assert called == ["after reading", "handled"]
    front.call_after_reading(done.set)
    assert done.wait(60)


def test_what_comes_with_others_waits_until_all_are_read(serve: Any, connect: Any, routes: Routes) -> None:
    """Three requests that are there together are all handled before what the first one wants called."""
    called: list[str] = []
    may_go_on, is_held = threading.Event(), threading.Event()

    def hold(request: Request) -> Answer:
        is_held.set()
        assert may_go_on.wait(60)
        return Answer(200)

    def handle(request: Request) -> Answer:
        front.call_after_reading(lambda: called.append("after reading"))
        called.append("handled")
        return Answer(200)

    routes.add("GET", "/hold", hold)
    routes.add("GET", "/together", handle)
    front = serve()
    first, *others = [connect(front) for _ in range(4)]
    for client in others:
        assert client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").read().status == 200
    first.send(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
    assert is_held.wait(60)
    for client in others:
        client.send(b"GET /together HTTP/1.1\r\nHost: a\r\n\r\n")
    may_go_on.set()
    assert [client.read().status for client in (first, *others)] == [200] * 4
    assert called[:3] == ["handled"] * 3


def test_the_rest_of_a_body_that_is_here_is_read_in_the_same_turn() -> None:
    """In the next one hundreds of others may be before it: what was refused by its head would be answered a second later."""

    class Transport(asyncio.Transport):
        """Writes into a list."""

        def __init__(self, own: socket.socket) -> None:
            super().__init__({"socket": own})
            self.written: list[bytes] = []

        def write(self, data: Any) -> None:
            self.written.append(bytes(data))

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            """Do nothing."""

        def get_write_buffer_size(self) -> int:
            return 0

        def is_closing(self) -> bool:
            return False

    routes = Routes()
    routes.add("POST", "/", lambda request: Answer(200, b"%d" % len(request.body)))
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.setblocking(False)
        transport, connection = Transport(mine), Connection(Shared(routes, Limits(), SystemClock(), None, lambda: None))
        connection.connection_made(transport)
        for size in (20_000, 100_000, 1):
            theirs.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
            connection.buffer_updated(mine.recv_into(connection.get_buffer(-1)))
            assert b"".join(transport.written).endswith(b"\r\n\r\n%d" % size)


_LATER = b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"


@pytest.fixture
def never_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a front hear of nothing by its tick, so that what waits for that waits for ever."""
    monkeypatch.setattr("headrace.serve.http.front._TICK_SECONDS", 3_600.0)


def test_an_answer_beside_no_other_does_not_wait_for_the_front(serve: Any, connect: Any, later: Any) -> None:
    """Whoever has it sends it, and it is counted at once; the front hears of it when the client goes on."""
    front = serve()
    client = connect(front).send(_LATER)
    request = later.wait()
    is_held, may_go = threading.Event(), threading.Event()
    front.call_soon(lambda: (is_held.set(), may_go.wait()))
    is_held.wait()
    request.answer(Answer(200, b"alone"))
    assert client.read().body == b"alone"
    assert (front.counts["2xx"], front.counts["requests"]) == (1, 1)
    may_go.set()
    client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
    assert client.read().body == b"hi"
    assert (front.counts["2xx"], front.counts["requests"], front.counts["body_bytes"]) == (2, 2, 0)


def test_answers_beside_others_go_through_the_front(serve: Any, connect: Any, later: Any, never_ticks: None) -> None:
    """It is woken once for many, which costs less than a call of the system for each in the thread that has them."""
    front = serve()
    clients = [connect(front).send(_LATER) for _ in range(3)]
    later.wait(3)
    for number, request in enumerate(later.requests):
        request.answer(Answer(200, str(number).encode()))
    assert sorted(client.read().body for client in clients) == [b"0", b"1", b"2"]


def test_no_answer_is_lost_or_left_where_clients_go_on_at_once(
    serve: Any, connect: Any, routes: Routes, never_ticks: None
) -> None:
    """Another thread answers while the next request comes, be it before the answer: every one is answered, in order."""
    waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
    routes.add("POST", "/handed", waiting.put)

    def work() -> None:
        while (request := waiting.get()) is not None:
            request.answer(Answer(200, bytes(request.body)))

    thread = threading.Thread(target=work)
    thread.start()
    client = connect(serve())
    numbers = range(3_000)
    ahead = 0
    for number in numbers:
        while ahead < min(len(numbers), number + 1 + number % 3):  # 1, 2 or 3 are on their way
            client.send(b"POST /handed HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n%4d" % ahead)
            ahead += 1
        assert client.read().body == b"%4d" % number
    waiting.put(None)
    thread.join()


def test_what_came_with_an_answered_request_does_not_wait_for_the_tick(
    serve: Any, connect: Any, routes: Routes, never_ticks: None
) -> None:
    """The answer is sent while the front still reads what came with its request: that is served next, all of it."""
    routes.add("POST", "/inside", lambda request: request.answer(Answer(200, bytes(request.body))) and None)
    client = connect(serve())
    one = b"POST /inside HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n%3d"
    client.send(b"".join(one % number for number in range(200)))  # more than could be served within one another
    assert [int(client.read().body) for _ in range(200)] == list(range(200))


def test_an_answer_that_cannot_be_made_beside_the_front_comes_from_the_front(
    serve: Any, connect: Any, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there is no memory for it in that moment: the client is not left without one."""
    front = serve()
    client = connect(front).send(_LATER)
    request = later.wait()

    def write(descriptor: int, data: bytes) -> int:
        raise MemoryError

    monkeypatch.setattr(os, "write", write)
    request.answer(Answer(200, b"all the same"))
    assert client.read().body == b"all the same"


def test_whoever_is_behind_a_front_hears_that_its_thread_ended(serve: Any, connect: Any) -> None:
    """A service without it would go on and answer nobody; one that is closed says nothing."""
    front, heard, is_closing = serve(), queue.SimpleQueue(), threading.Event()

    def hear(why: str) -> None:
        heard.put(why)
        is_closing.wait(60)

    front.on_broken = hear
    front.call_soon(lambda: sys.exit("code that leaves"))
    assert "SystemExit('code that leaves')" in heard.get(timeout=60)
    num_before = len(front._loop._ready)
    closing = threading.Thread(target=front.close)  # as it does where the process ends for another reason, too
    closing.start()
    while len(front._loop._ready) == num_before:
        pass
    is_closing.set()
    closing.join()
    other = serve()
    other.on_broken = heard.put
    other.close()
    assert heard.empty()


def test_what_the_client_does_not_take_at_once_follows(serve: Any, connect: Any, later: Any, never_ticks: None) -> None:
    """The system takes a part of a long answer; the front sends the rest."""
    front = serve()
    client = connect(front, receive_bytes=4_096).send(_LATER)
    request = later.wait()
    (connection,) = front._shared.connections
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    body = bytes(range(256)) * 240
    request.answer(Answer(200, body))
    assert client.read().body == body
    assert client.send(_LATER)
    later.wait().answer(Answer(200, b"next"))
    assert client.read().body == b"next"


def test_an_answer_to_a_client_that_is_gone_reaches_nobody_else(serve: Any, connect: Any, later: Any) -> None:
    """The next connection has the same descriptor, and gets its own answers alone."""
    front = serve()
    client = connect(front).send(_LATER)
    request = later.wait()
    (connection,) = front._shared.connections
    descriptor = connection._reader.descriptor
    client.reset()
    later.wait_gone()
    client = connect(front).send(_LATER)
    own = later.wait()
    (connection,) = front._shared.connections
    assert connection._reader.descriptor == descriptor
    request.answer(Answer(200, b"late"))
    own.answer(Answer(200, b"own"))
    assert client.read().body == b"own"
    assert front.counts["gone"] == 1


def test_a_client_that_goes_once_it_has_its_answer_is_not_gone(serve: Any, connect: Any, later: Any) -> None:
    """The front hears that the request was answered before it hears that the connection ended."""
    front = serve()
    client = connect(front).send(_LATER)
    later.wait().answer(Answer(200, b"alone"))
    assert client.read().body == b"alone"
    client.close()
    while front.counts["connections"]:
        pass
    assert (front.counts.get("gone", 0), later.gone) == (0, [])


def test_a_full_front_closes_a_connection_whose_answer_another_thread_sent(
    serve: Any, connect: Any, later: Any, never_ticks: None
) -> None:
    """It is idle, although the front has not heard of that yet."""
    front = serve(Limits(connections=1))
    first = connect(front).send(_LATER)
    later.wait().answer(Answer(200, b"alone"))
    assert first.read().body == b"alone"
    second = connect(front).send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
    assert second.read().status == 200
    assert first.is_closed()
