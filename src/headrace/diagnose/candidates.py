"""What each resource would give if it were a fifth faster, by simulation: the bottleneck is where the gain is largest.

How this works: each is a trial, which is listed first and simulated then, what is busiest in the run as it was before the rest.
When the half of the budget that candidates may take is used up, the rest is left out and noted; the other half is for remedies.

References:
    C. Curtsinger, E. Berger, "Coz: finding code that counts with causal profiling", SOSP 2015: the value of a virtual speed-up
    instead of the share of the time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from headrace.diagnose.replay import CannotReplay, Replay, Simulated
from headrace.diagnose.replay.structure import Scenario, group_stages
from headrace.runs.formats.diagnosis import Candidate, CandidateKind
from headrace.runs.formats.prediction import Change

#: How much faster each is made.
FASTER = 1.2
#: Stages below this share of the work of the largest cannot matter.
_NEGLIGIBLE = 0.005


#: Of the budget.
_FOR_CANDIDATES = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A candidate before it is simulated; see `Candidate`."""

    name: str
    kind: CandidateKind
    says: str
    gain: Callable[[], float]
    """Raises CannotReplay where it cannot be simulated."""
    stage: str | None = None
    utilization: float | None = None

    def candidate(self) -> Candidate | None:
        """Simulate it; None where that cannot be done."""
        try:
            gain = self.gain()
        except CannotReplay:
            return None
        return Candidate(
            name=self.name, kind=self.kind, stage=self.stage, says=self.says, gain=gain, utilization=self.utilization
        )


def find_candidates(replay: Replay, base: Change | None = None) -> list[Candidate]:
    """Return every resource with the throughput ratio that 20 % more of it would give, largest first.

    Those that the replay's budget does not last for are missing, and noted there.

    Args:
        replay: The run.
        base: What is changed already: to ask what limits after a fix; None for the run as recorded.
    """
    base = base or Change()
    before = replay.simulate(base)
    trials = [
        *_stages(replay, base, before),
        *_workers(replay, base, before),
        *_queues(replay, base, before),
        *_batches(replay, base, before),
        *_try_shared(replay, base, before),
        *_try_receiving(replay, base, before),
        *_outcomes(replay, base, before),
    ]
    found: dict[int, Candidate | None] = {}
    for number in sorted(range(len(trials)), key=lambda number: -_importance(trials[number])):
        if replay.budget.has_left(_FOR_CANDIDATES):
            found[number] = trials[number].candidate()
        else:
            replay.budget.leave_out(trials[number].says)
    known = [one for number in sorted(found) if (one := found[number]) is not None]
    return sorted(known, key=lambda candidate: -candidate.gain)


def _importance(trial: _Trial) -> float:
    """Return what is simulated first: what all stages share, of which there are few, and what is busy."""
    if trial.stage is None:
        return 2.0
    return trial.utilization or 0.0


def _gain(replay: Replay, base: Change, **changes: object) -> float:
    return replay.ratio(msgspec.structs.replace(base, **changes), base)


def _scale(ratio: Callable[[], float], exponent: float) -> float:
    return math.pow(ratio(), exponent)


def _of_scenario(replay: Replay, scenario: Scenario, before: Simulated) -> float:
    return replay.simulate_scenario(scenario).throughput / before.throughput


def _with(base: Change, *settings: str) -> tuple[str, ...]:
    return (*base.settings, *settings)


def _stages(replay: Replay, base: Change, before: Simulated) -> Iterator[_Trial]:
    # Of a whole job: a stage that takes little for each of a hundred children may be the largest of all.
    demands = {
        stage.name: float(((stage.wait + stage.cpu) / stage.batch_size).sum()) for stage in replay.demands.stages
    }
    largest = max(demands.values(), default=0.0)
    for stage in replay.demands.stages:
        name = stage.name
        if demands[name] <= _NEGLIGIBLE * largest or name in base.drop:
            continue
        speedups = base.speedups | {name: base.speedups.get(name, 1.0) * FASTER}
        kind = "device" if stage.is_exclusive else "stage"
        yield _Trial(
            name=f"{kind}:{name}",
            kind=kind,  # type: ignore[arg-type]
            stage=name,
            says=f"{name} 20 % faster",
            gain=functools.partial(_gain, replay, base, speedups=speedups),
            utilization=before.utilization.get(f"{kind}:{name}", before.utilization.get(f"workers:{name}")),
        )


def _workers(replay: Replay, base: Change, before: Simulated) -> Iterator[_Trial]:
    plan = replay.change_plan(base)
    for group in group_stages(replay.demands.stages, plan):
        name, settings = group[0].name, plan.stages[group[0].name]
        if settings.executor == "inline" or f"workers:{name}" not in before.utilization:
            continue
        if group[0].info.keeps_streams or (plan.run.ordered and group[-1].info.role == "deliver"):
            continue  # several would overtake
        workers = settings.workers or 1
        more = max(workers + 1, math.ceil(workers * FASTER))
        ratio = functools.partial(_gain, replay, base, settings=_with(base, f"stages.{name}.workers={more}"))
        yield _Trial(
            name=f"workers:{name}",
            kind="workers",
            stage=name,
            says=f"{more} instead of {workers} workers of {name}, scaled to 20 % more",
            gain=functools.partial(_scale, ratio, math.log(FASTER) / math.log(more / workers)),
            utilization=before.utilization[f"workers:{name}"],
        )


