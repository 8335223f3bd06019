"""How long stretches are, and whether the next one can be afforded. No clock, no threads."""

from __future__ import annotations

from dataclasses import dataclass

#: Items that a stretch should hold, and how long it lasts at least and at most.
_ITEMS = 60
_SHORTEST, _LONGEST = 0.6, 4.0
#: What comes at the beginning of a stretch still tells of the one before: so many times as long as an item is inside, at least.
_SETTLING = 0.5
_LEAST_SETTLING = 0.1

#: Share of the throughput that all perturbations together may cost.
MOST_COST = 0.05
#: Time without a perturbation that is paid for in the end, so that the first one need not wait for it.
CREDIT_SECONDS = 20.0
#: An experiment that is slower cannot hold enough items in its stretches.
SLOWEST_RATE = 3.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one experiment."""

    settling_seconds: float
    """Not measured, at the beginning of a stretch."""
    measured_seconds: float

    @property
    def seconds(self) -> float:
        """Of a stretch."""
        return self.settling_seconds + self.measured_seconds


def choose_pace(throughput: float, latency: float) -> Pace:
    """Return how long stretches are.

    Args:
        throughput: Items per second with nothing changed.
        latency: Median seconds of an item in the pipeline.
    """
    measured = min(_LONGEST, max(_SHORTEST, _ITEMS / throughput))
    return Pace(min(measured / 2, max(_LEAST_SETTLING, _SETTLING * latency)), measured)


@dataclass(slots=True)
class Purse:
    """What the perturbations have cost so far, and what they may cost.

    Attributes:
        seconds: Of the experiment.
        lost_seconds: Seconds' worth of items that were not done.
    """

    seconds: float = 0.0
    lost_seconds: float = 0.0

    @property
    def cost(self) -> float:
        """Share of the throughput that was lost, >= 0."""
        return max(0.0, self.lost_seconds) / self.seconds if self.seconds else 0.0

    def spend(self, seconds: float, ratio: float = 1.0) -> None:
        """Note a stretch whose throughput was so many times that of the others."""
        self.seconds += seconds
        self.lost_seconds += seconds * (1 - ratio)

    def seconds_short(self, seconds: float, loss: float) -> float:
        """Return for how long nothing may be changed before a stretch of this length, if it costs this share, is affordable."""
        lost = max(0.0, self.lost_seconds) + seconds * loss
        return max(0.0, lost / MOST_COST - self.seconds - seconds - CREDIT_SECONDS)

    @property
    def seconds_owed(self) -> float:
        """For how long nothing may be changed until the cost is within its limit."""
        return self.seconds_owed_after(0.0)

    def seconds_owed_after(self, lost_seconds: float) -> float:
        """Return the same, once so much more has been lost."""
        return max(0.0, (max(0.0, self.lost_seconds) + lost_seconds) / MOST_COST - self.seconds)
