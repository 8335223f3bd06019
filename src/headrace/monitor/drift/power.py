"""How often a baseline raises false alarms, and how soon it finds a shift, by simulation of what it learnt.

Not of ideal windows: each simulated run has its own baseline of as many windows, whose means and spreads are off by chance, and
then windows with the memory that the real ones have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from headrace.monitor.drift.evidence import add_evidence, evidence_of_scores, limits_of
from headrace.monitor.drift.statistics import STRATUM_WEIGHT, family_weights, statistic_of
from headrace.monitor.drift.strata import LEAST_STRATUM_WINDOWS
from headrace.runs.formats.drift import DriftBaseline, MeanReference, Promise

SHIFTS_SD = (0.1, 0.2, 0.3, 0.5, 1.0)
STATED_SHIFT_SD = 0.2
MOST_WINDOWS, SOON_WINDOWS = 60, 10
_RUNS, _CLEAN_WINDOWS = 400, 1_000
#: Clean runs are as many as this leaves room for, and 50 at most: a second of computing.
_MOST_CLEAN_RUNS, _MOST_DETECTORS = 50, 20_000


def promise_of(baseline: DriftBaseline) -> Promise:
    """Return what a baseline promises."""
    judged = {name: one for name, one in baseline.means.items() if statistic_of(name) is not None}
    if not judged:
        return Promise(
            simulated_windows=0, false_alarms=0, shift_sd=STATED_SHIFT_SD, windows_to_find=None, smallest_shift_sd=None,
            says="only shares are judged; no statistic of the baseline is a mean that varies",
        )  # fmt: skip
    random = np.random.default_rng(20261123)
    weights = family_weights([*baseline.means, *baseline.rates])
    usual = _usual(judged)
    delays = {shift: _delay(random, baseline, judged[usual], weights[usual], shift) for shift in SHIFTS_SD}
    alarms, simulated = _count_false_alarms(random, baseline, judged, weights)
    smallest = next((shift for shift, delay in delays.items() if delay is not None and delay <= SOON_WINDOWS), None)
    return Promise(
        simulated_windows=simulated,
        false_alarms=alarms,
        shift_sd=STATED_SHIFT_SD,
        windows_to_find=delays[STATED_SHIFT_SD],
        smallest_shift_sd=smallest,
        says=_say(baseline, delays, smallest, alarms, simulated),
    )


def _say(
    baseline: DriftBaseline, delays: Mapping[float, int | None], smallest: float | None, alarms: int, simulated: int
) -> str:
    strata = f"{len(baseline.strata)} strata ({baseline.key})" if baseline.key else "one stratum"
    delay = delays[STATED_SHIFT_SD]
    found = (
        f"a shift of {STATED_SHIFT_SD} sd of a usual statistic is found within {delay} windows, nine times of ten"
        if delay is not None
        else f"a shift of {STATED_SHIFT_SD} sd is not found within {MOST_WINDOWS} windows"
    )
    soon = "" if smallest is None else f"; the smallest shift that is found within {SOON_WINDOWS} is {smallest} sd"
    return (
        f"with {strata} and windows of {baseline.window_items:,} items, {found}{soon}; {alarms} false alarms in "
        f"{simulated:,} simulated windows"
    )


def _usual(judged: Mapping[str, MeanReference]) -> str:
    """Return the statistic in the middle by how small a shift can be seen."""
    ordered = sorted(judged, key=lambda name: judged[name].window_sd / judged[name].sd)
    return ordered[len(ordered) // 2]


def _delay(
    random: np.random.Generator, baseline: DriftBaseline, reference: MeanReference, weight: float, shift: float
) -> int | None:
    """Return by which window nine of ten runs find a shift; None: later than simulated."""
    moved = shift * reference.sd / reference.window_sd
    scores = _scores(random, baseline, np.full(_RUNS, reference.memory), MOST_WINDOWS)
    limit = limits_of(weight)[:, None]
    sums = np.zeros((len(limit), _RUNS))
    found = np.full(_RUNS, MOST_WINDOWS + 1)
    for window, score in enumerate(scores, 1):
        sums = add_evidence(sums, evidence_of_scores(score + moved), np.inf)
        found = np.where((sums >= limit).any(axis=0) & (found > window), window, found)
    delay = int(np.quantile(found, 0.9, method="higher"))
    return delay if delay <= MOST_WINDOWS else None


def _count_false_alarms(
    random: np.random.Generator,
    baseline: DriftBaseline,
    judged: Mapping[str, MeanReference],
    weights: Mapping[str, float],
) -> tuple[int, int]:
    """Return the alarms of all statistics, of all strata together and alone, while nothing moves, and in how many windows."""
    alone = sum(len(one.strata) for one in judged.values()) if len(baseline.strata) > 1 else 0
    limits = [limits_of(weights[name]) for name in judged] + [limits_of(STRATUM_WEIGHT / max(1, alone))] * alone
    memory = [one.memory for one in judged.values()]
    memory += [one.memory for one in judged.values() for _ in one.strata] if alone else []
    runs = max(1, min(_MOST_CLEAN_RUNS, _MOST_DETECTORS // len(limits)))
    limit, most = np.tile(np.transpose(limits), runs), np.tile(memory, runs)
    sums, alarms = np.zeros(limit.shape), 0
    for score in _scores(random, baseline, most, _CLEAN_WINDOWS):
        sums = add_evidence(sums, evidence_of_scores(score), np.inf)
        is_alarm = sums >= limit
        alarms += int(is_alarm.sum())
        sums[is_alarm] = 0
    return alarms, runs * _CLEAN_WINDOWS


def _scores(
    random: np.random.Generator, baseline: DriftBaseline, memory: np.ndarray, length: int
) -> Iterator[np.ndarray]:
    """Yield the scores of all runs, window by window, as baselines like this one would give them if nothing moved.

    Args:
        random: The generator.
        baseline: How many windows and strata it has.
        memory: Of each run, see `MeanReference.memory`.
        length: Windows to be judged.
    """
    windows, runs = baseline.windows, len(memory)
    strata = sum(one.windows >= LEAST_STRATUM_WINDOWS for one in baseline.strata.values())
    error = 1 / math.sqrt(windows * strata)
    # `learning` takes the memory one standard error higher than it finds it, and the larger of two spreads.
    fading = np.maximum(0.0, (memory - 1) / (memory + 1) - error)
    found = np.clip(fading + error + random.normal(0, error, runs), 0.0, 0.8)
    true_memory, found_memory = (1 + fading) / (1 - fading), (1 + found) / (1 - found)
    spread = _mean_square(random, windows - 1, runs)
    if strata > 1:
        spread = np.maximum(spread, _mean_square(random, strata * (windows - 1), runs))
    sd = np.sqrt(1 / true_memory)  # so that sums of many windows vary as those of independent ones of variance 1
    step = sd * np.sqrt(1 - fading**2)
    off = random.normal(0, 1 / math.sqrt(windows), runs)
    scale = np.sqrt(spread * found_memory / true_memory)
    state = random.normal(0, sd)
    for _ in range(length):
        state = fading * state + random.normal(0, step)
        yield (state + off) / scale


def _mean_square(random: np.random.Generator, freedom: int, runs: int) -> np.ndarray:
    return random.chisquare(freedom, runs) / freedom
