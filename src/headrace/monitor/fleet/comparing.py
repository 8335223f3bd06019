"""Tells whether what was changed on some machines of a fleet does worse than what the others run, by heartbeats alone.

How this works. All take jobs of one queue in the same minutes, so what is wrong with jobs or services falls on both. The fleet
is looked at again and again; what a worker did between two looks counts for its arm. Failed jobs fall to the new ones with
their share of all jobs that ended, or more often. In a stretch they are slower or not: where all are full, by the rate of a
worker, else by how long a job is in one (Little's law: jobs in flight = rate x time). Both are bet on as with canaries (see
`base.policies.evidence`), so one may look as often as one likes. A new worker that falls silent while no other does ends it
at once.

What machines of different speeds do is laid to what they run: nobody knows better here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.base.errors import SettingsError
from headrace.base.formatting import pluralize
from headrace.base.policies.canary import CanaryPolicy, Finding, Judged
from headrace.base.policies.evidence import FEWER, MORE, Bet, Counts, bet_events, bet_within
from headrace.base.units import format_duration, format_rate
from headrace.monitor.fleet.place import Place, PlaceUnavailable
from headrace.monitor.fleet.status import read_fleet
from headrace.runs.formats.fleet import FleetArm, FleetComparison, FleetDocument, FleetWorker, Verdict
from headrace.runs.formats.heartbeat import Heartbeat

#: Between two looks: two heartbeats, so that each worker that lives has left one.
LOOK_SECONDS = 10.0
#: A worker that has so much of what it may have in flight is full.
_FULL = 0.9
_HALF = 0.5


@dataclass
class _Arm:
    """Sums of the workers that run the same."""

    names: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    jobs: int = 0
    failed: int = 0
    worker_seconds: float = 0.0
    job_seconds: float = 0.0

    def as_document(self, runs: tuple[str, ...]) -> FleetArm:
        return FleetArm(
            runs=runs, workers=len(self.names), gone=len(self.gone), jobs=self.jobs, failed=self.failed,
            rate=self.jobs / self.worker_seconds if self.worker_seconds else 0.0,
            seconds_per_job=self.job_seconds / self.jobs if self.jobs else None,
        )  # fmt: skip


@dataclass
class _Stretch:
    """What an arm did between two looks."""

    workers: int = 0
    jobs: int = 0
    failed: int = 0
    rate: float = 0.0
    in_flight: float = 0.0
    slots: float = 0.0

    def add(self, before: Heartbeat, after: Heartbeat) -> float:
        """Add a worker's, and return for how many seconds; 0: it left no heartbeat meanwhile."""
        seconds = after.at_unix_seconds - before.at_unix_seconds
        failed = after.failed - before.failed
        jobs = after.delivered - before.delivered + failed
        if seconds <= 0 or jobs < 0 or failed < 0:
            return 0.0
        self.workers += 1
        self.jobs, self.failed = self.jobs + jobs, self.failed + failed
        self.rate += jobs / seconds
        self.in_flight += (before.in_flight + after.in_flight) / 2
        self.slots += after.slots
        return seconds

    @property
    def is_full(self) -> bool:
        return self.in_flight >= _FULL * self.slots > 0


