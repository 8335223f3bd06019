"""Spans as closed, rotated Parquet files, so that what was written before a SIGKILL is readable.

How this works: the hook `stage_finished`, called by the threads that do the work, only appends to a deque. One thread of the
writer takes from it, a slice at a time, and turns each slice into an Arrow record batch: that needs the GIL, so slices are
small, and done while the run goes on rather than all at once when a file is due. Every `rotate_seconds` or `rotate_spans` it
writes the record batches, without the GIL, to a hidden temporary file and renames that: a file with its final name is
complete. A SIGKILL costs what has not been rotated yet. `flush` and `close` do the same in the caller's thread; a lock
keeps one writing at a time. Close the writer after the last stage has stopped: spans that come later are lost.

A disk that is full, or any other failure to write, costs spans and never the run: they are counted in `lost_spans`.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
import socket
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.base.formatting import encodable
from headrace.base.observer import Observer
from headrace.base.records import Span
from headrace.runs.contained_files import own_file
from headrace.runs.file_names import SPANS_FOLDER

logger = logging.getLogger("headrace")

#: Strings of which a run has few different ones.
_REPEATED = pa.dictionary(pa.int32(), pa.string())
_SMALL = pa.int32()

#: Column types, in Span's order, which is that of `docs/design.md`.
_TYPES: dict[str, Any] = {
    "unit": _REPEATED,
    "unit_id": pa.string(),
    "parent_id": pa.string(),
    "stage": _REPEATED,
    "plan_id": _REPEATED,
    "host": _REPEATED,
    "process": _SMALL,
    "thread": _REPEATED,
    "rank": _SMALL,
    "attempt": _SMALL,
    "outcome": _REPEATED,
    "arrived": pa.int64(),
    "dequeued": pa.int64(),
    "started": pa.int64(),
    "ended": pa.int64(),
    "put": pa.int64(),
    "cpu": pa.int64(),
    "run_delay": pa.int64(),
    "batch_id": pa.int64(),
    "batch_size": _SMALL,
    "release_reason": _REPEATED,
    "queue_depth": _SMALL,
    "bytes_in": pa.int64(),
    "bytes_out": pa.int64(),
    "shape_key": _REPEATED,
    "weight": _SMALL,
    "cached": _REPEATED,
}
_NULLABLE = {"parent_id", "cpu", "run_delay", "batch_id", "batch_size", "release_reason", "shape_key", "cached"}

#: The span table of schema version 3.
SPAN_SCHEMA = pa.schema([pa.field(name, kind, name in _NULLABLE) for name, kind in _TYPES.items()])

#: Spans turned into columns without letting go of the GIL: about one millisecond.
SLICE_SPANS = 512

#: Spans that may wait for a disk that does not answer, about 100 MB; those that come then are lost, and counted.
MOST_WAITING = 250_000

# Measured on 200,000 spans: 22 bytes and 0.37 us a span; pyarrow's defaults take 52 bytes and 1.6 us.
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": [field.name for field in SPAN_SCHEMA if field.type == _REPEATED],
    "column_encoding": {field.name: "DELTA_BINARY_PACKED" for field in SPAN_SCHEMA if pa.types.is_integer(field.type)},
}

_NO_CODES = pa.Array.from_buffers(pa.int32(), SLICE_SPANS, [None, pa.py_buffer(bytes(4 * SLICE_SPANS))])


def spans_to_batch(spans: Sequence[Span]) -> Any:
    """Return spans as a `pyarrow.RecordBatch` of `SPAN_SCHEMA`.

    Raises:
        ValueError, TypeError, OverflowError: If a value does not fit its column.
    """
    columns = zip(*map(msgspec.structs.astuple, spans), strict=True)
    arrays = []
    for (name, kind), values in zip(_TYPES.items(), columns, strict=True):
        array = _column(values, kind)
        if array.null_count and name not in _NULLABLE:  # else the whole file would be refused, and late
            raise ValueError(f"{name} is None")
        arrays.append(array)
    return pa.record_batch(arrays, schema=SPAN_SCHEMA)


def _column(values: tuple[Any, ...], kind: Any) -> Any:
    """Return a column; not by `pa.array`, which imports pandas where that is installed: into the program, in its first steps.

    Raises:
        ValueError, TypeError, OverflowError: If a value does not fit.
    """
    first = values[0]
    # Such columns seldom change within a slice: counting costs a fifth of encoding.
    if first is None and values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    if (kind is _REPEATED or kind is _SMALL) and len(values) <= SLICE_SPANS and values.count(first) == len(values):
        if kind is _REPEATED:
            return pa.DictionaryArray.from_arrays(_NO_CODES[: len(values)], _strings((first,)))
        return _buffered(array("i", (first,)) * len(values), kind)
    if kind is _REPEATED:
        numbers = {
            value: number for number, value in enumerate(dict.fromkeys(one for one in values if one is not None))
        }
        return pa.DictionaryArray.from_arrays(_integers([*map(numbers.get, values)], _SMALL), _strings(numbers))
    return _integers(values, kind) if pa.types.is_integer(kind) else _strings(values)


def _integers(values: Sequence[int | None], kind: Any) -> Any:
    known = None
    if None in values:
        known, values = _known(values), [0 if one is None else one for one in values]
    return _buffered(array("i" if kind is _SMALL else "q", values), kind, known)  # type: ignore[arg-type]


def _buffered(values: array[int], kind: Any, known: Any = None) -> Any:
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(values)])


def _strings(values: Collection[str | None]) -> Any:
    known = None
    if None in values:
        known, values = _known(values), ["" if one is None else one for one in values]
    encoded = [*map(str.encode, values)]  # type: ignore[arg-type]
    ends = array("i", itertools.accumulate(map(len, encoded), initial=0))
    return pa.Array.from_buffers(pa.string(), len(values), [known, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def _known(values: Collection[object]) -> Any:
    """Return a buffer with a bit for each value: 0 where it is None."""
    return pa.py_buffer(np.packbits([one is not None for one in values], bitorder="little"))


class SpanWriter(Observer):
    """Writes the spans of this process into a run folder's `spans`.

    Attributes:
        written_spans: Spans in closed files.
        lost_spans: Spans that could not be written, because the disk refused or was too slow, or a value did not fit.
        beside: Called in the writer's thread every `rotate_seconds`, also where there are no spans, if set: for what else
            should outlive a SIGKILL.
    """

    recorded_only = True

    def __init__(self, folder: Path, *, rotate_seconds: float = 5.0, rotate_spans: int = 50_000) -> None:
        """Start the writer's thread.

        Args:
            folder: The run folder's `spans`; must exist.
            rotate_seconds: A SIGKILL costs at most the spans of about this time. > 0.
            rotate_spans: A file is closed earlier when it has this many. >= 1.
        """
        if rotate_seconds <= 0 or rotate_spans < 1:
            raise ValueError(f"rotate_seconds must be > 0 and rotate_spans >= 1, got {rotate_seconds}, {rotate_spans}")
        self.written_spans = 0
        self.lost_spans = 0
        self.beside: Callable[[], object] | None = None
        self._folder = folder
        self._rotate_spans = rotate_spans
        self._rotate_seconds = rotate_seconds
        self._finished: deque[Sequence[Span]] = deque()
        self._num_taken = self._num_collected = 0  # each has one writer, so neither needs a lock
        self._slice: list[Span] = []
        self._batches: list[Any] = []
        self._num_batched = 0
        self._stem = f"{socket.gethostname()}-{os.getpid()}"
        self._first = self._number = _first_free_number(folder, self._stem)
        self._hash = _new_hash()
        self._complained: set[str] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-span-writer", daemon=True)
        self._thread.start()

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Take spans; returns at once. The sequence must not change afterwards."""
        if self.waiting >= MOST_WAITING:
            self._lose(
                len(spans), "wait", f"{MOST_WAITING:,} spans wait to be written to {self._folder}: the disk is too slow"
            )
            return
        self._num_taken += len(spans)
        self._finished.append(spans)

    def describe_files(self) -> dict[str, Any]:
        """Return which files were written and a hash of them: for `are_files_as_written`, once this is closed."""
        return {"first": self._first, "count": self._number - self._first, "hash": self._hash.hexdigest()}

    @property
    def waiting(self) -> int:
        """Spans taken and not yet looked at."""
        return self._num_taken - self._num_collected

    def flush(self) -> None:
        """Write everything taken so far into closed files."""
        with self._lock:
            self._collect(pause_seconds=0.0)
            self._write_rest()

    def close(self) -> None:
        """Write the rest and stop the thread. May be called twice."""
        self._closing.set()
        self._thread.join()
        self.flush()

    def _run(self) -> None:
        # Looks often, so that the columns are built in small portions and a burst is cut into files near rotate_spans.
        tick = min(0.1, self._rotate_seconds)
        due = time.monotonic() + self._rotate_seconds
        while not self._closing.wait(tick):
            with self._lock:
                self._collect(pause_seconds=0.0001)
                is_due = time.monotonic() >= due
                if is_due:
                    self._write_rest()
            if is_due:
                self._call_beside()
                due = time.monotonic() + self._rotate_seconds
        # Not left to the thread that closes: where that is the main one, the handler of a signal may raise an exception in the
        # midst of writing (PyTorch's does when a loader's worker dies), which would cost what is being written.
        self.flush()

    def _call_beside(self) -> None:
        try:
            if self.beside is not None:
                self.beside()
        except Exception:  # Nothing may end the writer's thread.
            if "beside" not in self._complained:
                self._complained.add("beside")
                logger.exception("What is written beside the spans failed. The run goes on; report this as a bug.")

    def _collect(self, pause_seconds: float) -> None:
        """Turn what the hook took into record batches, and those into files of about `rotate_spans`.

        Args:
            pause_seconds: After each slice. A thread that computes on and on lets others wait 5 ms for the GIL; `sleep(0)`
                would take it back before a waiting thread has woken up.
        """
        for _ in range(len(self._finished)):  # what comes meanwhile is for the next time
            spans = self._finished.popleft()
            self._num_collected += len(spans)
            self._slice.extend(span for span in spans if span.weight)
            while len(self._slice) >= SLICE_SPANS:
                self._convert(self._slice[:SLICE_SPANS])
                del self._slice[:SLICE_SPANS]
                if pause_seconds:
                    time.sleep(pause_seconds)
            # Between two sequences: a file that ends within one, when the process is killed, leaves a part of a step.
            if self._num_batched + len(self._slice) >= self._rotate_spans:
                self._write_rest()

    def _convert(self, spans: list[Span]) -> None:
        try:
            batch = spans_to_batch(spans)
        except Exception:
            self._convert_one_by_one(spans)
        else:
            self._batches.append(batch)
            self._num_batched += len(spans)

    def _convert_one_by_one(self, spans: list[Span]) -> None:
        """Keep the good spans of a slice in which a value does not fit its column."""
        for span in spans:
            try:
                self._batches.append(spans_to_batch([_encodable_span(span)]))
                self._num_batched += 1
            except Exception as error:  # Nothing may end the writer's thread.
                self._lose(1, "value", f"a span does not fit the span table: {error}; it is {span!r:.500}")

    def _write_rest(self) -> None:
        if self._slice:
            self._convert(self._slice)
            self._slice = []
        self._write_file()

    def _write_file(self) -> None:
        if not self._batches:
            return
        batches, count, self._batches, self._num_batched = self._batches, self._num_batched, [], 0
        name = f"{self._stem}-{self._number:06d}.parquet"
        temporary = self._folder / f".{name}.tmp"
        try:
            # No fsync: a SIGKILL does not need it, and it would wait for the disk that the pipeline may be using.
            table = pa.Table.from_batches(batches, SPAN_SCHEMA).unify_dictionaries().combine_chunks()
            pq.write_table(table, temporary, **_PARQUET)
            content = temporary.read_bytes()
            os.replace(temporary, self._folder / name)
        except Exception as error:  # Whatever it is, a run must not end because it cannot be watched.
            self._lose(count, "disk", f"spans cannot be written to {self._folder}: {error}")
            _remove(temporary)
        else:
            self._hash.update(content)
            self.written_spans += count
            self._number += 1

    def _lose(self, count: int, cause: str, message: str) -> None:
        self.lost_spans += count
        if cause not in self._complained:
            self._complained.add(cause)
            logger.error(
                "%s. The run goes on; spans that are lost are counted in run.json (lost_spans)%s.",
                message,
                "; report this as a bug"
                if cause == "value"
                else "; free space on the disk, or take a faster one, to keep the rest",
            )


