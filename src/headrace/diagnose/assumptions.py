"""What a prediction takes for granted, in words, and what it would be if that were not so.

The recorded run cannot know everything. Where it does not, and the answer depends on it, the other way is simulated as well,
and the interval reaches to it; `learn` says how to find out. A way that contradicts the recorded run itself is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.diagnose.concurrency import LIMITED, UNKNOWN, Growth, fit_growth
from headrace.diagnose.replay import Replay
from headrace.diagnose.replay.demands import StageDemands
from headrace.diagnose.replay.structure import group_stages
from headrace.runs.formats.prediction import Change

#: Of a unit's time: from here on a stage waits on the outside rather than computes.
_WAITS = 0.5
#: How much worse than the replay itself another way may give back the recorded run, as a share, to be possible.
_POSSIBLE = 0.10
#: A power of the number of calls below which their time does not grow.
_GROWS = 0.05
#: Other programs that wanted less than this of the cores do not matter.
_OTHERS_MATTER = 0.1
#: CPU seconds of a unit below which it does not matter who keeps the GIL.
_LEAST_CPU = 200e-6
#: Changes whose effect depends on whether a stage keeps the GIL.
_DEPEND_ON_GIL = {"workers", "executor", "cores", "speedup", "quiet", "drop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One thing that a prediction takes for granted."""

    says: str
    other: Change | None = None
    """The change as it would be simulated if this were not so; None: nothing else is simulated."""
    gil_shares: Mapping[str, float] = field(default_factory=dict)
    """{stage: share of its CPU time with the GIL} of the other way."""
    without_turns: str = ""
    """Stage whose calls take as long as they took however many there are, the other way."""
    learn: str = ""
    """How to find out; empty where nothing else is simulated."""


def assumptions(replay: Replay, change: Change) -> tuple[Assumption, ...]:
    """Return what a prediction of a change takes for granted, the gravest first."""
    return (
        *_of_the_outside(replay, change),
        *_of_the_gil(replay, change),
        *_of_the_neighbours(replay, change),
        *_of_caches(replay, change),
        *_of_the_kind(change),
    )


def other_ratio(replay: Replay, change: Change, assumption: Assumption) -> float | None:
    """Return the ratio of throughputs if an assumption does not hold; None if the recorded run rules that out."""
    if not assumption.learn:
        return None
    other = replay.with_gil_shares(assumption.gil_shares) if assumption.gil_shares else replay
    if assumption.without_turns:
        other = replay.without_turns(assumption.without_turns)
    allowed = abs(replay.misfit) + _POSSIBLE
    if other is not replay and abs(other.misfit) > allowed:
        return None
    return other.ratio(assumption.other or likely_change(replay, change))


def likely_change(replay: Replay, change: Change) -> Change:
    """Return a change as it is simulated: calls to a service that is known to be limited take longer the more there are."""
    return _with_factors(change, {one.stage: one.factor for one in _find_calls(replay, change) if one.is_limited})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """A stage that waits on the outside with other workers than it had."""

    stage: str
    station: str
    before: int
    after: int
    growth: Growth
    in_turn: bool
    """What it asks serves one at a time, and is simulated so."""
    writes: bool
    """It waits until somebody reads what it writes to a pipe or a terminal."""

    @property
    def is_limited(self) -> bool:
        """Whether the run shows that its calls grow with their number."""
        return self.growth.low > 0.5

    @property
    def factor(self) -> float:
        """How many times as fast calls are with the new workers, if they grow as they may."""
        if self.in_turn:
            return 1.0
        power = self.growth.mid if self.is_limited else self.growth.high
        return float((self.before / self.after) ** power)


def _find_calls(replay: Replay, change: Change) -> Iterator[_Calls]:
    plan = replay.change_plan(change)
    accounts = {account.name: account for account in replay.document.stages}
    for group in group_stages(replay.demands.stages, plan):
        head = group[0].name
        was, will = replay.plan.stages[head], plan.stages[head]
        before, after = was.workers or 1, will.workers or 1
        if before == after or "inline" in (was.executor, will.executor):
            continue
        for stage in group:
            if _waits_outside(stage) and stage.name not in change.drop:
                account, in_turn = accounts[stage.name], stage.turns is not None
                # Calls that mostly waited for the GIL or a core say nothing of whom they ask.
                is_seen = float(stage.wait.mean()) >= _WAITS * (account.service.mean or 0.0)
                growth = LIMITED if in_turn else fit_growth(replay.evidence, stage.name) if is_seen else UNKNOWN
                if growth.high > _GROWS:
                    yield _Calls(
                        stage=stage.name, station=head, before=before, after=after, growth=growth, in_turn=in_turn,
                        writes=stage.turns is not None and stage.turns.with_work,
                    )  # fmt: skip


