"""What-ifs that an experiment has answered: what was measured takes the place of what was simulated.

How this works: only changes of one stage's workers or speed are answered, and nothing else may be changed with them. Where that
very number of workers was tried, its ratio is the answer. Where a delay of the stage, or fewer of its workers, cost nothing,
more workers or a faster stage give nothing either: the throughput stays, within the interval of what was measured. Anything
else is left to the simulation.
"""

from __future__ import annotations

import msgspec

from headrace.diagnose.experimented import is_limit
from headrace.runs.formats.experiment import ExperimentDocument, Interval, Perturbation, StationState
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate


def measured_ratio(document: ExperimentDocument | None, change: Change) -> tuple[Estimate, str] | None:
    """Return the throughput of a change over that of the run, and why, by an experiment; None where it has no answer.

    Args:
        document: The experiment on the run's pipeline; None: there was none.
        change: What is done otherwise.
    """
    if document is None or msgspec.structs.replace(change, settings=(), speedups={}) != Change():
        return None
    asked = _workers_asked(change) or _stage_sped_up(change)
    if asked is None:
        return None
    stage, workers = asked
    state = next((one for one in document.stations if stage in one.stages), None)
    if state is None:
        return None
    made = {one.name: one for one in document.perturbations}
    tried = _tried(made, state, workers)
    if tried is not None and tried.ratio is not None and tried.decided:
        return _estimate(tried.ratio), f"{tried.says}: measured, not simulated"
    if workers is not None and workers <= state.num_workers:
        return None
    return _without_effect(made, state)


def _workers_asked(change: Change) -> tuple[str, int | None] | None:
    """Return the stage and its workers, where nothing else is changed."""
    if len(change.settings) != 1 or change.speedups:
        return None
    key, _, value = change.settings[0].partition("=")
    stage, _, setting = key.strip().rpartition(".")
    return (stage, int(value)) if setting == "workers" and value.strip().isdecimal() else None


def _stage_sped_up(change: Change) -> tuple[str, int | None] | None:
    """Return the one stage that is faster, where nothing else is changed."""
    if change.settings or len(change.speedups) != 1:
        return None
    stage, factor = next(iter(change.speedups.items()))
    return (stage, None) if factor > 1 else None


def _tried(made: dict[str, Perturbation], state: StationState, workers: int | None) -> Perturbation | None:
    """Return the perturbation with that very number of workers; None if there was none."""
    for kind in ("more", "fewer"):
        one = made.get(f"{kind}:{state.name}")
        if one is not None and one.amount is not None and workers == round(state.num_workers / (1 + one.amount)):
            return one
    return None


def _without_effect(made: dict[str, Perturbation], state: StationState) -> tuple[Estimate, str] | None:
    asked = [one for kind in ("delay", "fewer") if (one := made.get(f"{kind}:{state.name}")) is not None]
    ratios = [one.ratio for one in asked if is_limit(one) is False and one.ratio is not None]
    if not ratios or any(is_limit(one) for one in asked):
        return None
    narrowest = min(ratios, key=lambda ratio: ratio.high - ratio.low)
    # As far above as below: what was measured is how little a scarcer stage costs.
    apart = max(narrowest.high, 1 / narrowest.low)
    says = f"an experiment made {state.name} scarcer, and the throughput was x{narrowest}: it is not the limit"
    return Estimate(low=1 / apart, mid=1.0, high=apart), says


def _estimate(found: Interval) -> Estimate:
    return Estimate(low=found.low, mid=found.mid, high=found.high)
