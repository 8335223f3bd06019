"""What "better" means: more items, less waiting, or the same work with less. A plain object: no clock, no measuring."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headrace.base.goals import LatencyGoal

ObjectiveName = Literal["throughput", "latency", "cost"]
OBJECTIVES: tuple[ObjectiveName, ...] = ("throughput", "latency", "cost")

#: With another objective than throughput, so much of it may be lost, as a share: what blocks can hardly tell.
MAY_LOSE = 0.03
#: Predictions are held to a little more than what must be kept up, or half of those that are measured would miss it.
_AIM = 1.02
#: Plans whose predictions differ by less count as equal, and the smaller one is taken.
SAME = 0.01
#: What breaking a limit at all costs on the scale of logarithms, and by how much: more than any gain makes good.
_BROKEN, _MISSED = 20.0, 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a Plan is predicted to do; ratios are to the base."""

    ratio: float
    """Throughput."""
    latency_p50: float | None
    """Seconds; None where it was not measured in the base, so that there is nothing to scale."""
    latency_goal: float | None
    """Seconds at the goal's percentile; None without a goal, or as above."""
    cpu_ratio: float | None
    """CPU seconds per job."""
    size: float
    """Threads and processes that it takes; see `predictor.size`."""
    memory_bytes: float | None
    """More than the base takes, at most; None where the sizes of items are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What the user wants."""

    name: ObjectiveName = "throughput"
    slo: LatencyGoal | None = None
    rate: float | None = None
    """Jobs per second that must be kept up, or that come, see `is_open`; None: with `latency` and `cost`, the base's less
    `MAY_LOSE`."""
    memory_room_bytes: float | None = None
    """What may be used beyond what the base uses; None: not known."""

    @property
    def needs_latency(self) -> bool:
        """Whether jobs in flight have to be limited for it to mean anything."""
        return self.name == "latency" or self.slo is not None

    @property
    def is_open(self) -> bool:
        """Whether jobs come at `rate`, at random times, as users send them; else the source always has the next one."""
        return self.rate is not None and self.needs_latency and self.name != "throughput"

    def floor(self, base_throughput: float) -> float:
        """Return the least ratio to the base's throughput that is wanted of a pipeline kept full, 0 for any."""
        if self.rate is not None:
            return self.rate / base_throughput
        return 0.0 if self.name == "throughput" else 1 - MAY_LOSE

    def floor_measured(self, base_throughput: float) -> float:
        """Return the least throughput ratio that is accepted of blocks; where jobs come at a rate, the base has that, too."""
        return 1 - MAY_LOSE if self.is_open else self.floor(base_throughput)

    def score(self, outlook: Outlook, base_throughput: float) -> float:
        """Return how good a Plan is, on the scale of logarithms; a Plan that breaks a limit is below all that break none."""
        missed = self.measure_miss(outlook, base_throughput)
        return self._gain(outlook) - (_BROKEN + _MISSED * missed if missed > 0 else 0.0)

    def measure_miss(self, outlook: Outlook, base_throughput: float) -> float:
        """Return by how much a Plan is predicted to break a limit, 0 for not at all."""
        missed = 0.0
        aim = _AIM * self.floor(base_throughput)
        if outlook.ratio < aim:
            missed += math.log(aim / max(outlook.ratio, 1e-9))
        if self.slo is not None and outlook.latency_goal is not None and outlook.latency_goal > self.slo.seconds:
            missed += math.log(outlook.latency_goal / self.slo.seconds)
        if not self.fits(outlook):
            missed += 1.0
        return missed

    def fits(self, outlook: Outlook) -> bool:
        """Return whether there is memory enough, as far as that is known."""
        return (
            self.memory_room_bytes is None
            or outlook.memory_bytes is None
            or outlook.memory_bytes <= self.memory_room_bytes
        )

    def _gain(self, outlook: Outlook) -> float:
        if self.name == "latency":
            latency = outlook.latency_goal or outlook.latency_p50
            return 0.0 if latency is None else -math.log(latency)
        if self.name == "cost":
            cpu = 0.0 if not outlook.cpu_ratio else -math.log(outlook.cpu_ratio)
            # A core that is not used costs nothing, an idle thread little: one in a hundred more counts as one percent.
            return cpu - 0.01 * math.log(max(outlook.size, 1e-9))
        return math.log(max(outlook.ratio, 1e-9))
