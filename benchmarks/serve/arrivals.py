"""When requests are meant to be sent: offsets in seconds from the start, in order. Nothing that a server does moves them."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Return arrivals of a Poisson process; the same seed gives the same ones.

    Args:
        rate: Requests per second, > 0.
        seconds: Length of the schedule.
        seed: Of the intervals.

    Raises:
        ValueError: If the rate is no positive number.
    """
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"the rate of arrivals is {rate}; expected requests per second, above 0")
    chance = random.Random(seed)
    return _until(seconds, (chance.expovariate(rate) for _ in itertools.count()))


def recorded(intervals: Sequence[float], seconds: float) -> list[float]:
    """Return arrivals with the intervals of a recording, from its beginning again when it is through.

    Raises:
        ValueError: If an interval is negative or no number, or all are 0.
    """
    if any(not (math.isfinite(interval) and interval >= 0) for interval in intervals) or not sum(intervals):
        raise ValueError("the recorded intervals are to be seconds, none negative, and at least one above 0")
    return _until(seconds, itertools.cycle(intervals))


def _until(seconds: float, intervals: Iterator[float]) -> list[float]:
    return list(itertools.takewhile(lambda offset: offset < seconds, itertools.accumulate(intervals)))
