"""Counts every call within one stage, with cProfile."""

from __future__ import annotations

import cProfile
import functools
import io
import logging
import multiprocessing
import multiprocessing.util
import os
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.errors import HeadraceError, SettingsError
from headrace.profiler.hot_spots.records import (
    Frame,
    HotSpot,
    HotSpots,
    Stack,
    encode_record,
    file_stem,
    most_costly,
    speedscope,
    write_files,
)

logger = logging.getLogger("headrace")


class CProfileInstrument:
    """Counts every call within one stage with cProfile, in whichever threads and processes its workers are.

    Give it to `headrace.run(..., instruments=[...])`, and call `collect` when that has returned. The stage becomes slower, the
    more so the smaller its functions: shares within it are to be believed, its times are not. Times are wall time: what
    waits for the GIL or a core counts where it waits.

    Args:
        stage: Name of the stage.
        folder: Where files go; made if need be.
        mixes_threads: Whether this Python's cProfile counts all threads of a process as one; then only processes are counted.
            From 3.12 on it is made of sys.monitoring, whose events come from all threads of the interpreter.
    """

    def __init__(self, stage: str, folder: str | Path, *, mixes_threads: bool = sys.version_info >= (3, 12)) -> None:
        self.stage = stage
        self.folder = Path(folder)
        self._mixes_threads = mixes_threads
        self._profiles: list[cProfile.Profile] = []
        if multiprocessing.parent_process() is None:
            for part in self._parts():  # of an earlier run that was killed
                part.unlink()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stage, self.folder)  # what was counted stays in its process

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that is counted, if it is this stage's.

        Raises:
            SettingsError: If this Python's cProfile cannot tell threads apart.
        """
        if stage != self.stage:
            return call
        is_child = multiprocessing.parent_process() is not None
        if not is_child and self._mixes_threads:
            raise SettingsError(
                f"cProfile of Python {sys.version_info.major}.{sys.version_info.minor} counts the calls of all threads of a "
                f"process as one; give the stage processes (--set {stage}.executor=process), or sample it with py-spy"
            )
        profile = cProfile.Profile()
        if is_child:
            part = _Part(profile, self.folder / f".{file_stem(stage)}-{os.getpid()}-{time.monotonic_ns()}.part")
            return functools.partial(_count_in_child, profile, part, call)
        self._profiles.append(profile)
        return functools.partial(_count_calls, profile, call)

    def collect(self) -> HotSpots:
        """Merge what all workers counted, write the files of `HotSpots`, and return it. Call it when the run is over.

        Raises:
            HeadraceError: If no call was counted.
            OSError: If the files cannot be written.
        """
        parts = self._parts()
        counted = [profile for profile in self._profiles if profile.getstats()]
        sources = [pstats.Stats(one, stream=io.StringIO()) for one in counted]
        sources += [pstats.Stats(str(part), stream=io.StringIO()) for part in parts]
        if not sources:
            raise HeadraceError(
                f"no call of stage {self.stage} was counted: no item came so far, there is no stage of that name, or its call "
                "is native code that Python's profiler does not see"
            )
        merged = sources[0]
        for source in sources[1:]:
            merged.add(source)
        result, weighted = _make_spots(self.stage, _remove_profiler(merged), len(counted), len(parts))
        pstats_name, speedscope_name, record_name = result.files
        contents = {speedscope_name: speedscope(f"stage {self.stage}, cProfile", {self.stage: weighted})}
        contents[record_name] = encode_record(result)
        write_files(self.folder, contents)
        merged.dump_stats(self.folder / pstats_name)
        for part in parts:
            part.unlink()
        return result

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob(f".{file_stem(self.stage)}-*.part"))


def _count_calls(profile: cProfile.Profile, call: Callable[..., Any], *arguments: Any) -> Any:
    profile.enable()
    try:
        return call(*arguments)
    finally:
        profile.disable()


def _count_in_child(profile: cProfile.Profile, part: _Part, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return _count_calls(profile, call, *arguments)
    finally:
        part.write_if_due()


class _Part:
    """What one worker in a process of its own counted, in a file: written now and then, as it may be killed, and at its end."""

    def __init__(self, profile: cProfile.Profile, file: Path) -> None:
        self._profile = profile
        self._file = file
        self._due = 0.0
        multiprocessing.util.Finalize(None, self.write, exitpriority=1)

    def write_if_due(self) -> None:
        """Write it once a second."""
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Write it."""
        began = time.monotonic()
        if not self._profile.getstats():
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._file.with_suffix(".tmp")
            self._profile.dump_stats(temporary)
            temporary.replace(self._file)
        except OSError as error:
            logger.warning("what was counted cannot be written to %s: %s", self._file.parent, error)
        # A large table takes a while; never more than a twentieth of the time.
        self._due = time.monotonic() + max(1.0, 20 * (time.monotonic() - began))


