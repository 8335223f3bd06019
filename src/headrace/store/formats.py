"""The formats that shards are kept in. Every shard grows as a tar; when it is whole, it takes the form that was asked for.

So there is one way to resume, whatever the format: what was written of an unfinished shard can be read back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow
import pyarrow.parquet

from headrace.store.lmdb_file import MOST_KEY_BYTES, write_lmdb
from headrace.store.manifest import hash_file
from headrace.store.reading import read_all
from headrace.store.shard_index import Row, index_path, replace_file, write_index
from headrace.store.shard_writer import ShardWriter
from headrace.store.tfrecord import make_record, read_example, read_records

#: Rows of one row group of Parquet: a reader of one row has to read its group.
_ROWS_PER_GROUP = 64


@dataclass(frozen=True, slots=True)
class Format:
    """How a whole shard is put at its place."""

    suffix: str
    finish: Callable[[ShardWriter, Path], str]
    """Called with the grown shard and the place; returns the SHA-256 of what is there then. After it the grown one is gone."""
    read_sources: Callable[[Path], list[str]]
    """Returns what the items of a finished shard were called."""


def _finish_tar(grown: ShardWriter, place: Path) -> str:
    digest = grown.end()
    write_index(place, grown.handle, grown.rows)
    os.replace(grown.path, place)
    sync_folder(place.parent)
    return digest


def _finish_parquet(grown: ShardWriter, place: Path) -> str:
    schema = pyarrow.schema(
        [("name", pyarrow.string()), ("data", pyarrow.large_binary()), ("source", pyarrow.string())]
    )

    def write(file: object) -> None:
        # The bytes are those of images and the like, which no codec makes smaller.
        with pyarrow.parquet.ParquetWriter(file, schema, compression="none", use_dictionary=False) as writer:
            for table in _tables(grown, schema):
                writer.write_table(table)

    return _replace(grown, place, write)


def _tables(grown: ShardWriter, schema: pyarrow.Schema) -> Iterator[pyarrow.Table]:
    for start in range(0, len(grown.rows), _ROWS_PER_GROUP):
        rows = grown.rows[start : start + _ROWS_PER_GROUP]
        data = [read_all(grown.handle, row.stored.length, row.stored.offset) for row in rows]
        columns = {"name": [row.stored.name for row in rows], "data": data, "source": [row.source for row in rows]}
        yield pyarrow.Table.from_pydict(columns, schema=schema)


def _sources_of_tar(shard: Path) -> list[str]:
    table = pyarrow.parquet.read_table(index_path(shard), columns=["name", "source"], partitioning=None)
    return _originals(table)


def _sources_of_parquet(shard: Path) -> list[str]:
    return _originals(pyarrow.parquet.read_table(shard, columns=["name", "source"], partitioning=None))


def _originals(table: pyarrow.Table) -> list[str]:
    pairs = zip(table["name"].to_pylist(), table["source"].to_pylist(), strict=True)
    return [name if source is None else source for name, source in pairs]


def _finish_tfrecord(grown: ShardWriter, place: Path) -> str:
    def write(file: BinaryIO) -> None:
        for row in grown.rows:
            data = read_all(grown.handle, row.stored.length, row.stored.offset)
            source = {} if row.source is None else {"source": row.source.encode()}
            file.write(make_record({"name": row.stored.name.encode(), "data": data, **source}))

    return _replace(grown, place, write)


def _sources_of_tfrecord(shard: Path) -> list[str]:
    with shard.open("rb") as file:
        rows = (read_example(record or b"") for record in read_records(file))
        return [bytes(row.get("source", row["name"])).decode() for row in rows]


def _finish_lmdb(grown: ShardWriter, place: Path) -> str:
    rows = sorted(grown.rows, key=lambda row: _key_of(row.stored.name))

    def read(number: int) -> bytes:
        return read_all(grown.handle, rows[number].stored.length, rows[number].stored.offset)

    def write(file: BinaryIO) -> None:
        write_lmdb(file, [_key_of(row.stored.name) for row in rows], lambda number: rows[number].stored.length, read)

    names = {"name": [row.stored.name for row in grown.rows], "source": [row.source for row in grown.rows]}
    schema = pyarrow.schema([("name", pyarrow.string()), ("source", pyarrow.string())])
    table = pyarrow.Table.from_pydict(names, schema=schema)
    replace_file(index_path(place), lambda file: pyarrow.parquet.write_table(table, file, compression="zstd"))
    return _replace(grown, place, write)


def _key_of(name: str) -> bytes:
    """Return the key of a member: its name, cut where that is longer than LMDB takes."""
    key = name.encode()
    if len(key) <= MOST_KEY_BYTES:
        return key
    mark = b"~" + hashlib.sha256(key).hexdigest()[:16].encode()
    return key[: MOST_KEY_BYTES - len(mark)] + mark


def _replace(grown: ShardWriter, place: Path, write: Callable[[BinaryIO], None]) -> str:
    replace_file(place, write)
    grown.path.unlink()
    sync_folder(place.parent)
    return hash_file(place)


def sync_folder(folder: Path) -> None:
    """See that the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


FORMATS = {
    "tar": Format(".tar", _finish_tar, _sources_of_tar),
    "parquet": Format(".parquet", _finish_parquet, _sources_of_parquet),
    "tfrecord": Format(".tfrecord", _finish_tfrecord, _sources_of_tfrecord),
    "lmdb": Format(".lmdb", _finish_lmdb, _sources_of_tar),  # the names stand beside it, as those of a tar do
}

__all__ = ["FORMATS", "Format", "Row", "sync_folder"]
