"""What came of a change of a training, by two recorded runs: before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.profile import read_process
from headrace.diagnose.training.rate import measure_rate
from headrace.diagnose.training.simulation_changes import parse_change
from headrace.diagnose.training.simulation_recorded import LEAST_STEPS, training_loader
from headrace.diagnose.training.steps import read_steps
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import Run

#: Standard errors within which nine in ten lie.
_NINE_IN_TEN = 1.645


def training_ratio(before: Run, after: Run) -> Estimate:
    """Return samples per second after over before, with the interval that the spread of the steps gives.

    Raises:
        CannotReplay: If either run is not that of one process, or has too few steps.
    """
    rates = []
    for run in (before, after):
        ranks = read_steps(run)
        if len(ranks) != 1 or len(ranks[0].steps) < LEAST_STEPS:
            raise CannotReplay(
                f"{run.path} cannot be compared: expected the training of one process with {LEAST_STEPS} steps or more, got "
                f"{len(ranks)} processes with {sum(len(rank.steps) for rank in ranks)} steps; train for longer"
            )
        rates.append(measure_rate(ranks[0]))
    (old, old_noise), (new, new_noise) = rates
    width = math.exp(_NINE_IN_TEN * math.hypot(old_noise, new_noise))
    return Estimate(new / old / width, new / old, new / old * width)


def missing_settings(had: Mapping[str, object], change: Change) -> list[str]:
    """Return the settings of a loader that a change asks for and a training did not have, as `loader.workers=2`.

    Other changes (a faster part, a batch size) leave no trace that could be checked.

    Args:
        had: What `loader_settings` returned of it; empty where no loader was seen.
        change: What was predicted.
    """
    settings = parse_change(change)
    wanted = {key: getattr(settings, key.removeprefix("loader.")) for key in had}
    return [f"{key}={had[key]}" for key, value in wanted.items() if value is not None and value != had[key]]


def loader_settings(run: Run) -> dict[str, object]:
    """Return the settings of the loader that a training's steps were made of, by the keys of `--set`; empty: none was seen."""
    ranks = read_steps(run)
    process = read_process(run.path, ranks[0].host, ranks[0].process) if ranks else None
    own = training_loader(process, ranks[0].steps) if ranks else None
    if own is None:
        return {}
    return {
        "loader.workers": own.workers,
        "loader.prefetch": own.prefetch_factor,
        "loader.in_order": own.in_order,
        "loader.persistent": own.persistent_workers,
    }
