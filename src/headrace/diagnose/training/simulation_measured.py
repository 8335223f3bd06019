"""What came of a change of a training, by two recorded runs: before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.change_settings import parse_change
from headrace.diagnose.training.profile import read_process
from headrace.diagnose.training.rate import measure_rate
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
        CannotReplay: If a process of either run has too few steps.
    """
    rates = []
    for run in (before, after):
        ranks = read_steps(run)
        least = min((len(rank.steps) for rank in ranks), default=0)
        if least < LEAST_STEPS:
            raise CannotReplay(
                f"{run.path} cannot be compared: expected {LEAST_STEPS} steps or more of each process, got "
                f"{len(ranks)} processes with {least} steps or more; train for longer"
            )
        each = [measure_rate(rank) for rank in ranks]
        # Ranks that wait for one another are slow in the same steps: their noise is not averaged out.
        rates.append((sum(rate for rate, _ in each), max(noise for _, noise in each)))
    (old, old_noise), (new, new_noise) = rates
    width = math.exp(_NINE_IN_TEN * math.hypot(old_noise, new_noise))
    return Estimate(new / old / width, new / old, new / old * width)


def missing_settings(had: Mapping[str, object], change: Change) -> list[str]:
    """Return the ranks and settings of a loader that a change asks for and a training did not have, as `loader.workers=2`.

    Other changes (a faster part, a batch size) leave no trace that could be checked.

    Args:
        had: What `loader_settings` returned of it.
        change: What was predicted.
    """
    settings = parse_change(change)
    wanted = {key: getattr(settings, key.removeprefix("loader.")) for key in had}
    return [f"{key}={had[key]}" for key, value in wanted.items() if value is not None and value != had[key]]


def loader_settings(run: Run) -> dict[str, object]:
    """Return the ranks of a training and its loader's settings, by the keys of `--set`; without those where none was seen."""
    ranks = read_steps(run)
    process = read_process(run.path, ranks[0].host, ranks[0].process) if ranks else None
    own = training_loader(process, ranks[0].steps) if ranks else None
    found: dict[str, object] = {"ranks": len(ranks)} if ranks else {}
    if own is None:
        return found
    return found | {
        "loader.workers": own.workers,
        "loader.prefetch": own.prefetch_factor,
        "loader.in_order": own.in_order,
        "loader.persistent": own.persistent_workers,
    }
