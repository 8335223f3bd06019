"""What was called in the steps of a trace: the dearest operators and kernels, and where the host waits for the device."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from headrace.runs.formats.training_trace import TracedCall, TracedSync
from headrace.train.trace.columns import Array, Columns, Sort
from headrace.train.trace.cutting import Cut
from headrace.train.trace.device import WAITING, DeviceUse

#: Of each list.
_MOST = 10
_PYTHON = re.compile(r"(.+)\((\d+)\): (.+)")
#: Files that are not the program's: of the interpreter, and of packages, whose paths Kineto shortens to the package.
_LIBRARIES = re.compile(
    r".*(site-packages|dist-packages|/lib/python\d)|<|(torch|torchvision|torchaudio|lightning|lightning_fabric|pytorch_lightning|"
    r"transformers|accelerate|numpy|pandas|importlib|threading|contextlib|functools|queue|multiprocessing|runpy|typing|selectors|"
    r"random|copy|enum|abc|os|collections|concurrent|logging|json|re|headrace)[/.]"
)


def top_operators(columns: Columns, cut: Cut) -> tuple[TracedCall, ...]:
    """Return the operators that take the host's time, without those inside of them; means over the steps."""
    steps = cut.steps
    is_here = np.array([process == cut.process for process, _ in columns.threads], bool)[columns.thread]
    found = np.flatnonzero((columns.sort == Sort.OPERATOR) & is_here)
    found = found[_in_steps(columns.start[found], cut)]
    if not steps or not len(found):
        return ()
    own = (columns.end - columns.start)[found].astype(float)
    for thread in np.unique(columns.thread[found]).tolist():
        members = np.flatnonzero(columns.thread[found] == thread)
        _take_from_parents(own, members, columns.start[found], columns.end[found])
    return _dearest(columns, columns.name[found], own, len(steps))


def top_kernels(columns: Columns, cut: Cut) -> tuple[TracedCall, ...]:
    """Return the kernels and copies that take the device's time, as far as they began in the time of the steps."""
    found = np.flatnonzero(columns.is_on_device)
    steps = cut.steps
    if not steps or not len(found):
        return ()
    found = found[(columns.start[found] >= steps[0].start) & (columns.start[found] < steps[-1].end)]
    return _dearest(columns, columns.name[found], (columns.end - columns.start)[found].astype(float), len(steps))


def _take_from_parents(own: Array, members: Array, start: Array, end: Array) -> None:
    """Subtract from each event of a thread what those directly inside of it take; they are in order, outer ones first."""
    stack: list[int] = []
    starts, ends = start[members].tolist(), end[members].tolist()
    inside = np.zeros(len(members))
    for at, (began, ended) in enumerate(zip(starts, ends, strict=True)):
        while stack and ends[stack[-1]] <= began:
            stack.pop()
        if stack:
            inside[stack[-1]] += ended - began
        stack.append(at)
    own[members] = np.maximum(own[members] - inside, 0.0)


def _dearest(columns: Columns, names: Array, nanoseconds: Array, steps: int) -> tuple[TracedCall, ...]:
    codes, place = np.unique(names, return_inverse=True)
    total = np.bincount(place, nanoseconds, minlength=len(codes))
    count = np.bincount(place, minlength=len(codes))
    return tuple(
        TracedCall(
            name=columns.names[codes[at]][:120], count=float(count[at]) / steps, seconds=float(total[at]) / steps / 1e9
        )
        for at in np.argsort(-total, kind="stable")[:_MOST].tolist()
        if total[at]
    )


def _in_steps(times: Array, cut: Cut) -> Array:
    """Return which of the times lie in a step: bool."""
    starts = np.array([one.start for one in cut.steps], np.int64)
    ends = np.array([one.end for one in cut.steps], np.int64)
    if not len(starts):
        return np.zeros(len(times), bool)
    at = np.searchsorted(starts, times, "right") - 1
    return np.asarray((at >= 0) & (times < ends[np.maximum(at, 0)]))


