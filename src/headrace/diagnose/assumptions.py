"""What a prediction takes for granted, in words, and what it would be if that were not so.

The recorded run cannot know everything. Where it does not, and the answer depends on it, the other way is simulated as well,
and the interval reaches to it; `learn` says how to find out. A way that contradicts the recorded run itself is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.diagnose.concurrency import fit_growth
from headrace.diagnose.replay import Replay
from headrace.diagnose.replay.demands import StageDemands
from headrace.diagnose.replay.structure import group_stages
from headrace.runs.formats.prediction import Change

#: Of a unit's time: from here on a stage waits on the outside rather than computes.
_WAITS = 0.5
#: How much worse than the replay itself another way may give back the recorded run, as a share, to be possible.
_POSSIBLE = 0.10
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
    learn: str = ""
    """How to find out; empty where nothing else is simulated."""


def assumptions(replay: Replay, change: Change) -> tuple[Assumption, ...]:
    """Return what a prediction of a change takes for granted, the gravest first."""
    return (
        *_of_the_outside(replay, change),
        *_of_the_gil(replay, change),
        *_of_the_neighbours(replay, change),
        *_of_the_kind(change),
    )


def other_ratio(replay: Replay, change: Change, assumption: Assumption) -> float | None:
    """Return the ratio of throughputs if an assumption does not hold; None if the recorded run rules that out."""
    if not assumption.learn:
        return None
    other = replay.with_gil_shares(assumption.gil_shares) if assumption.gil_shares else replay
    allowed = abs(replay.misfit) + _POSSIBLE
    if other is not replay and abs(other.misfit) > allowed:
        return None
    return other.ratio(assumption.other or change)


def _of_the_outside(replay: Replay, change: Change) -> Iterator[Assumption]:
    """Yield one for each stage that waits on the outside with other workers than it had."""
    plan = replay.change_plan(change)
    for group in group_stages(replay.demands.stages, plan):
        head = group[0].name
        before, after = replay.plan.stages[head].workers or 1, plan.stages[head].workers or 1
        is_inline = "inline" in (replay.plan.stages[head].executor, plan.stages[head].executor)
        for stage in group:
            if before == after or is_inline or not _waits_outside(stage) or stage.name in change.drop:
                continue
            growth = fit_growth(replay.evidence, stage.name)
            power = growth.high
            if power <= 0.05:
                continue
            seen = (
                f" (in the run, their time grew by the power {growth.mid:.2f} of the calls under way)"
                if growth.is_known
                else ""
            )
            faster = change.speedups.get(stage.name, 1.0) * (before / after) ** power
            yield Assumption(
                says=f"calls of {stage.name} take as long {after} at a time as {before} at a time, which was never tried{seen}",
                other=msgspec.structs.replace(change, speedups={**change.speedups, stage.name: faster}),
                learn=(
                    f"what {stage.name} waits for may be limited in rate, or by its link: profile once with "
                    f"--set {head}.workers={max(1, before // 2) if before > 1 else 2} and compare the throughputs"
                ),
            )


def _of_the_gil(replay: Replay, change: Change) -> Iterator[Assumption]:
    """Yield one for each computing stage of which nobody measured how long it keeps the GIL."""
    if not _DEPEND_ON_GIL & set(change.kinds):
        return
    for stage in replay.demands.stages:
        name, share = stage.name, replay.holds_gil.get(stage.name, 0.0)
        if stage.holds_gil == 0 or float(stage.cpu.mean()) < _LEAST_CPU:
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
        other=msgspec.structs.replace(change, quiet=True),
        learn="they may have all moved to the other cores: profile on a quiet machine",
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
        if kind in _BY_KIND:
            yield Assumption(says=_BY_KIND[kind])
    yield Assumption(says="jobs, and what other programs do, are as in the run")


def _waits_outside(stage: StageDemands) -> bool:
    """Return whether a stage waits for something that headrace does not know: a server, a link, a disk."""
    if stage.info.kind == "device" or stage.info.is_emulated or stage.mean_lock:
        return False
    wait, cpu = float(stage.wait.mean()), float(stage.cpu.mean())
    return wait > _WAITS * (wait + cpu)
