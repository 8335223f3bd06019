"""Cuts the training thread's time in a trace into steps and phases, as `train.recorder` does while a program runs.

How this works: steps are what `prof.step()` marked; where nobody called it, they begin with the first request to the loader
after an update, or end with the update. What says where the thread was (`enumerate(DataLoader)#...__next__`, modules,
`autograd::engine::evaluate_function`, `Optimizer.step#...`) becomes intervals; what lies between these has the name of its
place: after the forward pass it is `loss`, after the backward pass `before_update`. So phases have no gap and add up to the
step.

Autograd evaluates in a thread of its own where there is a GPU, and the training thread waits: its functions count from the
first to the last, unless the training thread did something of its own in between. Without modules in the trace, the forward
pass begins with the first operator that moves no data, and the loss is part of it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from headrace.runs.training_phases import Kind, Phase, Stretch
from headrace.train.trace.columns import Array, Columns, Sort, step_number
from headrace.train.trace.intervals import NONE, Intervals, join, subtract, union

_LOADER = r"enumerate\(DataLoader\)#"
_OPTIMIZER = r"Optimizer\.step#"
_AUTOGRAD = r"autograd::engine::evaluate_function"
_MODULE = r"nn\.Module: (?!.*Loss_\d+$)"
_MODEL = r"DistributedDataParallel\.forward|FullyShardedDataParallel\.forward|Torch-Compiled Region|## forward ##$"
_BACKWARD_CALL = r"torch/autograd/__init__\.py\(\d+\): backward$"
#: What other ranks wait for, in threads of the process group, and what the training thread does when it has come.
_HOST_EXCHANGE = r"(gloo|mpi|ucc):"
_EXCHANGE_TAIL = r"torch\.distributed\.ddp\.reducer::copy_bucket_to_grad"
_IN_TAIL = r"aten::(as_strided|copy_|view|div_)$"
_SAVE = r"torch/serialization\.py\(\d+\): save$"
#: Operators before the first that computes.
_PREPARING = (
    r"aten::(to|_to_copy|copy_|pin_memory|_pin_memory|is_pinned|empty\w*|zero_|detach\w*|contiguous|clone|item|"
    r"_local_scalar_dense|record_stream)$|detach|Optimizer\.zero_grad#|cuda\w+|hip\w+|enumerate\(|ProfilerStep#|## zero_grad"
)
#: What lies behind an interval of a phase; not named here: what was before it.
_BEHIND = {
    Phase.WAIT: Phase.PREPARE,
    Phase.FORWARD: Phase.LOSS,
    Phase.BACKWARD: Phase.BEFORE_UPDATE,
    Phase.OPTIMIZER: Phase.AFTER,
}


class CannotCut(Exception):
    """A trace has no steps, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStretch:
    """One stretch of the training thread's time."""

    stretch: Stretch
    number: int
    kind: Kind
    marks: tuple[tuple[Phase, int, int], ...]
    """(phase, micro-batch, when it began in ns); the last one is where the stretch ends."""

    @property
    def start(self) -> int:
        """When it began, ns."""
        return self.marks[0][2]

    @property
    def end(self) -> int:
        """When it ended, ns."""
        return self.marks[-1][2]


@dataclass(frozen=True, slots=True)
class Cut:
    """A trace's training thread."""

    stretches: list[CutStretch]
    process: str
    """As the trace names it."""
    thread: int
    """Position in `Columns.threads`."""
    has_workers: bool | None
    """Whether the loader had worker processes; None: no loader was seen."""
    optimizers: tuple[str, ...]
    not_measured: dict[str, str] = field(default_factory=dict)

    @property
    def steps(self) -> list[CutStretch]:
        """The stretches that are steps."""
        return [one for one in self.stretches if one.stretch is Stretch.STEP]


def cut_trace(columns: Columns) -> Cut:
    """Return the steps of a trace and their phases.

    Raises:
        CannotCut: If there is nothing that steps could be made of.
    """
    return _Cutter(columns).cut()


