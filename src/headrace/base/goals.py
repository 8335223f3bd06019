"""Goals and prices as people write them: `p99=200ms`, `3M/h`, `0.75/h`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.base.units import format_duration, parse_duration

_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "day": 86400.0}
_THOUSANDS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([kMG]?)\s*/\s*([a-z]+)\s*")


@dataclass(frozen=True, slots=True)
class LatencyGoal:
    """A percentile of the latency that must not exceed a limit."""

    percentile: float
    """In percent, 0 to 100, neither included."""
    seconds: float

    def __str__(self) -> str:
        return f"p{self.percentile:g} <= {format_duration(self.seconds)}"


def parse_slo(text: str) -> LatencyGoal:
    """Return the goal in text such as `p99=200ms` or `p50=1s`.

    Raises:
        ValueError: If it is not such a goal.
    """
    match = re.fullmatch(r"\s*p([0-9]+(?:\.[0-9]+)?)\s*(?:<=|=|<)\s*(.+)", text)
    expected = f"expected a goal such as p99=200ms, got {text!r}"
    if not match or not 0 < float(match[1]) < 100:
        raise ValueError(expected)
    try:
        seconds = parse_duration(match[2].strip())
    except ValueError:
        raise ValueError(expected) from None
    if seconds <= 0:
        raise ValueError(f"{expected}: a limit above 0 is needed")
    return LatencyGoal(float(match[1]), seconds)


#: A rate above this is a slip of the finger.
MOST_PER_SECOND = 1e9


def parse_rate(text: str) -> float:
    """Return items per second from text such as `3M/h`, `100/s`, `50k/day`.

    Raises:
        ValueError: If it is not a rate above 0.
    """
    rate = _parse_rate(text)
    if rate is None or not 0 < rate <= MOST_PER_SECOND:
        raise ValueError(f"expected a rate above 0 such as 3M/h, 100/s or 50k/day, up to 1e9/s, got {text!r}")
    return rate


def parse_price(text: str) -> float:
    """Return the price of an hour from text such as `0.75/h`; the currency is the user's own.

    Raises:
        ValueError: If it is not a price.
    """
    price = _parse_rate(text, seconds=3600.0)
    if price is None:
        raise ValueError(f"expected the price of one machine such as 0.75/h, got {text!r}")
    return price


def _parse_rate(text: str, seconds: float = 1.0) -> float | None:
    """Return how much that is in so many seconds; None: it is no rate."""
    match = _RATE.fullmatch(text)
    if not match or match[3] not in _SECONDS:
        return None
    return float(match[1]) * _THOUSANDS[match[2]] * seconds / _SECONDS[match[3]]
