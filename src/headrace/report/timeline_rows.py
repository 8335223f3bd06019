"""Rows of the span table as a timeline needs them: times and codes as arrays, and what is told of a row as Python values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]

#: Columns that are shown as they are, where there is something in them.
_SHOWN_COLUMNS = ("batch_id", "batch_size", "release_reason", "bytes_in", "bytes_out", "shape_key", "queue_depth")
TIMES = ("arrived", "dequeued", "started", "ended", "put")


@dataclass(slots=True)
class Columns:
    """The rows that are shown, as arrays; times in ns since the first arrival."""

    table: Any
    """The `pyarrow.Table` of these rows."""
    arrived: Ints
    dequeued: Ints
    started: Ints
    ended: Ints
    put: Ints
    host: Ints
    stage: Ints
    """Index in `stages`."""
    worker: Ints
    """Index in `workers`."""
    batch: Ints
    """-1 for none."""
    unit: Ints
    parent: Ints
    """Index like `unit`; -1 for none."""
    root: Ints
    """The parent's parent, and so on: the job."""
    attempt: Ints
    hosts: list[str]
    stages: list[str]
    workers: list[tuple[int, int, str]]
    """Host, process id, thread."""


def integers(column: Any) -> Ints:
    """Return a column without gaps as int64."""
    return np.asarray(column.to_numpy(), np.int64)


def codes(column: Any) -> tuple[Ints, list[Any]]:
    """Return a text column as indices and what they stand for; null is -1."""
    array = pc.dictionary_encode(column).combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) and array.num_chunks else array
    if isinstance(array, pa.ChunkedArray):
        return np.zeros(0, np.int64), []
    return integers(array.indices.fill_null(-1)), array.dictionary.to_pylist()


def find_units(table: Any) -> tuple[Ints, Ints]:
    """Return each row's item and its parent as indices of one list; -1 for no parent, or one without a row."""
    unit, units = codes(table.column("unit_id"))
    parent, parents = codes(table.column("parent_id"))
    index = {name: number for number, name in enumerate(units)} if parents else {}
    # One more at the end, for -1.
    known = np.array([*(index.get(name, -1) for name in parents), -1], np.int64)
    return unit, known[parent]


def find_roots(unit: Ints, parent: Ints) -> Ints:
    """Return for each item the one at the top of its parents."""
    size = int(unit.max(initial=-1)) + 1
    above = np.arange(size)
    has_parent = parent >= 0
    above[unit[has_parent]] = parent[has_parent]
    # Each round doubles the distance; in damaged files parents may go in circles, which no number of rounds ends.
    for _ in range(64):
        further = above[above]
        if np.array_equal(further, above):
            break
        above = further
    return above


def find_workers(table: Any, host: Ints) -> tuple[Ints, list[tuple[int, int, str]]]:
    """Return each row's worker as an index of (host, process id, thread)."""
    thread, threads = codes(table.column("thread"))
    keys = np.stack([host, integers(table.column("process")), thread], axis=1)
    found, worker = np.unique(keys, axis=0, return_inverse=True)
    return worker.reshape(-1), [(host, process, threads[thread]) for host, process, thread in found.tolist()]


class RowValues:
    """Some rows as Python values, and what is told of them."""

    def __init__(self, rows: Columns, chosen: Ints) -> None:
        names = ("unit_id", "parent_id", "stage", "attempt", "outcome", "cpu", "run_delay", "weight", *_SHOWN_COLUMNS)
        table = rows.table.select(names).take(chosen)
        self._values = {name: _values(table.column(name)) for name in names}
        for name in TIMES:
            self._values[name] = getattr(rows, name)[chosen].tolist()

    def service(self, index: int, items: list[str]) -> tuple[str, str, dict[str, Any]]:
        """Return name, category and arguments of a service slice."""
        row = {name: column[index] for name, column in self._values.items()}
        is_batch = row["batch_id"] is not None
        arguments: dict[str, Any] = {"items": items} if is_batch else {"item": row["unit_id"]}
        if row["parent_id"] is not None and not is_batch:
            arguments["parent"] = row["parent_id"]
        arguments["attempt"] = row["attempt"]
        arguments["outcome"] = row["outcome"]
        for name in _SHOWN_COLUMNS:
            if row[name] is not None:
                arguments[name] = row[name]
        for name in ("cpu", "run_delay"):
            if row[name] is not None:
                arguments[f"{name}_ms"] = row[name] / 1e6
        arguments["queue_wait_ms"] = (row["dequeued"] - row["arrived"]) / 1e6
        arguments["setup_ms"] = (row["started"] - row["dequeued"]) / 1e6
        arguments["blocked_ms"] = (row["put"] - row["ended"]) / 1e6
        if row["weight"] != 1:
            arguments["stands_for"] = row["weight"]
        if row["outcome"] == "ok":
            return row["stage"], "service", arguments
        return f"{row['stage']} {row['outcome']}", f"service,{row['outcome']}", arguments

    def blocked(self, index: int) -> dict[str, Any]:
        """Return the arguments of a slice in which a worker waits to hand on."""
        return {"item": self._values["unit_id"][index], "after": self._values["stage"][index]}

    def queue(self, index: int) -> str:
        """Return the name of the queue in which a row's item waited."""
        return f"{self._values['stage'][index]} queue"

    def waiting(self, index: int) -> dict[str, Any]:
        """Return the arguments of a wait."""
        values = self._values
        return {"item": values["unit_id"][index], "items_before": values["queue_depth"][index]}


def _values(column: Any) -> list[Any]:
    """Return a column as a list; a tenth of the time of `to_pylist` where there are no gaps or few different texts."""
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_dictionary(column.type):
        numbers, texts = codes(column)
        texts.append(None)  # at -1
        return [texts[number] for number in numbers.tolist()]
    if pa.types.is_integer(column.type) and not column.null_count:
        return list(column.to_numpy().tolist())
    return list(column.to_pylist())
