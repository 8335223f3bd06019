"""Timelines of a run: who did what and when, as a trace that ui.perfetto.dev and chrome://tracing open.

How this works: `Timeline` turns the span table into slices that do not depend on a file format; `write_chrome_trace` (here) and
`perfetto_trace.write_perfetto_trace` give them theirs. A worker is a track. What it served is a slice, a batch one slice with
all its items; what it then waited for room in the next queue is a slice of its own. Waiting in a queue is drawn on tracks of
the queue, as many as items waited at once. Slices of one track never overlap: where damaged times would make them, the
worker gets a second track. An arrow follows each item through its slices, from a parent through its children to the join.

All bookkeeping is done in NumPy, with some 100 bytes a span; slices become Python objects a few thousand at a time, so that a
run of millions of spans is streamed.

References:
    Trace Event Format, Google, 2016: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import contextlib
import gzip
import heapq
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import RunFolderError
from headrace.runs.reader import Run

#: Items that a trace shows unless told otherwise: what a person can look through, and a few megabytes.
MAX_ITEMS = 2_000
#: They come in stretches of neighbours, because one item alone does not tell what it waited for.
_MAX_STRETCHES = 20
_MIN_STRETCH_ITEMS = 20
#: Shorter waits are in the arguments of the service alone: no screen shows them, and every item has some.
_SHORTEST_WAIT_NS = 10_000
#: Samples of one counter in a trace that does not show everything.
_MAX_SAMPLES = 20_000
#: Slices that are Python objects at one time.
_CHUNK = 4096

Ints = npt.NDArray[np.int64]
_Value = TypeVar("_Value")

_SERVICE, _BLOCKED, _WAIT, _SHOWN = range(4)


class Track(NamedTuple):
    """One row of the picture; its slices do not overlap."""

    number: int
    """Unique among tracks and processes."""
    process: int
    """Number of its process."""
    name: str
    order: int
    """Where it stands in its process."""
    is_queue: bool
    lane: int
    """0; above where others of this name are needed beside it."""


class Flow(NamedTuple):
    """An arrow's passage through a slice."""

    number: int
    """The arrow."""
    phase: str
    """`s` where it starts, `t` on the way, `f` where it ends."""


class Slice(NamedTuple):
    """Something that took time on a track. Times are ns since the first arrival."""

    begin: int
    end: int
    """Above begin."""
    track: int
    name: str
    category: str
    """`service`, `service,failed`, `service,rejected`, `blocked`, `queue`, `shown`."""
    arguments: dict[str, Any]
    flows: Sequence[Flow]


