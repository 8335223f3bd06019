"""`headrace pack --try N`: packs some of the files in each format, reads them warm and cold, and says whether packing pays."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet

from headrace.base.errors import DecodeRejected, SettingsError
from headrace.base.page_cache import evict, residency, state_of, warm
from headrace.cli.pack_smaller import Smaller, describe_smaller, make_smaller
from headrace.sources.finite import FiniteSource
from headrace.stages.decode import decode
from headrace.store.formats import FORMATS
from headrace.store.manifest import Encoding
from headrace.store.naming import name_members
from headrace.store.shard_reader import ShardReader
from headrace.store.shard_writer import ShardWriter

#: Share of an item's time (reading and decoding) below which packing does not pay.
LEAST_GAIN = 0.05
_ROUNDS = 3


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What one way to read cost."""

    format: str
    """`folder`, `tar` or `parquet`."""
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


@dataclass(frozen=True, slots=True)
class Way:
    """A format on the disk, ready to be read."""

    files: Sequence[Path]
    """All that reading touches."""
    open: Callable[[], Callable[[int], bytes]]
    """Returns what reads an item by its number; may keep files open."""


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
        ways = _write(contents, Path(name))
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
    for entry in chosen:
        assert isinstance(entry.payload, Path)
        if entry.payload.is_file():
            found[entry.id] = entry.payload.read_bytes()
    if not found:
        raise SettingsError("none of the files that --try chose can be read")
    return found


def _write(contents: Mapping[str, bytes], folder: Path) -> dict[str, Way]:
    """Write the items in each format."""
    named = name_members(contents)
    files = []
    for one in named:
        path = folder / "folder" / one.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[one.id])
        files.append(path)
    places = {}
    for name in ("tar", "parquet"):
        (folder / name).mkdir()
        grown = ShardWriter(folder / name / ".grown.partial")
        for one in named:
            grown.append(one.name, contents[one.id])
        grown.write()
        places[name] = folder / name / f"shard{FORMATS[name].suffix}"
        FORMATS[name].finish(grown, places[name])
        grown.close()
    return {
        "folder": Way(files, lambda: lambda number: files[number].read_bytes()),
        "tar": Way([places["tar"]], lambda: _open_tar(places["tar"], [one.name for one in named])),
        "parquet": Way([places["parquet"]], lambda: _open_parquet(places["parquet"])),
    }


def _open_tar(shard: Path, names: Sequence[str]) -> Callable[[int], bytes]:
    reader = ShardReader(shard)
    if len(reader) == len(names):
        return reader.read
    numbers = [
        (number, part) for number in range(len(reader)) for part in reader.parts(number)
    ]  # samples of several files
    return lambda number: reader.read_parts(numbers[number][0])[numbers[number][1]]


def _open_parquet(path: Path) -> Callable[[int], bytes]:
    file = pyarrow.parquet.ParquetFile(path)
    starts, start = [], 0
    for group in range(file.metadata.num_row_groups):
        starts += [(group, start)] * file.metadata.row_group(group).num_rows
        start += file.metadata.row_group(group).num_rows
    last: dict[int, Any] = {}

    def read(number: int) -> bytes:
        group, first = starts[number]
        if group not in last:
            last.clear()  # neighbours are read from the group that is at hand
            last[group] = file.read_row_group(group, columns=["data"])["data"]
        data: bytes = last[group][number - first].as_py()
        return data

    return read


def _measure(ways: Mapping[str, Way], number: int) -> list[Figure]:
    """Return the figures of all ways, measured in turn."""
    numbers = list(range(number))
    shuffled = random.Random(1).sample(numbers, number)
    times: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(_ROUNDS):
        for order, one_order in (("random", shuffled), ("sequential", numbers)):
            for wanted in ("warm", "cold"):
                for name, way in ways.items():
                    cache = _prepare(way.files, wanted)
                    began = time.perf_counter()
                    read = way.open()
                    for index in one_order:
                        read(index)
                    seconds = time.perf_counter() - began
                    times.setdefault((name, order, cache), []).append(seconds / number * 1e6)
    return [
        Figure(format=name, order=order, cache=cache, us=statistics.median(values))
        for (name, order, cache), values in times.items()
        # A state that only some formats came to would compare cold with warm.
        if all((other, order, cache) in times for other in ways)
    ]


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
        lines.append("".join([name.ljust(10), *(f"{costs[state]:.1f}".rjust(20) for state in states)]))
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
