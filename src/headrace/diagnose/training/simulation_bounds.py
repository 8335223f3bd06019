"""What a step takes at least, by three bounds that can be redone by hand, and what timers alone would promise.

    step >= max(step without input, worker cost / workers, total CPU / cores)

Without workers, loading is a part of the step. The bounds know no waits, no order of batches and no turn of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.diagnose.training.simulation import TrainingModel
from headrace.diagnose.training.simulation_machine import Need
from headrace.diagnose.training.simulation_recorded import RecordedTraining
from headrace.runs.training_phases import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBounds:
    """Seconds per sample (per step, where samples are not known)."""

    training_thread: float
    """The step without waiting for input; without workers, with loading."""
    workers: float
    """What loading takes, over the number of workers; 0 without workers."""
    cores: float
    """CPU of all, over the cores."""

    @property
    def least(self) -> float:
        """The greatest of the three: what it takes at least."""
        return max(self.training_thread, self.workers, self.cores)


def step_bounds(model: TrainingModel) -> StepBounds:
    """Return the bounds of a training."""
    steps = list(model.steps)
    batches = [one for step in steps for one in step.microbatches]
    ranks = len(model.ranks)
    units = (sum(step.samples for step in steps) or len(steps)) * ranks  # of all ranks, which are taken as alike
    step = [need for one in steps for need in one.update]
    step += [need for one in batches for need in (*one.compute, *one.backward)]
    if model.exchange is not None:
        count = sum(one.exchanges for one in batches)
        step += [
            Need(model.exchange.link.seconds(model.exchange.buckets[-1], ranks), 0.0)
        ] * count  # it overlaps with nothing
    load = [need for one in batches for need in one.load]
    if model.loader.workers:
        load += [model.loader.send] * len(batches)
        step += [model.loader.receive] * len(batches)
    loading, workers = _seconds(load), model.loader.workers
    return StepBounds(
        training_thread=(_seconds(step) + (0.0 if workers else loading)) / units,
        workers=loading / workers / units if workers else 0.0,
        cores=sum(need.cpu * need.width for need in (*step, *load)) * ranks / model.cores / units,
    )


def bound_ratio(before: TrainingModel, after: TrainingModel) -> float | None:
    """Return the ratio of throughputs that the bounds give; None where nothing took any time."""
    least = step_bounds(after).least
    return step_bounds(before).least / least if least > 0 else None


def naive_ratio(recorded: RecordedTraining, before: TrainingModel, after: TrainingModel) -> float | None:
    """Return the ratio by max(step, loader), each as a timer on the wall clock had it; it forgets that they share cores.

    It is what a comparison of a loader alone with a model alone gives.
    """
    ends = [_without_sharing(recorded, before, model) for model in (before, after)]
    return ends[0] / ends[1] if ends[1] > 0 else None


def _without_sharing(recorded: RecordedTraining, before: TrainingModel, model: TrainingModel) -> float:
    own, base = _split(model), _split(before)
    wait = recorded.wait_share if Phase.FORWARD in recorded.phases else 0.0
    step = float(recorded.walls.sum()) * (1.0 - wait) * (own[0] / base[0] if base[0] else 1.0)
    walls = recorded.load_walls.mean() * len(recorded.microbatches) if len(recorded.load_walls) else base[1]
    load = float(walls) * (own[1] / base[1] if base[1] else 1.0)
    steps = (sum(one.samples for one in model.steps) or 1) / (sum(one.samples for one in before.steps) or 1)
    workers = model.loader.workers
    ranks = len(model.ranks) / len(before.ranks)
    return (max(step, load / workers) if workers else step + load) / steps / ranks


def _split(model: TrainingModel) -> tuple[float, float]:
    """Return what the training thread did and what loading took, in seconds."""
    batches = [one for step in model.steps for one in step.microbatches]
    step = [need for one in model.steps for need in one.update]
    step += [need for one in batches for need in (*one.compute, *one.backward)]
    return _seconds(step), _seconds(need for one in batches for need in one.load)


def _seconds(needs: Iterable[Need]) -> float:
    return sum(need.blocked + need.cpu for need in needs)