def _of_the_outside(replay: Replay, change: Change) -> Iterator[Assumption]:
    """Yield one for each stage that waits on the outside with other workers than it had."""
    found = list(_find_calls(replay, change))
    limited = {one.stage: one.factor for one in found if one.is_limited}
    for one in found:
        if one.is_limited:
            others = {name: factor for name, factor in limited.items() if one.in_turn or name != one.stage}
            says = (
                f"what {one.stage} writes to a pipe or terminal is read no faster"
                if one.writes
                else f"what {one.stage} asks is limited in rate, as the pace of its answers shows"
            )
        else:
            others = limited | {one.stage: one.factor}
            says = f"calls of {one.stage} take as long {one.after} at a time as {one.before} at a time, which was never tried"
        yield Assumption(
            says=says,
            other=_with_factors(change, others),
            without_turns=one.stage if one.in_turn else "",
            learn=(
                f"what {one.stage} waits for may be limited in rate, or by its link: profile once with "
                f"--set {one.station}.workers={one.before // 2 if one.before > 1 else 2} and compare the throughputs"
                + ("" if replay.evidence.info.served else ", or have headrace diagnose --decide do that")
            ),
        )


def _with_factors(change: Change, factors: Mapping[str, float]) -> Change:
    """Return a change with stages that are so many times as fast, beside what it says itself."""
    speedups = {name: change.speedups.get(name, 1.0) * factor for name, factor in factors.items()}
    return msgspec.structs.replace(change, speedups={**change.speedups, **speedups}) if factors else change


def _of_the_gil(replay: Replay, change: Change) -> Iterator[Assumption]:
    """Yield one for each computing stage of which nobody measured how long it keeps the GIL."""
    if not _DEPEND_ON_GIL & set(change.kinds):
        return
    for stage in replay.demands.stages:
        name, share = stage.name, replay.holds_gil.get(stage.name, 0.0)
        if float(stage.cpu.mean()) < _LEAST_CPU:
            continue
        if name in replay.seen_with_gil:
            looks = replay.seen_with_gil[name].num_at_work
            yield Assumption(
                says=f"{name} keeps the GIL for {share:.0%} of its work, as {looks:,} looks at its threads say"
            )
            continue
        if stage.holds_gil == 0:
            continue
        if name in replay.measured_gil_shares:
            yield Assumption(says=f"{name} keeps the GIL for {share:.0%} of its work, as it did alone")
            continue
        other = 0.0 if share >= 0.5 else 1.0
        yield Assumption(
            says=f"{name} keeps the GIL for {share:.0%} of its work",
            gil_shares={name: other},
            learn=f"how much of its work {name} does without the GIL was not measured: profile once with --isolate",
        )


def _of_the_neighbours(replay: Replay, change: Change) -> Iterator[Assumption]:
    """Yield one where other programs may go to the cores that are left to them, or not."""
    if change.cores is None or change.quiet or change.cores >= replay.cores or replay.machine.others < _OTHERS_MATTER:
        return
    yield Assumption(
        says=f"other programs are on the {change.cores:g} cores as they were on all {replay.cores:g}",
        other=msgspec.structs.replace(likely_change(replay, change), quiet=True),
        learn="they may have all moved to the other cores: profile on a quiet machine",
    )


def _of_caches(replay: Replay, change: Change) -> Iterator[Assumption]:
    kept = replay.kept(change)
    if kept.says:
        yield Assumption(
            says=f"{kept.says}, most of it without the GIL",
            gil_shares=dict.fromkeys(kept.hit_seconds, 1.0),
            learn="profile twice with the cache: the second run finds what the first one kept",
        )


_BY_KIND = {
    "arrivals": "jobs come at random, independent of one another",
    "batch": "calls of sizes between measured ones cost what lies between",
    "cache": "what is skipped comes evenly and costs nothing",
    "cores": "other cores are as fast as these",
    "curve": "the new costs hold in this pipeline",
    "devices": "a device takes as long for all that it is given",
    "drop": "what comes after the dropped stage costs the same",
    "executor": "handing items over costs what it usually does",
    "model": "the model's costs change as its settings say",
    "quiet": "without other programs the cores are as fast as now",
    "speedup": "the stage's work and its waiting shrink alike",
}


def _of_the_kind(change: Change) -> Iterator[Assumption]:
    for kind in change.kinds:
        if kind in _BY_KIND and not (kind == "cache" and not (change.cache_hits or change.every)):
            yield Assumption(says=_BY_KIND[kind])
    yield Assumption(says="jobs, and what other programs do, are as in the run")


def _waits_outside(stage: StageDemands) -> bool:
    """Return whether a stage waits for something that headrace does not know: a server, a link, a disk."""
    if stage.info.kind == "device" or stage.info.is_emulated or stage.mean_lock:
        return False
    wait, cpu = float(stage.wait.mean()), float(stage.cpu.mean())
    return wait > _WAITS * (wait + cpu)
