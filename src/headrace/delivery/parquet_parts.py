"""The parts of a folder of Parquet files, which readers take as one table: all of them have one schema at any time.

A column's type is known only when values come: the images of the first minutes may hold no boxes, a score may be 1 before it is
0.97. So a part that brings a wider type (numbers for an empty list, fractions for whole numbers, a new key) widens the parts
before it, which are written again and replaced. Types that have no common one become JSON text.

How this works: a worker that adds a part locks the folder, so that workers of several processes may share it. All new
files are complete before the first one replaces an old one; what a killed process left half replaced is put right when a run
opens the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from headrace.delivery.encoding import encode_any_number

logger = logging.getLogger("headrace")
_PATTERN = "part-*.parquet"
#: Levels of lists and dicts in a column: readers refuse a file with more than 100, all of it.
_MOST_LEVELS = 20
#: Marks a column that holds JSON text, whatever its values look like.
_JSON = {b"headrace": b"json"}


def column_of(values: Sequence[Any]) -> tuple[pyarrow.Array, bool]:
    """Return values as a column, and whether it holds them as JSON text since Parquet has no type that holds them all."""
    # Whatever Arrow raises on a value (it has errors of Python's own too) must cost no other value its part.
    with contextlib.suppress(Exception):
        column = pyarrow.array([_convert_to_lists(value) for value in values])
        if not _has_empty_struct(column.type) and _depth(column.type) <= _MOST_LEVELS:
            return column, False
    return pyarrow.array([encode_any_number(value).decode() for value in values]), True


def table_of(columns: dict[str, Sequence[Any]]) -> pyarrow.Table:
    """Return {name: values} as a table."""
    fields, arrays = [], []
    for name, values in columns.items():
        array, is_json = column_of(values)
        fields.append(pyarrow.field(name, array.type, metadata=_JSON if is_json else None))
        arrays.append(array)
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))


def add_part(file: Path, table: pyarrow.Table, schemas: Schemas) -> None:
    """Write a part, closed and durable, and widen those before it if it needs to be.

    Args:
        file: A new one.
        table: What it is to hold.
        schemas: Of the folder's parts.

    Raises:
        OSError: If something cannot be written; nothing was changed.
        pyarrow.ArrowException: Likewise.
    """
    with _lock_folder(file.parent):
        _write_as_one({file: lambda: table}, {**schemas.read(file.parent), file: table.schema})


def unify_parts(folder: Path, schemas: Schemas) -> None:
    """Put parts right whose schemas differ: of a run that was killed on its way, or of an older headrace."""
    with _lock_folder(folder):
        _write_as_one({}, schemas.read(folder))


class Schemas:
    """Remembers the schemas of parts: a folder may have thousands, of which few are new or were replaced since."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], pyarrow.Schema]] = {}

    def read(self, folder: Path) -> dict[Path, pyarrow.Schema]:
        """Return the schema of each part that can be read; a damaged one is left for `recover`, which sets it aside.

        Not that of one for all: a worker that was killed while it widened them leaves parts of two kinds.
        """
        known, self._known = self._known, {}
        for part in sorted(folder.glob(_PATTERN)):
            with contextlib.suppress(OSError, pyarrow.ArrowException):
                state = part.stat()
                seen = (state.st_ino, state.st_mtime_ns, state.st_size)
                before = known.get(part)
                self._known[part] = (
                    before if before and before[0] == seen else (seen, pyarrow.parquet.read_schema(part))
                )
        return {part: schema for part, (_, schema) in self._known.items()}


def _write_as_one(new: dict[Path, Callable[[], pyarrow.Table]], schemas: dict[Path, pyarrow.Schema]) -> None:
    """Write new parts, and the parts before them again unless they have the common schema."""
    texts: set[str] = set()
    # Most parts have one schema.
    distinct = list(dict.fromkeys(schema.serialize().to_pybytes() for schema in schemas.values()))
    different = [pyarrow.ipc.read_schema(pyarrow.py_buffer(one)) for one in distinct]
    while True:
        common = _common(different, texts)
        wider = [part for part, schema in schemas.items() if part not in new and not _are_equal(schema, common)]
        read = {part: lambda part=part: pyarrow.parquet.read_table(part, partitioning=None) for part in wider}
        try:
            _replace({**read, **new}, common)
        except _NoCast as error:  # whole numbers that no fraction holds exactly, or alike
            texts.add(error.column)
        else:
            break
    if wider:
        logger.info("%d earlier parts of %s have wider columns now", len(wider), wider[0].parent)


