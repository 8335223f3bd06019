"""Clients that send what they should not, or not what they should: each gets a coded answer, and nobody else notices."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.serve.http import shared
from headrace.serve.http.limits import Limits
from headrace.serve.http.request import Answer
from headrace.testing import FakeClock

GET = b"GET /name/a HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
LIMITS = Limits(header_bytes=4096, header_lines=20, body_bytes=100_000, total_bytes=150_000)

REFUSED = {
    "length and chunks": (
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "http.syntax",
    ),
    "chunks and length": (
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        400,
        "http.syntax",
    ),
    "two lengths": (POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", 400, "http.syntax"),
    "one length twice": (POST + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd", 400, "http.syntax"),
    "length with a sign": (POST + b"Content-Length: +4\r\n\r\nabcd", 400, "http.syntax"),
    "negative length": (POST + b"Content-Length: -4\r\n\r\nabcd", 400, "http.syntax"),
    "length beyond 64 bits": (POST + b"Content-Length: 99999999999999999999\r\n\r\n", 400, "http.syntax"),
    "too long a body": (POST + b"Content-Length: 100001\r\n\r\nabcd", 413, "http.body_size"),
    "length of 64 bits": (POST + b"Content-Length: 18446744073709551615\r\n\r\n", 413, "http.body_size"),
    "line feeds alone": (b"GET /name/a HTTP/1.1\nHost: a\n\n", 400, "http.syntax"),
    "carriage return alone": (GET + b"X: a\rb\r\n\r\n", 400, "http.syntax"),
    "space before the colon": (GET + b"X : b\r\n\r\n", 400, "http.syntax"),
    "folded header": (GET + b"X: a\r\n b\r\n\r\n", 400, "http.syntax"),
    "NUL in a value": (GET + b"X: a\0b\r\n\r\n", 400, "http.syntax"),
    "NUL in a name": (GET + b"X\0: a\r\n\r\n", 400, "http.syntax"),
    "header without a name": (GET + b": a\r\n\r\n", 400, "http.syntax"),
    "no Host": (b"GET /name/a HTTP/1.1\r\n\r\n", 400, "http.host"),
    "two Hosts": (GET + b"Host: b\r\n\r\n", 400, "http.header_twice"),
    "long line": (GET + b"X: " + b"y" * 65536, 431, "http.header_bytes"),
    "long target": (b"GET /" + b"y" * 65536, 431, "http.header_bytes"),
    "many lines": (GET + b"X: y\r\n" * 100 + b"\r\n", 431, "http.header_lines"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400, "http.syntax"),
    "unknown method": (b"BREW /name/a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "http.syntax"),
    "HTTP/0.9": (b"GET /name/a\r\n\r\n", 505, "http.version"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "http.syntax"),
    "another coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "http.coding"),
    "chunks of HTTP/1.0": (b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501, "http.coding"),
    "another Expect": (POST + b"Expect: tea\r\nContent-Length: 1\r\n\r\na", 417, "http.expect"),
    "bad chunk": (CHUNKED + b"ZZ\r\n", 400, "http.chunks"),
    "chunk longer than it says": (CHUNKED + b"1\r\nabc\r\n0\r\n\r\n", 400, "http.chunks"),
    "chunk size beyond 64 bits": (CHUNKED + b"fffffffffffffffff\r\n", 400, "http.chunks"),
    "long chunk extension": (CHUNKED + b"4;" + b"e" * 90_000, 400, "http.chunks"),
    "long trailers": (CHUNKED + b"1\r\na\r\n0\r\nX: " + b"e" * 90_000, 400, "http.chunks"),
    "chunks without end": (CHUNKED + (b"4000\r\n" + bytes(0x4000) + b"\r\n") * 7, 413, "http.body_size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_request_is_refused(name: str, serve: Any, connect: Any) -> None:
    """The client reads why, although it has sent more than was read; then the connection ends, and others are served."""
    data, status, code = REFUSED[name]
    front = serve(LIMITS)
    client = connect(front).send(data)
    answer = client.read()
    assert (answer.status, answer.json["code"], answer.headers["connection"]) == (status, code, "close")
    assert client.is_closed()
    assert front.counts[code] == 1
    assert connect(front).send(GET + b"\r\n").read().body == b"a"
    assert front.counts["body_bytes"] == 0


@pytest.mark.parametrize("name", [name for name, (data, _, _) in REFUSED.items() if len(data) < 1000])
def test_bytes_that_come_one_by_one_are_refused_as_well(name: str, serve: Any, connect: Any) -> None:
    """Where the network cuts a request changes nothing: here in the middle, and before each of its last bytes."""
    data, status, code = REFUSED[name]
    client = connect(serve(LIMITS))
    cuts = [0, len(data) // 2, *range(max(len(data) // 2 + 1, len(data) - 12), len(data) + 1)]
    try:
        for begin, end in itertools.pairwise(cuts):
            client.send(data[begin:end])
    except (BrokenPipeError, ConnectionResetError):
        pass  # refused before all was sent
    answer = client.read()
    assert (answer.status, answer.json["code"]) == (status, code)


def test_a_large_body_can_be_refused_before_it_is_sent(serve: Any, connect: Any) -> None:
    """The client reads the answer although it goes on sending: no reset takes it away."""
    front = serve(LIMITS)
    client = connect(front).send(POST + b"Content-Length: 100000000\r\n\r\n")
    sender = threading.Thread(target=lambda: [client.send(bytes(100_000)) for _ in range(100)], daemon=True)
    sender.start()
    assert client.read().status == 413
    sender.join()


def test_a_refused_request_whose_body_is_not_large_keeps_its_connection(serve: Any, connect: Any, later: Any) -> None:
    """A gate says 429 before the body takes room; the body is skipped, and the next request is served."""
    client = connect(serve())
    for size in (20_000, 100_000):
        answer = client.send(
            b"POST /full HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
        ).read()
        assert (answer.status, answer.headers["retry-after"]) == (429, "2")
    assert client.send(POST + b"Content-Length: 1\r\n\r\na").read().body == b"a"
    assert later.requests == []


def test_a_gate_refuses_what_is_there_as_a_whole_too(serve: Any, connect: Any, later: Any) -> None:
    """To refuse by the head costs a fraction of what the handler does before it asks the same."""
    client = connect(serve())
    for body in (b"", b"a"):
        client.send(b"POST /full HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert client.read().status == 429
    assert later.requests == []


def test_bodies_have_a_budget_together(serve: Any, connect: Any, later: Any) -> None:
    """What is announced and does not fit is refused before it comes; answered bodies make room."""
    front = serve(LIMITS)
    head = b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
    first = connect(front).send(head + bytes(100_000))
    request = later.wait()
    assert front.counts["body_bytes"] == 100_000
    refused = connect(front).send(head).read()
    assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (503, "http.total_bytes", "1")
    request.answer(Answer(200))
    assert first.read().status == 200
    connect(front).send(head + bytes(100_000))
    assert len(later.wait().body) == 100_000


def test_announced_bodies_take_no_room_until_they_come(serve: Any, connect: Any) -> None:
    """Clients that announce and do not send keep nobody else out."""
    front = serve(LIMITS)
    for _ in range(20):
        connect(front).send(POST + b"Content-Length: 100000\r\n\r\nabc")
    assert connect(front).send(POST + b"Content-Length: 100000\r\n\r\n" + bytes(100_000)).read().status == 200


@pytest.mark.parametrize("begun", [GET, POST + b"Content-Length: 100\r\n\r\n", CHUNKED])
def test_a_dripping_client_has_one_deadline(serve: Any, connect: Any, begun: bytes) -> None:
    """No byte that comes prolongs the time for the whole request; the client hears 408."""
    clock = FakeClock()
    front = serve(Limits(request_seconds=10), clock=clock)
    client = connect(front).send(begun)
    good = connect(front)
    for _ in range(9):
        assert good.send(GET + b"\r\n").read().status == 200
        clock.advance(1.2)
        client.send(b"1")
    answer = client.read()
    assert (answer.status, answer.json["code"]) == (408, "http.slow")
    assert client.is_closed()
    assert front.counts["cut_off.reading"] == 1
    assert good.send(GET + b"\r\n").read().status == 200


def test_idle_connections_are_closed(serve: Any, connect: Any) -> None:
    """Those that never sent anything, and those that were served long ago; not one whose request is being handled."""
    clock = FakeClock()
    front = serve(Limits(idle_seconds=10, request_seconds=100), clock=clock)
    silent, served, busy = connect(front), connect(front), connect(front)
    assert served.send(GET + b"\r\n").read().status == 200
    busy.send(POST + b"Content-Length: 1\r\n\r\n")
    assert connect(front).send(GET + b"\r\n").read().status == 200  # all of the above has been read
    clock.advance(11)
    assert silent.is_closed()
    assert served.is_closed()
    assert busy.send(b"a").read().status == 200


@pytest.fixture
def before_tick(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return what the front's thread calls right before it looks at deadlines: nothing is read in between."""
    calls: list[Callable[[], object]] = []
    tick = shared.Shared.tick

    def call_and_tick(self: shared.Shared, _now_ns: int) -> float | None:
        while calls:
            calls.pop()()
        return tick(self, self.clock.now_ns())

    monkeypatch.setattr(shared.Shared, "tick", call_and_tick)
    return calls


