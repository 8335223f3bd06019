"""Loading that is done elsewhere: a part of it on the device that trains, or the items in files of another format.

What a part costs on the device, and what an item costs in a format, no run of the training shows: both are measured beside it
(`headrace pack --try`), and told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.settings import unknown_key
from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.simulation_needs import Needs
from headrace.diagnose.training.simulation_recorded import RecordedTraining
from headrace.diagnose.training.steps import Array
from headrace.runs.training_phases import LoaderWork, Phase

#: Parts of loading that a device can do for a whole batch.
MOVABLE = (LoaderWork.DECODE, LoaderWork.AUGMENT, LoaderWork.TOKENISE)
#: What the files have where nothing was packed.
FOLDER = "folder"
#: Parts of loading in which an item is read, in the order in which what is saved is taken from them.
_READING = (LoaderWork.READ, LoaderWork.OPEN, LoaderWork.ITEMS)

#: {"ORDER, CACHE": {format: seconds of an item}}
FormatCosts = Mapping[str, Mapping[str, float]]


def add_on_device(
    recorded: RecordedTraining, phases: dict[Phase, Needs], on_device: Mapping[str, float], batch: int | None
) -> dict[Phase, Needs]:
    """Return the phases of each step with parts of loading that the device does before the model is called.

    The training thread waits for a device of its own; where it trains on the CPU, it computes.

    Args:
        recorded: The training.
        phases: Of each step.
        on_device: {part: seconds of an item there}.
        batch: Samples of a batch instead of the recorded ones.

    Raises:
        CannotReplay: If the run does not say how many samples its batches had.
    """
    if not on_device:
        return phases
    samples = recorded.samples if batch is None else batch * recorded.microbatches
    if not np.all(samples > 0):
        raise CannotReplay("how many samples a batch had was not recorded, so it is not known what the device would do")
    seconds = samples * sum(on_device.values())
    zero = np.zeros(len(recorded))
    more = Needs(zero, seconds) if recorded.trains_on_cpu else Needs(seconds, zero)
    return {**phases, Phase.PREPARE: phases.get(Phase.PREPARE, Needs(zero, zero)) + more}


def check_format(recorded: RecordedTraining, wanted: str, costs: FormatCosts) -> None:
    """Raise an error if it is not known what a format would save.

    Raises:
        SettingsError: If no costs are given, or not of that format.
        CannotReplay: If the run does not say how many samples its batches had.
    """
    if not costs:
        raise SettingsError(
            f"--set format={wanted}: what an item costs in each format is not known to a run; measure it with `headrace pack "
            "FOLDER --try 200 --json > try.json`, and add --formats try.json"
        )
    known = sorted({name for one in costs.values() for name in one})
    if wanted not in known:
        raise unknown_key(wanted, "--set format: formats of --formats", known)
    if any(FOLDER not in one for one in costs.values()):
        raise SettingsError(
            f"--formats has no costs of {FOLDER!r}, which the run read; `headrace pack --try` measures it"
        )
    state = nearest_state(recorded, costs)
    if wanted not in costs[state]:
        raise SettingsError(
            f"--set format={wanted}: the run seems to have read its files {state} (what that took comes nearest), and "
            f"--formats has no cost of {wanted} there; it has {', '.join(sorted(costs[state]))}"
        )
    if not np.all(_items(recorded) > 0):
        raise CannotReplay("how many samples a batch had was not recorded, so it is not known what a format would save")


def change_format(
    recorded: RecordedTraining, loading: dict[LoaderWork, Needs], wanted: str | None, costs: FormatCosts
) -> dict[LoaderWork, Needs]:
    """Return what loading needs with items of another format: what that saves is taken from reading, then from opening."""
    if wanted is None:
        return loading
    state = costs[nearest_state(recorded, costs)]
    saved = (state[FOLDER] - state[wanted]) * _items(recorded)
    zero = np.zeros(len(saved))
    if np.all(saved <= 0):
        read = loading.get(LoaderWork.READ, Needs(zero, zero))
        return {**loading, LoaderWork.READ: read + Needs(-saved, zero)}
    found = dict(loading)
    for work in (one for one in _READING if one in loading):
        needs = found[work]
        blocked = np.maximum(needs.blocked - saved, 0.0)
        saved = saved - (needs.blocked - blocked)
        cpu = needs.cpu if work is LoaderWork.READ else np.maximum(needs.cpu - saved, 0.0)
        saved = saved - (needs.cpu - cpu)
        found[work] = Needs(blocked, cpu)
    return found


def nearest_state(recorded: RecordedTraining, costs: FormatCosts) -> str:
    """Return in which order and from what cache the run seems to have read: whose folder costs most nearly what it did.

    Reading is known by the time that it blocked; what a run computed while it opened files holds more than that, and counts
    where nothing blocked.
    """
    read = recorded.loading.get(LoaderWork.READ)
    opened = recorded.loading.get(LoaderWork.OPEN)
    items = max(float(_items(recorded).sum()), 1.0)
    own = sum(float(needs.total.sum()) for needs in (read, opened) if needs is not None) / items
    return min(costs, key=lambda state: abs(math.log(max(costs[state][FOLDER], 1e-9) / max(own, 1e-9))))


def _items(recorded: RecordedTraining) -> Array:
    """Return how many items each micro-batch has."""
    return np.asarray(np.repeat(recorded.samples / recorded.microbatches, recorded.microbatches))