_PUT_TOGETHER = (
    "stacks in the speedscope file are put together from pairs of caller and called: where a function was called from several "
    "places, its inner time is divided among them in proportion"
)

#: File, line, name: how pstats names a function.
_Function = tuple[str, int, str]


class _Counts(msgspec.Struct, frozen=True):
    """What cProfile knows of one function, and of one function called by another."""

    calls: int
    own: float
    total: float


#: {function: (its counts, {caller: its counts when called from there})}
_Table = dict[_Function, tuple[_Counts, dict[_Function, _Counts]]]


def _remove_profiler(stats: pstats.Stats) -> _Table:
    """Return what was counted, without the call that ended the counting."""
    table: _Table = {}
    entries: dict[_Function, Any] = stats.stats  # type: ignore[attr-defined]
    for function, (_, calls, own, total, callers) in entries.items():
        if "_lsprof.Profiler" not in function[2]:
            known = {caller: _Counts(row[0], row[2], row[3]) for caller, row in callers.items()}
            table[function] = (_Counts(calls, own, total), known)
    return table


def _make_spots(stage: str, table: _Table, num_threads: int, num_processes: int) -> tuple[HotSpots, dict[Stack, float]]:
    seconds = sum(counts.own for counts, _ in table.values())
    roots = _roots(table)
    found = [
        HotSpot(
            function=name,
            file=file,
            line=line,
            self_share=counts.own / seconds if seconds else 0.0,
            total_share=counts.total / seconds if seconds else 0.0,
            calls=counts.calls,
        )
        for (file, line, name), (counts, _) in table.items()
    ]
    stem = file_stem(stage)
    result = HotSpots(
        stage=stage,
        method="cProfile",
        seconds=seconds,
        num_samples=None,
        num_outside=None,
        num_without_stack=None,
        num_calls=sum(calls for calls, _ in roots.values()),
        workers=(f"{num_threads} in threads, {num_processes} in processes",),
        files=(f"{stem}.pstats", f"{stem}.speedscope.json", f"{stem}.json"),
        notes=(
            "counting makes the stage slower: believe the shares, not the times",
            _PUT_TOGETHER,
        ),
        top=tuple(most_costly(found)),
    )
    return result, _stacks(table, {root: time_here for root, (_, time_here) in roots.items()}, seconds)


def _roots(table: _Table) -> dict[_Function, tuple[int, float]]:
    """Return what the stage called itself: {function: (calls, seconds)}."""
    found = {}
    for function, (counts, callers) in table.items():
        calls = counts.calls - sum(one.calls for one in callers.values())
        others = sum(one.total for caller, one in callers.items() if caller != function)
        if calls > 0:
            found[function] = calls, max(0.0, counts.total - others)
    return found


def _stacks(table: _Table, roots: dict[_Function, float], seconds: float) -> dict[Stack, float]:
    """Return seconds by stack, expanded from the roots in proportion to each caller's share; the sum is that of the roots."""
    called: defaultdict[_Function, list[tuple[_Function, float]]] = defaultdict(list)
    for function, (_, callers) in table.items():
        for caller, counts in callers.items():
            called[caller].append((function, counts.total))
    smallest = seconds / 2000  # narrower than a pixel
    found: defaultdict[Stack, float] = defaultdict(float)
    waiting: list[tuple[tuple[_Function, ...], float]] = [((root,), time_here) for root, time_here in roots.items()]
    while waiting:
        path, time_here = waiting.pop()
        whole = table[path[-1]][0].total
        inner = [(function, part) for function, part in called[path[-1]] if function not in path and part > 0]
        # Of a function that calls itself, what it called may add up to more than its own outermost calls.
        scale = time_here / max(whole, sum(part for _, part in inner)) if inner and whole > 0 else 0.0
        left = time_here
        for function, part in inner if time_here >= smallest else ():
            waiting.append(((*path, function), part * scale))
            left -= part * scale
        if left > 0:
            found[tuple(Frame(name, file, line) for file, line, name in path)] += left
    return dict(found)
