"""What is kept of a trace's events: columns of numbers, some 40 bytes an event, whatever stood in the file.

How this works: only events with a duration are kept, and of these the kinds below; texts are kept once each, cut to a length.
Times become nanoseconds since the trace's own zero (`baseTimeNanoseconds`, or the epoch where the file names none). What is
left out is counted, and said.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from enum import IntEnum
from typing import Any

import numpy as np

from headrace.base.formatting import pluralize
from headrace.train.trace.events import Event, TraceFile

#: NumPy arrays; their types and meanings stand beside the fields.
Array = np.ndarray


class Sort(IntEnum):
    """Sorts of events."""

    OPERATOR = 0
    """`aten::linear`, and what autograd evaluates."""
    ANNOTATION = 1
    """Of `record_function`: `ProfilerStep#3`, `Optimizer.step#SGD.step`, and the program's own."""
    PYTHON = 2
    """A call of a Python function, with `with_stack`."""
    RUNTIME = 3
    """A call of CUDA's or HIP's runtime or driver."""
    KERNEL = 4
    COPY = 5
    """Between host and device, or within the device."""
    FILL = 6


#: {`cat`: sort}, of Kineto from 2021 on.
_SORTS = {
    "cpu_op": Sort.OPERATOR, "operator": Sort.OPERATOR, "user_annotation": Sort.ANNOTATION, "python_function": Sort.PYTHON,
    "cuda_runtime": Sort.RUNTIME, "cuda_driver": Sort.RUNTIME, "runtime": Sort.RUNTIME, "hip_runtime": Sort.RUNTIME,
    "xpu_runtime": Sort.RUNTIME, "kernel": Sort.KERNEL, "gpu_memcpy": Sort.COPY, "memcpy": Sort.COPY,
    "gpu_memset": Sort.FILL, "memset": Sort.FILL,
}  # fmt: skip
#: Of which nothing is needed.
_KNOWN = {
    "", "fwdbwd", "ac2g", "async_cpu_to_gpu", "async_gpu", "trace", "cpu_instant_event", "gpu_user_annotation", "cuda_sync",
    "overhead", "cuda_profiler_range", "python_gc",
}  # fmt: skip
_ON_DEVICE = (Sort.KERNEL, Sort.COPY, Sort.FILL)

#: Events that are kept; a trace of a few gigabytes has fewer.
MOST_EVENTS = 20_000_000
_MOST_NAMES = 1_000_000
_MOST_LETTERS = 300
#: Microseconds: a time beyond is damage, and so is one below 0. A day is the longest event.
_MOST_TIME, _MOST_DURATION = 4e15, 8.64e10
_STEP = re.compile(r"ProfilerStep#(\d{1,15})")