def find_syncs(columns: Columns, cut: Cut, use: DeviceUse) -> tuple[TracedSync, ...]:
    """Return the places where the host waits for the device, those first that leave it idle or take longest."""
    steps = cut.steps
    is_here = np.array([process == cut.process for process, _ in columns.threads], bool)[columns.thread]
    calls = np.flatnonzero((columns.sort == Sort.RUNTIME) & is_here & columns.named(WAITING)[columns.name])
    calls = calls[_in_steps(columns.start[calls], cut)]
    if not steps or not len(calls):
        return ()
    around = _Around(columns)
    phases = _phases_at(cut, columns.start[calls])
    groups: dict[tuple[str, str, str], list[tuple[int, str]]] = defaultdict(list)
    for at, phase in zip(calls.tolist(), phases, strict=True):
        key = (columns.names[columns.name[at]], around.operator(at), around.place(at))
        groups[key].append((at, phase))
    found = []
    for (call, operator, place), members in groups.items():
        seconds = sum(int(columns.end[at] - columns.start[at]) for at, _ in members) / 1e9
        idle = sum(use.idle_after.get(at, 0) for at, _ in members) / 1e9
        names = [phase for _, phase in members]
        found.append(
            TracedSync(
                call=call,
                operator=operator,
                place=place,
                phase=max(set(names), key=names.count),
                count=len(members) / len(steps),
                seconds=seconds / len(steps),
                idle_seconds=idle / max(use.steps, 1),
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.idle_seconds, -one.seconds))[:_MOST])


def _phases_at(cut: Cut, times: Array) -> list[str]:
    """Return the phase in which each of the times lies, all of which lie in steps."""
    marks = [(at, str(phase)) for one in cut.stretches for phase, _, at in one.marks]
    places = np.searchsorted(np.array([at for at, _ in marks], np.int64), times, "right") - 1
    return [marks[place][1] for place in places.tolist()]


class _Around:
    """What was in progress around an event: operators, and Python functions of the program."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._of_thread: dict[tuple[Sort, int], tuple[Array, Array]] = {}

    def operator(self, at: int) -> str:
        """Return the outermost operator around an event; empty: none."""
        found = self._enclosing(Sort.OPERATOR, at)
        return self._columns.names[self._columns.name[found[0]]] if found else ""

    def place(self, at: int) -> str:
        """Return the innermost function of the program around an event; empty: none is known."""
        names = [self._columns.names[self._columns.name[one]] for one in reversed(self._enclosing(Sort.PYTHON, at))]
        names += [
            name for one in self._enclosing(Sort.OPERATOR, at) for name in self._columns.stacks.get(one, "").split(";")
        ]
        own = (name for name in names if not _LIBRARIES.match(name))
        return next((_short(name) for name in own if _PYTHON.fullmatch(name.strip())), "")

    def _enclosing(self, sort: Sort, at: int) -> list[int]:
        """Return events of a sort in the same thread around an event, the outermost first."""
        columns = self._columns
        thread = int(columns.thread[at])
        if (sort, thread) not in self._of_thread:
            own = np.flatnonzero((columns.sort == sort) & (columns.thread == thread))
            self._of_thread[sort, thread] = own, _parents(columns.start[own], columns.end[own])
        own, parents = self._of_thread[sort, thread]
        found, place = [], int(np.searchsorted(columns.start[own], columns.start[at], "right")) - 1
        while place >= 0:
            if columns.end[own[place]] >= columns.end[at]:
                found.append(int(own[place]))
            place = int(parents[place])
        return found[::-1]


def _parents(start: Array, end: Array) -> Array:
    """Return the position of the event around each event of a thread; -1: none. They are in order, outer ones first."""
    parents = np.full(len(start), -1, np.int64)
    stack: list[int] = []
    ends = end.tolist()
    for at, began in enumerate(start.tolist()):
        while stack and ends[stack[-1]] <= began:
            stack.pop()
        if stack:
            parents[at] = stack[-1]
        stack.append(at)
    return parents


def _short(name: str) -> str:
    """Return `train.py: step (line 12)` for `/home/me/train.py(12): step`: the line is where the function is defined."""
    found = _PYTHON.fullmatch(name.strip())
    if found is None:
        return name
    return f"{found[1].rsplit('/', 1)[-1]}: {found[3]} (defined in line {found[2]})"[:120]