def test_a_request_that_has_come_when_its_connection_would_be_closed_as_idle_is_answered(
    serve: Any, connect: Any, before_tick: list[Callable[[], object]]
) -> None:
    """It waits unread in the kernel's buffer when the time is up; the connection serves on, and is closed when idle again."""
    clock = FakeClock()
    front = serve(Limits(idle_seconds=10), clock=clock)
    client = connect(front)
    assert client.send(GET + b"\r\n").read().status == 200

    def send_in_the_last_moment() -> None:
        clock.advance(11)
        client.send(GET + b"\r\n")

    before_tick.append(send_in_the_last_moment)
    assert client.read().status == 200
    assert front.counts["spared.idle"] == 1
    assert connect(front).send(GET + b"\r\n").read().status == 200  # the front is done with all of the above
    clock.advance(11)
    assert client.is_closed()


def test_no_request_is_thrown_away_to_let_another_client_in(
    serve: Any, connect: Any, before_tick: list[Callable[[], object]]
) -> None:
    """The connection that has been idle longest has a request unread, so that the next one is closed."""
    front = serve(Limits(connections=2))
    client, silent = connect(front), connect(front)
    assert client.send(GET + b"\r\n").read().status == 200
    assert silent.send(GET + b"\r\n").read().status == 200

    def send_and_be_full() -> None:
        client.send(GET + b"\r\n")
        front._shared.close_oldest_idle()

    before_tick.append(send_and_be_full)
    assert client.read().status == 200
    assert silent.is_closed()
    assert front.counts["closed_for_another"] == 1


