"""Send damaged HTTP requests to the front's reader, and compare what it takes with aiohttp's parser in Python, which is strict.

    python tools/fuzz_http.py --count 1000000      # through the reader, each beside aiohttp
    python tools/fuzz_http.py --sockets 100000     # over real connections to a running front

The case of a number is always the same: `--first N --count 1` shows case N. A difference is known by its kind and reason:

    looser     the front takes a request that aiohttp does not take
    stricter   aiohttp takes one that the front does not
    other      both take it, and read something else

Those of `tests/unit/serve/http/differences.json` have been reviewed; any other is an error, as is any exception but a refusal.
A request that is refused and one that never ends are the same here: neither reaches a handler.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParserPy

from headrace.base.clock import SystemClock
from headrace.serve.http.front import Front
from headrace.serve.http.head import split_target
from headrace.serve.http.limits import Limits
from headrace.serve.http.reading import RequestReader
from headrace.serve.http.refusal import BadRequest
from headrace.serve.http.request import Answer, Request
from headrace.serve.http.routes import Found, Routes
from headrace.serve.http.shared import Shared

REVIEWED = Path(__file__).resolve().parents[1] / "tests" / "unit" / "serve" / "http" / "differences.json"
#: Equal on both sides, so that limits make no differences.
_BYTES, _LINES = 65_536, 100
_LIMITS = Limits(header_bytes=_BYTES, header_lines=_LINES, body_bytes=1_000_000)

#: Of cases over sockets: so often a good request is sent, too.
GOOD_EACH = 100
_HEAD = b"Host: example.org\r\nUser-Agent: a/1.0\r\nAccept: */*\r\n"
SEEDS = (
    b"GET / HTTP/1.1\r\n" + _HEAD + b"\r\n",
    b"GET /v1/jobs/a%20b?wait=2s&x=%C3%A9 HTTP/1.1\r\n" + _HEAD + b"\r\n",
    b"GET http://example.org/a?b HTTP/1.1\r\n" + _HEAD + b"\r\n",
    b"OPTIONS * HTTP/1.1\r\n" + _HEAD + b"\r\n",
    b"HEAD /livez HTTP/1.0\r\n\r\n",
    b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\n" + _HEAD + b"Content-Type: image/jpeg\r\nContent-Length: 12\r\n\r\nHello world!",
    b"POST /v1/jobs HTTP/1.1\r\n" + _HEAD + b"Content-Length: 0\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\n" + _HEAD + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\n" + _HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nHello\r\n6;x=y\r\n world\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\n" + _HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Trailer: 1\r\n\r\n",
    b"POST /a HTTP/1.1\r\n" + _HEAD + b"Transfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n00\r\n\r\n",
    b"GET /a HTTP/1.1\r\n" + _HEAD + b"Connection: close\r\nCookie: a=b; c=d\r\nX-Empty:\r\n\r\n",
    b"GET /chat HTTP/1.1\r\n" + _HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"PUT /a HTTP/1.1\r\n" + _HEAD + b"Content-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: b\r\n\r\n",
    b"DELETE /a HTTP/1.1\r\n" + _HEAD + b"Authorization: Bearer abc\r\nX-Tab: a\tb\r\nX-High: \xc3\xa9\r\n\r\n",
)  # fmt: skip
#: What is put in somewhere: what parsers have disagreed about.
TOKENS = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"%", b"%00", b"%zz", b"#", b"?", b"/", b"//",
    b"\x7f", b"\xff", b"\x0b", b"Content-Length: 5\r\n", b"Content-Length: +5\r\n", b"Content-Length: 0x5\r\n",
    b"Content-Length: 5, 5\r\n", b"Content-Length: 1_0\r\n", b"Content-Length : 5\r\n", b"Content-Length:5\r\n",
    b"content-length: 3\r\n", b"Content-Length: \r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: Chunked\r\n",
    b"Transfer-Encoding: chunked, identity\r\n", b"Transfer-Encoding:\tchunked\r\n",
    b"Transfer-Encoding: \x0bchunked\r\n", b"Transfer_Encoding: chunked\r\n", b"Host: b\r\n", b" folded\r\n",
    b"\tfolded\r\n", b": nothing\r\n", b"X\r\n", b"X:\r\n", b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Expect: tea\r\n", b"HTTP/1.1",
    b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.10", b"http/1.1", b"HTTP/0.9", b"GET", b"PRI", b"CONNECT", b"0\r\n\r\n",
    b"0\r\n", b"00000001\r\n", b"+1\r\n", b"0x1\r\n", b"ffffffffffffffff\r\n", b"10000000000000001\r\n", b"-1\r\n",
    b"1 \r\n", b" 1\r\n", b"1;\r\n", b"1;a=\"\r\n\"\r\n", b"\r\n\r\n", b"GET /smuggled HTTP/1.1\r\nHost: c\r\n\r\n",
    b"\xc2\xa0", b"\xe2\x80\xa8", b"\x85", b"\x1c", b"_", b"@", b"\"", b"(",
)  # fmt: skip


class Taken(NamedTuple):
    """A request that would reach a handler."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes


