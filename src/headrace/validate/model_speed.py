"""How much faster one opened model is than another: calls in turn, A B A, with the noise of the same minutes beside them.

A block is as many calls as last 50 ms. Each round runs A, B, A: B is held against the mean of the two around it, so that a
steady drift of the machine cancels, and the second A against the first tells what two equal models differ by. Where that is
more than `USUAL_NOISE`, the interval of the ratio is wider by the surplus: what is decided by it is decided later, or not.

A race takes as many rounds as its answer needs: it is looked at after each quarter of the rounds that it may have, and ends at
the first look that settles what was asked. Each look has intervals of 98.2 %, so that all four together hold with 95 %.

References:
    `headrace.compare.sequential` has those of the four looks. A candidate 5 % ahead, blocks that differ by 2 % and one in
    twenty slow by a quarter: it is surely ahead by 2 % in 97 of 100 races, of 16 rounds on average, and in 75 of 100 times 16
    fixed rounds (150 simulations each). Sequential timing (10 warm-up calls, 20 timed ones, one model after the other) calls
    a model 5 % faster than itself in 39 % of trials on a shared machine, blocks in turn in 7 %: measured with one model
    opened twice, 134 trials.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from headrace.compare.intervals import FEWEST_PAIRS, Interval, centre, paired_interval
from headrace.compare.sequential import LOOKS, once, quarters
from headrace.compare.turns import Turns, take_turns
from headrace.runs.formats.profile import Estimate
from headrace.validate.items import Feed

#: Rounds unless asked otherwise; the interval needs 6.
ROUNDS = 16
#: Most rounds of a race: half of them are what is measured otherwise, and are enough for most.
RACE_ROUNDS = 32
#: Fewer rounds than this before the first look have no interval at that level: its surest outcome has probability 2 / 2^7.
FEWEST_ROUNDS_OF_LOOK = 7
#: What A differs from itself by on a machine that is shared and not overloaded; more makes intervals wider.
USUAL_NOISE = 0.25
_WARM_UP_CALLS = 3

T = TypeVar("T")
Settled = Callable[["Speed"], bool]
"""Whether what is known is enough: more rounds would change no decision."""


class Clock(Protocol):
    """What tells time; the module `time` does."""

    def perf_counter(self) -> float:
        """Return seconds that pass for everybody."""
        ...

    def process_time(self) -> float:
        """Return CPU seconds of this process."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """How blocks of calls are timed."""

    block_seconds: float = 0.05
    """How long a block lasts, about: long enough for the clock and for the scheduler's slices."""
    clock: Clock = time


TIMING = Timing()


class CallTime(NamedTuple):
    """What a call took, the mean of a block."""

    seconds: float
    cpu_seconds: float
    """Of all threads of this process; what a GPU does is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """CPU time of calls, from the same rounds as their speed."""

    ratio: float
    """Of a call of A over that of B; above 1 B needs less."""
    low: float
    high: float
    """95 % interval."""
    a_seconds: float
    """Median of a call of A, CPU seconds."""
    b_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What the rounds came to."""

    ratio: float
    """Speed of B over that of A; above 1 B is faster."""
    low: float
    high: float
    """95 % interval; of a race it holds at all looks together. Wider where `noise` is more than usual."""
    noise: float
    """A against itself in the same rounds: how far from 1 the far end of its interval is."""
    a_seconds: float
    """Median of a call of A, seconds."""
    b_seconds: float
    rounds: int
    cpu: CpuTime | None = None
    """None: it was not measured, or no CPU was used."""

    @property
    def noise_in_words(self) -> str:
        """What A differs from itself by, in words, and what to do where that is too much."""
        told = f"A differs from itself by up to {self.noise:.0%}"
        if self.noise <= USUAL_NOISE:
            return told
        return f"{told}, more than the usual {USUAL_NOISE:.0%}: the interval is wider by that; repeat it while less else runs"


def as_estimate(found: Speed | CpuTime) -> Estimate:
    """Return a measured ratio with its interval, as documents have it."""
    return Estimate(found.low, found.ratio, found.high)


def measure_speed(
    a: Callable[[Any], Any],
    b: Callable[[Any], Any],
    batch: Feed,
    *,
    rounds: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    settled: Settled | None = None,
    timing: Timing = TIMING,
) -> Speed | None:
    """Time two models in turn on one batch.

    Args:
        a: The incumbent.
        b: The candidate.
        batch: Each is called with it as it is.
        rounds: Of A, B, A; at least 6, of a race at least 28; None: 16, of a race at most 32.
        stop: Asked after each round; what was measured by then counts.
        settled: Asked after each quarter of the rounds, which makes a race of it; None: all rounds are run.
        timing: How long a block lasts, by which clock.

    Returns:
        None if it was stopped before there were enough rounds for an interval.
    """
    most = rounds or (ROUNDS if settled is None else RACE_ROUNDS)
    calls = {model: _calls_of_block(model, batch, timing) for model in (a, b)}
    first, second = (lambda model=model: _block(model, batch, calls[model], timing.clock) for model in (a, b))

    def told(turns: Sequence[tuple[CallTime, CallTime, CallTime]], alpha: float) -> Speed | None:
        speed = _speed([(before.seconds, middle.seconds, after.seconds) for before, middle, after in turns], alpha)
        return None if speed is None else replace(speed, cpu=_cpu_time(turns, alpha))

    return _run(first, second, most, stop, told, settled)