class Names:
    """Texts, kept once each.

    Attributes:
        texts: In the order in which they came.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """Return the number of a text."""
        code = self._codes.get(text)
        if code is None:
            text = text[:_MOST_LETTERS].encode("utf-8", "replace").decode("utf-8")
            code = self._codes.get(text)
        if code is None:
            if len(self.texts) >= _MOST_NAMES:
                text = "(one of too many names)"
            code = self._codes.setdefault(text, len(self.texts))
            if code == len(self.texts):
                self.texts.append(text)
        return code


class Columns:
    """The events of one trace, in the order of their beginnings; those that contain others first.

    Attributes:
        start, end: int64, ns since the trace's zero.
        sort: int8, see `Sort`.
        name: int32, position in `names`.
        thread: int32, position in `threads`.
        link: int64, what joins a launch and its work on the device; -1: nothing.
        names: Texts.
        threads: (process, thread) of the host, or (device, stream), as the trace names them.
        stacks: {position of an event: Python frames}, where an old PyTorch recorded them.
        about: What the file says besides its events.
        num_bytes: Of JSON that was read.
        problems: What was left out, in sentences.
    """

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._names, self._threads = Names(), _Threads()
        self._start, self._length = array("d"), array("d")
        self._sort, self._name, self._thread, self._link = array("b"), array("i"), array("i"), array("q")
        self._stacks: dict[int, int] = {}
        self._num_impossible = 0
        self._unknown: Counter[str] = Counter()
        self._num_left = MOST_EVENTS
        for events in file.events():
            self._add(events)
        self.about, self.num_bytes = file.about, file.num_bytes
        self._settle()

    def __len__(self) -> int:
        return len(self.start)

    @property
    def is_on_device(self) -> Array:
        """bool: work of a device."""
        return np.asarray(np.isin(self.sort, _ON_DEVICE))

    def where(self, sort: Sort, pattern: str) -> Array:
        """Return the positions of events of a sort whose name begins with a regular expression: int64."""
        found = self.named(pattern)
        return np.flatnonzero((self.sort == sort) & found[self.name]) if len(self) else np.zeros(0, np.int64)

    def named(self, pattern: str) -> Array:
        """Return which of `names` begin with a regular expression: bool."""
        matches = re.compile(pattern).match
        return np.array([matches(text) is not None for text in self.names], bool)

    def _add(self, events: list[Event]) -> None:
        sorts, unknown, most = _SORTS, self._unknown, self._num_left
        for event in events:
            if event.ph != "X":
                continue
            category = event.cat.lower()
            sort = sorts.get(category)
            if sort is None:
                if category not in _KNOWN:
                    unknown[event.cat[:60]] += 1
                continue
            start, length = event.ts, event.dur
            if not (0 <= start < _MOST_TIME and 0 <= length < _MOST_DURATION):  # also where it is no number
                self._num_impossible += 1
                continue
            if sort is Sort.PYTHON and event.name.startswith("<built-in"):
                continue
            if sort is Sort.OPERATOR and _STEP.match(event.name):  # PyTorch before 1.12 has one sort for both
                sort = Sort.ANNOTATION
            if len(self._start) >= most:
                self._file.ended = self._file.ended or f"it has more than {most:,} events; the rest was left out"
                return
            self._append(event, sort, start, length)

    def _append(self, event: Event, sort: Sort, start: float, length: float) -> None:
        arguments = event.args
        link = -1
        if arguments is not None:
            link = _integer(arguments.correlation)
            if isinstance(arguments.call_stack, str) and arguments.call_stack:
                self._stacks[len(self._start)] = self._names.code(arguments.call_stack)
        self._start.append(start)
        self._length.append(length)
        self._sort.append(sort)
        self._name.append(self._names.code(event.name))
        self._thread.append(self._threads.code(event.pid, event.tid))
        self._link.append(link)

    def _settle(self) -> None:
        """Make arrays of what was collected, in order."""
        start, length = np.frombuffer(self._start), np.frombuffer(self._length)
        begin = _to_ns(start)
        end = begin + np.rint(length * 1e3).astype(np.int64)
        order = np.lexsort((-end, begin))
        self.start, self.end = begin[order], end[order]
        self.sort = np.frombuffer(self._sort, np.int8)[order]
        self.name = np.frombuffer(self._name, np.int32)[order]
        self.thread = np.frombuffer(self._thread, np.int32)[order]
        self.link = np.frombuffer(self._link, np.int64)[order]
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self.names, self.threads = self._names.texts, self._threads.keys
        self.stacks = {int(place[at]): self.names[code] for at, code in self._stacks.items()}
        self.problems = self._file.problems() + self._more_problems()
        del self._start, self._length, self._sort, self._name, self._thread, self._link, self._stacks

    def _more_problems(self) -> list[str]:
        found, name = [], self._file.path.name
        if self._num_impossible:
            count = pluralize(self._num_impossible, "event")
            found.append(f"{name}: {count} with a time or duration that cannot be are left out")
        if self._unknown:
            most = ", ".join(f"{kind!r}" for kind, _ in self._unknown.most_common(3))
            count = pluralize(sum(self._unknown.values()), "event")
            found.append(f"{name}: {count} of categories that headrace does not know ({most}) are left out")
        return found


class _Threads:
    """Threads and streams, kept once each."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, str]] = []
        self._codes: dict[Any, int] = {}

    def code(self, process: Any, thread: Any) -> int:
        """Return the number of a thread."""
        try:
            code = self._codes.get((process, thread))
        except TypeError:  # a list, or an object
            process, thread = str(process)[:80], str(thread)[:80]
            code = self._codes.get((process, thread))
        if code is None:
            code = self._codes[process, thread] = len(self.keys)
            self.keys.append((str(process)[:80], str(thread)[:80]))
        return code


def _to_ns(microseconds: Array) -> Array:
    """Return int64; 1e3 times the microseconds since 1970 has no room for the last digits."""
    whole = np.floor(microseconds)
    return np.asarray(whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1e3).astype(np.int64))


def _integer(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else -1


def step_number(name: str) -> int | None:
    """Return the number in `ProfilerStep#3`; None for other names."""
    found = _STEP.match(name)
    return None if found is None else int(found[1])


def unix_zero_ns(about: dict[str, Any]) -> int:
    """Return the time of the trace's zero, ns since the epoch; 0 where it counts from there, or says none that can be."""
    base = about.get("baseTimeNanoseconds")
    return base if type(base) is int and 0 <= base < _MOST_TIME * 1e3 else 0