class _Cutter:
    """Works out one trace."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._not_measured: dict[str, str] = {}
        self._thread = self._find_thread()
        self._is_mine = columns.thread == self._thread
        self._process = columns.threads[self._thread][0]

    def cut(self) -> Cut:
        """Return the trace's steps."""
        columns = self._columns
        requests, updates = self._mine(_LOADER), self._mine(_OPTIMIZER)
        labelled = self._label(requests, updates)
        bounds = self._find_steps(requests, updates)
        stretches = _Phases(labelled).cut(bounds)
        names = {columns.names[code] for code in np.unique(columns.name[requests])}
        return Cut(
            stretches=stretches,
            process=self._process,
            thread=self._thread,
            has_workers=any("MultiProcessing" in name for name in names) if names else None,
            optimizers=self._optimizers(updates),
            not_measured=self._not_measured,
        )

    def _find_thread(self) -> int:
        """Return the thread that trains: of the steps, else of the updates, the loader, or most operators."""
        columns = self._columns
        for pattern in (r"ProfilerStep#\d", _OPTIMIZER, _LOADER):
            found = columns.where(Sort.ANNOTATION, pattern)
            if not len(found):
                found = columns.where(Sort.OPERATOR, pattern)
            if len(found):
                return int(np.bincount(columns.thread[found]).argmax())
        operators = np.flatnonzero(columns.sort == Sort.OPERATOR)
        if not len(operators):
            raise CannotCut("it has no operators, so nothing of a training on the host")
        seconds = columns.end[operators] - columns.start[operators]
        return int(np.bincount(columns.thread[operators], seconds.astype(float)).argmax())

    def _mine(self, pattern: str) -> Array:
        """Return the positions of annotations and operators of the training thread that begin so."""
        columns, named = self._columns, self._columns.named(pattern)
        is_host = (columns.sort == Sort.ANNOTATION) | (columns.sort == Sort.OPERATOR)
        return np.flatnonzero(self._is_mine & is_host & named[columns.name])

    def _cover(self, found: Array) -> Intervals:
        return union(self._columns.start[found], self._columns.end[found])

    def _optimizers(self, updates: Array) -> tuple[str, ...]:
        names = [self._columns.names[code] for code in np.unique(self._columns.name[updates])]
        return tuple(name.removeprefix("Optimizer.step#").removesuffix(".step")[:60] for name in names[:20])

    # Where the training thread was.

    def _label(self, requests: Array, updates: Array) -> list[tuple[int, int, Phase]]:
        """Return (start, end, phase) of what says where the thread was, in order; the innermost counts."""
        columns = self._columns
        python = self._is_mine & (columns.sort == Sort.PYTHON)
        named = {pattern: python & columns.named(pattern)[columns.name] for pattern in (_MODULE, _BACKWARD_CALL, _SAVE)}
        modules = np.flatnonzero(named[_MODULE])
        backward = self._backward()
        covers = [
            (Phase.WAIT, self._cover(requests)),
            (Phase.CHECKPOINT, self._cover(np.flatnonzero(named[_SAVE]))),
            (Phase.EXCHANGE, self._exchange(backward)),
            (Phase.BACKWARD, join(backward, self._cover(np.flatnonzero(named[_BACKWARD_CALL])))),
            (Phase.FORWARD, join(self._cover(modules), self._cover(self._mine(_MODEL)))),
            (Phase.OPTIMIZER, self._cover(updates)),
        ]
        taken, labelled = NONE, []
        for phase, cover in covers:
            left = subtract(cover, taken)
            labelled += [(start, end, phase) for start, end in zip(left.start.tolist(), left.end.tolist(), strict=True)]
            taken = join(taken, cover)
        if not len(covers[4][1].start):
            labelled += self._guess_forward(taken, backward)
        return sorted(labelled)

    def _backward(self) -> Intervals:
        """Return from where to where autograd evaluated: one interval for each call of `backward`."""
        columns = self._columns
        is_autograd = columns.named(_AUTOGRAD)[columns.name] & (columns.sort == Sort.OPERATOR)
        is_here = np.array([process == self._process for process, _ in columns.threads], bool)[columns.thread]
        found = np.flatnonzero(is_autograd & is_here)
        if not len(found):
            return NONE
        start, reach = columns.start[found], np.maximum.accumulate(columns.end[found])
        host = (columns.sort == Sort.ANNOTATION) | (columns.sort == Sort.OPERATOR)
        other = columns.start[self._is_mine & host & ~is_autograd]
        is_new = np.searchsorted(other, reach[:-1], "left") != np.searchsorted(other, start[1:], "left")
        begins = np.append(0, np.flatnonzero(is_new & (start[1:] > reach[:-1])) + 1)
        return union(start[begins], reach[np.append(begins[1:] - 1, len(found) - 1)])

    def _exchange(self, backward: Intervals) -> Intervals:
        """Return what is left of exchanges on the host when the gradients of this process are there, for each backward pass.

        Never empty where there was an exchange: ranks are compared by when theirs begins.
        """
        if not len(backward.start):
            return NONE
        columns = self._columns
        host = (columns.sort == Sort.ANNOTATION) | (columns.sort == Sort.OPERATOR)
        tail = self._is_mine & host & columns.named(_EXCHANGE_TAIL)[columns.name]
        until, resumed = self._next_own(backward, _IN_TAIL, tail), self._next_own(backward, r"(?!)")
        ends = np.zeros(len(backward.start), np.int64)
        exchanged = self._reach(
            ends, backward, resumed, np.flatnonzero(host & columns.named(_HOST_EXCHANGE)[columns.name])
        )
        self._reach(ends, backward, until, np.flatnonzero(tail))
        return union(backward.end[exchanged], np.maximum(ends[exchanged], backward.end[exchanged] + 1))

    def _next_own(self, backward: Intervals, but_for: str, tail: Array | None = None) -> Array:
        """Return when the training thread did something again behind each backward pass, but for what belongs to that."""
        columns = self._columns
        host = self._is_mine & ((columns.sort == Sort.ANNOTATION) | (columns.sort == Sort.OPERATOR))
        if tail is not None:
            host &= ~tail
        is_other = ~columns.named(rf"{_AUTOGRAD}|{but_for}")[columns.name]
        other = np.append(columns.start[host & is_other], np.iinfo(np.int64).max)
        return np.asarray(other[np.searchsorted(other, backward.end, "left")])

    def _reach(self, ends: Array, backward: Intervals, until: Array, found: Array) -> Array:
        """Let backward passes end with events that began in them or right behind; return the positions of those passes."""
        start = self._columns.start[found]
        at = np.searchsorted(backward.start, start, "right") - 1
        kept = (at >= 0) & (start < until[np.maximum(at, 0)])
        # Kineto may end an exchange long after the training thread went on.
        np.maximum.at(ends, at[kept], np.minimum(self._columns.end[found[kept]], until[at[kept]]))
        return np.unique(at[kept])

    def _guess_forward(self, taken: Intervals, backward: Intervals) -> list[tuple[int, int, Phase]]:
        """Return forward passes where no module says: from the first operator that computes to the backward pass.

        Without a backward pass behind it, to the last operator before the next thing that is known.
        """
        columns = self._columns
        host = self._is_mine & (columns.sort == Sort.OPERATOR) & ~columns.named(_PREPARING)[columns.name]
        computing = np.flatnonzero(host & ~columns.named(_AUTOGRAD)[columns.name])
        start, end = columns.start[computing], columns.end[computing]
        edges = self._step_edges()
        is_free = _is_outside(start, taken)
        start, end = start[is_free], end[is_free]
        found = []
        # Those between one known interval and the next, and in one step, are of one forward pass.
        group = np.searchsorted(taken.start, start, "right") * (len(edges) + 1) + np.searchsorted(edges, start, "right")
        for members in np.split(np.arange(len(start)), np.flatnonzero(np.diff(group)) + 1):
            if len(members):
                begin, ended = int(start[members[0]]), int(end[members].max())
                behind = np.searchsorted(taken.start, begin)
                next_start = int(taken.start[behind]) if behind < len(taken.start) else ended
                before = taken.end[behind - 1] if behind else 0
                if next_start in backward.start:
                    found.append((begin, next_start, Phase.FORWARD))
                elif not len(backward.start) or (before not in backward.end and len(members) > 1):
                    found.append((begin, min(ended, next_start), Phase.FORWARD))
        self._not_measured["loss"] = (
            "the trace has no modules (with_stack=True records them): the forward pass is from the first operator that "
            "computes to the backward pass, and the loss is part of it"
        )
        return found

    # Where steps begin and end.

    def _step_edges(self) -> Array:
        columns = self._columns
        found = np.flatnonzero(
            self._is_mine & (columns.sort == Sort.ANNOTATION) & columns.named(r"ProfilerStep#\d")[columns.name]
        )
        return columns.start[found]

    def _find_steps(self, requests: Array, updates: Array) -> list[tuple[int, int, int, Kind]]:
        """Return (number, start, end, kind) of each step, in order."""
        marked = self._marked()
        if marked:
            return _join_microbatches(marked, self._columns.start[updates], self._backward().start)
        columns = self._columns
        begins, ends = columns.start[requests], np.sort(self._last_updates(updates))
        if len(requests) and len(updates):
            first = begins[np.unique(np.minimum(np.searchsorted(begins, np.append(0, ends)), len(begins) - 1))]
            how = "the first request to the loader after an update"
        elif len(requests):
            first, how = begins, "each request to the loader"
        elif len(updates):
            first, how = ends, "the end of each update"
        else:
            raise CannotCut(
                "neither prof.step(), a DataLoader nor an optimizer left anything in it on the training thread"
            )
        self._not_measured["steps as prof.step() marks them"] = f"nobody called it; {how} begins a step"
        last = int(columns.end[self._is_mine].max())
        known, edges = set(first.tolist()), np.unique(np.append(first, last)).tolist()
        return [
            (number, start, end, Kind.UNEVEN if end not in known else Kind.PLAIN)
            for number, (start, end) in enumerate(itertools.pairwise(edges))
        ]

    def _marked(self) -> list[tuple[int, int, int, Kind]]:
        columns = self._columns
        found = np.flatnonzero(
            self._is_mine & (columns.sort == Sort.ANNOTATION) & columns.named(r"ProfilerStep#\d")[columns.name]
        )
        marked: dict[int, tuple[int, int, int, Kind]] = {}
        reach = 0
        for at in found.tolist():
            number = step_number(columns.names[columns.name[at]])
            start, end = max(int(columns.start[at]), reach), int(columns.end[at])
            if number is not None and end > start and number not in marked:
                marked[number] = (number, start, end, Kind.PLAIN)
                reach = end
        return list(marked.values())

    def _last_updates(self, updates: Array) -> Array:
        """Return the ends of updates of the optimizer that comes last in a step: a GAN has two."""
        columns = self._columns
        if not len(updates):
            return np.zeros(0, np.int64)
        last = columns.name[updates[-1]]
        return np.asarray(columns.end[updates[columns.name[updates] == last]])


