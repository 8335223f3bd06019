"""Spans as NumPy columns on the run's clock, sorted by stage, so that a million of them are looked at in no time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.diagnose.deliveries import number_deliveries

#: NumPy arrays; their types and meanings stand beside the fields.
Array = np.ndarray

#: Fan-outs nested deeper than 2 to this power are not followed: an id that is its own ancestor would never end.
_MOST_DOUBLINGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanColumns:
    """All spans of a run, one row each, sorted by stage.

    Times are int64 ns since `origin_ns`. A code is an index into the list of names with which it is described; -1: none.
    """

    origin_ns: int
    """The first arrival, on the run's clock; 0 without spans."""
    table: Any
    """The `pyarrow.Table` that the columns come from; row i of them is row `row[i]` of it."""
    row: Array
    stage_names: tuple[str, ...]
    stage: Array
    """int32, code of `stage_names`."""
    unit: Array
    """int32, code of `unit_ids`."""
    unit_ids: Any
    """`pyarrow.StringArray`; an id is there once for each time that it was delivered with the same attempt number."""
    root: Array
    """int32, code of `unit_ids`: the item that stands for the whole job."""
    attempt: Array
    host: Array
    unknown_hosts: tuple[str, ...]
    """Hosts with spans whose clock offset is not known; it was taken as 0."""
    process: Array
    worker: Array
    """int32, one number for each host, process and thread."""
    thread_names: tuple[str, ...]
    thread: Array
    """int32, code of `thread_names`."""
    is_ok: Array
    """bool: outcome `ok`."""
    arrived: Array
    dequeued: Array
    started: Array
    ended: Array
    put: Array
    cpu: Array
    """float64, ns; NaN where not measured."""
    run_delay: Array
    """float64, ns; NaN where not measured."""
    batch_id: Array
    """int64; -1 outside batches."""
    batch_size: Array
    """int32; 1 outside batches."""
    reason_names: tuple[str, ...]
    reason: Array
    queue_depth: Array
    bytes_in: Array
    bytes_out: Array
    shape_names: tuple[str, ...]
    shape: Array
    weight: Array
    """float64: how many items the row stands for."""

    def __len__(self) -> int:
        return len(self.stage)

    def of(self, stage: str) -> slice:
        """Return the rows of one stage."""
        if stage not in self.stage_names:
            return slice(0, 0)
        code = self.stage_names.index(stage)
        first, last = np.searchsorted(self.stage, [code, code + 1])
        return slice(int(first), int(last))

    @property
    def is_child(self) -> Array:
        """bool: cut from another item by a fan-out."""
        return np.asarray(self.unit != self.root)


def load_spans(table: Any, stages: Sequence[str], offsets_ns: Mapping[str, int]) -> SpanColumns:
    """Return the columns of a span table.

    Args:
        table: As `Run.spans()` gives it.
        stages: Names in the order an item meets them; others that have spans come after them.
        offsets_ns: {host: ns to add to its times}.
    """
    stage_codes, found = _codes(table["stage"])
    names = (*stages, *(name for name in found if name not in stages))
    ranks = np.array([names.index(name) for name in found] or [0], np.int32)[stage_codes]
    row = np.argsort(ranks, kind="stable")
    host_codes, hosts = _codes(table["host"])
    host = host_codes[row]
    shift = np.array([offsets_ns.get(name, 0) for name in hosts] or [0], np.int64)
    process, thread, thread_names, worker = _places(table, row, host)
    times = {name: table[name].to_numpy()[row] for name in ("arrived", "dequeued", "started", "ended", "put")}
    if shift.any():
        times = {name: values + shift[host] for name, values in times.items()}
    origin = int(times["arrived"].min()) if len(row) else 0
    outcome, outcomes = _codes(table["outcome"])
    is_ok = (np.array([name == "ok" for name in outcomes] or [True])[outcome])[row]
    attempt = table["attempt"].to_numpy()[row]
    unit, unit_ids = _units(table, row)
    delivery = number_deliveries(unit, attempt, ranks[row], times["arrived"], times["ended"], is_ok)
    root = _roots(table, row, unit, unit_ids)
    if delivery is not None:
        unit, root, unit_ids = _split(unit, root, unit_ids, delivery)
    reason, reason_names = _codes(table["release_reason"])
    shape, shape_names = _codes(table["shape_key"])
    return SpanColumns(
        origin_ns=origin,
        table=table,
        row=row,
        stage_names=names,
        stage=ranks[row],
        unit=unit,
        unit_ids=unit_ids,
        root=root,
        attempt=attempt,
        host=host,
        unknown_hosts=tuple(name for name in hosts if name not in offsets_ns),
        process=process,
        worker=worker,
        thread_names=thread_names,
        thread=thread,
        is_ok=is_ok,
        **{name: values - origin for name, values in times.items()},
        cpu=_floats(table["cpu"])[row],
        run_delay=_floats(table["run_delay"])[row],
        batch_id=table["batch_id"].fill_null(-1).to_numpy()[row],
        batch_size=np.maximum(table["batch_size"].fill_null(1).to_numpy(), 1)[row],
        reason_names=reason_names,
        reason=reason[row],
        queue_depth=table["queue_depth"].to_numpy()[row],
        bytes_in=table["bytes_in"].to_numpy()[row],
        bytes_out=table["bytes_out"].to_numpy()[row],
        shape_names=shape_names,
        shape=shape[row],
        weight=table["weight"].to_numpy()[row].astype(np.float64),
    )