class Sample(NamedTuple):
    """One value of a counter."""

    at: int
    """ns since the first arrival."""
    counter: str
    value: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What was written."""

    path: Path
    num_items: int
    """Jobs shown, each with its children."""
    num_items_total: int
    """Jobs that the run folder has spans of."""
    num_spans: int
    num_spans_total: int
    num_slices: int
    num_flows: int
    """Arrows, each following one item."""
    num_samples: int
    """Values of counters."""
    num_bytes: int
    """Size of the file."""
    notes: tuple[str, ...]
    """What is not shown, or not as it was measured, and why; also in the trace."""


@dataclass(slots=True)
class _Columns:
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


@dataclass(slots=True)
class _Slices:
    """Slices as arrays; `reference` is a service slice, a row or a stretch, by kind."""

    begin: list[Ints] = field(default_factory=list)
    end: list[Ints] = field(default_factory=list)
    track: list[Ints] = field(default_factory=list)
    kind: list[Ints] = field(default_factory=list)
    reference: list[Ints] = field(default_factory=list)

    def add(self, kind: int, begin: Ints, end: Ints, track: Ints, reference: Ints) -> None:
        """Add slices of one kind."""
        self.begin.append(begin)
        self.end.append(end)
        self.track.append(track)
        self.kind.append(np.full(len(begin), kind, np.int64))
        self.reference.append(reference)


class Timeline:
    """What happened in a run, ready to be drawn.

    Attributes:
        processes: {number: name}, in the order in which they are shown.
        tracks: {number: track}, in the order in which they were made.
        resources_process: Number of the process that counters belong to; None without any.
        begin, end, track: Of all slices, in the order of `slices`; ns since the first arrival, and a track's number.
        num_items, num_items_total, num_spans, num_spans_total, num_flows, notes: See `TraceSummary`.
    """

    def __init__(self, run: Run, max_items: int | None = MAX_ITEMS) -> None:
        if max_items is not None and max_items < 1:
            raise ValueError(f"max_items is {max_items}; expected 1 or more, or None for all items")
        self.processes: dict[int, str] = {}
        self.tracks: dict[int, Track] = {}
        self.notes: list[str] = []
        self._run = run
        self._limited = max_items is not None
        self._numbers = itertools.count(1)
        self._made = _Slices()
        self._origin = run.info.started_monotonic_ns
        self._samples = _resources(run)
        self._rows, stretches = self._load(max_items)
        self._draw_services()
        self._draw_queues()
        self._draw_stretches(stretches)
        self._follow_items()
        self.resources_process = self._process("resources") if self._samples is not None else None
        self._sort()
        self._note_gaps()

    @property
    def num_spans(self) -> int:
        """Rows of the span table that are shown."""
        return len(self._rows.started)

    def new_number(self) -> int:
        """Return a number that no track and no process has."""
        return next(self._numbers)

    def slices(self) -> Iterator[Slice]:
        """Yield all slices in the order of their beginnings."""
        for first in range(0, len(self.begin), _CHUNK):
            yield from self._some_slices(slice(first, first + _CHUNK))

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the counters, in the order of time; none from before the first arrival."""
        if self._samples is None:
            return
        table = self._samples
        start = self._origin - self._run.info.clock_offsets_ns.get(self._run.info.host, 0)
        step = _thinning(table) if self._limited else {}
        seen: defaultdict[str, int] = defaultdict(int)
        for batch in table.to_batches(_CHUNK):
            columns = (batch.column(name).to_pylist() for name in ("time", "scope", "name", "value"))
            for time, scope, name, value in zip(*columns, strict=True):
                counter = f"{scope} {name}"
                seen[counter] += 1
                shown = seen[counter] % step.get(counter, 1) == 0
                if shown and value is not None and np.isfinite(value) and time >= start:
                    yield Sample(time - start, counter, float(value))

    # --- reading the span table

    def _load(self, max_items: int | None) -> tuple[_Columns, list[tuple[int, int]]]:
        table = self._run.spans()
        self.num_spans_total = len(table)
        host, hosts = _codes(table.column("host"))
        offsets = self._offsets(hosts)[host] if len(host) else np.zeros(0, np.int64)
        arrived = _integers(table.column("arrived")) + offsets
        if len(arrived):
            # Nothing begins before it arrives, unless a clock is wrong; viewers take no negative times even then.
            started = _integers(table.column("started")) + offsets
            self._origin = int(min(arrived.min(), started.min()))
        unit, parent = _units(table)
        root = _roots(unit, parent)[unit]
        rows, stretches = self._choose(root, arrived, max_items)
        if rows is not None:
            table = table.take(rows)
            host, offsets, unit, parent, root = (values[rows] for values in (host, offsets, unit, parent, root))
        stage, stages = _codes(table.column("stage"))
        order = self._stage_order(stages)
        worker, workers = _workers(table, host)
        columns = _Columns(
            table=table,
            **{name: _integers(table.column(name)) + offsets - self._origin for name in _TIMES},
            host=host,
            stage=np.argsort(order)[stage] if stages else stage,
            worker=worker,
            batch=_integers(table.column("batch_id").fill_null(-1)),
            unit=unit,
            parent=parent,
            root=root,
            attempt=_integers(table.column("attempt")),
            hosts=hosts,
            stages=[stages[index] for index in order],
            workers=workers,
        )
        backwards = int(np.count_nonzero(columns.ended < columns.started))
        if backwards:
            self.notes.append(
                f"{backwards:,} spans end before they begin (the clock is wrong); they are drawn as 1 ns long"
            )
        return columns, stretches

    def _offsets(self, hosts: list[str]) -> Ints:
        known = self._run.info.clock_offsets_ns
        unknown = [host for host in hosts if host not in known]
        if unknown:
            self.notes.append(
                f"run.json has no clock offset of {', '.join(unknown)}; times of different hosts may not fit together"
            )
        return np.array([known.get(host, 0) for host in hosts], np.int64)

    def _stage_order(self, stages: list[str]) -> list[int]:
        """Return indices of stages in the order an item meets them, as far as that is known."""
        declared = {stage.name: index for index, stage in enumerate(self._run.info.stages)}
        return sorted(range(len(stages)), key=lambda index: declared.get(stages[index], len(declared)))

    def _choose(self, root: Ints, arrived: Ints, limit: int | None) -> tuple[Ints | None, list[tuple[int, int]]]:
        """Return the rows to show (None for all) and the stretches of items, first and beyond the last, they are from."""
        by_arrival = np.argsort(arrived, kind="stable")
        roots, first = np.unique(root[by_arrival], return_index=True)
        roots = roots[np.argsort(first)]
        self.num_items_total = self.num_items = len(roots)
        if limit is None or len(roots) <= limit:
            return None, []
        self.num_items = limit
        stretches = _stretches(len(roots), limit)
        self.notes.append(
            f"{limit:,} of {len(roots):,} items are shown, in {len(stretches)} stretches of neighbours spread over the run; "
            "workers and queues look idle between them; ask for all items (max_items=None) to see everything"
        )
        shown = np.zeros(int(root.max()) + 1, bool)
        for begin, end in stretches:
            shown[roots[begin:end]] = True
        return np.flatnonzero(shown[root]), stretches

    # --- drawing

    def _process(self, name: str) -> int:
        number = self.new_number()
        self.processes[number] = name
        return number

    def _track(self, process: int, name: str, *, order: int = 0, is_queue: bool = False, lane: int = 0) -> int:
        number = self.new_number()
        self.tracks[number] = Track(number, process, name, order, is_queue, lane)
        return number

    def _draw_services(self) -> None:
        rows = self._rows
        self._members, starts = _batched(rows)
        self._bounds = np.append(starts, len(self._members))
        leader = self._members[starts]
        begin = rows.started[leader]
        end = np.maximum(rows.ended[leader], begin + 1)
        put = np.maximum.reduceat(rows.put[self._members], starts) if len(starts) else begin
        worker = rows.worker[leader]
        order = np.lexsort((end, begin, worker))
        lanes = _lanes(worker[order], begin[order], end[order])
        track = self._worker_tracks(worker[order], lanes)
        self._made.add(_SERVICE, begin[order], end[order], track, order)
        last, until = _blocked(worker[order], rows.dequeued[leader][order], begin[order], end[order], put[order])
        self._made.add(_BLOCKED, end[order][last], until, track[last], order[last])

    def _worker_tracks(self, worker: Ints, lanes: Ints) -> Ints:
        """Return the track of each worker's lane; makes processes and tracks in the order of the stages."""
        workers = self._rows.workers
        first_stage = np.full(len(workers), len(self._rows.stages), np.int64)
        np.minimum.at(first_stage, self._rows.worker, self._rows.stage)
        num_lanes = np.ones(len(workers), np.int64)
        np.maximum.at(num_lanes, worker, lanes + 1)
        ordered = sorted(range(len(workers)), key=lambda index: (first_stage[index], _natural(workers[index][2])))
        table = np.zeros((len(workers), int(num_lanes.max(initial=1))), np.int64)
        processes: dict[tuple[int, int], int] = {}
        for order, index in enumerate(ordered):
            host, process, thread = workers[index]
            if (host, process) not in processes:
                processes[host, process] = self._process(f"process {process} on {self._rows.hosts[host]}")
            for lane in range(num_lanes[index]):
                table[index, lane] = self._track(processes[host, process], thread, order=order, lane=lane)
        return np.asarray(table[worker, lanes], np.int64)

    def _draw_queues(self) -> None:
        rows = self._rows
        waited = np.flatnonzero(rows.dequeued - rows.arrived >= _SHORTEST_WAIT_NS)
        queue = rows.host[waited] * len(rows.stages) + rows.stage[waited]
        order = np.lexsort((rows.dequeued[waited], rows.arrived[waited], queue))
        waited, queue = waited[order], queue[order]
        lanes = _lanes(queue, rows.arrived[waited], rows.dequeued[waited])
        tracks: dict[tuple[int, int], int] = {}
        processes: dict[int, int] = {}
        for number, lane in np.unique(np.stack([queue, lanes], axis=1), axis=0).tolist():
            host, stage = divmod(number, len(rows.stages))
            if host not in processes:
                processes[host] = self._process(f"queues on {rows.hosts[host]}")
            name = f"{rows.stages[stage]} queue"
            tracks[number, lane] = self._track(processes[host], name, order=stage, is_queue=True, lane=lane)
        track = np.array([tracks[key] for key in zip(queue.tolist(), lanes.tolist(), strict=True)], np.int64)
        self._made.add(_WAIT, rows.arrived[waited], rows.dequeued[waited], track, waited)

    def _draw_stretches(self, stretches: list[tuple[int, int]]) -> None:
        """Show which items a trace that leaves some out is about, and when."""
        self._stretches = stretches
        if not stretches:
            return
        rows = self._rows
        _, root = np.unique(rows.root, return_inverse=True)
        first = np.full(int(root.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, root, rows.arrived)
        last = np.zeros(len(first), np.int64)
        np.maximum.at(last, root, rows.put)
        by_arrival = np.argsort(first, kind="stable")
        bounds = np.cumsum([0, *(end - begin for begin, end in stretches)])
        begins = np.array([first[by_arrival[at]] for at in bounds[:-1]], np.int64)
        ends = np.array([last[by_arrival[i:j]].max() for i, j in itertools.pairwise(bounds)], np.int64)
        ends[:-1] = np.minimum(ends[:-1], begins[1:])  # those of two stretches may have been at work at once
        ends = np.maximum(ends, begins + 1)
        track = self._track(self._process("items shown"), "stretches")
        keep = np.append(begins[1:] > begins[:-1], True)
        numbers = np.arange(len(stretches))
        self._made.add(_SHOWN, begins[keep], ends[keep], np.full(int(keep.sum()), track), numbers[keep])

    def _follow_items(self) -> None:
        """Find the way of each item: which arrow passes each row, and how."""
        rows = self._rows
        _, chain = np.unique(rows.unit * (rows.attempt.max(initial=0) + 1) + rows.attempt, return_inverse=True)
        order = np.lexsort((rows.ended, rows.started, chain))
        # Two passages that begin in the same nanosecond have no order in time that an arrow could show.
        order = order[_changes(chain[order], rows.started[order])]
        begins = np.flatnonzero(_changes(chain[order]))
        ends = np.append(begins, len(order))[1:]
        self._phase = np.zeros(len(chain), np.int8)
        self._phase[order] = 2
        self._phase[order[begins]] = 1
        self._phase[order[ends - 1]] = 3
        self._phase[order[begins[ends - begins == 1]]] = 0
        self._chain = chain
        self._visitors: defaultdict[int, list[Flow]] = defaultdict(list)
        self._join_children(order, begins, ends)
        self.num_flows = int(np.count_nonzero(self._phase == 1))
        self.num_flows += sum(flow.phase == "s" for flows in self._visitors.values() for flow in flows)

    def _join_children(self, order: Ints, begins: Ints, ends: Ints) -> None:
        """Let the arrow of each child start in the slice that cut it from its parent, and end in the one that joins."""
        rows = self._rows
        first_rows = order[begins]
        children = np.flatnonzero(rows.parent[first_rows] >= 0)
        if not len(children):
            return
        heads = zip(rows.unit[first_rows].tolist(), rows.attempt[first_rows].tolist(), strict=True)
        chains = {key: index for index, key in enumerate(heads)}
        for child in children.tolist():
            first, last = int(order[begins[child]]), int(order[ends[child] - 1])
            parent = chains.get((int(rows.parent[first]), int(rows.attempt[first])))
            if parent is None or parent == child:
                continue
            way = order[begins[parent] : ends[parent]]
            before = way[(rows.ended[way] <= rows.started[first]) & (rows.started[way] < rows.started[first])]
            after = way[(rows.started[way] >= rows.ended[last]) & (rows.started[way] > rows.started[last])]
            self._extend(child_rows=(first, last), before=before[-1:], after=after[:1])

    def _extend(self, child_rows: tuple[int, int], before: Ints, after: Ints) -> None:
        first, last = child_rows
        number = int(self._chain[first]) + 1
        if not len(before) and not len(after):
            return
        alone = first == last
        if len(before):
            self._visitors[int(before[0])].append(Flow(number, "s"))
        if len(after):
            self._visitors[int(after[0])].append(Flow(number, "f"))
        if alone:
            self._phase[first] = {(True, True): 2, (True, False): 3, (False, True): 1}[len(before) > 0, len(after) > 0]
        else:
            self._phase[first] = 2 if len(before) else 1
            self._phase[last] = 2 if len(after) else 3

    def _sort(self) -> None:
        made = self._made
        begin, end, track, kind, reference = (
            np.concatenate(arrays) for arrays in (made.begin, made.end, made.track, made.kind, made.reference)
        )
        order = np.lexsort((kind, end, begin))
        self.begin, self.end, self.track = begin[order], end[order], track[order]
        self._kind, self._reference = kind[order], reference[order]
        del self._made

    def _note_gaps(self) -> None:
        if self.num_spans and self._rows.table.column("cpu").null_count == self.num_spans:
            self.notes.append("CPU time and run delay were not measured: the run was not profiled")
        if self._samples is None:
            self.notes.append("resources were not measured: the run folder has no resources.parquet")
        self.notes += self._run.problems

    # --- slices as objects

    def _some_slices(self, part: slice) -> Iterator[Slice]:
        kinds, references = self._kind[part], self._reference[part]
        is_group = kinds <= _BLOCKED
        row = np.zeros(len(kinds), np.int64)
        row[is_group] = self._members[self._bounds[references[is_group]]]
        row[kinds == _WAIT] = references[kinds == _WAIT]
        values = _RowValues(self._rows, row) if self.num_spans else None
        members = self._member_items(references[kinds == _SERVICE])
        columns = (kinds, references, self.begin[part], self.end[part], self.track[part])
        for index, (kind, reference, begin, end, track) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            if kind == _SHOWN or values is None:
                first, beyond = self._stretches[reference]
                name = f"items {first + 1:,} to {beyond:,} of {self.num_items_total:,}"
                yield Slice(begin, end, track, name, "shown", {}, ())
            elif kind == _SERVICE:
                name, category, arguments = values.service(index, next(members))
                yield Slice(begin, end, track, name, category, arguments, self._flows(reference))
            elif kind == _BLOCKED:
                yield Slice(begin, end, track, "blocked", "blocked", values.blocked(index), ())
            else:
                yield Slice(begin, end, track, values.queue(index), "queue", values.waiting(index), ())

    def _member_items(self, groups: Ints) -> Iterator[list[str]]:
        """Yield the ids of each service slice's items."""
        begins, ends = self._bounds[groups], self._bounds[groups + 1]
        rows = np.concatenate([self._members[b:e] for b, e in zip(begins, ends, strict=True)] or [self._members[:0]])
        ids = self._rows.table.column("unit_id").take(rows).to_pylist()
        at = 0
        for size in (ends - begins).tolist():
            yield ids[at : at + size]
            at += size

    def _flows(self, group: int) -> list[Flow]:
        flows = []
        for row in self._members[self._bounds[group] : self._bounds[group + 1]].tolist():
            phase = self._phase[row]
            if phase:
                flows.append(Flow(int(self._chain[row]) + 1, " stf"[phase]))
            flows += self._visitors.get(row, ())
        return flows


#: Columns that are shown as they are, where there is something in them.
_SHOWN_COLUMNS = ("batch_id", "batch_size", "release_reason", "bytes_in", "bytes_out", "shape_key", "queue_depth")
_TIMES = ("arrived", "dequeued", "started", "ended", "put")


class _RowValues:
    """Some rows as Python values, and what is told of them."""

    def __init__(self, rows: _Columns, chosen: Ints) -> None:
        names = ("unit_id", "parent_id", "stage", "attempt", "outcome", "cpu", "run_delay", "weight", *_SHOWN_COLUMNS)
        table = rows.table.select(names).take(chosen)
        self._values = {name: _values(table.column(name)) for name in names}
        for name in _TIMES:
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


def write_chrome_trace(run: Run, path: str | Path, *, max_items: int | None = MAX_ITEMS) -> TraceSummary:
    """Write a run's timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

    Times in the file are microseconds since the first arrival. An existing file is replaced, once the new one is complete.

    Args:
        run: What to draw.
        path: File to write; compressed when its name ends in `.gz`.
        max_items: Jobs to show, in stretches of neighbours spread over the run; None for all.

    Raises:
        RunFolderError: If the file cannot be written.
        ValueError: If max_items is below 1.
    """
    timeline = Timeline(run, max_items)
    num_samples = 0
    with trace_file(Path(path)) as file:
        file.write(b'{"displayTimeUnit":"ms","otherData":' + msgspec.json.encode(about(run, timeline)))
        file.write(b',"traceEvents":[\n' + _joined(_naming_events(timeline)))
        for chunk in chunks(timeline.slices()):
            file.write(b",\n" + _joined([event for one in chunk for event in _slice_events(timeline, one)]))
        for samples in chunks(timeline.samples()):
            num_samples += len(samples)
            file.write(b",\n" + _joined([_sample_event(timeline, sample) for sample in samples]))
        file.write(b"\n]}\n")
    return summary(Path(path), timeline, num_samples)


def _joined(events: list[dict[str, Any]]) -> bytes:
    """Return events as JSON, one a line, with commas between."""
    return msgspec.json.Encoder().encode_lines(events).rstrip(b"\n").replace(b"\n", b",\n")  # JSON escapes inner ones


def _naming_events(timeline: Timeline) -> list[dict[str, Any]]:
    """Return what gives processes and threads their names and order."""
    events = []
    for order, (number, name) in enumerate(timeline.processes.items()):
        events += _meta(number, 0, "process", name, order)
    for track in timeline.tracks.values():
        if not track.is_queue:  # the waits there are asynchronous events, which bring their names
            name = track.name if not track.lane else f"{track.name} ({track.lane + 1})"
            events += _meta(track.process, track.number, "thread", name, track.order)
    return events


def _meta(process: int, thread: int, what: str, name: str, order: int) -> list[dict[str, Any]]:
    ids = {"ph": "M", "pid": process, "tid": thread}
    return [
        {"name": f"{what}_name", **ids, "args": {"name": name}},
        {"name": f"{what}_sort_index", **ids, "args": {"sort_index": order}},
    ]


#: Colours of the older viewer; Perfetto colours by name, and the names of such slices differ too.
_COLOURS = {"service,failed": "terrible", "service,rejected": "bad", "blocked": "grey"}


def _slice_events(timeline: Timeline, one: Slice) -> Iterator[dict[str, Any]]:
    track = timeline.tracks[one.track]
    common = {"name": one.name, "cat": one.category, "pid": track.process}
    if track.is_queue:
        # One id for each lane: waits of one lane do not overlap, and viewers put each id into a row of its own.
        common["id"] = hex(track.number)
        common["tid"] = 0
        yield {"ph": "b", "ts": one.begin / 1e3, **common, "args": one.arguments}
        yield {"ph": "e", "ts": one.end / 1e3, **common}
        return
    common["tid"] = track.number
    event = {"ph": "X", "ts": one.begin / 1e3, "dur": (one.end - one.begin) / 1e3, **common, "args": one.arguments}
    if one.category in _COLOURS:
        event["cname"] = _COLOURS[one.category]
    yield event
    for flow in one.flows:
        arrow = {"ph": flow.phase, "ts": one.begin / 1e3, "id": flow.number, "name": "item", "cat": "item"}
        if flow.phase == "f":
            arrow["bp"] = "e"  # into the slice around it, not into the next one
        yield {**arrow, "pid": track.process, "tid": track.number}


def _sample_event(timeline: Timeline, sample: Sample) -> dict[str, Any]:
    ids = {"pid": timeline.resources_process, "tid": 0}
    return {"ph": "C", "ts": sample.at / 1e3, "name": sample.counter, **ids, "args": {"value": sample.value}}


# --- shared by the formats


@contextlib.contextmanager
def trace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name when it is complete; compressed when that ends in `.gz`.

    Raises:
        RunFolderError: If it cannot be written; what had the name before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if path.suffix == ".gz":
                # Level 1 takes a third of the time of 6, and the file is a fifth larger. No time in it: same run, same file.
                with gzip.GzipFile("", "wb", 1, file, mtime=0) as compressed:
                    yield compressed  # type: ignore[misc]
            else:
                yield file
        temporary.replace(path)
    except OSError as error:
        raise RunFolderError(
            f"trace {path} cannot be written: {error.strerror or error}; choose another name or free space on the disk"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def about(run: Run, timeline: Timeline) -> dict[str, Any]:
    """Return what a trace says of itself."""
    info = run.info
    return {
        "run": run.path.name,
        "pipeline": info.pipeline,
        "headrace_version": info.headrace_version,
        "status": info.status,
        "plan_ids": list(info.plans),
        "started_unix_seconds": info.started_unix_seconds,
        "items_shown": timeline.num_items,
        "items": timeline.num_items_total,
        "notes": timeline.notes,
    }


def summary(path: Path, timeline: Timeline, num_samples: int) -> TraceSummary:
    """Return what a finished trace file holds."""
    return TraceSummary(
        path,
        timeline.num_items,
        timeline.num_items_total,
        timeline.num_spans,
        timeline.num_spans_total,
        len(timeline.begin),
        timeline.num_flows,
        num_samples,
        path.stat().st_size,
        tuple(timeline.notes),
    )


def chunks(values: Iterator[_Value]) -> Iterator[list[_Value]]:
    """Yield values in lists that are small enough to be held."""
    while chunk := list(itertools.islice(values, _CHUNK)):
        yield chunk


# --- arrays


def _integers(column: Any) -> Ints:
    return np.asarray(column.to_numpy(), np.int64)


def _values(column: Any) -> list[Any]:
    """Return a column as a list; a tenth of the time of `to_pylist` where there are no gaps or few different texts."""
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_dictionary(column.type):
        codes, texts = _codes(column)
        texts.append(None)  # at -1
        return [texts[code] for code in codes.tolist()]
    if pa.types.is_integer(column.type) and not column.null_count:
        return list(column.to_numpy().tolist())
    return list(column.to_pylist())


def _codes(column: Any) -> tuple[Ints, list[Any]]:
    """Return a text column as indices and what they stand for; null is -1."""
    array = pc.dictionary_encode(column).combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) and array.num_chunks else array
    if isinstance(array, pa.ChunkedArray):
        return np.zeros(0, np.int64), []
    return _integers(array.indices.fill_null(-1)), array.dictionary.to_pylist()


def _units(table: Any) -> tuple[Ints, Ints]:
    """Return each row's item and its parent as indices of one list; -1 for no parent, or one without a row."""
    unit, units = _codes(table.column("unit_id"))
    parent, parents = _codes(table.column("parent_id"))
    index = {name: number for number, name in enumerate(units)} if parents else {}
    # One more at the end, for -1.
    known = np.array([*(index.get(name, -1) for name in parents), -1], np.int64)
    return unit, known[parent]


def _roots(unit: Ints, parent: Ints) -> Ints:
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


def _workers(table: Any, host: Ints) -> tuple[Ints, list[tuple[int, int, str]]]:
    """Return each row's worker as an index of (host, process id, thread)."""
    thread, threads = _codes(table.column("thread"))
    keys = np.stack([host, _integers(table.column("process")), thread], axis=1)
    found, worker = np.unique(keys, axis=0, return_inverse=True)
    return worker.reshape(-1), [(host, process, threads[thread]) for host, process, thread in found.tolist()]


def _changes(*columns: Ints) -> npt.NDArray[np.bool_]:
    """Return where a row differs from the one before in any column; the first always does."""
    changed = np.ones(len(columns[0]), bool)
    changed[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return changed


def _batched(rows: _Columns) -> tuple[Ints, Ints]:
    """Return the rows in an order in which those of one batch are neighbours, and where each service begins in it."""
    keys = (rows.ended, rows.started, rows.batch, rows.stage, rows.worker)
    order = np.lexsort(keys)
    first = _changes(*(key[order] for key in keys)) | (rows.batch[order] < 0)
    return order, np.flatnonzero(first)


def _lanes(key: Ints, begin: Ints, end: Ints) -> Ints:
    """Return for each interval the lowest lane of its key that is free; intervals are sorted by key and begin."""
    lanes = np.zeros(len(key), np.int64)
    same = key[1:] == key[:-1]
    crowded = np.unique(key[1:][same & (begin[1:] < end[:-1])])
    for number in crowded.tolist():
        first, last = np.searchsorted(key, [number, number + 1])
        lanes[first:last] = _greedy_lanes(begin[first:last].tolist(), end[first:last].tolist())
    return lanes


def _greedy_lanes(begins: list[int], ends: list[int]) -> list[int]:
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    lanes = []
    for begin, end in zip(begins, ends, strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes


def _blocked(worker: Ints, dequeued: Ints, begin: Ints, end: Ints, put: Ints) -> tuple[Ints, Ints]:
    """Return after which services a worker waited for room in the next queue, and until when.

    A worker hands on what it took together at once, after the last of them; and where results are handed on beside it (a
    device), it is blocked no longer than until it begins again. Services are sorted by worker and begin.
    """
    if not len(worker):
        return worker, worker
    last_of_worker = np.append(worker[1:] != worker[:-1], True)
    # The next one was taken after this one had ended, so all that was taken with this one had been handed on.
    hands_on = last_of_worker | np.append(dequeued[1:] > end[:-1], True)
    last = np.flatnonzero(hands_on)
    until = np.maximum.reduceat(put, np.append(0, last[:-1] + 1))
    next_begin = np.append(np.where(last_of_worker[:-1], np.iinfo(np.int64).max, begin[1:]), np.iinfo(np.int64).max)
    until = np.minimum(until, next_begin[last])
    long = until - end[last] >= _SHORTEST_WAIT_NS
    return last[long], until[long]


def _stretches(num_items: int, limit: int) -> list[tuple[int, int]]:
    """Return `limit` of so many items as stretches (first, beyond the last) spread evenly from the first to the last item."""
    count = max(1, min(_MAX_STRETCHES, limit // _MIN_STRETCH_ITEMS))
    sizes = [limit // count + (index < limit % count) for index in range(count)]
    gap = (num_items - limit) / max(1, count - 1)
    begins = [sum(sizes[:index]) + int(gap * index) for index in range(count)]
    return [(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts decode-2 before decode-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _resources(run: Run) -> Any | None:
    """Return the table of resources in the order of time; None if there is none."""
    table = run.resources()
    return table.sort_by("time") if len(table) else None


def _thinning(table: Any) -> dict[str, int]:
    """Return {counter: one value in so many is shown}."""
    counts = table.group_by(["scope", "name"]).aggregate([([], "count_all")]).to_pylist()
    return {f"{row['scope']} {row['name']}": -(-row["count_all"] // _MAX_SAMPLES) for row in counts}
