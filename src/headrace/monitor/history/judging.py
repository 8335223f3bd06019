"""Whether a pipeline's stages take more CPU time per item than they used to: windows in, a verdict for each stage out.

How this works: the first windows of a pipeline, Plan and machine family are its baseline, and the others are compared with it.
The baseline grows to twice its windows whenever there are twice as many, up to `MOST_WINDOWS`, unless a slowdown is suspected;
then it is left alone for good, so that a pipeline that gets slower by a little every week is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.monitor.history import words
from headrace.monitor.history.baseline import FEWEST_WINDOWS, Costs, Series, Window, fit_series
from headrace.monitor.history.evidence import Finding, find_limit, weigh
from headrace.runs.formats.history import ALL_STAGES, DriftVerdict, StageDrift

#: Windows of a whole baseline.
MOST_WINDOWS = 96
#: Differences within this share are called the same, if the whole interval is.
SAME = 0.05
#: The baseline does not grow while the evidence for a slowdown is above this share of the limit.
_SUSPECT = 0.01


@dataclass(frozen=True, slots=True)
class Judged:
    """What windows say."""

    num_reference: int
    """Windows of the baseline; 0 if there are too few."""
    stages: tuple[StageDrift, ...]
    unlike: tuple[str, ...]
    """For each window that is compared why an input of it is like none in the baseline; empty if none is."""
    alarms: tuple[int, ...]
    """Windows, counted from the first, after which a series was called slower that was not before."""


def judge_windows(windows: Sequence[Window]) -> Judged:
    """Return a verdict for each stage, and for all together.

    Args:
        windows: In order of time; those of one run beside one another.
    """
    size = FEWEST_WINDOWS
    if len(windows) <= size:
        return Judged(0, (), (), ())
    while 2 * size <= min(MOST_WINDOWS, len(windows) - 1) and not _is_suspect(_judge(windows[: 2 * size], size)):
        size *= 2
    return _judge(windows, size)


def compare_windows(windows: Sequence[Window], num_reference: int) -> dict[str, list[float | None]]:
    """Return {stage: CPU time per item over the baseline's at equal input, for each window}; None where it cannot be compared.

    The machine's speed is still in these figures.

    Args:
        windows: In order.
        num_reference: Windows of the baseline, as `judge_windows` chose it; 0 gives nothing.
    """
    if not num_reference:
        return {}
    scores = Costs.fit(windows[:num_reference]).score(windows)
    return {
        stage: [None if math.isnan(value) else math.exp(value) for value in scores.values[:, column]]
        for column, stage in enumerate(scores.stages)
    }


def _is_suspect(judged: Judged) -> bool:
    return any(stage.evidence > _SUSPECT * stage.limit for stage in judged.stages)


def _judge(windows: Sequence[Window], size: int) -> Judged:
    costs = Costs.fit(windows[:size])
    scores = costs.score(windows)
    runs = [window.run for window in windows]
    series = fit_series(scores, runs, size)
    limit = find_limit(len(series))
    findings = [weigh(one, scores, runs, size, limit) for one in series]
    slower = {one.name for one, found in zip(series, findings, strict=True) if found.evidence[-1] >= limit} - {
        ALL_STAGES
    }
    if slower:  # which are no measure of the others
        usual = scores.choose([stage for stage in scores.stages if stage not in slower])
        again = {one.name: weigh(one, usual, runs, size, limit) for one in fit_series(usual, runs, size)}
        kept = {ALL_STAGES, *slower}
        findings = [
            found if one.name in kept else again.get(one.name, Finding(found.evidence, None, None, None, None))
            for one, found in zip(series, findings, strict=True)
        ]
    stages = [_as_drift(one, found, windows, limit) for one, found in zip(series, findings, strict=True)]
    alarms = sorted({size + at for found in findings for at in _find_alarms(found, limit)})
    return Judged(size, tuple(stages), scores.unlike[size:], tuple(alarms))


def _find_alarms(found: Finding, limit: float) -> list[int]:
    before = [0.0, *found.evidence]
    return [at for at, now in enumerate(found.evidence) if before[at] < limit <= now]


def _as_drift(series: Series, found: Finding, windows: Sequence[Window], limit: float) -> StageDrift:
    evidence = found.evidence[-1] if found.evidence else 0.0
    drift = StageDrift(
        stage=series.name,
        verdict=_judge_interval(found, is_slower=evidence >= limit),
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        since_unix_seconds=None if found.began is None or evidence < limit else windows[found.began].began,
        evidence=evidence,
        limit=limit,
        machine_taken_out=series.follows > 0,
    )
    return msgspec.structs.replace(drift, says=words.describe_stage(drift))


def _judge_interval(found: Finding, *, is_slower: bool) -> DriftVerdict:
    if is_slower:
        return "slower"
    if found.low is None or found.high is None:
        return "cannot_tell"
    if found.low >= 1 - SAME and found.high <= 1 + SAME:
        return "same"
    return "faster" if found.high < 1 - SAME else "cannot_tell"
