"""The rows of files that hold many items.

Each reader is a generator of rows as {column: value}, in the order of the file, with few of them in memory; of a row that is
damaged while those behind it are not it gives a `DamagedRow`. Whatever else is damaged ends it with `DamagedFile`. Parquet and
Arrow are read by pyarrow, HDF5 by h5py, SQLite by Python; TFRecord and LMDB by what stands in `store`.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import sqlite3
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import SourceError
from headrace.sources.hdf5_rows import read_hdf5
from headrace.sources.rows import DamagedFile, DamagedRow, Rows, Wanted
from headrace.store.arrow_messages import check_file, check_stream
from headrace.store.expansion import MOST_BYTES, measure_values
from headrace.store.lmdb_file import LmdbReader, NoTable, NotLmdb
from headrace.store.parquet_pages import Chunk, measure_group
from headrace.store.tfrecord import NoRecord, read_example, read_records

logger = logging.getLogger("headrace")

#: Rows of a table that are in memory at once, and the bytes of them where that can be told.
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 64, 2**24
#: Of values that come from a dictionary: the bytes that may come of it at once, where the rows are not many and small.
_DICTIONARY_BYTES, _LARGE_ROW, _LEAST_ROWS = 2**28, 2**14, 8
#: Names of tables in one message.
_MOST_NAMED = 5


def read_parquet(path: Path, wanted: Wanted) -> Rows:
    """Return the rows of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    _has_no_tables(path, wanted)
    try:
        with pa.OSFile(str(path)) as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            columns = wanted.choose(types_of(file.schema_arrow))
            kinds, metadata = _kinds_of_lists(file.schema_arrow), file.metadata
            for group in range(metadata.num_row_groups):
                chunks = measure_group(lambda at, size: source.read_at(size, at), metadata, group, columns)
                shared = [one.path for one in chunks if one.is_repeated and one.most_bytes > MOST_BYTES]
                reader = file
                if shared:  # one value of a list may be all others, too: they are counted before they are copied
                    reader = pq.ParquetFile(source, page_checksum_verification=True, read_dictionary=shared)
                number = _rows_of_parquet(chunks, metadata.row_group(group).num_rows)
                for batch in reader.iter_batches(number, row_groups=[group], columns=columns):
                    yield from _rows_of_batch(batch.select(columns), kinds)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedFile(str(error)) from None


