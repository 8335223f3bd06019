"""When an incident is written without anybody's asking: a broken goal, a stall, a canary that was taken back.

Each is a plain object that takes what was measured and the time, and returns a `Trigger` or None; no threads, no files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.base.goals import LatencyGoal
from headrace.base.records import Span
from headrace.base.units import format_duration

#: Over which time goals are judged, and how often they must be missed to count: one slow job is no incident.
GOAL_SECONDS, _FEWEST_MISSED = 10.0, 5
#: A run stalls when jobs are inside and none has ended for so long, and for as many times as the usual time of a job.
STALL_SECONDS, _STALL_LATENCIES = 20.0, 20.0
#: Jobs under way whose beginning is remembered.
_MOST_JOBS = 50_000


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why an incident is written."""

    kind: str
    """`slo`, `errors`, `stall`, `rollback`, `death`, `signal`, `failed`, `asked`."""
    says: str


class Latencies:
    """The latencies of recorded jobs that ended in the last seconds.

    Args:
        first_stages: Where a job may begin; one that came with its content begins behind the stage that downloads.
        last_stage: That delivers.
    """

    def __init__(self, first_stages: Sequence[str], last_stage: str) -> None:
        self._first, self._last = frozenset(first_stages), last_stage
        self._arrived: dict[str, int] = {}
        self._put: dict[str, int] = {}
        self._ended: deque[tuple[int, float]] = deque()

    def note(self, spans: Sequence[Span]) -> None:
        """Take spans, in any order: workers tell of what they did when they have handed it on."""
        for span in spans:
            if span.parent_id is None and span.stage in self._first:
                self._arrived[span.unit_id] = min(span.arrived, self._arrived.get(span.unit_id, span.arrived))
            if span.stage == self._last:
                self._put[span.unit_id] = span.put
        for unit in self._put.keys() & self._arrived.keys():
            put = self._put.pop(unit)
            self._ended.append((put, (put - self._arrived.pop(unit)) / 1e9))
        for kept in (self._put, self._arrived):
            if len(kept) > _MOST_JOBS:
                kept.clear()  # of jobs that failed on the way

    def recent(self, now_ns: int) -> list[float]:
        """Return the latencies of jobs that ended within `GOAL_SECONDS`."""
        while self._ended and self._ended[0][0] < now_ns - GOAL_SECONDS * 1e9:
            self._ended.popleft()
        return [seconds for put, seconds in self._ended if put >= now_ns - GOAL_SECONDS * 1e9]


def check_latency(goal: LatencyGoal, latencies: Sequence[float]) -> Trigger | None:
    """Return a trigger if more jobs are slower than the goal allows."""
    slow = sum(seconds > goal.seconds for seconds in latencies)
    allowed = 1 - goal.percentile / 100
    if slow < _FEWEST_MISSED or slow <= allowed * len(latencies):
        return None
    return Trigger(
        "slo",
        f"{goal} is missed: {slow} of {len(latencies)} recorded jobs of the last {GOAL_SECONDS:g} s took longer "
        f"({slow / len(latencies):.1%}, {allowed:.2g} are allowed)",
    )


class Progress:
    """Watches how jobs end.

    Args:
        most_failed: Share of the deliveries that may fail; None: any.
        stall_seconds: See `STALL_SECONDS`.
    """

    def __init__(self, most_failed: float | None, stall_seconds: float = STALL_SECONDS) -> None:
        self._most_failed = most_failed
        self._stall_seconds = stall_seconds
        self._counts: deque[tuple[float, float, float]] = deque()
        self._settled = 0.0
        self._since: float | None = None
        self._has_stalled = False

    def look(self, now: float, run: Mapping[str, float], usual_seconds: float) -> Trigger | None:
        """Return what is to be reported now.

        Args:
            now: Seconds of the monotonic clock.
            run: The gauges of the run: `settled`, `failed`, `in_flight`.
            usual_seconds: Usual latency of a job, 0 if it is not known.
        """
        settled, failed = run.get("settled", 0.0), run.get("failed", 0.0)
        self._counts.append((now, settled, failed))
        while self._counts[0][0] < now - GOAL_SECONDS:
            self._counts.popleft()
        return self._check_stall(now, settled, run.get("in_flight", 0.0), usual_seconds) or self._check_failed()

    def _check_failed(self) -> Trigger | None:
        (_, settled, failed), (_, settled_now, failed_now) = self._counts[0], self._counts[-1]
        num, total = failed_now - failed, settled_now - settled
        if self._most_failed is None or num < _FEWEST_MISSED or num <= self._most_failed * total:
            return None
        return Trigger(
            "errors",
            f"{num:.0f} of {total:.0f} deliveries of the last {GOAL_SECONDS:g} s failed ({num / total:.1%}, "
            f"{self._most_failed:.2g} are allowed)",
        )

    def _check_stall(self, now: float, settled: float, in_flight: float, usual_seconds: float) -> Trigger | None:
        if settled != self._settled or in_flight <= 0 or self._since is None:
            self._settled, self._since, self._has_stalled = settled, now, False
            return None
        limit = max(self._stall_seconds, _STALL_LATENCIES * usual_seconds)
        if self._has_stalled or now - self._since < limit:
            return None
        self._has_stalled = True
        return Trigger(
            "stall",
            f"{in_flight:.0f} jobs are inside, and none has ended for {format_duration(now - self._since)}",
        )
