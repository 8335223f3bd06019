"""`headrace pack --try N`: packs some of the files in each format, reads them warm and cold, and says whether packing pays."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.base.errors import DecodeRejected, SettingsError
from headrace.base.page_cache import evict, residency, state_of, warm
from headrace.cli.pack_smaller import Smaller, describe_smaller, make_smaller
from headrace.cli.pack_ways import Way, write_ways
from headrace.sources.finite import FiniteSource
from headrace.stages.decode import decode
from headrace.store.manifest import Encoding

#: Share of an item's time (reading and decoding) below which packing does not pay.
LEAST_GAIN = 0.05
_ROUNDS = 3
#: Of all items together, as each is written once for each format; one is tried however large it is.
_MOST_BYTES = 1 << 28


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What one way to read cost."""

    format: str
    """`folder`, or what `--format` takes; those that are read in order only have no figure for `random`."""
    order: str
    """`random` or `sequential`."""
    cache: str
    """`warm` or `cold`: what was measured of the files' pages right before; `unknown` where that could not be had."""
    us: float
    """Microseconds for each item: the median of some rounds in turn."""


class TrialDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `headrace pack --try --json` prints."""

    schema: str = "headrace.pack.try/1"
    items: int
    mean_bytes: float
    decode_us: float | None
    """Of decoding one as an image, single-threaded; null where the files are none."""
    figures: list[Figure]
    best: dict[str, str]
    """{"ORDER, CACHE": format, or `none` where no format saves enough}."""
    smaller: Smaller | None = None
    """Null: not asked for, or nothing became smaller."""


def choose_best(figures: Sequence[Figure], decode_us: float | None) -> dict[str, str]:
    """Return the best format for each order and state of the cache; `none` where the folder is as good."""
    best: dict[str, str] = {}
    for order, cache in dict.fromkeys((one.order, one.cache) for one in figures):
        costs = {one.format: one.us for one in figures if (one.order, one.cache) == (order, cache)}
        first = min(costs, key=costs.__getitem__)
        gain = (costs["folder"] - costs[first]) / (costs["folder"] + (decode_us or 0.0))
        best[f"{order}, {cache}"] = first if gain >= LEAST_GAIN else "none"
    return best


def try_formats(
    source: FiniteSource, number: int, place: Path, encoding: Encoding | None = None, pipeline: str | None = None
) -> TrialDocument:
    """Pack some files of a source in each format and measure reading them.

    Args:
        source: Its items must be files of this machine.
        number: How many, spread evenly over the list.
        place: A folder on the disk that is to be tried; what is written there is removed.
        encoding: What images become first; None: they stay as they are.
        pipeline: MODULE:ATTRIBUTE of one that is to answer for images before and after.
    """
    contents, smaller = _read_some(source, number), None
    if encoding is not None:
        contents, smaller = make_smaller(contents, encoding, pipeline)
    with tempfile.TemporaryDirectory(prefix=".headrace-try-", dir=place) as name:
        ways = write_ways(contents, Path(name))
        figures = _measure(ways, len(contents))
    decode_us = _time_decoding(list(contents.values()))
    sizes = [len(data) for data in contents.values()]
    return TrialDocument(items=len(contents), mean_bytes=statistics.mean(sizes), decode_us=decode_us, figures=figures,
                         best=choose_best(figures, decode_us), smaller=smaller)  # fmt: skip


def _read_some(source: FiniteSource, number: int) -> dict[str, bytes]:
    entries = [entry for entry in source.entries() if isinstance(entry.payload, Path)]
    if not entries:
        raise SettingsError("--try measures files of this machine; name a folder, a pattern or a .txt of paths")
    step = max(1.0, len(entries) / number)
    chosen = [entries[int(index * step)] for index in range(min(number, len(entries)))]
    found: dict[str, bytes] = {}
    left = _MOST_BYTES
    for entry in random.Random(1).sample(chosen, len(chosen)):
        assert isinstance(entry.payload, Path)
        if entry.payload.is_file() and (not found or entry.payload.stat().st_size <= left):
            found[entry.id] = entry.payload.read_bytes()
            left -= len(found[entry.id])
    if not found:
        raise SettingsError("none of the files that --try chose can be read")
    return {entry.id: found[entry.id] for entry in chosen if entry.id in found}


def _measure(ways: Mapping[str, Way], number: int) -> list[Figure]:
    """Return the figures of all ways, measured in turn."""
    numbers = list(range(number))
    shuffled = random.Random(1).sample(numbers, number)
    times: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(_ROUNDS):
        for order, one_order in (("random", shuffled), ("sequential", numbers)):
            for wanted in ("warm", "cold"):
                for name, way in _read_in(ways, order):
                    # Opened from memory: what it reads of a cold disk is as much for few items as for many.
                    warm(way.files)
                    began = time.perf_counter()
                    read = way.open()
                    seconds = time.perf_counter() - began
                    cache = _prepare(way.files, wanted)
                    began = time.perf_counter()
                    deque(read(one_order), maxlen=0)
                    seconds += time.perf_counter() - began
                    times.setdefault((name, order, cache), []).append(seconds / number * 1e6)
    return [
        Figure(format=name, order=order, cache=cache, us=statistics.median(values))
        for (name, order, cache), values in times.items()
        # A state that only some formats came to would compare cold with warm.
        if all((other, order, cache) in times for other, _ in _read_in(ways, order))
    ]


def _read_in(ways: Mapping[str, Way], order: str) -> list[tuple[str, Way]]:
    return [(name, way) for name, way in ways.items() if order == "sequential" or not way.in_order_only]


def _prepare(files: Sequence[Path], wanted: str) -> str:
    """Bring files into the page cache or out of it; return what they are then."""
    if wanted == "warm":
        warm(files)
    else:
        for file in files:
            evict(file)
    state = state_of(residency(files).share)
    return state if state in ("cold", "warm") else "unknown"


def _time_decoding(contents: Sequence[bytes]) -> float | None:
    """Return microseconds of decoding one item as an image; None if most are none."""
    times = []
    for data in contents[:50]:
        began = time.perf_counter()
        try:
            decode(data)
        except DecodeRejected:
            continue
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times) if len(times) * 2 > min(50, len(contents)) else None


def describe(document: TrialDocument) -> list[str]:
    """Return the lines of the command's answer."""
    lines = describe_smaller(document.smaller) if document.smaller is not None else []
    lines += [
        f"{document.items:,} files of {document.mean_bytes / 1e3:,.1f} kB on average; us for each, guest's page cache:"
    ]
    states = list(dict.fromkeys((one.order, one.cache) for one in document.figures))
    formats = list(dict.fromkeys(one.format for one in document.figures))
    lines.append("".join(["format".ljust(10), *(f"{order}, {cache}".rjust(20) for order, cache in states)]))
    for name in formats:
        costs = {(one.order, one.cache): one.us for one in document.figures if one.format == name}
        shown = (f"{costs[state]:.1f}" if state in costs else "-" for state in states)
        lines.append("".join([name.ljust(10), *(cost.rjust(20) for cost in shown)]))
    if document.decode_us is not None:
        lines.append(f"decoding one takes {document.decode_us:,.0f} us")
    for state, best in document.best.items():
        says = (
            f"packing as {best} pays"
            if best not in ("none", "folder")
            else "no format saves 5 % of reading and decoding"
        )
        lines.append(f"{state}: {says}")
    if not any(one.cache == "cold" for one in document.figures):
        lines.append("cold was not measured: this kernel did not let go of the pages of all formats")
    return lines