def _is_outside(times: Array, covered: Intervals) -> Array:
    """Return which of the times lie in none of the intervals: bool."""
    if not len(covered.start):
        return np.ones(len(times), bool)
    at = np.maximum(np.searchsorted(covered.start, times, "right") - 1, 0)
    return np.asarray((times < covered.start[at]) | (times >= covered.end[at]))


def _join_microbatches(
    marked: list[tuple[int, int, int, Kind]], updates: Array, backward: Array
) -> list[tuple[int, int, int, Kind]]:
    """Join what `prof.step()` marked until an update is in it: batches that are accumulated are one step.

    What the trace begins in the middle of, and ends in the middle of, is uneven. What learns nothing stays apart.
    """
    found = [(_count(updates, one), _count(backward, one), one) for one in marked]
    if all(num_updates or not num_passes for num_updates, num_passes, _ in found) or not len(updates):
        return marked
    groups: list[list[tuple[int, int, int, Kind]]] = [[]]
    for num_updates, num_passes, one in found:
        if not num_updates and not num_passes:
            groups += [[one], []]
            continue
        groups[-1].append(one)
        if num_updates:
            groups.append([])
    groups = [one for one in groups if one]
    usual = max(map(len, groups))
    return [(one[-1][0], one[0][1], one[-1][2], Kind.PLAIN if len(one) == usual else Kind.UNEVEN) for one in groups]


