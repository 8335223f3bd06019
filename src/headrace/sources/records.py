"""The rows of Parquet, Arrow and TFRecord files as jobs, in the order of the files.

How this works: the rows are read while the run goes on, a few at a time, and cannot be listed before. So a run that is resumed
reads the files again from their starts, and passes by the rows that are done. Which files there are, how large they are and
when they were written is what it compares with its first start.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from headrace.base.errors import SettingsError, SourceError
from headrace.base.formatting import encodable
from headrace.sources.finite import Entry, FiniteSource
from headrace.sources.folder import find_files
from headrace.sources.record_formats import FORMATS, DamagedFile

_PATTERNS = tuple(f"*{suffix}" for suffix in FORMATS)
#: Of columns without a choice: whose name says that it is the item.
_USUAL = ("image", "data", "bytes", "jpg", "png", "image/encoded", "audio", "text")
_ID = re.compile(r"(?P<file>.*)#(?:0|[1-9][0-9]{0,17})?", re.DOTALL)
#: Of a text that becomes an attribute.
_MOST_CHARACTERS = 1_000


class Records(FiniteSource):
    """One job per row of Parquet, Arrow, Feather and TFRecord files; the payload is the value of a column.

    Bytes are the payload as they are, text as UTF-8, numbers as an array; of `{"bytes": ..., "path": ...}`, as data sets of
    Hugging Face hold images, the bytes. The id is `FILE#ROW`, from 0; columns with short values are attributes. A row without
    a value is rejected with `records.empty`; a file that cannot be read to its end is the job `FILE#`, with `records.damaged`.

    Args:
        path: A file, a folder of them, or a pattern such as `data/train-*.parquet`.
        column: Which column is the payload; None: the only one of bytes, else one that is called `image`, `data`, `text`, ...
        max_receives: Tries of one job.
    """

    def __init__(self, path: str | Path, *, column: str | None = None, max_receives: int = 3) -> None:
        super().__init__(max_receives=max_receives)
        self._path = Path(path)
        self._column = column

    @property
    def where(self) -> str:
        """The absolute path, and the column if one is named."""
        column = f", column {self._column}" if self._column else ""
        return f"the records of {os.path.abspath(self._path)}{column}"

    @property
    def lists_ahead(self) -> bool:
        """False: rows are known once they are read."""
        return False

    def parts(self) -> Iterator[Entry]:
        """Return the files, with what tells that one is another than before."""
        for name, path in self._files().items():
            status = path.stat()
            yield Entry(name, path, {"bytes": status.st_size, "written_ns": status.st_mtime_ns})

    def job_ids(self) -> Callable[[str], bool]:
        """Return what tells whether a row may have an id."""
        names = self._files().keys()
        return lambda item: (parts := _ID.fullmatch(item)) is not None and parts["file"] in names

    def entries(self) -> Iterator[Entry]:
        """Return the rows of all files, in order.

        Raises:
            SourceError: If there are no files.
        """
        files = self._files()
        return (entry for name, path in files.items() for entry in self._rows(name, path))

    def remaining(self) -> Iterator[Entry | None]:
        """Return the rows of a run; of a resumed one first those that are to be tried alone, then those that are left."""
        entries, work_list = self.entries(), self._work_list
        if work_list is None:
            return entries
        alone, ended = {entry.id for entry in work_list.entries}, set(work_list.ended)
        return self._resumed(alone, ended | alone)

    def _resumed(self, alone: set[str], passed: set[str]) -> Iterator[Entry]:
        came: set[str] = set()
        for entry in self.entries() if alone else ():
            if entry.id in alone - came:
                came.add(entry.id)
                yield entry
            if came == alone:
                break
        for item in sorted(alone - came):
            yield Entry(item, b"", refused="records.gone: the file has no such row any more")
        yield from (entry for entry in self.entries() if entry.id not in passed)

    def _files(self) -> dict[str, Path]:
        """Return {name: file}, sorted."""
        found, root = find_files(self._path, patterns=_PATTERNS)
        for file in found:
            if file.suffix.lower() not in FORMATS:
                raise SourceError(f"{file} has no rows that can be read; expected one of {', '.join(FORMATS)}")
        return {encodable(file.relative_to(root).as_posix()): file for file in found}

    def _rows(self, name: str, path: Path) -> Iterator[Entry]:
        chosen: list[str] = [self._column] if self._column else []

        def choose(schema: Any) -> list[str]:
            chosen[:] = [self._choose(path, {field.name: str(field.type) for field in schema})]
            return [*chosen, *(one.name for one in schema if one.name != chosen[0] and _is_short(str(one.type)))]

        number = 0
        try:
            for row in FORMATS[path.suffix.lower()](path, choose):
                if not chosen:
                    chosen.append(self._choose(path, {key: _type_of(value) for key, value in row.items()}))
                yield _entry_of(f"{name}#{number}", row, chosen[0])
                number += 1
        except DamagedFile as error:
            yield Entry(f"{name}#", b"", refused=f"records.damaged: after {number:,} rows: {error}")

    def _choose(self, path: Path, types: Mapping[str, str]) -> str:
        """Return the column that is the payload.

        Raises:
            SourceError: If it is not clear which.
        """
        if self._column in types:
            return str(self._column)
        of_bytes = [name for name, kind in types.items() if _holds_bytes(kind)]
        usual = [name for name in _USUAL if name in types]
        found = of_bytes if len(of_bytes) == 1 else [name for name in usual if name in of_bytes] or usual
        if self._column or not found:
            what = f"no column {self._column!r}" if self._column else "no column that is surely the item"
            raise SourceError(f"{path} has {what}; it has {', '.join(types)}: name one with column=")
        return found[0]


def open_address(address: str, *, drain: bool = False) -> Records:
    """Return the source at `records://PATH?column=NAME`; `records:///data` is absolute.

    Args:
        address: A file, folder or pattern behind `records://`.
        drain: Unused: the source has an end.

    Raises:
        SettingsError: If it names no files, or has another parameter.
    """
    path, mark, column = address.partition("://")[2].rpartition("?column=")
    if not mark:
        path, column = column, ""
    if not path:
        raise SettingsError(
            f"{address} names no files; expected records://data/ or records://train.parquet?column=image"
        )
    return Records(path, column=unquote(column) or None)


def _entry_of(item: str, row: Mapping[str, Any], column: str) -> Entry:
    value = row.get(column)
    if isinstance(value, Mapping) and "bytes" in value:
        value = value["bytes"]
    # A file of somebody's says nothing of where results go.
    attributes = {key: one for key, one in row.items() if key not in (column, "callback") and _is_simple(one)}
    if isinstance(value, bytes):
        return Entry(item, value, attributes)
    if isinstance(value, str):
        return Entry(item, value.encode("utf-8", "surrogatepass"), attributes)
    try:
        array = np.asarray(value) if value is not None else None
    except ValueError:
        array = None
    if array is None or array.dtype.kind not in "biuf":
        return Entry(item, b"", attributes, refused=f"records.empty: there is no value in the column {column!r}")
    return Entry(item, array, attributes)


def _is_simple(value: Any) -> bool:
    """Return whether a value may stand beside a result."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= _MOST_CHARACTERS)


def _holds_bytes(kind: str) -> bool:
    return kind in ("binary", "large_binary", "binary_view") or kind.startswith("struct<bytes: binary")


def _is_short(kind: str) -> bool:
    return kind in ("string", "large_string", "bool", "double", "float") or kind.startswith(("int", "uint"))


def _type_of(value: Any) -> str:
    return "binary" if isinstance(value, bytes) else type(value).__name__
