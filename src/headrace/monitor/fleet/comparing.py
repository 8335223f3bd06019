"""Tells whether what was changed on some machines of a fleet does worse than what the others run, by heartbeats alone.

How this works. All take jobs of one queue in the same minutes, so what is wrong with jobs or services falls on both. The fleet
is looked at again and again; what a worker did between two looks counts for its arm. Failed jobs fall to the new ones with
their share of all jobs that ended, or more often. In a stretch they are slower or not: where all are full, by the rate of a
worker, else by how long a job is in one (Little's law: jobs in flight = rate x time; where few are, by how long those were
that ended). A stretch lasts until so many jobs were seen that the same Plan seems slower in fewer than half of them. Both are
bet on as with canaries (see `base.policies.evidence`), so one may look as often as one likes. A new worker that falls silent,
or ends by an error, ends it at once, unless others do so within the same minute, or as large a share of them at any time.

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
from headrace.monitor.fleet.status import THERE, began_unix_seconds, lasted_seconds, read_fleet
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
#: Workers that are lost within so long may have been lost by one cause, such as a power failure.
_TOGETHER_SECONDS = 60.0


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
    timed: int = 0
    timed_seconds: float = 0.0
    """Of jobs that ended, for how long they were in a worker."""

    def add(self, other: _Did) -> None:
        self.jobs, self.failed, self.seen = self.jobs + other.jobs, self.failed + other.failed, self.seen + other.seen
        self.worker_seconds += other.worker_seconds
        self.job_seconds += other.job_seconds
        self.slot_seconds += other.slot_seconds
        self.timed, self.timed_seconds = self.timed + other.timed, self.timed_seconds + other.timed_seconds

    @property
    def is_full(self) -> bool:
        return self.job_seconds >= _FULL * self.slot_seconds > 0

    @property
    def rate(self) -> float:
        """Jobs a second and worker."""
        return self.jobs / self.worker_seconds if self.worker_seconds else 0.0

    @property
    def seconds_per_job(self) -> float | None:
        if self.timed:
            return self.timed_seconds / self.timed
        return self.job_seconds / self.jobs if self.jobs else None


@dataclass
class _Arm(_Did):
    """Sums of the workers that run the same."""

    names: set[str] = field(default_factory=set)
    gone: dict[str, float] = field(default_factory=dict)
    """When each was last heard of: Unix seconds by the place's clock."""

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
        slot_seconds=other.slots * seconds, seen=other.in_flight, timed=other.timed - one.timed,
        timed_seconds=other.timed_seconds - one.timed_seconds,
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
        self._gone_before = {worker.name for worker in first.workers if _is_gone(worker)}
        self._joined = {name: seen.left_at - lasted_seconds(seen.beat) for name, seen in self._seen.items()}
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
            if _is_gone(worker) and worker.name not in self._gone_before and self._is_of_it(worker):
                arm = self._arms[self._choice.is_new(worker.beat)]
                arm.names.add(worker.name)
                arm.gone[worker.name] = now.at_unix_seconds - worker.age_seconds
        self._seen = there
        self._note_what_runs()
        self._seconds += seconds
        self._bet(look[True], look[False])

    def result(self) -> FleetComparison:
        """Return what is known by now."""
        findings = (self._failures(), self._speed())
        new, others = (self._arms[arm].as_document(tuple(sorted(self._runs[arm]))) for arm in (True, False))
        verdicts = {finding.verdict for finding in findings}
        is_lost = _loses_more(self._arms[True], self._arms[False])
        verdict: Verdict = (
            "worse" if is_lost or "worse" in verdicts else "no worse" if verdicts == {"no worse"} else "open"
        )
        says = [_describe("new", new), _describe("others", others)]
        if is_lost:
            lost = f"{others.gone:,} of {others.workers:,}" if others.gone else f"none of {others.workers:,}"
            says.append(f"{pluralize(new.gone, 'new worker')} fell silent or ended by an error, and {lost} others.")
        says += [finding.says for finding in findings]
        return FleetComparison(
            verdict=verdict, pipeline=self._choice.pipeline, seconds=self._seconds, new=new, others=others,
            findings=findings, says=tuple(says),
        )  # fmt: skip

    def sides(self) -> str:
        """Return who is compared with whom."""
        new, others = (
            f"{', '.join(sorted(name or 'none' for name in self._runs[arm]))} on "
            f"{pluralize(sum(self._choice.is_new(seen.beat) == arm for seen in self._seen.values()), 'worker')}"
            for arm in (True, False)
        )
        return (
            f"{self._choice.pipeline}: new is {new}, beside {others}; looks every {format_duration(LOOK_SECONDS)}; a "
            f"worker counts after {format_duration(_WARM_SECONDS)}"
        )

    def _there(self, document: FleetDocument) -> dict[str, _Seen]:
        return {
            worker.name: _Seen(worker.beat, document.at_unix_seconds - worker.age_seconds)
            for worker in document.workers
            if worker.state in THERE and self._is_of_it(worker)
        }

    def _is_of_it(self, worker: FleetWorker) -> bool:
        return worker.beat.pipeline == self._choice.pipeline

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
        slower = _is_slower(self._stretch[True], self._stretch[False], self._policy.max_slowdown)
        if slower is not None:
            self._slower, self._compared = self._slower + slower, self._compared + 1
            self._stretch = {True: _Did(), False: _Did()}

    def _failures(self) -> Finding:
        new, others = self._arms[True], self._arms[False]
        counted = f"{new.failed:,} of {new.jobs:,} jobs of the new workers failed, {others.failed:,} of {others.jobs:,} others"
        within = bet_within(self._policy.max_more_failures)
        missing = "no jobs ended on both sides between two looks yet"
        return self._find("failures", bet_events(MORE), within, self._tally, counted, missing)

    def _speed(self) -> Finding:
        counts = Counts(bad_canary=self._slower, bad_stable=self._compared - self._slower)
        tally = {_HALF: counts} if self._compared else {}
        more = f"{self._policy.max_slowdown:.0%}"
        counted = f"in {self._slower:,} of {self._compared:,} stretches the new workers were over {more} slower"
        new, others = (self._stretch[arm].jobs for arm in (True, False))
        missing = (
            f"{new:,} jobs of the new workers ended and {others:,} others; it takes some {_ENOUGH_JOBS} of each worker"
        )
        return self._find("speed", bet_events(MORE), bet_events(FEWER), tally, counted, missing)

    def _find(
        self, metric: str, worse: Bet, no_worse: Bet, tally: Mapping[float, Counts], counted: str, missing: str
    ) -> Finding:
        if not tally:
            return Finding(metric=metric, verdict="no data", says=f"{metric}: no data yet: {missing}")
        for_worse, for_no_worse = worse.log_e(tally), no_worse.log_e(tally)
        goal_worse, goal = -math.log(self._policy.alpha / 2), -math.log(self._policy.alpha)
        verdict: Judged = "open"
        if for_worse >= goal_worse:
            verdict = "worse"
        elif for_no_worse >= goal:
            verdict = "no worse"
        needs = [worse.seconds_to(goal_worse, tally, None, self._seconds)]
        needs.append(no_worse.seconds_to(goal, tally, None, self._seconds))
        known = min((need for need in needs if need is not None), default=None) if verdict == "open" else None
        more = "as it is, it never will be" if known is None else f"about {format_duration(known)} more would tell"
        ends = {"worse": "worse for sure", "no worse": "no worse for sure", "open": f"not known yet; {more}"}
        return Finding(
            metric=metric, verdict=verdict, e_worse=math.exp(min(for_worse, 700.0)),
            e_no_worse=math.exp(min(for_no_worse, 700.0)), says=f"{metric}: {counted}: {ends[verdict]}",
            known_in_seconds=known,
        )  # fmt: skip


