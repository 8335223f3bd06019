"""Heads that are read once and known from then on."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.clock import SystemClock
from headrace.serve.http import head
from headrace.serve.http.head import HeadReader, KnownHeads
from headrace.serve.http.limits import Limits
from headrace.serve.http.reading import RequestReader
from headrace.serve.http.refusal import BadRequest
from headrace.serve.http.request import Answer
from headrace.serve.http.routes import Routes
from headrace.serve.http.shared import Shared

POST = b"POST /v1/jobs?task=a%20b HTTP/1.1\r\nHost: a\r\nContent-Type: image/jpeg\r\n"


class Counting(HeadReader):
    """Counts the heads that are given to the parser."""

    num_fed = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Count, and read."""
        Counting.num_fed += 1
        super().feed(data)


def read(known: KnownHeads, data: bytes) -> tuple[Any, ...]:
    """Return what a new reader makes of a whole head: what it says, or why it is refused."""
    reader = Counting(100, known)
    try:
        reader.read_whole(data, 0, len(data))
    except BadRequest as refusal:
        return (refusal.code, refusal.answer)
    said = (reader.method, reader.path, reader.query, reader.headers, reader.length)
    return (*said, reader.keeps_alive, reader.expects)


def num_fed(known: KnownHeads, *heads: bytes) -> int:
    """Return how many of the heads the parser was given."""
    before = Counting.num_fed
    for data in heads:
        read(known, data)
    return Counting.num_fed - before


@pytest.mark.parametrize("name", [b"Content-Length", b"content-length"])
def test_of_heads_that_differ_in_their_length_alone_one_is_read(name: bytes) -> None:
    """Each has a length of its own, and says the rest as if it had been read."""
    heads = [POST + name + b": %d\r\nUser-Agent: b\r\n\r\n" % length for length in (5, 12_800, 0, 999_999_999_999)]
    known = KnownHeads()
    assert num_fed(known, *heads) == 1
    for data in heads:
        assert read(known, data) == read(KnownHeads(), data)


def test_a_head_without_a_body_is_known_as_well() -> None:
    """Probes send the same bytes each second."""
    probe = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
    assert num_fed(KnownHeads(), probe, probe, probe) == 1


@pytest.mark.parametrize(
    "length",
    [b"", b" ", b"-1", b"+1", b"1x", b"1 ", b"1_0", b"0x1", b"1,1", b"007", "\u0661".encode(), b"9" * 13, b"9" * 30],
)
def test_what_is_no_plain_length_is_left_to_the_parser(length: bytes) -> None:
    """Although the same head with a good one is known."""
    known = KnownHeads()
    read(known, POST + b"Content-Length: 5\r\n\r\n")
    bad = POST + b"Content-Length: " + length + b"\r\n\r\n"
    assert num_fed(known, bad) == 1
    assert read(known, bad) == read(KnownHeads(), bad)


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nExpect: 100-continue\r\n",
        b"Content-Length: 5\r\nConnection: close\r\n",
        b"Content-Length: 5\r\nUpgrade: h2c\r\nConnection: upgrade\r\n",
        b"CONTENT-LENGTH: 5\r\n",
        b"Content-Length:5\r\n",
        b"Content-Length: 5\r\nX: " + b"x" * 3_000 + b"\r\n",
    ],
)
def test_what_ends_a_connection_or_is_unusual_is_read_each_time(lines: bytes) -> None:
    """And each time in the same way."""
    known = KnownHeads()
    first = read(known, POST + lines + b"\r\n")
    assert num_fed(known, POST + lines + b"\r\n") == 1
    assert read(known, POST + lines + b"\r\n") == first


def test_who_sends_another_head_each_time_takes_up_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was known is forgotten, and known again soon."""
    monkeypatch.setattr(head, "_MOST_KNOWN", 4)
    known = KnownHeads()
    num_fed(known, *(POST + b"X-Request-Id: %d\r\n\r\n" % number for number in range(50)))
    assert len(known._known) <= 4


def test_known_and_unknown_heads_take_turns_on_a_connection() -> None:
    """The parser sees some of them only, and goes on with each that it sees."""

    class Nobody:
        def answer(self, request: Any, answer: Answer) -> None:
            """Hear nothing."""

    shared = Shared(Routes(), Limits(), SystemClock(), None, lambda: None)
    shared.routes.add("POST", "/v1/jobs", lambda request: None)
    reader = RequestReader(shared, Nobody())
    kinds = [
        (POST, 3),
        (POST, 3),
        (POST + b"X-A: b\r\n", 2),
        (POST, 20_000),
        (POST, 0),
        (POST + b"X-A: b\r\n", 0),
        (POST, 1),
    ]
    for cut in (10**6, 60):
        for number, (lines, size) in enumerate(kinds):
            data = lines + b"Content-Length: %d\r\n\r\n" % size + bytes([number]) * size
            while data:
                room = reader.room()
                piece = data[: min(cut, len(room))]
                room[: len(piece)] = piece
                data = data[reader.received(len(piece)) :]
            assert reader.is_ready
            request = reader.finish()
            assert (request.path, request.query, bytes(request.body)) == (
                "/v1/jobs", {"task": "a b"}, bytes([number]) * size,
            )  # fmt: skip
            reader.forget_request()


def test_empty_lines_before_a_request_are_never_known_as_one() -> None:
    """They are passed over, and the head behind them is another: else empty lines would be requests from then on."""
    known = KnownHeads()
    reader = HeadReader(100, known)
    reader.read_whole(b"\r\n\r\n", 0, 4)
    assert not reader.is_complete
    reader.feed(POST + b"Content-Length: 5\r\n\r\n")
    assert reader.is_complete
    other = HeadReader(100, known)
    other.read_whole(b"\r\n\r\n", 0, 4)
    assert not other.is_complete