def _queues(replay: Replay, base: Change, before: Simulated) -> Iterator[_Trial]:
    plan = replay.change_plan(base)
    for name, full in before.full_share.items():
        if full < 0.01:
            continue
        items = plan.stages[name].queue_items or 1
        yield _Trial(
            name=f"queue:{name}",
            kind="queue",
            stage=name,
            says=f"room for {2 * items} instead of {items} items before {name}",
            gain=functools.partial(_gain, replay, base, settings=_with(base, f"stages.{name}.queue_items={2 * items}")),
            utilization=full,
        )


def _batches(replay: Replay, base: Change, before: Simulated) -> Iterator[_Trial]:
    plan = replay.change_plan(base)
    for name, cost in replay.costs.items():
        settings = plan.stages[name]
        batch = settings.batch or 1
        larger = min(2 * batch, cost.largest)
        if settings.max_wait_seconds > 0:
            yield _Trial(
                name=f"batch:{name}",
                kind="batch",
                stage=name,
                says=f"{name} takes what is there at once instead of waiting for company",
                gain=functools.partial(_gain, replay, base, settings=_with(base, f"stages.{name}.max_wait_seconds=0")),
            )
        elif larger > batch and name not in base.cost_curves:
            yield _Trial(
                name=f"batch:{name}",
                kind="batch",
                stage=name,
                says=f"batches of up to {larger} instead of {batch}",
                gain=functools.partial(_gain, replay, base, settings=_with(base, f"stages.{name}.batch={larger}")),
                utilization=before.batch_mean.get(name, 1.0) / batch,
            )


def _try_shared(replay: Replay, base: Change, before: Simulated) -> Iterator[_Trial]:
    cores = base.cores or replay.cores
    yield _Trial(
        name="cores",
        kind="cores",
        stage=None,
        says="20 % more cores",
        gain=functools.partial(_gain, replay, base, cores=cores * FASTER),
        utilization=before.utilization["cores"],
    )
    if any(share > 0 for share in replay.holds_gil.values()):
        scenario = replay.scenario(base)
        freer = {name: share / FASTER for name, share in scenario.holds_gil.items()}
        changed = dataclasses.replace(scenario, holds_gil=freer)
        yield _Trial(
            name="gil",
            kind="gil",
            says="a sixth of the work that holds the GIL lets go of it",
            gain=functools.partial(_of_scenario, replay, changed, before),
            utilization=before.utilization["gil"],
        )
    if replay.machine.others > 0 and not base.quiet:
        yield _Trial(
            name="neighbours",
            kind="neighbours",
            says="without the other programs on this machine",
            gain=functools.partial(_gain, replay, base, quiet=True),
            utilization=min(1.0, replay.machine.others / replay.cores),
        )


def _try_receiving(replay: Replay, base: Change, before: Simulated) -> Iterator[_Trial]:
    scenario = replay.scenario(base)
    if scenario.arrivals is not None:
        sooner = [when / FASTER for when in scenario.arrivals]
        changed = dataclasses.replace(scenario, arrivals=sooner)
        yield _Trial(
            name="arrivals",
            kind="arrivals",
            says="20 % more jobs come",
            gain=functools.partial(_of_scenario, replay, changed, before),
        )
    elif scenario.call_seconds > 0 or scenario.ahead is not None:
        speedups = base.speedups | {"receiving": base.speedups.get("receiving", 1.0) * FASTER}
        yield _Trial(
            name="receiving",
            kind="receiving",
            says="calls of the source 20 % faster",
            gain=functools.partial(_gain, replay, base, speedups=speedups),
            utilization=before.utilization["receiving"],
        )
    if scenario.plan.source.max_in_flight is not None:
        limit = scenario.plan.source.max_in_flight
        yield _Trial(
            name="in_flight",
            kind="in_flight",
            says=f"{2 * limit} instead of {limit} jobs in flight",
            gain=functools.partial(_gain, replay, base, settings=_with(base, f"source.max_in_flight={2 * limit}")),
        )


def _outcomes(replay: Replay, base: Change, before: Simulated) -> Iterator[_Trial]:
    scenario = replay.scenario(base)
    if scenario.plan.run.ordered:
        yield _Trial(
            name="order",
            kind="order",
            says="results may be delivered in any order",
            gain=functools.partial(_gain, replay, base, settings=_with(base, "run.ordered=false")),
        )
    if any(stage.tries for stage in scenario.demands.stages):
        stages = tuple(dataclasses.replace(stage, tries={}) for stage in scenario.demands.stages)
        demands = dataclasses.replace(scenario.demands, stages=stages)
        changed = dataclasses.replace(scenario, demands=demands)
        yield _Trial(
            name="retries",
            kind="retries",
            says="every first try succeeds",
            gain=functools.partial(_of_scenario, replay, changed, before),
        )
