"""The index of a shard: a Parquet file beside it with the place and the checksum of each member.

    shard-000003.tar
    shard-000003.idx.parquet    columns name, offset, length, crc32, text, source

`text` is the content of short texts about a sample, so that a list of samples needs only the index. `source` is what the item
was called before it was packed, where that is not its name.

An index must not be believed of another file. Its size and a hash of some headers of the shard must be right before it is
used; the time of the last change is not asked, as every copy changes it. And each member has a checksum, so that a wrong place
cannot become a wrong sample.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.parquet

from headrace.base.errors import SourceError
from headrace.store.expansion import TooLarge, measure_values
from headrace.store.parquet_pages import measure_group
from headrace.store.samples import Stored
from headrace.store.tar_header import BLOCK

#: Version of the index. 1: 2026-11, first.
VERSION = 1
_SCHEMA = pyarrow.schema([
    pyarrow.field("name", pyarrow.string(), nullable=False),
    pyarrow.field("offset", pyarrow.int64(), nullable=False),
    pyarrow.field("length", pyarrow.int64(), nullable=False),
    pyarrow.field("crc32", pyarrow.uint32(), nullable=False),
    pyarrow.field("text", pyarrow.string()),
    pyarrow.field("source", pyarrow.string()),
])  # fmt: skip
_KEY = b"headrace.index"
#: Headers of the shard that are hashed.
_NUM_HASHED = 64
#: Bytes of columns per member, uncompressed, above which an index is no index.
_MOST_ROW_BYTES = 16_384


class Row(msgspec.Struct, frozen=True, gc=False):
    """One member, as the index has it."""

    stored: Stored
    source: str | None = None

    @property
    def original(self) -> str:
        """What the item was called before it was packed."""
        return self.stored.name if self.source is None else self.source


def index_path(shard: Path) -> Path:
    """Return where the index of a shard is."""
    return shard.with_name(f"{shard.name.removesuffix('.tar')}.idx.parquet")


def write_index(shard: Path, handle: int, rows: Sequence[Row]) -> None:
    """Write the index of a finished shard; whole or not at all.

    Args:
        shard: The name that the shard has, or will have.
        handle: The shard, open for reading.
        rows: Of all members, in order.
    """
    offsets = [row.stored.offset for row in rows]
    said = {"version": VERSION, "size": os.fstat(handle).st_size, "headers": _hash_headers(handle, offsets)}
    columns = {
        "name": [row.stored.name for row in rows],
        "offset": offsets,
        "length": [row.stored.length for row in rows],
        "crc32": [row.stored.crc32 for row in rows],
        "text": [row.stored.text for row in rows],
        "source": [row.source for row in rows],
    }
    schema = _SCHEMA.with_metadata({_KEY: json.dumps(said, sort_keys=True).encode()})
    replace_file(index_path(shard), lambda file: pyarrow.parquet.write_table(
        pyarrow.Table.from_pydict(columns, schema=schema), file, compression="zstd"
    ))  # fmt: skip


def replace_file(path: Path, write: Any) -> None:
    """Write a file by a function that takes it open, and put it at its place once it is on the disk."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_index(shard: Path, handle: int) -> list[Row] | None:
    """Return the rows of a shard's index; None if it has none.

    Args:
        shard: The shard's name.
        handle: The shard, open for reading.

    Raises:
        SourceError: If the index is damaged, of another file or of a later version of headrace.
    """
    path = index_path(shard)
    if not path.exists():
        return None
    rows, headers = read_rows(path, os.fstat(handle).st_size, str(shard))
    if headers != _hash_headers(handle, [row.stored.offset for row in rows]):
        raise SourceError(
            f"the index {path} is of another file than {shard.name}: their headers differ; {_remedy(str(shard))}"
        )
    return rows