def damaged(number: int) -> bytes:
    """Return the bytes of a case."""
    chance = random.Random(number)
    data = bytearray(chance.choice(SEEDS))
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        _damage(data, chance)
    return bytes(data)


def _damage(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    kind = chance.randrange(8)
    if kind <= 2:
        data[at:at] = chance.choice(TOKENS)
    elif kind == 3:
        data[at : at + 1] = bytes([chance.randrange(256)])
    elif kind == 4:
        del data[at : at + chance.choice((1, 1, 2, 4, 30))]
    elif kind == 5:  # a token at the beginning of a line
        begins = [match.end() for match in re.finditer(rb"\r\n", data)] or [0]
        at = chance.choice(begins)
        data[at:at] = chance.choice(TOKENS)
    elif kind == 6:  # a line twice, or in another place
        lines = data.splitlines(keepends=True)
        if lines:
            lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
            data[:] = b"".join(lines)
    else:
        data += chance.choice(SEEDS)


# --- Both sides -------------------------------------------------------------------------------------------------------


class _Everything(Routes):
    def find(self, method: str, path: str) -> Found:
        return Found(lambda request: Answer(200))


class _Nobody:
    def answer(self, request: Any, answer: Answer) -> None: ...


class Ours:
    """The front's reader."""

    def __init__(self) -> None:
        self.shared = Shared(_Everything(), _LIMITS, SystemClock(), None, lambda: None)

    def read(self, data: bytes, piece_bytes: int = 1 << 14) -> tuple[list[Taken], str]:
        """Return the requests that are taken, and why no more are; the bytes come in pieces."""
        reader = RequestReader(self.shared, _Nobody())
        taken: list[Taken] = []
        try:
            while data:
                piece = data[: min(piece_bytes, len(reader.room()))]
                reader.room()[: len(piece)] = piece
                data = data[reader.received(len(piece)) :]
                if reader.is_ready:
                    request = reader.finish()
                    taken.append(Taken(request.method, request.path, request.query, bytes(request.body)))
                    reader.forget_request()
                    if reader.closes:
                        return taken, "it closes"
        except BadRequest as refusal:
            parsed = str(refusal).rpartition(": ")[2] if refusal.code in ("http.syntax", "http.chunks") else ""
            return taken, f"{refusal.code} {refusal.answer.status} {parsed}".strip()
        finally:
            reader.forget_request()
        return taken, "it waits"


class Theirs:
    """aiohttp's parser."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.close()  # the parser asks it for futures alone
        self._protocol = BaseProtocol(self._loop)

    def read(self, data: bytes) -> tuple[list[Taken], str]:
        """Return the requests that are taken, and why no more are."""
        try:
            return self._feed([data])
        except HttpProcessingError:
            # The requests before the one that is refused are lost with it: once more, line by line.
            return self._feed(data.splitlines(keepends=True) if b"\n" in data else [data], keep=True)

    def _feed(self, parts: list[bytes], *, keep: bool = False) -> tuple[list[Taken], str]:
        parser = HttpRequestParserPy(
            self._protocol, self._loop, 1 << 24, max_line_size=_BYTES, max_field_size=_BYTES, max_headers=_LINES,
            auto_decompress=False,
        )  # fmt: skip
        messages: list[Any] = []
        why = "it waits"
        try:
            for part in parts:
                got, upgraded, _ = parser.feed_data(part)
                messages += got
                if upgraded:
                    break
        except HttpProcessingError as error:
            if not keep:
                raise
            why = f"{type(error).__name__}: {_reason(error.message)}"
        return _taken(messages, why)


def _taken(messages: list[Any], why: str) -> tuple[list[Taken], str]:
    taken = []
    for message, payload in messages:
        if payload.exception() is not None:
            return taken, f"behind the head: {type(payload.exception()).__name__}: {_reason(str(payload.exception()))}"
        if not payload.is_eof():
            return taken, why
        try:
            path, query = split_target(message.path.encode("utf-8", "surrogateescape"))
        except BadRequest:
            path, query = message.path, ""
        request = Request(_Nobody(), message.method, path, query, {})
        body = b"".join(getattr(payload, "_buffer", None) or [])
        taken.append(Taken(request.method, request.path, request.query, body))
        if message.should_close or message.upgrade:
            return taken, "it closes"
    return taken, why


def _said(text: str) -> str:
    return re.sub(r"^400, message[=:]\s*", "", text)


def _reason(text: str) -> str:
    """Return a message without what differs from case to case."""
    return re.sub(r"\d+", "N", re.split(r"[:'\n]| \"", _said(text), maxsplit=1)[0]).strip()[:80]


def difference(ours: tuple[list[Taken], str], theirs: tuple[list[Taken], str]) -> str:
    """Return kind and reason; empty: there is none."""
    for mine, other in zip(ours[0], theirs[0], strict=False):
        if mine != other:
            return "other: " + next(name for name in Taken._fields if getattr(mine, name) != getattr(other, name))
    if len(ours[0]) > len(theirs[0]):
        return f"looser: {theirs[1]}"
    if len(ours[0]) < len(theirs[0]):
        return f"stricter: {ours[1]}"
    return ""


def compare(numbers: range) -> Iterator[tuple[int, bytes, str]]:
    """Give (number, data, difference) of each case that makes one."""
    ours, theirs = Ours(), Theirs()
    for number in numbers:
        data = damaged(number)
        found = difference(ours.read(data), theirs.read(data))
        if found:
            yield number, data, found
    if ours.shared.bodies.used_bytes:
        yield numbers.stop, b"", f"leak: {ours.shared.bodies.used_bytes} bytes of bodies"


def reviewed() -> dict[str, str]:
    """Return {difference: why it is right}."""
    return {entry["difference"]: entry["why"] for entry in json.loads(REVIEWED.read_text())}


# --- Over sockets -----------------------------------------------------------------------------------------------------


def send(numbers: range) -> dict[str, int]:
    """Send each case over a connection of its own, and a good request now and then; return how often what happened."""
    front = Front(_Everything(), limits=Limits(request_seconds=5, idle_seconds=5))
    front.start()
    try:
        for number in numbers:
            exchange(front.address, damaged(number))
            if number % GOOD_EACH == 0:
                answer = exchange(front.address, SEEDS[0])
                if not answer.startswith(b"HTTP/1.1 200 "):
                    raise RuntimeError(f"after case {number} a good request got {answer!r:.100}")
        return front.counts
    finally:
        front.close()


def exchange(address: tuple[str, int], data: bytes) -> bytes:
    """Return what a server says to bytes after which nothing comes."""
    received = b""
    with socket.create_connection(address, timeout=30) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                received += part
        except (BrokenPipeError, ConnectionResetError):
            pass
    return received


def main() -> int:
    """Fuzz; exit status 1 if there is a difference that nobody has reviewed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=0, metavar="N", help="cases through the reader, beside aiohttp")
    parser.add_argument("--sockets", type=int, default=0, metavar="N", help="cases over real connections")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case")
    arguments = parser.parse_args()
    known = reviewed() if REVIEWED.exists() else {}
    counts: collections.Counter[str] = collections.Counter()
    examples: dict[str, tuple[int, bytes]] = {}
    began = time.monotonic()
    for number, data, found in compare(range(arguments.first, arguments.first + arguments.count)):
        counts[found] += 1
        examples.setdefault(found, (number, data))
    for found, count in counts.most_common():
        number, data = examples[found]
        print(f"{'reviewed' if found in known else 'NEW':8} {count:8} {found}   e.g. case {number}: {data!r:.300}")
    print(f"{arguments.count:,} cases, {counts.total():,} differences, {time.monotonic() - began:.0f} s")
    if arguments.sockets:
        print(send(range(arguments.first, arguments.first + arguments.sockets)))
    return int(any(found not in known for found in counts))


if __name__ == "__main__":
    sys.exit(main())