def test_a_client_hears_that_its_idle_connection_is_closed_before_the_loop_turns(
    serve: Any, connect: Any, before_tick: list[Callable[[], object]]
) -> None:
    """Else it could send a request meanwhile, which nobody would read."""
    front = serve(Limits(connections=2))
    client = connect(front)
    assert client.send(GET + b"\r\n").read().status == 200
    heard: list[bool] = []
    is_over = threading.Event()

    def close_and_hear() -> None:  # the front's thread does nothing else meanwhile
        try:
            front._shared.close_oldest_idle()
            heard.append(client.is_closed())
        finally:
            is_over.set()

    before_tick.append(close_and_hear)
    assert is_over.wait(60)
    assert heard == [True]


def test_thousands_of_idle_connections_are_closed_little_by_little(
    serve: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are served between two of them, and none is forgotten."""
    monkeypatch.setattr(shared, "CLOSED_AT_ONCE", 1)
    closed_in: list[int] = []
    tick = shared.Shared.tick

    def note(self: shared.Shared, now_ns: int) -> float | None:
        before = self.counts["cut_off.idle"]
        pause = tick(self, now_ns)
        closed_in.append(self.counts["cut_off.idle"] - before)
        return pause

    monkeypatch.setattr(shared.Shared, "tick", note)
    clock = FakeClock()
    front = serve(Limits(idle_seconds=10), clock=clock)
    idle = [connect(front) for _ in range(5)]
    assert connect(front).send(GET + b"\r\n").read().status == 200  # all of the above has been let in
    clock.advance(10.1)
    assert all(one.is_closed() for one in idle)
    assert max(closed_in) == 1


class Idle:
    """A connection without a request."""

    is_idle, has_unread, is_over = True, False, False

    def time_out(self, kind: str) -> None:
        """Close."""


@pytest.mark.parametrize(("late_ns", "has_pause"), [(10**8, True), (10**9, False)])
def test_other_threads_run_between_closings_unless_these_are_late(
    routes: Any, monkeypatch: pytest.MonkeyPatch, late_ns: int, has_pause: bool
) -> None:
    """One is closed at a time, or a few where these are late; after the last nothing is due."""
    monkeypatch.setattr(shared, "CLOSED_AT_ONCE", 1)
    portion = 1 if has_pause else 3
    of_front = shared.Shared(routes, Limits(idle_seconds=10), FakeClock(), None, lambda: None)
    closed: list[str] = []
    for _ in range(portion + 1):
        connection = Idle()
        connection.time_out = closed.append
        of_front.idle.put(connection, 0)
    now_ns = 10 * 10**9 + late_ns
    pause = of_front.tick(now_ns)
    assert pause is not None
    assert (pause > 0) == has_pause
    assert len(closed) == portion
    of_front.tick(now_ns)
    assert len(closed) == portion + 1
    assert of_front.tick(now_ns) is None


def test_a_client_that_does_not_read_is_cut_off(routes: Any, serve: Any, connect: Any) -> None:
    """Its next request is not read meanwhile, and its answer does not wait for ever."""
    large: list[int] = []
    routes.add("GET", "/large", lambda request: large.append(1) or Answer(200, bytes(20_000_000)))
    clock = FakeClock()
    front = serve(Limits(answer_seconds=10), clock=clock)
    client = connect(front, receive_bytes=4096).send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
    good = connect(front)
    ask_until(good, lambda: large == [1])
    clock.advance(11)
    ask_until(good, lambda: front.counts.get("cut_off.sending") == 1)
    assert received_until_end(client) < 20_000_000
    assert large == [1]


def ask_until(good: Any, is_true: Any) -> None:
    """Let a good client ask until something is true, and once more, so that the turn of the loop that did it is over."""
    done = False
    while not done:
        done = is_true()
        assert good.send(GET + b"\r\n").read().status == 200


def received_until_end(client: Any) -> int:
    """Return how many bytes still come."""
    num_bytes = 0
    try:
        while data := client.socket.recv(65536):
            num_bytes += len(data)
    except ConnectionResetError:
        pass
    return num_bytes


def test_pipelined_requests_are_handled_one_after_another(serve: Any, connect: Any, later: Any) -> None:
    """The second begins when the first is answered, and the order stays."""
    client = connect(serve())
    one = b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
    client.send(b"".join(one + b"%d" % number for number in range(5)) + GET + b"\r\n")
    for number in range(5):
        request = later.wait()
        assert bytes(request.body) == b"%d" % number
        assert len(later.requests) == number + 1
        request.answer(Answer(200, bytes(request.body)))
        assert client.read().body == b"%d" % number
    assert client.read().body == b"a"


def test_a_pipelining_flood_does_not_grow(serve: Any, connect: Any, later: Any) -> None:
    """While the first waits for its answer no more than a piece of what follows is read."""
    front = serve()
    client = connect(front).send(b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na")
    request = later.wait()
    client.socket.setblocking(False)
    flood = (GET + b"\r\n") * 1000
    with contextlib.suppress(BlockingIOError):  # the kernel's buffers are full: the front has stopped reading
        sent = sum(client.socket.send(flood) for _ in range(100_000))
        raise AssertionError(f"the front took {sent} bytes")
    assert front.counts["body_bytes"] <= 1 + 16 * 1024
    client.socket.settimeout(60)
    request.answer(Answer(200, b"first"))
    assert client.read().body == b"first"
    assert client.read().body == b"a"


def test_many_pipelined_requests_in_one_piece_need_no_stack(serve: Any, connect: Any) -> None:
    """Hundreds of answers at once, in order."""
    client = connect(serve())
    client.send(b"".join(b"GET /name/%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in range(2000)))
    assert [client.read().body for _ in range(2000)] == [b"%d" % number for number in range(2000)]


def test_clients_that_vanish_are_noticed_once_each(serve: Any, connect: Any, later: Any) -> None:
    """64 connections are reset while their requests wait: each handler hears it once, and late answers are dropped."""
    front = serve()
    for _ in range(5):
        for client in send_later(front, connect, later, 64):
            client.reset()
        later.wait_gone(64)
        assert all(request.is_gone and request.answer(Answer(200)) for request in later.requests[-64:])
    assert connect(front).send(POST + b"Content-Length: 1\r\n\r\na").read().body == b"a"
    assert len(later.gone) == len(set(map(id, later.gone))) == front.counts["gone"] == 5 * 64
    assert front.counts["body_bytes"] == 0


def test_clients_that_vanish_while_they_are_answered_hurt_nobody(serve: Any, connect: Any, later: Any) -> None:
    """Answers and resets cross; then all good requests are served."""
    front = serve()
    for _ in range(5):
        clients = send_later(front, connect, later, 64)
        requests = later.requests[-64:]
        answering = threading.Thread(target=answer_all, args=(requests,))
        answering.start()
        for client in clients:
            client.reset()
        answering.join()
    clients = send_later(front, connect, later, 64)
    answer_all(later.requests[-64:])
    assert [client.read().body for client in clients] == [b"an answer"] * 64
    ask_until(connect(front), lambda: front.counts["body_bytes"] == 0)


def answer_all(requests: list[Any]) -> None:
    """Answer them."""
    for request in requests:
        request.answer(Answer(200, b"an answer"))


def send_later(front: Any, connect: Any, later: Any, count: int) -> list[Any]:
    """Return clients whose requests are being handled."""
    clients = [connect(front) for _ in range(count)]
    for client in clients:
        client.send(b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n" + bytes(5000))
    later.wait(count)
    return clients


def test_a_half_closed_client_gets_what_is_answered_at_once(serve: Any, connect: Any) -> None:
    """It may stop sending behind its request."""
    client = connect(serve()).send(POST + b"Content-Length: 1\r\n\r\na")
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read().body == b"a"
    assert client.is_closed()


def test_a_gone_handler_that_raises_is_logged(
    serve: Any, connect: Any, later: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of what is called then ends nothing."""
    front = serve()
    client = connect(front).send(b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
    request = later.wait()
    request.call_when_gone(lambda: 1 / 0)
    client.reset()
    assert connect(front).send(GET + b"\r\n").read().body == b"a"
    assert "http.on_gone" in caplog.text