def compare_fleet(
    place: Place,
    seconds: float,
    new: str | None = None,
    policy: CanaryPolicy | None = None,
    *,
    say: Callable[[str], object] = lambda _: None,
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
        say: Is told at the beginning what is waited for, and who is compared with whom.
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

    told = say
    while (comparing := _begin(place, new, policy, told, is_last=at >= ends)) is None:
        told = tell
        wait()
    say(comparing.sides())
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


def _is_slower(new: _Did, others: _Did, by: float) -> bool | None:
    """Return whether the new workers were slower than the others by more than a share; None: too few jobs to tell.

    By the stretch's time, each side should have ended enough. Jobs in flight, where enough were seen, also tell of those that
    do not end; else those that ended do.
    """
    least = min(new.worker_seconds, others.worker_seconds)
    if others.rate * least < _ENOUGH_JOBS:
        return None
    if new.is_full and others.is_full:
        return new.rate * (1 + by) < others.rate
    seen = (new.seen + others.seen) * least / (new.worker_seconds + others.worker_seconds)
    if seen >= _ENOUGH_JOBS and (new.jobs or new.job_seconds):
        return new.job_seconds * others.jobs > (1 + by) * others.job_seconds * new.jobs
    if min(new.timed, others.timed) >= _ENOUGH_JOBS:
        return new.timed_seconds * others.timed > (1 + by) * others.timed_seconds * new.timed
    return None


def _loses_more(new: _Arm, others: _Arm) -> bool:
    """Return whether new workers are lost that were not lost together with others, and more of them than of the others."""
    apart = any(all(abs(at - one) > _TOGETHER_SECONDS for one in others.gone.values()) for at in new.gone.values())
    return apart and len(new.gone) * len(others.names) > len(others.gone) * len(new.names)


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


def _choose(workers: Sequence[FleetWorker], new: str | None) -> _Choice:
    """Return the choice that begins with a name and parts workers of one pipeline; of several the one that began last.

    A worker that was started again goes on with what ran on its machine before: one that is gone left a heartbeat, too.
    """
    beats = [worker.beat for worker in workers if worker.state in THERE]
    choices: dict[_Choice, float] = {}
    for by_version in (False, True):
        runs: dict[tuple[str, str], tuple[_Choice, float]] = {}
        for worker in sorted(workers, key=began_unix_seconds):
            beat = worker.beat
            choice = _Choice(beat.pipeline, by_version, beat.headrace_version if by_version else beat.plan_id)
            machine = (beat.host, beat.pipeline)
            if machine not in runs or runs[machine][0] != choice:
                runs[machine] = (choice, began_unix_seconds(worker))
            if worker.state in THERE:
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


def _is_gone(worker: FleetWorker) -> bool:
    return worker.state in ("silent", "failed", "replaced")


def _describe(what: str, arm: FleetArm) -> str:
    lasts = "" if arm.seconds_per_job is None else f", {format_duration(arm.seconds_per_job)} in a worker"
    return (
        f"{what}: {', '.join(name or 'none' for name in arm.runs)} on {pluralize(arm.workers, 'worker')}: "
        f"{format_rate(arm.rate)} each{lasts}"
    )