def measure_turns(
    a: Callable[[], float],
    b: Callable[[], float],
    *,
    rounds: int = ROUNDS,
    stop: Callable[[], bool] = lambda: False,
    settled: Settled | None = None,
) -> Speed | None:
    """Run blocks of two in turn.

    Args:
        a: Runs a block of the incumbent, warm, and returns what a call (or an item) of it took, seconds.
        b: The same of the candidate.
        rounds: Of A, B, A; at least 6, of a race at least 28.
        stop: Asked after each round; what was measured by then counts.
        settled: Asked after each quarter of the rounds, which makes a race of it; None: all rounds are run.

    Returns:
        None if it was stopped before there were enough rounds for an interval.
    """
    return _run(a, b, rounds, stop, _speed, settled)


def _run(
    a: Callable[[], T],
    b: Callable[[], T],
    rounds: int,
    stop: Callable[[], bool],
    told: Callable[[Sequence[tuple[T, T, T]], float], Speed | None],
    settled: Settled | None,
) -> Speed | None:
    """Run rounds until they are over, it is stopped, or a look settles what was asked; return what they came to."""
    looks = once(max(rounds, FEWEST_PAIRS)) if settled is None else quarters(max(rounds, LOOKS * FEWEST_ROUNDS_OF_LOOK))

    def speed_of(turns: Turns[T]) -> Speed | None:
        return told([(one["before"], one["b"], one["after"]) for one in turns.rounds], turns.alpha)

    def is_sure(turns: Turns[T]) -> bool:
        speed = None if settled is None else speed_of(turns)
        return speed is not None and settled is not None and settled(speed)

    turns = take_turns(
        {"before": a, "b": b, "after": a}, looks, is_sure=is_sure, may_go_on=lambda: not stop(), always_forwards=True
    )
    if turns.interrupted:
        raise KeyboardInterrupt  # callers stop more than this race
    return speed_of(turns)


def _speed(turns: Sequence[tuple[float, float, float]], alpha: float) -> Speed | None:
    against, itself, seconds_a, seconds_b = [], [], [], []
    for before, middle, after in turns:
        against.append(math.log(before * after) / 2 - math.log(middle))
        itself.append(math.log(after / before))
        seconds_a += [before, after]
        seconds_b.append(middle)
    ratio, noise = paired_interval(against, alpha), paired_interval(itself, alpha)
    if ratio is None or noise is None:
        return None
    share = _noise(noise)
    surplus = max(1.0, (1.0 + share) / (1.0 + USUAL_NOISE))
    return Speed(
        ratio=math.exp(centre(against)),
        low=math.exp(ratio.low) / surplus,
        high=math.exp(ratio.high) * surplus,
        noise=share,
        a_seconds=float(np.median(seconds_a)),
        b_seconds=float(np.median(seconds_b)),
        rounds=len(against),
    )


def _cpu_time(turns: Sequence[tuple[CallTime, CallTime, CallTime]], alpha: float) -> CpuTime | None:
    seconds = [tuple(block.cpu_seconds for block in turn) for turn in turns]
    if min((min(turn) for turn in seconds), default=0.0) <= 0:
        return None
    less = [math.log(before * after) / 2 - math.log(middle) for before, middle, after in seconds]
    interval = paired_interval(less, alpha)
    if interval is None:
        return None
    return CpuTime(
        ratio=math.exp(centre(less)),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        a_seconds=float(np.median([(turn[0], turn[2]) for turn in seconds])),
        b_seconds=float(np.median([turn[1] for turn in seconds])),
    )


def _noise(itself: Interval) -> float:
    """Return half the width of what a model differs from itself by: a drift moves its middle, and cancels in A B A."""
    return math.exp((itself.high - itself.low) / 2) - 1.0


def _calls_of_block(model: Callable[[Any], Any], batch: Feed, timing: Timing) -> int:
    """Return how many calls last a block; the first ones, which allocate and compile, are made here."""
    for _ in range(_WARM_UP_CALLS):
        model(batch)
    seconds = _block(model, batch, _WARM_UP_CALLS, timing.clock).seconds
    return max(1, round(timing.block_seconds / max(1e-7, seconds)))


def _block(model: Callable[[Any], Any], batch: Feed, calls: int, clock: Clock) -> CallTime:
    """Return what a call took."""
    began, cpu_began = clock.perf_counter(), clock.process_time()
    for _ in range(calls):
        model(batch)
    return CallTime((clock.perf_counter() - began) / calls, (clock.process_time() - cpu_began) / calls)