class Comparing:
    """Adds up what both arms do, and says what that shows.

    Args:
        first: The fleet as it is now.
        new: How the Plan, or the version of headrace, begins that is new; None: what began last.
        policy: What is acceptable.

    Raises:
        SettingsError: If there are no two arms, or none of this name.
    """

    def __init__(self, first: FleetDocument, new: str | None = None, policy: CanaryPolicy | None = None) -> None:
        self._policy = policy or CanaryPolicy()
        self._choice = _choose([worker.beat for worker in first.workers if _is_there(worker)], new)
        self._seen = self._there(first)
        self._arms = {True: _Arm(), False: _Arm()}
        self._runs: dict[bool, set[str]] = {True: set(), False: set()}
        self._note_what_runs()
        self._tally: dict[float, Counts] = {}
        self._slower, self._compared, self._seconds = 0, 0, 0.0

    def look(self, now: FleetDocument, seconds: float) -> None:
        """Add what was done since the last look, so many seconds ago."""
        stretches = {True: _Stretch(), False: _Stretch()}
        there = self._there(now)
        for name, after in there.items():
            is_new = self._choice.is_new(after)
            if (before := self._seen.get(name)) is not None:
                took = stretches[is_new].add(before, after)
                self._count(name, is_new, before, after, took)
        for worker in now.workers:
            if worker.state == "silent" and worker.name in self._seen:
                self._arms[self._choice.is_new(worker.beat)].gone.add(worker.name)
        self._seen = there
        self._note_what_runs()
        self._seconds += seconds
        self._bet(stretches[True], stretches[False])

    def result(self) -> FleetComparison:
        """Return what is known by now."""
        findings = (self._failures(), self._speed())
        new, others = (self._arms[arm].as_document(tuple(sorted(self._runs[arm]))) for arm in (True, False))
        verdicts = {finding.verdict for finding in findings}
        is_lost = bool(new.gone) and not others.gone
        verdict: Verdict = (
            "worse" if is_lost or "worse" in verdicts else "no worse" if verdicts == {"no worse"} else "open"
        )
        says = [_describe("new", new), _describe("others", others)]
        if is_lost:
            says.append(f"{pluralize(new.gone, 'new worker')} fell silent, and no other did.")
        says += [finding.says for finding in findings]
        return FleetComparison(
            verdict=verdict, seconds=self._seconds, new=new, others=others, findings=findings, says=tuple(says)
        )

    def _there(self, document: FleetDocument) -> dict[str, Heartbeat]:
        workers = (worker for worker in document.workers if _is_there(worker))
        return {worker.name: worker.beat for worker in workers if worker.beat.pipeline == self._choice.pipeline}

    def _note_what_runs(self) -> None:
        for beat in self._seen.values():
            self._runs[self._choice.is_new(beat)].add(self._choice.key(beat))

    def _count(self, name: str, is_new: bool, before: Heartbeat, after: Heartbeat, took: float) -> None:
        if not took:
            return
        arm = self._arms[is_new]
        arm.names.add(name)
        failed = after.failed - before.failed
        arm.jobs, arm.failed = arm.jobs + after.delivered - before.delivered + failed, arm.failed + failed
        arm.worker_seconds += took
        arm.job_seconds += took * (before.in_flight + after.in_flight) / 2

    def _bet(self, new: _Stretch, others: _Stretch) -> None:
        if not (new.workers and others.workers and new.jobs + others.jobs):
            return
        share = new.jobs / (new.jobs + others.jobs)
        if 0 < share < 1:
            counts = Counts(others.jobs, new.jobs, others.failed, new.failed)
            self._tally[share] = self._tally.get(share, Counts()).plus(counts)
        slower = is_slower(new, others, self._policy.max_slowdown)
        if slower is not None:
            self._slower, self._compared = self._slower + slower, self._compared + 1

    def _failures(self) -> Finding:
        new, others = self._arms[True], self._arms[False]
        counted = f"{new.failed:,} of {new.jobs:,} jobs of the new workers failed, {others.failed:,} of {others.jobs:,} others"
        within = bet_within(self._policy.max_more_failures)
        return self._find("failures", bet_events(MORE), within, self._tally, counted)

    def _speed(self) -> Finding:
        counts = Counts(bad_canary=self._slower, bad_stable=self._compared - self._slower)
        tally = {_HALF: counts} if self._compared else {}
        more = f"{self._policy.max_slowdown:.0%}"
        counted = f"in {self._slower:,} of {self._compared:,} stretches the new workers were over {more} slower"
        return self._find("speed", bet_events(MORE), bet_events(FEWER), tally, counted)

    def _find(self, metric: str, worse: Bet, no_worse: Bet, tally: Mapping[float, Counts], counted: str) -> Finding:
        if not tally:
            return Finding(metric=metric, verdict="no data", says=f"{metric}: no data: both ended no jobs yet")
        for_worse, for_no_worse = worse.log_e(tally), no_worse.log_e(tally)
        alpha = self._policy.alpha
        verdict: Judged = "open"
        if for_worse >= -math.log(alpha / 2):
            verdict = "worse"
        elif for_no_worse >= -math.log(alpha):
            verdict = "no worse"
        ends = {"worse": "worse for sure", "no worse": "no worse for sure", "open": "not known yet"}
        return Finding(
            metric=metric, verdict=verdict, e_worse=math.exp(min(for_worse, 700.0)),
            e_no_worse=math.exp(min(for_no_worse, 700.0)), says=f"{metric}: {counted}: {ends[verdict]}",
        )  # fmt: skip


