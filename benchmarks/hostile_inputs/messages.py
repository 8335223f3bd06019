"""Bodies of queue messages that are no jobs, or hardly any."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from typing import Any

_GOOD: dict[str, Any] = {"v": 1, "id": "a", "url": "https://example.com/1.jpg", "attributes": {"customer": 7}}
_WRONG: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 2**70, "", "\x00", "é\u202e", "../../etc/passwd", [], {}, [[]], {"a": 1}, "x" * 10_000,
)  # fmt: skip


def hostile_messages(number: int, seed: int = 0) -> Iterator[bytes]:
    """Yield message bodies, all of which must be refused at once or read as an ordinary job.

    Args:
        number: How many; the first 30 are hand-made, the others seeded.
        seed: Equal seeds give equal messages.
    """
    rng = random.Random(seed)
    for index, body in enumerate(handmade_messages()):
        if index >= number:
            return
        yield body
    for index in range(number - len(handmade_messages())):
        yield (_mistyped, _flipped, _cut)[index % 3](rng)


def handmade_messages() -> list[bytes]:
    """Return what must be refused."""
    nested = b"[" * 100_000 + b"]" * 100_000
    address = b"data:image/png;base64," + base64.b64encode(bytes(7_500_000))
    return [
        b"",
        b" ",
        b"\x00",
        b"null",
        b"7",
        b'"text"',
        b"[]",
        b"{}",
        b"{",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'{"url": "\xff\xfe"}',
        b'{"url": "\\ud800"}',
        b'{"url": NaN}',
        b'{"url": "https://e.com/1", "deadline": NaN}',
        b'{"url": "https://e.com/1", "deadline": Infinity}',
        b'{"url": "https://e.com/1", "deadline": 1e999}',
        b'{"url": "https://e.com/1", "attributes": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"url": "https://e.com/1", "attributes": {"a": ' + nested + b"}}",
        nested,
        b'{"url": "https://e.com/1", "url": "https://127.0.0.1/"}',
        b'{"url": "https://e.com/1", "\\u0075rl": "https://127.0.0.1/"}',
        b'{"url": "https://e.com/1", "attributes": {"a": 1, "a": 2}}',
        b'{"url": "https://e.com/1", "unknown": 1}',
        b'{"url": "https://e.com/1", "path": "/etc/passwd"}',
        b'{"v": 1, "id": "a"}',
        b'{"url": "' + address + b'"}',
        b'{"url": "https://e.com/1", "attributes": {"a": "' + b"x" * 1_048_576 + b'"}}',
        b'{"url": "https://e.com/1", "id": "' + b"x" * 1_048_576 + b'"}',
        b"x" * 1_048_576,
    ]


def _mistyped(rng: random.Random) -> bytes:
    job = dict(_GOOD)
    key = rng.choice(["v", "id", "task", "url", "data", "path", "callback", "deadline", "attributes", "x"])
    job[key] = rng.choice(_WRONG)
    if rng.random() < 0.3:
        del job[rng.choice(list(job))]
    return json.dumps(job).encode()


def _flipped(rng: random.Random) -> bytes:
    body = bytearray(json.dumps(_GOOD).encode())
    for _ in range(rng.randint(1, 6)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return bytes(body)


def _cut(rng: random.Random) -> bytes:
    body = json.dumps(_GOOD).encode()
    return body[: rng.randrange(len(body))]
