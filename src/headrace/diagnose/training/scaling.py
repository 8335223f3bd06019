"""What more ranks bring, and what takes the rest: parts that add up to the efficiency that is lost.

Efficiency is throughput over that of one rank times the ranks. It is the same as rank-seconds for a sample with one rank over
those with several, and rank-seconds are a sum of parts: so is what is lost. It does not matter whether the batch of a rank
stays as it is with more ranks or becomes smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.profile import training_document
from headrace.diagnose.training.rank_costs import same_data
from headrace.diagnose.training.ranks import join_exchanges, read_exchanges, sum_by_step
from headrace.diagnose.training.steps import Array, RankSteps, read_steps
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.scaling import Part, Rung
from headrace.runs.reader import Run
from headrace.runs.training_phases import Phase

#: First steps that are left out: connections are made, buckets are built again, memory is touched.
SKIPPED = 3
#: Fewer plain steps of a training are no measurement.
LEAST_STEPS = 4

_PARTS = {
    Part.LOADING: (Phase.WAIT,),
    Part.COMPUTING: (Phase.PREPARE, Phase.FORWARD, Phase.LOSS, Phase.BACKWARD),
    Part.OPTIMIZER: (Phase.BEFORE_UPDATE, Phase.OPTIMIZER),
}
#: A single rank that has no core for this share of its step shares the machine with other programs.
_CROWDED = 0.05
#: {degrees of freedom: standard errors within which nine in ten lie}: Student's t.
_STUDENT = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.89, 8: 1.86, 9: 1.83}
_NORMAL = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortTraining:
    """One short training of some ranks."""

    ranks: int
    num_steps: int
    step_seconds: float
    samples: float
    """Of all ranks, in a step."""
    parts: dict[Part, float]
    """Seconds of an average rank's average step; they add up to `step_seconds`."""
    noise: float
    """Standard error of `step_seconds`, as a share."""

    @property
    def rank_seconds(self) -> float:
        """Seconds of all ranks together for a sample."""
        return self.ranks * self.step_seconds / self.samples


def read_short_training(run: Run, ranks: int) -> ShortTraining:
    """Return what a short training took.

    Args:
        run: The folder.
        ranks: Started; so many have to have trained together.

    Raises:
        CannotReplay: If they did not, with the reason.
    """
    found = read_steps(run)
    _check_ranks(run, found, ranks)
    steps = _common_steps(found)
    waiting = transfer = 0.0
    if ranks > 1:
        meetings = join_exchanges(read_exchanges(run))
        if meetings is None:
            raise CannotReplay(
                f"{ranks} ranks trained, and no exchange of gradients was seen that all have in common; is the model in "
                "torch.nn.parallel.DistributedDataParallel? FSDP, and gradients that the script averages itself, are not seen"
            )
        met = np.unique(meetings.step)
        steps = steps[np.isin(steps, met)]
        _check_number(run, steps)
        chosen = np.isin(met, steps)
        waiting = float(sum_by_step(meetings, meetings.wait)[chosen].mean())
        transfer = float(sum_by_step(meetings, meetings.rest)[chosen].mean())
    _check_number(run, steps)
    walls = np.stack([_pick(one, steps, one.steps.wall) for one in found])
    step_seconds = float(walls.mean())
    parts = {part: _mean(found, steps, phases) for part, phases in _PARTS.items()}
    own = [phase for phase in Phase if phase is not Phase.EXCHANGE]
    parts[Part.NO_CORE] = _mean(found, steps, own, "run_delay")
    parts[Part.WAITING], parts[Part.TRANSFER] = waiting, transfer
    parts[Part.REST] = step_seconds - sum(parts.values())
    samples = sum(_pick(one, steps, one.steps.samples).mean() for one in found)
    return ShortTraining(
        ranks=ranks,
        num_steps=len(steps),
        step_seconds=step_seconds,
        samples=float(samples) or float(ranks),
        parts=parts,
        noise=float(walls.mean(axis=0).std(ddof=1) / step_seconds / math.sqrt(len(steps))),
    )


def _check_ranks(run: Run, found: Sequence[RankSteps], ranks: int) -> None:
    if not found:
        raise CannotReplay(
            f"no training step was seen on {ranks} rank(s); does the script train with these arguments? ({run.path})"
        )
    numbers = {one.rank for one in found}
    if len(found) == len(numbers) == ranks:
        return
    if numbers == {0} or len(numbers) < ranks:
        raise CannotReplay(
            f"{ranks} processes were started, and they did not train as {ranks} ranks: {len(found)} trained, with rank "
            f"{', '.join(map(str, sorted(numbers)))}. Expected is a script for torchrun: it calls "
            'torch.distributed.init_process_group("gloo") with no other arguments, and has its model in '
            "DistributedDataParallel. A script that starts processes itself (mp.spawn) needs a way to leave that to a launcher"
        )
    raise CannotReplay(f"{ranks} processes were started, and {len(found)} trained: does the script start its own?")


