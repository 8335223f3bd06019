"""Tells whether what was changed on some machines of a fleet does worse than what the others run, by heartbeats alone.

How this works. All take jobs of one queue in the same minutes, so what is wrong with jobs or services falls on both. The fleet
is looked at again and again; what a worker did between two looks counts for its arm. Failed jobs fall to the new ones with
their share of all jobs that ended, or more often. In a stretch they are slower or not: where all are full, by the rate of a
worker, else by how long a job is in one (Little's law: jobs in flight = rate x time). A stretch lasts until so many jobs were
seen that the same Plan seems slower in fewer than half of them. Both are bet on as with canaries (see
`base.policies.evidence`), so one may look as often as one likes. A new worker that falls silent while no other does ends it
at once.

A worker counts once it is warm: in its first seconds it has ended no job yet, or learns which servers do not answer.

What machines of different speeds do is laid to what they run: nobody knows better here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
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
#: Jobs of each side that a stretch is to tell of. Of 10, chance makes a quarter less in one of three stretches at most.
_ENOUGH_JOBS = 10
#: A worker is warm after so long, and after the time for which a job is in the others.
_WARM_SECONDS = 30.0


@dataclass
class _Did:
    """Sums of what workers did."""

    jobs: int = 0
    failed: int = 0
    worker_seconds: float = 0.0
    job_seconds: float = 0.0
    slot_seconds: float = 0.0
    seen: int = 0
    """Jobs in flight at heartbeats: from few of them nobody can tell for how long a job is in a worker."""

    def add(self, other: _Did) -> None:
        self.jobs, self.failed, self.seen = self.jobs + other.jobs, self.failed + other.failed, self.seen + other.seen
        self.worker_seconds += other.worker_seconds
        self.job_seconds += other.job_seconds
        self.slot_seconds += other.slot_seconds

    @property
    def is_full(self) -> bool:
        return self.job_seconds >= _FULL * self.slot_seconds > 0

    @property
    def rate(self) -> float:
        """Jobs a second and worker."""
        return self.jobs / self.worker_seconds if self.worker_seconds else 0.0

    @property
    def seconds_per_job(self) -> float | None:
        return self.job_seconds / self.jobs if self.jobs else None


@dataclass
class _Arm(_Did):
    """Sums of the workers that run the same."""

    names: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)

    def as_document(self, runs: tuple[str, ...]) -> FleetArm:
        return FleetArm(
            runs=runs, workers=len(self.names), gone=len(self.gone), jobs=self.jobs, failed=self.failed,
            rate=self.rate, seconds_per_job=self.seconds_per_job,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Seen:
    """A worker at a look."""

    beat: Heartbeat
    left_at: float
    """Unix seconds by the place's clock: a worker's own may jump."""


def _did(before: _Seen, after: _Seen) -> _Did | None:
    """Return what a worker did between two looks; None: it left no heartbeat meanwhile."""
    one, other = before.beat, after.beat
    seconds = after.left_at - before.left_at
    failed, delivered = other.failed - one.failed, other.delivered - one.delivered
    if other.at_unix_seconds == one.at_unix_seconds or seconds <= 0 or delivered < 0 or failed < 0:
        return None
    in_flight = (one.in_flight + other.in_flight) / 2
    return _Did(
        jobs=delivered + failed, failed=failed, worker_seconds=seconds, job_seconds=in_flight * seconds,
        slot_seconds=other.slots * seconds, seen=other.in_flight,
    )  # fmt: skip


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
        self._choice = _choose(first.workers, new)
        self._seen = self._there(first)
        self._joined = {name: seen.left_at - _age(seen.beat) for name, seen in self._seen.items()}
        self._arms = {True: _Arm(), False: _Arm()}
        self._stretch = {True: _Did(), False: _Did()}
        self._runs: dict[bool, set[str]] = {True: set(), False: set()}
        self._note_what_runs()
        self._tally: dict[float, Counts] = {}
        self._slower, self._compared, self._seconds = 0, 0, 0.0

    def look(self, now: FleetDocument, seconds: float) -> None:
        """Add what was done since the last look, so many seconds ago."""
        look = {True: _Did(), False: _Did()}
        there = self._there(now)
        for name, after in there.items():
            if (before := self._seen.get(name)) is None:
                self._joined[name] = after.left_at
                continue
            is_new = self._choice.is_new(after.beat)
            self._arms[is_new].names.add(name)
            if self._is_warm(name, before) and (did := _did(before, after)) is not None:
                look[is_new].add(did)
                self._arms[is_new].add(did)
        for worker in now.workers:
            if worker.state == "silent" and worker.name in self._seen:
                self._arms[self._choice.is_new(worker.beat)].gone.add(worker.name)
        self._seen = there
        self._note_what_runs()
        self._seconds += seconds
        self._bet(look[True], look[False])

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

    def _there(self, document: FleetDocument) -> dict[str, _Seen]:
        return {
            worker.name: _Seen(worker.beat, document.at_unix_seconds - worker.age_seconds)
            for worker in document.workers
            if _is_there(worker) and worker.beat.pipeline == self._choice.pipeline
        }

    def _note_what_runs(self) -> None:
        for seen in self._seen.values():
            self._runs[self._choice.is_new(seen.beat)].add(self._choice.key(seen.beat))

    def _is_warm(self, name: str, seen: _Seen) -> bool:
        takes = self._arms[False].seconds_per_job or 0.0
        return seen.left_at - self._joined[name] >= max(_WARM_SECONDS, takes)

    def _bet(self, new: _Did, others: _Did) -> None:
        if new.jobs and others.jobs:
            share = new.jobs / (new.jobs + others.jobs)
            counts = Counts(others.jobs, new.jobs, others.failed, new.failed)
            self._tally[share] = self._tally.get(share, Counts()).plus(counts)
        self._stretch[True].add(new)
        self._stretch[False].add(others)
        if _is_enough(self._stretch[True], self._stretch[False]):
            if (slower := is_slower(self._stretch[True], self._stretch[False], self._policy.max_slowdown)) is not None:
                self._slower, self._compared = self._slower + slower, self._compared + 1
            self._stretch = {True: _Did(), False: _Did()}

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
            return Finding(
                metric=metric, verdict="no data", says=f"{metric}: no data: too few jobs ended on both sides yet"
            )
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


def _is_enough(new: _Did, others: _Did) -> bool:
    """Return whether a stretch tells who is slower: by its time, each side should have ended, and had in it, enough jobs."""
    least = min(new.worker_seconds, others.worker_seconds)
    if others.rate * least < _ENOUGH_JOBS:
        return False
    seen = (new.seen + others.seen) * least / (new.worker_seconds + others.worker_seconds)
    return (new.is_full and others.is_full) or seen >= _ENOUGH_JOBS


def is_slower(new: _Did, others: _Did, by: float) -> bool | None:
    """Return whether the new workers were slower than the others by more than a share; None: it cannot be told."""
    if new.is_full and others.is_full:
        return new.rate * (1 + by) < others.rate
    if new.seconds_per_job is None or others.seconds_per_job is None:
        return True if new.job_seconds else None
    return new.seconds_per_job > (1 + by) * others.seconds_per_job


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which workers are looked at, and which of them are the new ones."""

    pipeline: str
    by_version: bool
    new: str
    """The Plan, or the version, of the new ones."""

    def key(self, beat: Heartbeat) -> str:
        return beat.headrace_version if self.by_version else beat.plan_id

    def is_new(self, beat: Heartbeat) -> bool:
        return self.key(beat) == self.new