def _rows_of_parquet(chunks: Sequence[Chunk], num_rows: int) -> int:
    """Return how many rows are read at once: a value that stands once in a dictionary may be that of all of them."""
    largest = sum(one.num_bytes for one in chunks)
    # Of small rows more are read at once, as each reading costs as much as some of them.
    least = 1 if largest > num_rows * _LARGE_ROW else _LEAST_ROWS
    return max(least, min(_ROWS_AT_ONCE, _DICTIONARY_BYTES // max(1, largest)))


def read_arrow(path: Path, wanted: Wanted) -> Rows:
    """Return the rows of an Arrow file or stream, such as Feather and the data sets of Hugging Face."""
    import pyarrow as pa

    _has_no_tables(path, wanted)
    try:
        # Not mapped: a file that is cut off meanwhile would end the process. Twice, as looking at a place moves the reader.
        with pa.OSFile(str(path)) as source, pa.OSFile(str(path)) as looked_at:
            is_file = looked_at.read(6) == b"ARROW1"
            checks = check_file(looked_at) if is_file else check_stream(looked_at)
            with (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source) as reader:
                columns, kinds = wanted.choose(types_of(reader.schema)), _kinds_of_lists(reader.schema)
                batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
                for _, batch in zip(checks, batches, strict=True):  # the check before the batch
                    chosen = batch.select(columns)
                    chosen.validate(full=True)  # offsets that lead out of their buffer would be followed
                    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                        yield from _rows_of_batch(chosen.slice(start, _ROWS_AT_ONCE), kinds)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedFile(str(error)) from None


def _rows_of_batch(batch: Any, kinds: Mapping[str, _Numbers]) -> Rows:
    """Return the rows of a batch; few at once where they are large, and in place of one that is too large a damaged one."""
    num_bytes = sum(map(measure_values, batch.columns))
    if num_bytes <= _BYTES_AT_ONCE or (batch.num_rows == 1 and num_bytes <= MOST_BYTES):
        yield from (_typed(row, kinds) for row in batch.to_pylist())
    elif batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _rows_of_batch(batch.slice(0, half), kinds)
        yield from _rows_of_batch(batch.slice(half), kinds)
    else:
        yield DamagedRow(f"records.size: the row takes {num_bytes:,} bytes, more than {MOST_BYTES:,}")


def _has_no_tables(path: Path, wanted: Wanted) -> None:
    if wanted.table is not None:
        raise SourceError(f"{path} has no tables to choose from; leave table={wanted.table!r} out")


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What a column of lists of numbers holds."""

    kind: np.dtype[Any]
    shape: tuple[int, ...] | None = None
    """Of each value, where the type of the column says it: then its numbers are one list."""
    axes: tuple[int, ...] = ()
    """In which order the axes of this shape are meant."""


def _kinds_of_lists(schema: Any) -> dict[str, _Numbers]:
    """Return what is in the columns that are tensors, lists of numbers, or lists of such lists."""
    import pyarrow as pa

    found = {}
    for field in schema:
        inner = getattr(field.type, "storage_type", field.type)
        while hasattr(inner, "value_type") and not pa.types.is_dictionary(inner):
            inner = inner.value_type
        if pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner):
            kind = np.dtype(inner.to_pandas_dtype())
            if isinstance(field.type, pa.FixedShapeTensorType):
                shape = tuple(field.type.shape)
                found[field.name] = _Numbers(kind, shape, tuple(field.type.permutation or range(len(shape))))
            else:
                found[field.name] = _Numbers(kind)
    return found


def _typed(row: dict[str, Any], kinds: Mapping[str, _Numbers]) -> dict[str, Any]:
    """Return a row whose lists of numbers are arrays of the type that they have in the file, not of Python's own."""
    for name, value in row.items():
        if isinstance(value, list) and name in kinds:
            with contextlib.suppress(ValueError):  # lists of several lengths
                array, numbers = np.asarray(value), kinds[name]
                if array.dtype.kind in "biuf":
                    shaped = array.astype(numbers.kind)
                    row[name] = (
                        shaped if numbers.shape is None else shaped.reshape(numbers.shape).transpose(numbers.axes)
                    )
    return row


def types_of(schema: Any) -> dict[str, str]:
    """Return {column: type} of a schema of Arrow; without names that come twice, as nothing tells which one is meant."""
    counts = Counter(schema.names)
    return {field.name: str(field.type) for field in schema if counts[field.name] == 1}


#: First bytes of what TensorFlow writes with the option "ZLIB"; a record may have such a length, too.
_ZLIB_MARKS = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def read_tfrecord(path: Path, wanted: Wanted) -> Rows:
    """Return the features of the examples in a TFRecord file, which may be compressed with gzip."""
    _has_no_tables(path, wanted)
    mark = b""
    try:
        with path.open("rb") as file:
            mark = file.read(2)
            is_zipped = mark == b"\x1f\x8b"
            file.seek(0)
            for record in read_records(gzip.GzipFile(fileobj=file) if is_zipped else file):
                yield _read_record(record)
    except (OSError, EOFError, zlib.error, NoRecord) as error:
        is_zlib = "at byte 0:" in str(error) and mark in _ZLIB_MARKS
        more = "; it looks compressed with ZLIB, which is not read: write it with GZIP, or plain" if is_zlib else ""
        raise DamagedFile(f"{error}{more}") from None


def _read_record(record: bytes | None) -> Mapping[str, Any] | DamagedRow:
    if record is None:
        return DamagedRow("records.checksum: the record has other bytes than were written")
    try:
        return read_example(record)
    except (IndexError, ValueError):
        return DamagedRow("records.damaged: the record is no tf.train.Example")


def read_lmdb(path: Path, wanted: Wanted) -> Rows:
    """Return the pairs of an LMDB file as {"key": ..., "value": ...}; a key that is no text in hexadecimal."""
    wanted.choose({"value": "binary", "key": "string"})
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            reader = LmdbReader(handle)
            for key, value in reader.pairs(wanted.table):
                yield {"key": _text_of(key), "value": value}
            if reader.passed_over:
                logger.warning(
                    "%s also has the tables %s, of which nothing was read: name one with table=",
                    path, ", ".join(map(repr, reader.passed_over[:_MOST_NAMED])),
                )  # fmt: skip
        finally:
            os.close(handle)
    except NoTable as error:
        raise SourceError(f"{path} {error}: name one with table=") from None
    except (OSError, NotLmdb, struct.error) as error:
        raise DamagedFile(str(error)) from None


def _text_of(key: bytes) -> str:
    text = key.decode("utf-8", "replace")
    return text if text.isprintable() and "\ufffd" not in text else key.hex()


def read_sqlite(path: Path, wanted: Wanted) -> Rows:
    """Return the rows of a table of a SQLite file, in their order there; neither views nor computed columns are read."""
    # A data set on a disk that cannot be written to has no place for the file by which readers and writers agree.
    # Half a transaction is in a file with a journal beside it: it is not to be read as it is.
    is_written = any(path.with_name(f"{path.name}-{kind}").exists() for kind in ("wal", "journal"))
    is_fixed = not is_written and not os.access(path.parent, os.W_OK)
    address = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if is_fixed else ''}"
    try:
        # Whoever receives jobs goes on with it, one thread after the other.
        connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        with contextlib.closing(connection) as file:
            file.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
            file.execute("PRAGMA cell_size_check = ON")
            file.text_factory = _text_or_bytes
            tables = [
                str(name)
                for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
                if not str(name).startswith("sqlite_")
            ]
            table = _only(path, tables, wanted.table)
            kinds = {name: _kind_of(kind) for _, name, kind, *_ in file.execute(f"PRAGMA table_info({_quoted(table)})")}
            columns = wanted.choose(kinds)
            shown = ", ".join(map(_quoted, columns))
            for row in file.execute(f"SELECT {shown} FROM {_quoted(table)} NOT INDEXED"):
                yield dict(zip(columns, row, strict=True))
    except (sqlite3.Error, OSError) as error:
        raise DamagedFile(str(error)) from None


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _kind_of(declared: str) -> str:
    """Return what a column of SQLite holds, as SQLite's own rules of affinity say it."""
    upper = declared.upper()
    if "INT" in upper:
        return "int64"
    if any(part in upper for part in ("CHAR", "CLOB", "TEXT")):
        return "string"
    return "binary" if not upper or "BLOB" in upper else "double"


def _only(path: Path, tables: Sequence[str], name: str | None) -> str:
    if name in tables:
        return str(name)
    if name is None and len(tables) == 1:
        return tables[0]
    what = f"no table {name!r}" if name is not None else "several tables" if tables else "no table"
    raise SourceError(f"{path} has {what}; it has {', '.join(tables) or 'none'}: name one with table=")


def read_data_set(data: Any, wanted: Wanted) -> Rows:
    """Return the rows of a `Dataset` or `IterableDataset` of Hugging Face; nothing of it is decoded."""
    import pyarrow as pa

    columns: list[str] = []
    try:
        for table in _tables(data.with_format("arrow")):
            columns = columns or wanted.choose(types_of(table.schema))
            kinds = _kinds_of_lists(table.schema)
            yield from (_typed(row, kinds) for row in table.select(columns).to_pylist())
    except (pa.ArrowException, OSError) as error:
        raise DamagedFile(str(error)) from None


def _tables(data: Any) -> Iterator[Any]:
    if not hasattr(data, "__len__"):
        yield from data.iter(_ROWS_AT_ONCE)
        return
    for start in range(0, len(data), _ROWS_AT_ONCE):
        yield data[start : start + _ROWS_AT_ONCE]


def _unchanged(read: Callable[[Path, Wanted], Rows]) -> Callable[[Path, Wanted], Rows]:
    """Return a reader that stops where its file was written to: what it would give is of two files."""

    def rows(path: Path, wanted: Wanted) -> Rows:
        before = _version(path)
        for row in read(path, wanted):
            now = _version(path)
            # One that was replaced or removed is still open, as it was.
            if now != before and now[:2] == before[:2]:
                raise DamagedFile("it was written to while it was read")
            yield row

    return rows


def _version(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


#: {suffix of a file: what reads its rows}. LMDB and SQLite know themselves whether somebody writes.
FORMATS: Mapping[str, Callable[[Path, Wanted], Rows]] = {
    ".parquet": _unchanged(read_parquet),
    **dict.fromkeys((".arrow", ".feather"), _unchanged(read_arrow)),
    **dict.fromkeys((".tfrecord", ".tfrecords"), _unchanged(read_tfrecord)),
    **dict.fromkeys((".lmdb", ".mdb"), read_lmdb),
    **dict.fromkeys((".sqlite", ".sqlite3", ".db"), read_sqlite),
    **dict.fromkeys((".h5", ".hdf5"), _unchanged(read_hdf5)),
}