def _check_number(run: Run, steps: Array) -> None:
    if len(steps) < LEAST_STEPS:
        raise CannotReplay(
            f"{len(steps)} plain steps were seen in {run.path} after the first {SKIPPED}, and {LEAST_STEPS} are needed; "
            "let it train for longer (--steps)"
        )


def _common_steps(found: Sequence[RankSteps]) -> Array:
    """Return the numbers of the steps that are plain on every rank, without the first ones."""
    plain: set[int] = set.intersection(*(set(one.steps.number[one.steps.is_plain].tolist()) for one in found))
    return np.array(sorted(number for number in plain if number >= SKIPPED), np.int64)


def _pick(rank: RankSteps, steps: Array, values: Array) -> Array:
    return np.asarray(values[np.searchsorted(rank.steps.number, steps)])


def _mean(found: Sequence[RankSteps], steps: Array, phases: Sequence[Phase], part: str = "") -> float:
    """Return seconds of an average step: of the phases without waiting for a core, or that wait."""
    values = []
    for rank in found:
        for phase in phases:
            times = rank.steps.phases.get(phase)
            if times is not None:
                delay = np.nan_to_num(times.run_delay)
                values.append(_pick(rank, steps, delay if part else times.wall - delay).mean())
    return float(sum(values)) / len(found)


def describe_rungs(trainings: Mapping[int, Sequence[ShortTraining]]) -> list[Rung]:
    """Return what each number of ranks brought.

    Args:
        trainings: {ranks: the short trainings of each round, in order}; efficiency needs those of one rank.
    """
    if not trainings.get(1):
        return []
    alone = _average(trainings[1])
    return [_rung(ranks, own, trainings[1], alone) for ranks, own in sorted(trainings.items()) if own]


def _rung(
    ranks: int, own: Sequence[ShortTraining], of_one: Sequence[ShortTraining], alone: Mapping[Part, float]
) -> Rung:
    steps, samples = (float(np.mean([getattr(one, name) for one in own])) for name in ("step_seconds", "samples"))
    parts = {part: float(np.mean([one.parts[part] for one in own])) for part in Part}
    each, whole = _average(own), sum(_average(own).values())
    return Rung(
        ranks=ranks,
        rounds=len(own),
        num_steps=sum(one.num_steps for one in own),
        samples_per_second=samples / steps,
        step_seconds=steps,
        samples_per_step=samples,
        efficiency=_efficiency(own, of_one, sum(alone.values()) / whole),
        parts=parts,
        losses={part: (each[part] - alone[part]) / whole for part in Part},
    )


def find_doubts(rungs: Sequence[Rung], most: Run) -> list[str]:
    """Return why what was measured says little of more ranks, in words.

    Args:
        rungs: Measured, that of one rank first.
        most: A training of the largest number of ranks.
    """
    alone = rungs[0]
    crowded = alone.parts[Part.NO_CORE] / alone.step_seconds
    doubts = []
    if crowded >= _CROWDED:
        doubts.append(
            f"the training on one rank could go on and had no core for {crowded:.0%} of its step, and all efficiencies are "
            "relative to it: other programs or its own workers had the cores; stop those programs, and measure again"
        )
    costs = [same_data(found) for found in training_document(most).together.same_data]
    return [*doubts, *(f"{cost.says}; {cost.remedies[0].says}" for cost in costs if cost is not None)]


def _average(own: Sequence[ShortTraining]) -> dict[Part, float]:
    """Return rank-seconds for a sample, by part."""
    return {part: float(np.mean([one.ranks * one.parts[part] / one.samples for one in own])) for part in Part}


def _efficiency(own: Sequence[ShortTraining], of_one: Sequence[ShortTraining], mid: float) -> Estimate:
    """Return it with the interval that rounds give, each against the training of one rank beside it; or steps, of one round."""
    if own is of_one:
        return Estimate(1.0, 1.0, 1.0)
    pairs = [math.log(alone.rank_seconds / one.rank_seconds) for one, alone in zip(own, of_one, strict=False)]
    noise = _NORMAL * math.hypot(own[0].noise, of_one[0].noise)
    if len(pairs) > 1:
        error = float(np.std(pairs, ddof=1)) / math.sqrt(len(pairs))
        noise = max(noise / math.sqrt(len(pairs)), _STUDENT.get(len(pairs) - 1, _NORMAL) * error)
    return Estimate(mid * math.exp(-noise), mid, mid * math.exp(noise))
