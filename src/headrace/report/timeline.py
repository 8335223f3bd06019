"""Timelines of a run: who did what and when, as a trace that ui.perfetto.dev and chrome://tracing open.

How this works: `Timeline` turns the span table into slices that do not depend on a file format; `chrome_trace` and
`perfetto_trace` give them theirs. A worker is a track. What it served is a slice, a batch one slice with
all its items; what it then waited for room in the next queue is a slice of its own. Waiting in a queue is drawn on tracks of
the queue, as many as items waited at once. Slices of one track never overlap: where damaged times would make them, the
worker gets a second track. An arrow follows each item through its slices, from a parent through its children to the join.

All bookkeeping is done in NumPy, with some 100 bytes a span; slices become Python objects a few thousand at a time, so that a
run of millions of spans is streamed.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.report.timeline_rows import (
    TIMES,
    Columns,
    Ints,
    RowValues,
    codes,
    find_roots,
    find_units,
    find_workers,
    integers,
)
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
CHUNK = 4096

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
        num_items, num_items_total, num_spans, num_spans_total, num_flows, notes: See `trace_file.TraceSummary`.
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
        for first in range(0, len(self.begin), CHUNK):
            yield from self._some_slices(slice(first, first + CHUNK))

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the counters, in the order of time; none from before the first arrival."""
        if self._samples is None:
            return
        table = self._samples
        start = self._origin - self._run.info.clock_offsets_ns.get(self._run.info.host, 0)
        step = _read_thinning(table) if self._limited else {}
        seen: defaultdict[str, int] = defaultdict(int)
        for batch in table.to_batches(CHUNK):
            columns = (batch.column(name).to_pylist() for name in ("time", "scope", "name", "value"))
            for time, scope, name, value in zip(*columns, strict=True):
                counter = f"{scope} {name}"
                seen[counter] += 1
                shown = seen[counter] % step.get(counter, 1) == 0
                if shown and value is not None and np.isfinite(value) and time >= start:
                    yield Sample(time - start, counter, float(value))

    # --- reading the span table

    def _load(self, max_items: int | None) -> tuple[Columns, list[tuple[int, int]]]:
        table = self._run.spans()
        self.num_spans_total = len(table)
        host, hosts = codes(table.column("host"))
        offsets = self._offsets(hosts)[host] if len(host) else np.zeros(0, np.int64)
        arrived = integers(table.column("arrived")) + offsets
        if len(arrived):
            # Nothing begins before it arrives, unless a clock is wrong; viewers take no negative times even then.
            started = integers(table.column("started")) + offsets
            self._origin = int(min(arrived.min(), started.min()))
        unit, parent = find_units(table)
        root = find_roots(unit, parent)[unit]
        rows, stretches = self._choose(root, arrived, max_items)
        if rows is not None:
            table = table.take(rows)
            host, offsets, unit, parent, root = (values[rows] for values in (host, offsets, unit, parent, root))
        stage, stages = codes(table.column("stage"))
        order = self._stage_order(stages)
        worker, workers = find_workers(table, host)
        columns = Columns(
            table=table,
            **{name: integers(table.column(name)) + offsets - self._origin for name in TIMES},
            host=host,
            stage=np.argsort(order)[stage] if stages else stage,
            worker=worker,
            batch=integers(table.column("batch_id").fill_null(-1)),
            unit=unit,
            parent=parent,
            root=root,
            attempt=integers(table.column("attempt")),
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
        self._members, starts = _sort_by_batch(rows)
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
        last, until = _find_blocked(worker[order], rows.dequeued[leader][order], begin[order], end[order], put[order])
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
        values = RowValues(self._rows, row) if self.num_spans else None
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


# --- intervals


def _changes(*columns: Ints) -> npt.NDArray[np.bool_]:
    """Return where a row differs from the one before in any column; the first always does."""
    changed = np.ones(len(columns[0]), bool)
    changed[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return changed


def _sort_by_batch(rows: Columns) -> tuple[Ints, Ints]:
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


def _find_blocked(worker: Ints, dequeued: Ints, begin: Ints, end: Ints, put: Ints) -> tuple[Ints, Ints]:
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


def _read_thinning(table: Any) -> dict[str, int]:
    """Return {counter: one value in so many is shown}."""
    counts = table.group_by(["scope", "name"]).aggregate([([], "count_all")]).to_pylist()
    return {f"{row['scope']} {row['name']}": -(-row["count_all"] // _MAX_SAMPLES) for row in counts}