def are_files_as_written(run: Path, host: str, process: int, files: object) -> bool | None:
    """Return whether the files of a process in a run folder are those that it wrote; None if they cannot be checked.

    Args:
        run: The run folder.
        host: Of the process.
        process: Its number.
        files: As `SpanWriter.describe_files` said; anything else, such as None, cannot be checked.
    """
    found = _new_hash()
    try:
        first, count, said = (files[name] for name in ("first", "count", "hash"))  # type: ignore[index]
        for number in range(first, first + count):
            name = f"{host}-{process}-{number:06d}.parquet"
            with own_file(run, run / SPANS_FOLDER / name).open("rb") as file:
                while content := file.read(1 << 20):
                    found.update(content)
    except FileNotFoundError:
        return False
    except (OSError, TypeError, KeyError, ValueError, OverflowError):
        return None
    return bool(found.hexdigest() == said)


def _new_hash() -> Any:
    return hashlib.blake2b(digest_size=16)


def _encodable_span(span: Span) -> Span:
    texts = {name: encodable(value) for name in span.__struct_fields__ if isinstance(value := getattr(span, name), str)}
    return msgspec.structs.replace(span, **texts)


def _first_free_number(folder: Path, stem: str) -> int:
    """Return a number above every file of this host and process id, which may be an earlier process's."""
    pattern = re.compile(re.escape(stem) + r"-(\d{6,})\.parquet")
    numbers = [int(match[1]) for file in folder.iterdir() if (match := pattern.fullmatch(file.name))]
    return max(numbers, default=-1) + 1


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        logger.debug("%s could not be removed", file)
