"""The formats of `headrace pack` on a disk, each ready to be read as headrace reads it: for `--try`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet

from headrace.store.formats import FORMATS
from headrace.store.lmdb_file import LmdbReader
from headrace.store.naming import name_members
from headrace.store.shard_reader import ShardReader
from headrace.store.shard_writer import ShardWriter
from headrace.store.tfrecord import read_example, read_records

#: Of what was opened: gives the items of some numbers, in that order.
Read = Callable[[Sequence[int]], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Way:
    """A format on the disk, ready to be read."""

    files: Sequence[Path]
    """All that reading touches."""
    open: Callable[[], Read]
    """Opens it; what it returns gives items once."""
    in_order_only: bool = False
    """Whether only all items in their order can be read; the numbers are not looked at."""


def write_ways(contents: Mapping[str, bytes], folder: Path) -> dict[str, Way]:
    """Write items as files and in each format.

    Args:
        contents: {id: bytes}.
        folder: Empty.

    Returns:
        `folder`, and the formats by their names.
    """
    named = name_members(contents)
    files = []
    for one in named:
        path = folder / "folder" / one.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[one.id])
        files.append(path)
    ways = {"folder": folder_way(files)}
    for name, form in FORMATS.items():
        shard = folder / name / f"shard{form.suffix}"
        shard.parent.mkdir()
        grown = ShardWriter(shard.with_name(".grown.partial"))
        for one in named:
            grown.append(one.name, contents[one.id])
        grown.write()
        form.finish(grown, shard)
        grown.close()
        ways[name] = shard_way(name, shard, len(named))
    return ways


def folder_way(files: Sequence[Path]) -> Way:
    """Return how a folder of files is read."""
    return Way(files, lambda: lambda numbers: (files[number].read_bytes() for number in numbers))


def shard_way(name: str, shard: Path, number: int) -> Way:
    """Return how a shard is read that holds a number of items."""
    if name == "tar":
        return Way([shard], lambda: _open_tar(shard, number))
    if name == "parquet":
        return Way([shard], lambda: _open_parquet(shard))
    return Way([shard], lambda: _IN_ORDER[name](shard), in_order_only=True)


def _open_tar(shard: Path, number: int) -> Read:
    reader = ShardReader(shard)
    if len(reader) == number:
        return lambda numbers: map(reader.read, numbers)
    # Samples of several files.
    places = [(sample, part) for sample in range(len(reader)) for part in reader.parts(sample)]
    return lambda numbers: (reader.read_parts(places[one][0])[places[one][1]] for one in numbers)


def _open_parquet(shard: Path) -> Read:
    file = pyarrow.parquet.ParquetFile(shard)
    starts, start = [], 0
    for group in range(file.metadata.num_row_groups):
        starts += [(group, start)] * file.metadata.row_group(group).num_rows
        start += file.metadata.row_group(group).num_rows

    def read(numbers: Sequence[int]) -> Iterator[bytes]:
        last: tuple[int, Any] = -1, None
        for number in numbers:
            group, first = starts[number]
            if group != last[0]:  # neighbours are read from the group that is at hand
                last = group, file.read_row_group(group, columns=["data"])["data"]
            yield last[1][number - first].as_py()

    return read


def _open_tfrecord(shard: Path) -> Read:
    file = shard.open("rb")

    def read(numbers: Sequence[int]) -> Iterator[bytes]:
        with file:
            for record in read_records(file):
                yield read_example(record or b"")["data"]

    return read


def _open_lmdb(shard: Path) -> Read:
    file = shard.open("rb")

    def read(numbers: Sequence[int]) -> Iterator[bytes]:
        with file:
            for _, value in LmdbReader(file.fileno()).pairs():
                yield value

    return read


_IN_ORDER: Mapping[str, Callable[[Path], Read]] = {"tfrecord": _open_tfrecord, "lmdb": _open_lmdb}