def _age(beat: Heartbeat) -> float:
    """Return for how many seconds a worker had run, by its own clock."""
    return beat.at_unix_seconds - beat.started_unix_seconds


def _choose(workers: Sequence[FleetWorker], new: str | None) -> _Choice:
    """Return the choice that begins with a name and parts workers of one pipeline; of several the one that began last.

    A worker that was started again goes on with what ran on its machine before: one that is gone left a heartbeat, too.
    """
    beats = [worker.beat for worker in workers if _is_there(worker)]
    choices: dict[_Choice, float] = {}
    for by_version in (False, True):
        runs: dict[tuple[str, str], tuple[_Choice, float]] = {}
        for worker in sorted(workers, key=_started):
            beat = worker.beat
            choice = _Choice(beat.pipeline, by_version, beat.headrace_version if by_version else beat.plan_id)
            machine = (beat.host, beat.pipeline)
            if machine not in runs or runs[machine][0] != choice:
                runs[machine] = (choice, _started(worker))
            if _is_there(worker):
                choices[choice] = min(runs[machine][1], choices.get(choice, math.inf))
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


def _started(worker: FleetWorker) -> float:
    """Return Unix seconds by the place's clock."""
    return worker.beat.started_unix_seconds - worker.clock_ahead_seconds


def _is_there(worker: FleetWorker) -> bool:
    return worker.state not in ("ended", "silent")


def _describe(what: str, arm: FleetArm) -> str:
    lasts = "" if arm.seconds_per_job is None else f", {format_duration(arm.seconds_per_job)} in a worker"
    return (
        f"{what}: {', '.join(name or 'none' for name in arm.runs)} on {pluralize(arm.workers, 'worker')}: "
        f"{format_rate(arm.rate)} each{lasts}"
    )
