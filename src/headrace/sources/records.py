"""The rows of tables and of files that hold many items as jobs, in their order.

How this works: the rows are read while the run goes on, a few at a time, and cannot be listed before. So a run that is resumed
reads the files again from their starts, and passes by the rows that are done. Which files there are, how large they are and
when they were written is what it compares with its first start.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from headrace.base.errors import HeadraceError, SettingsError, SourceError
from headrace.base.formatting import encodable
from headrace.base.named_paths import Named, list_paths, show_paths
from headrace.base.patient_open import open_patiently
from headrace.base.records import SourceWork
from headrace.base.settings import check
from headrace.sources.addresses import suffix_of
from headrace.sources.finite import Entry, FiniteSource
from headrace.sources.folder import find_all_files
from headrace.sources.record_formats import FORMATS, read_data_set
from headrace.sources.rows import EVERY, DamagedFile, DamagedRow, Rows, Wanted

#: In a folder: of LMDB the file beside its lock, and no `.db`, which may be a queue.
_PATTERNS = ("data.mdb", *(f"*{suffix}" for suffix in FORMATS if suffix not in (".mdb", ".db")),
             "*.tfrecord-*-of-*", "*.tfrecords-*-of-*", "*.tfrecord.gz", "*.tfrecords.gz")  # fmt: skip
#: Of columns without a choice: whose name says that it is the item.
_USUAL = ("image", "images", "img", "data", "bytes", "jpg", "png", "image/encoded", "audio", "text", "value")
_QUERY = re.compile(r"\?(?:(?:column|table)=[^?&]*&?)+$")
#: What was meant as such, and is no pattern of a file's name.
_MEANT = re.compile(r"\?[A-Za-z_]+=[^?/]*$")
_ID = re.compile(r"(?P<file>.*)#(?:0|[1-9][0-9]{0,17})?", re.DOTALL)
#: Of a text that becomes an attribute.
_MOST_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class _Part:
    """A file, or a data set in memory."""

    read: Callable[[Wanted], Rows]
    identity: Mapping[str, Any]
    """What tells that it is another one than before."""
    place: str | Path
    """The file, which may lie in the page cache; or what it is."""
    may_name_files: bool = False
    """Whether its values may be names of files of this machine: the program made it."""


class Records(FiniteSource):
    """One job per row of files that hold many items, or of a data set; the payload is the value of a column.

    Files: Parquet, Arrow and Feather, TFRecord, LMDB, SQLite and HDF5 (extra `hdf5`). Bytes are the payload as they are, text
    as UTF-8, numbers as an array; of `{"bytes": ..., "path": ...}`, as data sets of Hugging Face hold images, the bytes. The id
    is `FILE#ROW`, from 0; columns with short values are attributes. A row without a value is rejected with `records.empty`, one
    with another checksum than was written with `records.checksum`; a file that cannot be read to its end is the job `FILE#`,
    with `records.damaged`.

    Args:
        path: A file, a folder of them, a pattern such as `data/train-*.parquet`, or a list of these; or a `Dataset`,
            `DatasetDict` or `IterableDataset` of Hugging Face's package `datasets`.
        column: Which column is the payload; None: the only one, or the only one of bytes, else one that is called `image`,
            `images`, `data`, `text`, ...
            `*`: each data set of an HDF5 group is an item of its own; `name` is an attribute.
        table: Which table of a SQLite file, group of an HDF5 file (`train/images`) or named database of an LMDB file; None: the
            only one.
        max_receives: Tries of one job.
    """

    def __init__(
        self, path: Named | Any, *, column: str | None = None, table: str | None = None, max_receives: int = 3
    ) -> None:
        super().__init__(max_receives=max_receives)
        splits = list(path.values()) if isinstance(path, Mapping) else [path]
        is_data_set = bool(splits) and all(hasattr(one, "with_format") for one in splits)
        self._data: Any = path if is_data_set else None
        self._paths = [] if is_data_set else list_paths(path, "path", addresses="; copy the files first")
        self._column = column
        self._table = table

    @property
    def where(self) -> str | None:
        """The absolute path, and the column and table if they are named; None of a data set without a fingerprint."""
        named = {"column": self._column, "table": self._table}
        behind = "".join(f", {what} {name}" for what, name in named.items() if name)
        if self._data is not None:
            known = all(part.identity for part in self._parts().values())
            return f"the data set {', '.join(self._parts())}{behind}" if known else None
        return f"the records of {', '.join(map(os.path.abspath, self._paths))}{behind}"

    @property
    def lists_ahead(self) -> bool:
        """False: rows are known once they are read."""
        return False

    @property
    def work(self) -> SourceWork:
        """Reading; see `protocols.WorksForJobs`."""
        return SourceWork(
            does="reads rows in one thread, one file after another",
            cheaper=(
                "keep the files on a faster disk, or on this machine",
                "give each of several processes files of its own, such as --source 'data/train-0*.parquet'",
            ),
        )

    def parts(self) -> Iterator[Entry]:
        """Return the files, with what tells that one is another than before."""
        return (Entry(name, part.place, part.identity) for name, part in self._parts().items())

    def job_ids(self) -> Callable[[str], bool]:
        """Return what tells whether a row may have an id."""
        names = self._parts().keys()
        return lambda item: (parts := _ID.fullmatch(item)) is not None and parts["file"] in names

    def entries(self) -> Iterator[Entry]:
        """Return the rows of all files, in order.

        Raises:
            SourceError: If there are no files.
        """
        parts = self._parts()
        return (entry for name, part in parts.items() for entry in self._rows(name, part))

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

    def _parts(self) -> dict[str, _Part]:
        """Return {name: file or data set}, in order."""
        if self._data is not None:
            check(self._table is None, "table", self._table, "None: a data set in memory has no tables")
            splits = (
                self._data if isinstance(self._data, Mapping) else {str(getattr(self._data, "split", None)): self._data}
            )
            return {name.replace("None", "rows"): _part_of(one) for name, one in splits.items()}
        found, root = find_all_files(self._paths, patterns=_PATTERNS)
        for file in found:
            if suffix_of(file) not in FORMATS:
                raise SourceError(f"{file} has no rows that can be read; expected one of {', '.join(FORMATS)}")
        named = {Path(os.path.abspath(path)) for path in self._paths}
        listed = _listed({file.parent for file in found}) if any(path.is_dir() for path in named) else {}
        taken = [
            file
            for file in found
            if file.name in listed.get(file.parent, (file.name,))
            and (Path(os.path.abspath(file)) in named or not file.name.endswith(".idx.parquet"))  # of packed shards
        ]
        if not taken:
            others = ", ".join(sorted(file.name for file in found)[:3])
            raise SourceError(
                f"{show_paths(self._paths)} has no file with rows: {others} tell of tar shards, or are not listed in its "
                f"manifest; give tar shards as they are: {self._paths[0]}"
            )
        return {encodable(file.relative_to(root).as_posix()): _part_of_file(file) for file in taken}

    def _rows(self, name: str, part: _Part) -> Iterator[Entry]:
        chosen: list[str] = [self._column] if self._column else []

        def choose(types: Mapping[str, str]) -> list[str]:
            chosen[:] = [self._choose(part.place, types)]
            return [*chosen, *(key for key, kind in types.items() if key != chosen[0] and _is_short(kind))]

        number = 0
        try:
            for number, row in enumerate(part.read(Wanted(choose, self._table, self._column)), 1):
                item = f"{name}#{number - 1}"
                if isinstance(row, DamagedRow):
                    yield Entry(item, b"", refused=row.reason)
                    continue
                if not chosen:
                    chosen.append(self._choose(part.place, {key: _type_of(value) for key, value in row.items()}))
                yield _entry_of(item, row, chosen[0], may_name_files=part.may_name_files)
        except DamagedFile as error:
            yield _damaged(name, number, str(error))
        except HeadraceError:
            raise
        except Exception as error:  # what libraries raise for a file of anybody's is no closed list
            if part.may_name_files:  # of the program's own data
                raise
            yield _damaged(name, number, f"{type(error).__name__}: {error}")

    def _choose(self, path: str | Path, types: Mapping[str, str]) -> str:
        """Return the column that is the payload.

        Raises:
            SourceError: If it is not clear which.
        """
        if self._column == EVERY and "value" in types:
            return "value"
        if self._column in types:
            return str(self._column)
        of_bytes = [name for name, kind in types.items() if _holds_bytes(kind)]
        usual = [name for name in _USUAL if name in types] or (list(types) if len(types) == 1 else [])
        found = of_bytes if len(of_bytes) == 1 else [name for name in usual if name in of_bytes] or usual
        if self._column or not found:
            what = f"no column {self._column!r}" if self._column else "no column that is surely the item"
            raise SourceError(f"{path} has {what}; it has {', '.join(types)}: name one with column=")
        return found[0]


def open_address(address: str, *, drain: bool = False) -> Records:
    """Return the source at `records://PATH?column=NAME&table=NAME`; `records:///data` is absolute.

    Args:
        address: A file, folder or pattern behind `records://`.
        drain: Unused: the source has an end.

    Raises:
        SettingsError: If it names no files, or has another parameter.
    """
    named = address.partition("://")[2]
    path, _, query = named.rpartition("?") if _QUERY.search(named) else (named, "", "")
    given = dict(parse_qsl(query, keep_blank_values=True))
    if not query and _MEANT.search(named) and not Path(named).exists():
        raise SettingsError(f"{address}: expected column=NAME and table=NAME alone behind the ?, joined by &")
    if not path:
        raise SettingsError(
            f"{address} names no files; expected records://data/ or records://train.parquet?column=image"
        )
    return Records(path, column=given.get("column") or None, table=given.get("table") or None)


def _part_of_file(file: Path) -> _Part:
    """Return a file; one that is gone or no regular file, such as a pipe, which would be waited for, is a damaged one."""
    try:
        status = open_patiently(file.stat, str(file))
    except OSError as error:
        why = error.strerror or str(error)
        return _Part(lambda wanted: _refuse(why), {}, file)
    if not stat.S_ISREG(status.st_mode):
        return _Part(lambda wanted: _refuse("it is no regular file"), {}, file)
    read, identity = FORMATS[suffix_of(file)], {"bytes": status.st_size, "written_ns": status.st_mtime_ns}
    return _Part(lambda wanted: _read_patiently(read, file, wanted), identity, file)


def _read_patiently(read: Callable[[Path, Wanted], Rows], file: Path, wanted: Wanted) -> Rows:
    with contextlib.suppress(OSError):  # the reader says it with more words
        open_patiently(lambda: _touch(file), str(file))
    yield from read(file, wanted)


def _touch(file: Path) -> None:
    with file.open("rb") as opened:
        opened.read(1)


def _refuse(reason: str) -> Rows:
    yield from ()  # a reader is a generator
    raise DamagedFile(reason)


def _part_of(data: Any) -> _Part:
    """Return a data set of Hugging Face; one that has no length has no fingerprint either."""
    mark = getattr(data, "_fingerprint", None) if hasattr(data, "__len__") else None
    identity = {"fingerprint": str(mark), "rows": len(data)} if mark else {}
    return _Part(lambda wanted: read_data_set(data, wanted), identity, type(data).__name__, may_name_files=True)


def _listed(folders: set[Path]) -> dict[Path, tuple[str, ...]]:
    """Return what `save_to_disk` says of its folders: other files in them are caches of later steps."""
    found = {}
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads((folder / "state.json").read_bytes())
            found[folder] = tuple(str(one["filename"]) for one in state["_data_files"])
    return found


def _damaged(name: str, number: int, why: str) -> Entry:
    return Entry(
        f"{name}#", b"", refused=f"records.damaged: after {number:,} rows: {encodable(why[:_MOST_CHARACTERS])}"
    )


def _entry_of(item: str, row: Mapping[str, Any], column: str, *, may_name_files: bool = False) -> Entry:
    value, empty = row.get(column), f"there is no value in the column {column!r}"
    if isinstance(value, Mapping) and "bytes" in value:
        name = value.get("path")
        value = value["bytes"]
        if value is None and isinstance(name, str) and name:
            empty = _without_bytes(column, name, may_name_files=may_name_files)
            if may_name_files and os.path.isfile(name):
                value = Path(name)
    # A file of somebody's says nothing of where results go.
    texts = {key: _text_of(one) for key, one in row.items() if key not in (column, "callback")}
    attributes = {key: one for key, one in texts.items() if _is_simple(one)}
    if isinstance(value, Path):
        return Entry(item, value, attributes)
    if isinstance(value, bytes):
        return Entry(item, value, attributes)
    if isinstance(value, str):
        return Entry(item, value.encode("utf-8", "surrogatepass"), attributes)
    if isinstance(value, list | tuple) and not value:  # lists of numbers are arrays by now
        value = None
    try:
        array = np.asarray(value) if value is not None else None
    except ValueError:
        array = None
    if value is None:
        return Entry(item, b"", attributes, refused=f"records.empty: {encodable(empty[:_MOST_CHARACTERS])}")
    if array is None or array.dtype.kind not in "biuf":
        why = f"the column {column!r} holds {_describe(value)}; expected bytes, text, numbers, or equally long lists of numbers"
        return Entry(item, b"", attributes, refused=f"records.value: {encodable(why[:_MOST_CHARACTERS])}")
    return Entry(item, array, attributes)


def _without_bytes(column: str, name: str, *, may_name_files: bool) -> str:
    says = f"the column {column!r} names the file {name[:200]!r} and holds no bytes"
    if may_name_files:
        return f"{says}, and there is no such file here"
    return f"{says}: files that others' files name are not read; save the set with its images, as save_to_disk does"


def _describe(value: Any) -> str:
    """Return in words what stands in a column and cannot be a job."""
    if isinstance(value, Mapping):
        return f"the fields {', '.join(map(str, value))}"
    if isinstance(value, list | tuple):
        of = {type(one).__name__ for one in value}
        return f"a list of {len(value):,} values ({', '.join(sorted(of))})"
    return f"a value of the type {type(value).__name__}"


def _text_of(value: Any) -> Any:
    """Return bytes that are a short text as one, anything else as it is: TFRecord has no other texts."""
    if isinstance(value, bytes) and len(value) <= _MOST_CHARACTERS:
        with contextlib.suppress(UnicodeDecodeError):
            text = value.decode()
            return text if text.isprintable() else value
    return value


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
