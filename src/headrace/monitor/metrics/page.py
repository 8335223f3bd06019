r"""The numbers of one worker slot in memory that outlives its processes: who counts writes here, and the exporter reads.

How this works. Without a supervisor the page is memory of the run's process. With one it is made before the first fork, so that
the worker, its successors and the exporter see the same bytes: a number is counted where it is shown, so a SIGKILL loses none,
and a successor goes on from what it finds. One process writes at a time. Readers take no lock: a number is eight aligned bytes,
and an entry counts once the number of entries says so, which is written last.

    header      entries | numbers in use | sign of life, seconds of the monotonic clock (NaN: nobody is there)
    directory   for each entry: length, then `SERIES\x1fLABEL\x1fLABEL` in UTF-8
    numbers     for each entry one (counter, gauge), or a histogram: a count for each bucket, the sum, exemplars
"""

from __future__ import annotations

import math
import mmap
import re
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.monitor.metrics.table import SERIES, Kind, Series

#: Series of one worker, and their numbers: a pipeline of 40 stages has some 200 entries. What is not used takes no memory.
MOST_ENTRIES, MOST_NUMBERS = 2_048, 65_536
_ENTRY_BYTES = 512
_LENGTH = struct.Struct("<H")
_HEADER_BYTES = 64
_ENTRIES, _IN_USE, _BEAT = 0, 1, 2
_NUMBERS_AT = _HEADER_BYTES + MOST_ENTRIES * _ENTRY_BYTES
_BYTES = _NUMBERS_AT + MOST_NUMBERS * 8
#: A job's id in an exemplar: bytes, and numbers of an exemplar with value and time.
ID_BYTES = 64
_PLAIN_ID = re.compile(rf"[A-Za-z0-9_.:/@+=-]{{1,{ID_BYTES}}}")
_EXEMPLAR_SECONDS = 1.0
_EXEMPLAR_NUMBERS = 2 + ID_BYTES // 8
#: The histograms whose buckets have exemplars.
WITH_EXEMPLARS = frozenset({"headrace_job_latency_seconds"})
#: A worker whose last sign of life is older is taken for dead or stuck.
ALIVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One series with its labels, and where its numbers are."""

    series: Series
    labels: tuple[str, ...]
    at: int
    """Index of its first number."""


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One job that a bucket counted."""

    job: str
    value: float
    unix_seconds: float


class Page:
    """See above. `add` and the setters are for one thread at a time of one process; the rest is for anybody."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BYTES)
        view = memoryview(self._memory)
        self._header = view[:_HEADER_BYTES].cast("d")
        self._bytes = view
        self.numbers = view[_NUMBERS_AT:].cast("d")
        self._header[_BEAT] = math.nan
        self._read: list[Entry] = []
        self._reading = threading.Lock()
        self._read_numbers = 0

    def add(self, series: Series, labels: Sequence[str]) -> Entry | None:
        """Return a new entry, its numbers 0, a gauge's NaN; None where there is no room."""
        text = "\x1f".join((series.name, *labels)).encode("utf-8", "replace")
        num, at = int(self._header[_ENTRIES]), int(self._header[_IN_USE])
        width = width_of(series)
        if num >= MOST_ENTRIES or at + width > MOST_NUMBERS or len(text) > _ENTRY_BYTES - _LENGTH.size:
            return None
        place = _HEADER_BYTES + num * _ENTRY_BYTES
        _LENGTH.pack_into(self._memory, place, len(text))
        self._bytes[place + _LENGTH.size : place + _LENGTH.size + len(text)] = text
        if series.kind is Kind.GAUGE:
            self.numbers[at] = math.nan
        self._header[_IN_USE] = at + width
        self._header[_ENTRIES] = num + 1  # last: now it counts
        return Entry(series, tuple(labels), at)

    def entries(self) -> Sequence[Entry]:
        """Return what is there; new ones since the last call are read."""
        with self._reading:
            for index in range(len(self._read), int(self._header[_ENTRIES])):
                place = _HEADER_BYTES + index * _ENTRY_BYTES
                (length,) = _LENGTH.unpack_from(self._memory, place)
                text = bytes(self._bytes[place + _LENGTH.size :][:length])
                name, *labels = text.decode("utf-8", "replace").split("\x1f")
                entry = Entry(SERIES[name], tuple(labels), self._read_numbers)
                self._read_numbers += width_of(entry.series)
                self._read.append(entry)
            return self._read[:]

    def begin(self) -> None:
        """Begin as a new process: gauges of the one before say nothing any more."""
        for entry in self.entries():
            if entry.series.kind is Kind.GAUGE:
                self.numbers[entry.at] = math.nan
        self.beat()

    def beat(self) -> None:
        """Give a sign of life."""
        self._header[_BEAT] = time.monotonic()

    def end(self) -> None:
        """Note that nobody is there any more: counters stay, gauges are not shown."""
        self._header[_BEAT] = math.nan

    @property
    def is_alive(self) -> bool:
        """Whether there was a sign of life of late."""
        return time.monotonic() - self._header[_BEAT] < ALIVE_SECONDS  # False for NaN

    # --- exemplars: for each bucket the last job that it counted

    def set_exemplar(self, entry: Entry, bucket: int, job: str, value: float) -> None:
        """Keep a job as the exemplar of a bucket; one a second is enough, and costs less than each.

        Its id must be a plain one: not all that reads scrapes unescapes others.
        """
        at, now = _exemplar_at(entry, bucket), time.time()
        if now - self.numbers[at + 1] < _EXEMPLAR_SECONDS or not _PLAIN_ID.fullmatch(job):
            return
        self.numbers[at] = math.nan  # whoever reads meanwhile sees none
        place = _NUMBERS_AT + (at + 2) * 8
        self._bytes[place : place + ID_BYTES] = job.encode().ljust(ID_BYTES, b"\0")
        self.numbers[at + 1] = now
        self.numbers[at] = value

    def exemplar(self, entry: Entry, bucket: int) -> Exemplar | None:
        """Return the exemplar of a bucket; None: it has none."""
        at = _exemplar_at(entry, bucket)
        value, unix_seconds = self.numbers[at], self.numbers[at + 1]
        if not unix_seconds:
            return None
        place = _NUMBERS_AT + (at + 2) * 8
        text = bytes(self._bytes[place : place + ID_BYTES]).rstrip(b"\0")
        if self.numbers[at] != value:  # NaN, or written meanwhile
            return None
        return Exemplar(text.decode("ascii", "replace"), value, unix_seconds)


def width_of(series: Series) -> int:
    """Return how many numbers an entry of a series has."""
    if series.kind is not Kind.HISTOGRAM:
        return 1
    buckets = len(series.buckets) + 1
    return buckets + 1 + (buckets * _EXEMPLAR_NUMBERS if series.name in WITH_EXEMPLARS else 0)


def _exemplar_at(entry: Entry, bucket: int) -> int:
    return entry.at + len(entry.series.buckets) + 2 + bucket * _EXEMPLAR_NUMBERS


def labelled(entry: Entry) -> Iterator[tuple[str, str]]:
    """Return the pairs of name and value of an entry's labels."""
    return zip(entry.series.label_names, entry.labels, strict=True)