def _codes(column: Any) -> tuple[Array, tuple[str, ...]]:
    """Return a dictionary column as int32 codes, -1 for null, and their names."""
    array = column.combine_chunks()
    return array.indices.fill_null(-1).to_numpy(), tuple(map(str, array.dictionary.to_pylist()))


def _floats(column: Any) -> Array:
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    return np.asarray(column.to_numpy(), np.float64)  # NaN where there are nulls


def _places(table: Any, row: Array, host: Array) -> tuple[Array, Array, tuple[str, ...], Array]:
    """Return process, thread, the threads' names, and one number for each host, process and thread."""
    process = table["process"].to_numpy()[row]
    thread, names = _codes(table["thread"])
    thread = thread[row]
    _, which = _dense(process)
    key = (host.astype(np.int64) * (int(which.max(initial=0)) + 1) + which) * max(1, len(names)) + thread
    return process, thread, names, _dense(key)[1]


def _dense(values: Array) -> tuple[Array, Array]:
    """Return the distinct values and the index of each value among them; hashing, so faster than np.unique."""
    array = pa.array(values).dictionary_encode()
    return array.dictionary.to_numpy(), array.indices.to_numpy()


def _units(table: Any, row: Array) -> tuple[Array, Any]:
    """Return for each row its unit, and all ids."""
    encoded = table["unit_id"].combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy()[row], encoded.dictionary


def _roots(table: Any, row: Array, unit: Array, ids: Any) -> Array:
    """Return for each row the unit that stands for its whole job."""
    parents = table["parent_id"]
    if parents.null_count == len(parents):
        return unit
    parent = pc.index_in(parents.combine_chunks(), value_set=ids).fill_null(-1).to_numpy()[row]
    parent_of = np.full(len(ids), -1, np.int32)
    parent_of[unit] = parent
    ancestor = np.where(parent_of >= 0, parent_of, np.arange(len(ids), dtype=np.int32))
    for _ in range(_MOST_DOUBLINGS):
        further = ancestor[ancestor]
        if (further == ancestor).all():
            break
        ancestor = further
    return np.asarray(ancestor[unit])


def _split(unit: Array, root: Array, ids: Any, delivery: Array) -> tuple[Array, Array, Any]:
    """Return units, roots and ids with a code of their own for each delivery of an item after its first.

    Children of the second delivery of a child's id belong to the second delivery of its parent's, and so on.
    """
    numbers = int(delivery.max()) + 1
    keys = np.concatenate([unit, root]).astype(np.int64) * numbers + np.concatenate([delivery, delivery])
    later, codes = np.unique(keys[keys % numbers > 0], return_inverse=True)
    split = (keys // numbers).astype(np.int32)
    split[keys % numbers > 0] = codes + len(ids)
    more = ids.take(pa.array(later // numbers))
    return split[: len(unit)], split[len(unit) :], pa.concat_arrays([ids, more])
