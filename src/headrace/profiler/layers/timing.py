"""Times a model with and without the engine's profiler, in turns.

How this works: blocks of calls without (A) and with (B) the profiler alternate as A B B A, so that a drift of the machine
falls on both alike. Blocks rather than single calls, because the two sessions have weights of their own and would push each
other's out of the caches; the first call of each block, which finds them so, is dropped.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.base.errors import EngineError
from headrace.profiler.layers.protocol import Feed, ProfiledModel

NUM_WARM_UP_CALLS = 3
"""The first calls allocate memory and may search for the fastest kernel."""
WARM_UP_SECONDS = 0.2
BLOCK_SECONDS = 0.1
MIN_PROFILED_CALLS = 4
"""Kept even where they take longer than the time given."""
_FEWEST_PROFILED_CALLS = 3
"""One to warm up, one that is the first of a block, one that is kept."""
DISTURBED_RATIO = 1.5
"""A profiled call this many times the median was interrupted by something else, and its layers' times with it."""


@dataclass(slots=True)
class Timing:
    """Wall times of the calls, in seconds."""

    plain: list[float] = field(default_factory=list)
    """Without the profiler; first calls are not in it."""
    profiled: list[float] = field(default_factory=list)
    """Every profiled call, in the order made."""
    first_of_block: set[int] = field(default_factory=set)
    """Numbers in `profiled` of warm-up and of first calls of a block."""

    @property
    def latency_seconds(self) -> float:
        """Median without the profiler."""
        return statistics.median(self.plain)

    @property
    def profiled_latency_seconds(self) -> float:
        """Median with the profiler, of calls that are not first ones."""
        return statistics.median(seconds for _, seconds in self._settled())

    def kept(self) -> list[int]:
        """Return the numbers of the profiled calls worth averaging: neither first ones nor disturbed."""
        limit = DISTURBED_RATIO * self.profiled_latency_seconds
        return [number for number, seconds in self._settled() if seconds <= limit]

    def _settled(self) -> list[tuple[int, float]]:
        return [(n, seconds) for n, seconds in enumerate(self.profiled) if n not in self.first_of_block]


def time_calls(model: ProfiledModel, feed: Feed, *, calls: int | None, seconds: float) -> Timing:
    """Return the wall times of calls with and without the profiler, made in turns.

    Args:
        model: Open and described.
        feed: Inputs of every call.
        calls: Profiled calls to keep; None: as many as fit into the time.
        seconds: Time for everything, warm-up included; exceeded only for the least number of calls.

    Raises:
        EngineError: If the engine's profiler holds too few calls of this model for one to be kept.
    """
    if model.max_profiled_calls < _FEWEST_PROFILED_CALLS:
        raise EngineError(
            "one call of the model runs so many layers (a long loop?) that the engine's profiler cannot hold "
            f"{_FEWEST_PROFILED_CALLS} calls; measure with inputs that make it run fewer rounds"
        )
    timing = Timing()
    started = time.perf_counter()
    latency = _warm_up(model, feed, timing)
    room = model.max_profiled_calls - len(timing.profiled)
    target = min(calls or room, room)
    per_block = min(max(2, math.ceil(BLOCK_SECONDS / latency)), max(2, math.ceil(target / 2)))
    while True:
        for profiled in (False, True, True, False):
            size = per_block if not profiled else min(per_block, room - 1)
            if size >= 1:
                _block(model, feed, timing, size, profiled=profiled)
            room -= (size + 1) if profiled else 0
        kept = len(timing.profiled) - len(timing.first_of_block)
        late = calls is None and kept >= MIN_PROFILED_CALLS and time.perf_counter() - started > seconds
        if kept >= target or room < 2 or late:
            return timing


def _warm_up(model: ProfiledModel, feed: Feed, timing: Timing) -> float:
    """Make the calls that do not count and return about how long one takes."""
    started = time.perf_counter()
    latest = math.inf
    for number in range(1000):
        if number >= NUM_WARM_UP_CALLS and time.perf_counter() - started > WARM_UP_SECONDS:
            break
        latest = min(latest, _time_call(model.run, feed))
    for number in range(min(NUM_WARM_UP_CALLS, model.max_profiled_calls // 2)):
        timing.profiled.append(_time_call(model.run_profiled, feed))
        timing.first_of_block.add(number)
    return latest


def _block(model: ProfiledModel, feed: Feed, timing: Timing, size: int, *, profiled: bool) -> None:
    """Make one call that does not count and `size` that do."""
    if profiled:
        timing.first_of_block.add(len(timing.profiled))
        timing.profiled += [_time_call(model.run_profiled, feed) for _ in range(size + 1)]
    else:
        _time_call(model.run, feed)
        timing.plain += [_time_call(model.run, feed) for _ in range(size)]


def _time_call(call: Callable[[Feed], None], feed: Feed) -> float:
    started = time.perf_counter()
    call(feed)
    return time.perf_counter() - started


def best_seconds(call: Callable[[], object], seconds: float = 0.25) -> float:
    """Return the shortest time of a call, among as many as fit into the time and at least one."""
    best, until = math.inf, time.perf_counter() + seconds
    while best == math.inf or time.perf_counter() < until:
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return best