def compare_fleet(
    place: Place,
    seconds: float,
    new: str | None = None,
    policy: CanaryPolicy | None = None,
    *,
    tell: Callable[[str], object] = lambda _: None,
    sleep: Callable[[float], object] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> FleetComparison:
    """Look at a fleet until it is known whether the new workers do worse; Ctrl-C ends it earlier.

    Args:
        place: Where the heartbeats are.
        seconds: At most; a new worker may come within this time.
        new: See `Comparing`.
        policy: See `Comparing`.
        tell: Is told after each look what is known.
        sleep: Waits for so many seconds.
        now: A clock.

    Raises:
        SettingsError: See `Comparing`.
        PlaceUnavailable: If it cannot be read for all that time.
    """
    ends, at = now() + seconds, now()

    def wait() -> float:
        nonlocal at
        sleep(min(LOOK_SECONDS, max(0.0, ends - at)))
        before, at = at, now()
        return at - before

    while (comparing := _begin(place, new, policy, tell, is_last=at >= ends)) is None:
        wait()
    try:
        while at < ends and (found := comparing.result()).verdict == "open":
            tell("; ".join(finding.says for finding in found.findings))
            took = wait()
            try:
                comparing.look(read_fleet(place), took)
            except PlaceUnavailable as error:  # the next look finds what was done meanwhile
                tell(f"not looked: {error}")
    except KeyboardInterrupt:
        pass
    return comparing.result()


def _begin(
    place: Place, new: str | None, policy: CanaryPolicy | None, tell: Callable[[str], object], *, is_last: bool
) -> Comparing | None:
    try:
        return Comparing(read_fleet(place), new, policy)
    except (SettingsError, PlaceUnavailable) as error:
        if is_last:
            raise
        tell(f"waiting: {error}")
        return None


def is_slower(new: _Stretch, others: _Stretch, by: float) -> bool | None:
    """Return whether the new workers were slower than the others by more than a share; None: it cannot be told."""
    if new.is_full and others.is_full:
        return new.rate / new.workers * (1 + by) < others.rate / others.workers
    if not others.jobs:
        return None
    if not new.jobs:
        return True if new.in_flight else None
    return new.in_flight / new.rate > (1 + by) * others.in_flight / others.rate


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which workers are looked at, and which of them are the new ones."""

    pipeline: str
    by_version: bool
    new: str
    """How the Plan, or the version, of the new ones begins."""

    def key(self, beat: Heartbeat) -> str:
        return beat.headrace_version if self.by_version else beat.plan_id

    def is_new(self, beat: Heartbeat) -> bool:
        return self.key(beat).startswith(self.new)


def _choose(beats: list[Heartbeat], new: str | None) -> _Choice:
    """Return the choice that begins with a name and parts workers of one pipeline; of several the one that began last."""
    choices: dict[_Choice, float] = {}
    for beat in beats:
        for by_version in (False, True):
            choice = _Choice(beat.pipeline, by_version, beat.headrace_version if by_version else beat.plan_id)
            choices[choice] = min(beat.started_unix_seconds, choices.get(choice, math.inf))
    parting = [choice for choice in choices if _parts(choice, beats)]
    if not parting:
        raise SettingsError(
            f"{pluralize(len(beats), 'worker')} there, and no two run another Plan or version of one pipeline: change one "
            "machine first, then compare"
        )
    named = [choice for choice in parting if choice.new.startswith(new or "")]
    if not named:
        known = ", ".join(sorted({choice.new for choice in parting}))
        raise SettingsError(f"--new {new}: no worker runs such a Plan or version; those that differ are {known}")
    return max(named, key=lambda choice: (choices[choice], not choice.by_version))


def _parts(choice: _Choice, beats: list[Heartbeat]) -> bool:
    return len({choice.is_new(beat) for beat in beats if beat.pipeline == choice.pipeline}) == 2


def _is_there(worker: FleetWorker) -> bool:
    return worker.state not in ("ended", "silent")


def _describe(what: str, arm: FleetArm) -> str:
    lasts = "" if arm.seconds_per_job is None else f", {format_duration(arm.seconds_per_job)} in a worker"
    return (
        f"{what}: {', '.join(name or 'none' for name in arm.runs)} on {pluralize(arm.workers, 'worker')}: "
        f"{format_rate(arm.rate)} each{lasts}"
    )