def read_rows(index: Path | pyarrow.BufferReader, size: int, shard: str) -> tuple[list[Row], str]:
    """Return the rows of an index, and the hash of the shard's headers, which is for the caller to compare.

    Args:
        index: The file, or its content.
        size: Of the shard.
        shard: Its name, for errors.

    Raises:
        SourceError: As `read_index` does.
    """
    where = index if isinstance(index, Path) else f"of {shard}"
    try:
        file = pyarrow.parquet.ParquetFile(index)
        said = json.loads((file.metadata.metadata or {}).get(_KEY, b"{}"))
        _check(file.metadata, said, size)
        table = _read_table(index, file)
        columns = [table[name].cast(_SCHEMA.field(name).type).to_pylist() for name in _SCHEMA.names]
        headers = str(said["headers"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pyarrow.ArrowException) as error:
        raise SourceError(f"the index {where} cannot be used: {error}; {_remedy(shard)}") from None
    names, offsets, lengths, crcs, texts, sources = columns
    if any(None in column for column in (names, offsets, lengths, crcs)) or any(
        offset < BLOCK or length < 0 or offset + length > size for offset, length in zip(offsets, lengths, strict=True)
    ):
        raise SourceError(f"the index {where} names places that are not in the shard; {_remedy(shard)}")
    rows = zip(names, offsets, lengths, crcs, texts, sources, strict=True)
    return [Row(Stored(name, at, length, crc, text), source) for name, at, length, crc, text, source in rows], headers


def _remedy(shard: str) -> str:
    return f"make it anew with: headrace pack {shard} --index"


def _check(metadata: Any, said: dict[str, Any], size: int) -> None:
    """Raise ValueError unless the index can be one of a shard of this size; looks only at the file's footer."""
    if said.get("version") != VERSION:
        raise ValueError(f"it has version {said.get('version')!r}; this headrace knows {VERSION}")
    if said["size"] != size:
        raise ValueError(f"it is of a file of {said['size']:,} bytes, and the shard has {size:,}")
    if metadata.num_rows * BLOCK > size:
        raise TooLarge(f"{metadata.num_rows:,} members are more than a shard of {size:,} bytes can have")


def _check_bytes(num_rows: int, num_bytes: int) -> None:
    if num_bytes > (num_rows + 1) * _MOST_ROW_BYTES:
        raise TooLarge(f"{num_rows:,} members in {num_bytes:,} bytes are more than a shard can have")


def _read_table(index: Path | pyarrow.BufferReader, file: pyarrow.parquet.ParquetFile) -> pyarrow.Table:
    """Return the columns of an index, once it is known that they are not larger than an index can be."""
    metadata = file.metadata
    with pyarrow.OSFile(str(index)) if isinstance(index, Path) else nullcontext(index) as source:
        chunks = [
            chunk
            for group in range(metadata.num_row_groups)
            for chunk in measure_group(lambda at, size: source.read_at(size, at), metadata, group, _SCHEMA.names)
        ]
    _check_bytes(metadata.num_rows, sum(chunk.num_bytes for chunk in chunks))
    if sum(chunk.most_bytes for chunk in chunks) <= (metadata.num_rows + 1) * _MOST_ROW_BYTES:
        return file.read(columns=_SCHEMA.names)
    # One text may stand for all rows: they are counted before each is a text of its own.
    texts = [field.name for field in _SCHEMA if field.type == pyarrow.string()]
    if not isinstance(index, Path):
        index.seek(0)
    table = pyarrow.parquet.ParquetFile(index, read_dictionary=texts).read(columns=_SCHEMA.names)
    _check_bytes(
        metadata.num_rows, sum(measure_values(part, enough=0) for name in texts for part in table[name].chunks)
    )
    return table


def _hash_headers(handle: int, offsets: Sequence[int]) -> str:
    """Return a hash of the last block before some members: of the first, of the last, and evenly between."""
    digest = hashlib.sha256()
    step = -(-len(offsets) // _NUM_HASHED) or 1
    for offset in [*offsets[::step], *offsets[-1:]]:
        digest.update(os.pread(handle, BLOCK, offset - BLOCK))
    return digest.hexdigest()