def _replace(tables: dict[Path, Callable[[], pyarrow.Table]], schema: pyarrow.Schema) -> None:
    partials = {file: file.with_name(f".{file.name}.partial") for file in tables}
    try:
        for file, read in tables.items():
            with partials[file].open("wb") as out:
                pyarrow.parquet.write_table(_cast(read(), schema), out)
                out.flush()
                os.fsync(out.fileno())  # or a power cut could leave the name without the content
            pyarrow.parquet.read_schema(partials[file])  # what nobody could read must not become a part
        for file, partial in partials.items():
            os.replace(partial, file)
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)


class _NoCast(Exception):
    """A column's values do not fit into the type that all parts could have."""

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.column = column


def _cast(table: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """Return a table with the columns of a schema; those that it lacks hold nothing.

    Raises:
        _NoCast: If values do not fit.
    """
    columns = []
    own = {field.name: (field, column) for field, column in zip(table.schema, table.columns, strict=True)}
    for field in schema:
        if field.name not in own:
            columns.append(pyarrow.nulls(len(table), field.type))
            continue
        before, column = own[field.name]
        if _is_json(field) and not _is_json(before):
            values = [None if value is None else encode_any_number(value).decode() for value in column.to_pylist()]
            columns.append(pyarrow.array(values, field.type))
            continue
        try:
            columns.append(column.cast(field.type))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, pyarrow.ArrowTypeError):
            raise _NoCast(field.name) from None
    return pyarrow.Table.from_arrays(columns, schema=schema)


def _common(schemas: Sequence[pyarrow.Schema], texts: set[str]) -> pyarrow.Schema:
    """Return the narrowest schema that holds the values of all; `texts` are columns that hold JSON text in any case."""
    found: dict[str, pyarrow.Field] = {}
    for field in (field for schema in schemas for field in schema):
        own = (
            _text(field.name) if _is_json(field) else pyarrow.field(field.name, field.type)
        )  # without Parquet's numbers
        found[field.name] = _wider(found[field.name], own) if field.name in found else own
    return pyarrow.schema([_text(field.name) if field.name in texts else field for field in found.values()])


def _are_equal(one: pyarrow.Schema, other: pyarrow.Schema) -> bool:
    return one.equals(other) and list(map(_is_json, one)) == list(map(_is_json, other))


def _wider(one: pyarrow.Field, other: pyarrow.Field) -> pyarrow.Field:
    if _is_json(one) or _is_json(other):
        return _text(one.name)
    try:
        schemas = [pyarrow.schema([field]) for field in (one, other)]
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(0)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        return _text(one.name)


def _text(name: str) -> pyarrow.Field:
    return pyarrow.field(name, pyarrow.string(), metadata=_JSON)


def _is_json(field: pyarrow.Field) -> bool:
    return (field.metadata or {}).get(b"headrace") == b"json"


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Keep others from adding parts; where the file system has no locks, nobody is kept."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _convert_to_lists(value: Any) -> Any:
    """Return an array of several axes as lists, which Arrow takes."""
    return value.tolist() if getattr(value, "ndim", 0) > 1 else value


def _depth(kind: pyarrow.DataType) -> int:
    return 1 + max((_depth(kind.field(index).type) for index in range(kind.num_fields)), default=0)


def _has_empty_struct(kind: pyarrow.DataType) -> bool:
    # A dict that is always empty: Parquet has no such column.
    if pyarrow.types.is_struct(kind) and not kind.num_fields:
        return True
    return any(_has_empty_struct(kind.field(index).type) for index in range(kind.num_fields))