def _count(times: Array, marked: tuple[int, int, int, Kind]) -> int:
    """Return how many of the times lie in what was marked."""
    _, start, end, _ = marked
    return int(((times >= start) & (times < end)).sum())


class _Phases:
    """Cuts steps where the thread was known to be somewhere.

    Args:
        labelled: (start, end, phase), in order, not overlapping.
    """

    def __init__(self, labelled: list[tuple[int, int, Phase]]) -> None:
        self._labelled = labelled
        self._at = 0
        self._place = Phase.PREPARE
        self._microbatch = 0

    def cut(self, steps: list[tuple[int, int, int, Kind]]) -> list[CutStretch]:
        """Return the steps with their phases."""
        return [self._step(*one) for one in steps]

    def _step(self, number: int, start: int, end: int, kind: Kind) -> CutStretch:
        marks: list[tuple[Phase, int, int]] = []
        cursor, seen = start, set()
        while self._at < len(self._labelled) and self._labelled[self._at][0] < end:
            begun, ended, phase = self._labelled[self._at]
            begun, ended = max(begun, start), min(ended, end)
            if ended > begun:
                if begun > cursor:
                    self._mark(marks, self._place, cursor)
                if phase is Phase.WAIT or (phase is Phase.FORWARD and self._place is Phase.BEFORE_UPDATE):
                    self._microbatch += 1
                self._mark(marks, phase, begun)
                seen.add(phase)
                cursor = ended
                self._place = _BEHIND.get(phase, self._place)
            if self._labelled[self._at][1] > end:  # it goes on in the next step
                break
            self._at += 1
        if cursor < end:
            self._mark(marks, self._place, cursor)
        marks.append((Phase.OUTSIDE, self._microbatch, end))
        return CutStretch(stretch=_stretch(seen), number=number, kind=kind, marks=tuple(marks))

    def _mark(self, marks: list[tuple[Phase, int, int]], phase: Phase, at: int) -> None:
        if not marks or marks[-1][0] is not phase or marks[-1][1] != self._microbatch:
            marks.append((phase, self._microbatch, at))


def _stretch(seen: set[Phase]) -> Stretch:
    if Phase.BACKWARD in seen or Phase.OPTIMIZER in seen:
        return Stretch.STEP
    return Stretch.VALIDATION if Phase.FORWARD in seen else Stretch.BETWEEN
