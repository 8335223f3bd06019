"""The spans of a training as NumPy columns, read file by file.

How this works: a million steps are ten million spans. Of most only their stretch, their stage and what they took is needed, so
each file becomes narrow columns as soon as it is read, and is forgotten.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.runs.reader import Run
from headrace.runs.span_files import SPAN_SCHEMA
from headrace.runs.training_phases import BATCH, WHOLE

#: NumPy arrays; their types and meanings stand beside the fields.
Array = np.ndarray

_NAMES = ("unit", "stage", "host", "outcome", "release_reason", "thread")
_NUMBERS = ("rank", "process", "arrived", "started", "ended", "put", "batch_id", "batch_size", "bytes_out")
#: What is kept of the phases of a stretch.
_NAMES_OF_PARTS = ("unit", "stage", "host")
_NUMBERS_OF_PARTS = ("rank", "process", "batch_id", "unit_id", "wall")


@dataclass(frozen=True, slots=True)
class Rows:
    """Spans as columns: a million of them take a second, and as Python objects a minute."""

    names: dict[str, tuple[str, ...]]
    """{column: its texts; what is null is an empty text}."""
    codes: dict[str, Array]
    """{column: position in `names`, an integer}."""
    numbers: dict[str, Array]
    """{column: integers, as narrow as they may be; null is 0, and -1 in `unit_id` and `parent_id`}. `wall` is the time from
    `started` to `ended`, ns."""
    seconds: dict[str, Array]
    """{`cpu`, `run_delay`: float64; NaN where not measured}."""

    def __len__(self) -> int:
        return len(self.numbers["wall"])

    def is_in(self, column: str, name: str) -> Array:
        """Return where a column has this text: bool."""
        if name not in self.names[column]:
            return np.zeros(len(self), bool)
        return np.asarray(self.codes[column] == self.names[column].index(name))

    def where(self, mask: Array) -> Rows:
        """Return some of the rows: those where a bool is true, or those at these positions, in their order."""
        if len(mask) and mask.dtype == bool and mask.all():
            return self  # usual, and then nothing is copied
        groups = (self.codes, self.numbers, self.seconds)
        codes, numbers, seconds = ({name: values[mask] for name, values in group.items()} for group in groups)
        return Rows(self.names, codes, numbers, seconds)

    def text(self, column: str) -> list[str]:
        """Return a column as texts."""
        return [self.names[column][code] for code in self.codes[column].tolist()]


@dataclass(frozen=True, slots=True)
class SpanRows:
    """All spans of a training."""

    stretches: Rows
    """One row for each stretch, and each that a device measured."""
    parts: Rows
    """Their phases; without the columns that only `stretches` and `batches` have."""
    batches: Rows
    """What loading batches cost."""


def read_rows(run: Run) -> SpanRows:
    """Return the spans of a run.

    Raises:
        pa.ArrowException, ValueError, OverflowError: If they hold what no recorder writes.
    """
    codes: dict[str, dict[str, int]] = {column: {"": 0} for column in _NAMES}
    found: tuple[list[Rows], list[Rows], list[Rows]] = ([], [], [])
    for table in itertools.chain([SPAN_SCHEMA.empty_table()], run.span_tables()):
        rows = _read_table(table, codes)
        is_batch, is_whole = rows.is_in("unit", BATCH), rows.is_in("stage", WHOLE)
        found[0].append(rows.where(is_whole & ~is_batch))
        found[1].append(_narrow(rows.where(~is_whole & ~is_batch)))
        found[2].append(rows.where(is_batch))
    return SpanRows(*(_join(files, codes) for files in found))


def _read_table(table: Any, codes: dict[str, dict[str, int]]) -> Rows:
    """Return the columns of the spans of a file.

    Args:
        table: The spans.
        codes: {column: {text: its code}} of the files before; those of this one are added.
    """
    numbers = {name: _as_narrow(_integers(table[name], 0)) for name in _NUMBERS}
    numbers |= {name: _as_narrow(_integers(table[name], -1)) for name in ("unit_id", "parent_id")}
    numbers["wall"] = _as_narrow(_integers(table["ended"], 0) - _integers(table["started"], 0))
    seconds = {
        name: table[name].cast(pa.float64()).to_numpy(zero_copy_only=False) / 1e9 for name in ("cpu", "run_delay")
    }
    found = {name: _encode(table[name], codes[name]) for name in _NAMES}
    return Rows({name: tuple(codes[name]) for name in _NAMES}, found, numbers, seconds)


def _narrow(rows: Rows) -> Rows:
    codes = {name: rows.codes[name] for name in _NAMES_OF_PARTS}
    return Rows(rows.names, codes, {name: rows.numbers[name] for name in _NUMBERS_OF_PARTS}, rows.seconds)


def _join(files: Sequence[Rows], codes: Mapping[str, Mapping[str, int]]) -> Rows:
    """Return the rows of all files. Each column is taken from the files before the next one is put together."""
    names = {name: tuple(numbers) for name, numbers in codes.items()}
    groups = zip(*((one.codes, one.numbers, one.seconds) for one in files), strict=True)
    return Rows(
        names, *({name: np.concatenate([one.pop(name) for one in each]) for name in [*each[0]]} for each in groups)
    )


def _encode(column: Any, codes: dict[str, int]) -> Array:
    """Return the code of each text of a column; null is an empty text."""
    encoded = pc.dictionary_encode(column) if not pa.types.is_dictionary(column.type) else column.unify_dictionaries()
    if not encoded.num_chunks:
        return np.zeros(0, np.int8)
    texts = [one or "" for one in encoded.chunk(0).dictionary.to_pylist()]
    own = np.array([codes.setdefault(text, len(codes)) for text in [*texts, ""]], np.int64)
    places = [pc.fill_null(chunk.indices, len(texts)).to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    return _as_narrow(own[np.concatenate(places)])


def _integers(column: Any, missing: int) -> Array:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return np.asarray(pc.fill_null(column.cast(pa.int64()), missing).to_numpy())


def _as_narrow(values: Array) -> Array:
    """Return integers in the narrowest type that holds them."""
    if not len(values):
        return values.astype(np.int8)
    least, most = int(values.min()), int(values.max())
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
            return values.astype(kind)
    return values
