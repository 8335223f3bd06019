"""The largest share of full load at which a latency goal still holds. A plain search; the caller brings the simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Shares are told to within this of full load: the simulation of a few thousand jobs tells no less.
TOLERANCE = 0.01
#: Share of full load that stands for "hardly anything comes": an item then waits for no other.
LEAST = 0.05
#: Shares of the most that is looked at, before the search closes in. Latency does not always grow with the rate: a device that
#: waits for company (`max_wait_seconds`) makes items wait longest when few come.
_FIRST_LOOKS = (1.0, 0.75, 0.5, 0.25)


@dataclass(frozen=True, slots=True)
class Held:
    """Where a goal holds."""

    share: float | None
    """Of full load, 0 to 1; None: at no rate."""
    seconds: float
    """The percentile there; where it holds at no rate, the least that was seen."""
    broken_share: float | None
    """A somewhat larger share at which it does not hold; None: it holds at all that were asked about."""
    broken_seconds: float | None
    """The percentile there."""


def largest_share(latency_at: Callable[[float], float], limit_seconds: float, most: float) -> Held:
    """Return the largest share of full load, up to `most`, at which the latency keeps to its limit.

    Args:
        latency_at: Returns the percentile in seconds at a share of full load; infinite where it grows without end.
        limit_seconds: What it must not exceed.
        most: The largest share that is of interest, above 0, below 1.
    """
    broken: tuple[float, float] | None = None
    least_seconds = float("inf")
    for share in (*(look * most for look in _FIRST_LOOKS if look * most > LEAST), min(LEAST, most)):
        seconds = latency_at(share)
        if seconds <= limit_seconds:
            return _close_in(latency_at, limit_seconds, (share, seconds), broken)
        least_seconds = min(least_seconds, seconds)
        broken = (share, seconds)
    return Held(None, least_seconds, *(broken or (None, None)))


def _close_in(
    latency_at: Callable[[float], float],
    limit_seconds: float,
    holds: tuple[float, float],
    broken: tuple[float, float] | None,
) -> Held:
    """Halve the gap between a share at which the goal holds and one at which it does not."""
    while broken is not None and broken[0] - holds[0] > TOLERANCE:
        share = (holds[0] + broken[0]) / 2
        seconds = latency_at(share)
        if seconds <= limit_seconds:
            holds = (share, seconds)
        else:
            broken = (share, seconds)
    return Held(*holds, *(broken or (None, None)))
