"""What the phases of a step cost with batches of another size: on a line through recorded sizes, or by a curve that is given.

A curve is {samples of a batch: seconds of a step}, as `headrace train batch --json` measures it: forward, loss, backward and
one update, loading left out. Only its differences count, made longer or shorter by what a step of the recorded size took here
and there, so that what a step does besides stays as it was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.simulation_needs import PER_BATCH, Needs
from headrace.diagnose.training.simulation_recorded import RecordedTraining
from headrace.diagnose.training.steps import Array
from headrace.runs.training_phases import Phase

#: The name of a whole step in `Change.cost_curves`.
STEP = "step"
#: Steps of another batch size that make a cost known.
_LEAST_OF_SIZE = 3
#: What a curve measures of a step's batch.
_GROWING = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)
#: A step that takes so many times as long as its curve says is another program, machine or device.
_FAR_OFF = 2.0


def batch_sizes(recorded: RecordedTraining) -> dict[int, int]:
    """Return {samples of a micro-batch: steps that had it}."""
    sizes, counts = np.unique(recorded.samples // recorded.microbatches, return_counts=True)
    return {int(size): int(count) for size, count in zip(sizes, counts, strict=True) if size > 0}


def step_curve(recorded: RecordedTraining) -> dict[int, float]:
    """Return {samples of a batch: seconds of a step} of the sizes that a run had often enough, as a curve has it."""
    sizes = recorded.samples // recorded.microbatches
    seconds = _step_seconds(recorded)
    return {
        size: float(np.median(seconds[sizes == size]))
        for size, count in batch_sizes(recorded).items()
        if count >= _LEAST_OF_SIZE
    }


def check_batch(recorded: RecordedTraining, batch: int, curve: Mapping[int, float] | None) -> None:
    """Raise CannotReplay if neither the run nor a curve knows what a batch of this size costs."""
    if curve:
        _joined_curve(recorded, batch, curve)
        return
    enough = list(step_curve(recorded))
    if len(enough) < 2 or not min(enough) <= batch <= max(enough):
        sizes = ", ".join(str(size) for size in enough) or "none"
        raise CannotReplay(
            f"what a step costs with batches of {batch} is not known: of sizes with {_LEAST_OF_SIZE} steps or more this run "
            f"has {sizes}. Measure it (`headrace train batch training.py:make --json > batch.json`, or record a few steps of "
            f"{batch}), and add --curve step=batch.json or --curve step=RUN"
        )


def change_batch(
    recorded: RecordedTraining, batch: int | None, curve: Mapping[int, float] | None
) -> dict[Phase, Needs]:
    """Return the phases of each step with micro-batches of another size; None: as recorded."""
    if batch is None:
        return recorded.phases
    return _by_curve(recorded, batch, curve) if curve else _on_a_line(recorded, batch)


def _on_a_line(recorded: RecordedTraining, batch: int) -> dict[Phase, Needs]:
    counts = recorded.microbatches
    sizes = recorded.samples / counts
    found = dict(recorded.phases)
    for phase in found.keys() & set(PER_BATCH):
        needs = found[phase]
        found[phase] = Needs(*(_moved(part / counts, sizes, batch) * counts for part in (needs.blocked, needs.cpu)))
    return found


def _moved(values: Array, sizes: Array, batch: int) -> Array:
    slope = max(0.0, float(np.polyfit(sizes, values, 1)[0]))
    return np.asarray(np.maximum(values + slope * (batch - sizes), 0.0))


def _by_curve(recorded: RecordedTraining, batch: int, given: Mapping[int, float]) -> dict[Phase, Needs]:
    curve = _joined_curve(recorded, batch, given)
    counts = recorded.microbatches
    sizes = recorded.samples / counts
    own = _growing_seconds(recorded)
    longer = _longer_here(recorded, curve)
    more = longer * (_at(curve, batch) - _at(curve, sizes))
    factor = np.maximum(own + more, 0.0) / np.where(own > 0.0, own, 1.0)
    found = dict(recorded.phases)
    for phase in found.keys() & set(_GROWING):
        found[phase] = Needs(found[phase].blocked * factor, found[phase].cpu * factor)
    if Phase.PREPARE in found:  # a transfer takes what its samples take
        by_size = batch / np.maximum(sizes, 1.0)
        found[Phase.PREPARE] = Needs(found[Phase.PREPARE].blocked * by_size, found[Phase.PREPARE].cpu * by_size)
    return found


def _joined_curve(recorded: RecordedTraining, batch: int, given: Mapping[int, float]) -> dict[int, float]:
    """Return a curve that holds the size and the recorded one; what it lacks of these the run itself knows, if anybody."""
    own = step_curve(recorded)
    curve = dict(sorted({**own, **given}.items()))
    usual = _usual_size(recorded)
    if usual not in own or not min(curve) <= batch <= max(curve):
        sizes = ", ".join(str(size) for size in curve) or "none"
        raise CannotReplay(
            f"what a step costs with batches of {batch} is not known: the run and --curve know batches of {sizes}; measure it "
            "with `headrace train batch`, or record a few steps of that size"
        )
    if not 1 / _FAR_OFF <= _longer_here(recorded, curve) <= _FAR_OFF:
        raise CannotReplay(
            f"--curve says {curve[usual] * 1e3:.3g} ms for a step with batches of {usual}, and this run's took "
            f"{own[usual] * 1e3:.3g} ms: that is another model, machine or number of threads. Measure the curve where the "
            "run was recorded; with a CUDA device the training thread's phases are no times of the device"
        )
    return curve


def _longer_here(recorded: RecordedTraining, curve: Mapping[int, float]) -> float:
    """Return how many times as long as its curve says a step of the recorded size took."""
    usual = _usual_size(recorded)
    return step_curve(recorded)[usual] / float(_at(curve, usual))


def _usual_size(recorded: RecordedTraining) -> int:
    """Return the batch size of most steps; 0: not known."""
    sizes = batch_sizes(recorded)
    return max(sizes, key=sizes.__getitem__, default=0)


def _at(curve: Mapping[int, float], size: float | Array) -> Array:
    return np.asarray(np.interp(size, list(curve), list(curve.values())))


def _growing_seconds(recorded: RecordedTraining) -> Array:
    """Return for each step what a batch took in the phases that grow with it."""
    known = [recorded.phases[phase].total for phase in _GROWING if phase in recorded.phases]
    return np.asarray(sum(known, np.zeros(len(recorded))) / recorded.microbatches)


def _step_seconds(recorded: RecordedTraining) -> Array:
    """Return for each step what one batch and an update took."""
    update = recorded.phases.get(Phase.OPTIMIZER)
    return np.asarray(_growing_seconds(recorded) + (0.0 if update is None else update.total))
