"""How long refusals take within the server: a histogram in a file, which is read from outside while the server works.

A client that shares two cores with the server sees more than the server does: what waits in its own sockets, in the kernel's
buffers and for a core. Two times are taken here of each refusal, both to the moment at which the kernel has its answer:

* `seen`: since the front's loop knew that bytes of the request were there;
* `read`: since its head was read to the last byte.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

STATUSES = (429, 503)
SERIES = ("seen", "read")
#: Buckets grow by a twentieth, from a microsecond to more than a minute.
NUM, _STEP = 384, math.log(1.05)
_BYTES = 8


class Histograms:
    """One for each series, in a file."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(_BYTES * NUM * len(SERIES)))
        with file.open("r+b") as opened:
            self._counts = memoryview(mmap.mmap(opened.fileno(), 0)).cast("q")

    def note(self, series: str, nanoseconds: int) -> None:
        """Count one refusal."""
        self._counts[SERIES.index(series) * NUM + min(NUM - 1, int(math.log(max(1.0, nanoseconds / 1e3)) / _STEP))] += 1


def watch(file: Path) -> None:
    """Count all refusals of this process's front from now on."""
    from headrace.serve.http.connection import Connection
    from headrace.serve.http.reading import RequestReader
    from headrace.serve.http.request import Answer, Request

    found, now_ns = Histograms(file), time.monotonic_ns
    # The product takes no such times: one more look at the clock for each request, for figures that nobody else asks for.
    begin, answer_now = RequestReader._begin_request, Connection._answer_now  # noqa: SLF001
    read_ns: dict[RequestReader, int] = {}

    def begin_request(self: RequestReader, data: bytes | bytearray, start: int, stop: int) -> int:
        read_ns[self] = now_ns()
        return begin(self, data, start, stop)

    def answer_and_note(self: Connection, request: Request, answer: Answer, left: bytes | None = None) -> None:
        answer_now(self, request, answer, left)
        if answer.status in STATUSES:
            ended_ns = now_ns()
            found.note("seen", ended_ns - request.received_ns)
            found.note("read", ended_ns - read_ns.get(self._reader, ended_ns))

    RequestReader._begin_request = begin_request  # type: ignore[method-assign]  # noqa: SLF001
    Connection._answer_now = answer_and_note  # type: ignore[method-assign]  # noqa: SLF001


def read_histograms(file: Path) -> dict[str, list[int]]:
    """Return the counts of each series."""
    counts = memoryview(file.read_bytes()).cast("q").tolist()
    return {series: counts[place * NUM : (place + 1) * NUM] for place, series in enumerate(SERIES)}


def milliseconds(
    before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]]
) -> dict[str, dict[str, float | None]]:
    """Return {series: p50 and p99 of what was counted meanwhile}, each at most a twentieth too high."""
    found = {}
    for series in SERIES:
        counts = [late - early for late, early in zip(after[series], before[series], strict=True)]
        found[series] = {f"p{percent}_ms": _percentile(counts, percent) for percent in (50, 99)}
    return found


def _percentile(counts: Sequence[int], percent: float) -> float | None:
    left = sum(counts) * percent / 100
    for bucket, count in enumerate(counts):
        left -= count
        if count and left <= 0:
            return math.exp((bucket + 1) * _STEP) / 1e3
    return None
