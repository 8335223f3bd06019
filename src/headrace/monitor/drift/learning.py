"""Learns from windows what is usual: the means and rates of each stratum, and how far windows wander by themselves.

How this works. A mean has three sources of chance: items within a stratum, the stratum's own wandering from window to window,
and what moves all strata together (the weather). The first two are told apart by an analysis of variance; the last, and the
memory that windows have of the one before, show in the scores of whole windows, which are what is judged later. Where the
windows of all strata and those of one tell different spreads, the larger counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from headrace.base.errors import SettingsError
from headrace.monitor.drift.power import promise_of
from headrace.monitor.drift.slower import learn_slower
from headrace.monitor.drift.statistics import is_time, share_of, statistic_of
from headrace.monitor.drift.strata import LEAST_STRATUM_WINDOWS, LEAST_VALUES, Table, missing_key, tabulate
from headrace.runs.formats.drift import (
    DriftBaseline,
    DriftWindow,
    MeanReference,
    Promise,
    RateReference,
    StratumMean,
    StratumReference,
)

#: From fewer windows their wandering is not known.
LEAST_WINDOWS = 40
#: Classes of answers that are watched, the most frequent.
MOST_CLASSES = 20
_BLOCK = 5
_LEAST_CASES = 20
_LEAST_FREEDOM = 60


def learn(windows: Sequence[DriftWindow], *, key: str = "", hours: int = 0, simulate: bool = True) -> DriftBaseline:
    """Return the baseline of windows.

    Args:
        windows: In the order of time.
        key: What strata are, for the document.
        hours: See `DriftBaseline.hours`.
        simulate: Find out what the baseline promises, which takes a second.

    Raises:
        SettingsError: If there are too few.
    """
    if len(windows) < LEAST_WINDOWS:
        raise SettingsError(
            f"{len(windows)} windows were recorded; a baseline takes {LEAST_WINDOWS} at least, because it must know how far "
            "windows wander by themselves: record longer, or record smaller windows with --drift-window"
        )
    strata = sorted({name for window in windows for name in window.strata})
    references = {name: _stratum(windows, name) for name in strata}
    judged = [name for name in strata if references[name].windows >= LEAST_STRATUM_WINDOWS]
    if not judged:
        raise SettingsError(
            f"none of {len(strata)} strata ({key or 'no key'}) is in {LEAST_STRATUM_WINDOWS} windows or more, so nothing "
            "can be judged: choose a key with fewer values, or record longer"
        )
    names = sorted({name for window in windows for part in window.strata.values() for name in part.means})
    wanted = [name for name in names if statistic_of(name) or is_time(name)]
    means = {name: found for name in wanted if (found := _mean(tabulate(windows, name, judged), judged))}
    rates = {name: _rate(windows, name, judged) for name in _shares(windows)}
    baseline = DriftBaseline(
        learnt_at=time.time(),
        began=windows[0].began,
        ended=max(window.ended for window in windows),
        windows=len(windows),
        items=sum(window.items for window in windows),
        window_items=int(np.median([window.sampled or window.items for window in windows])),
        key=key,
        hours=hours,
        strata={name: references[name] for name in strata},
        means=means,
        rates=rates,
        slower_with=learn_slower(windows, judged),
        promise=_NOTHING_PROMISED,
        warnings=_warnings(windows, means, references, judged, key, hours),
    )
    return msgspec.structs.replace(baseline, promise=promise_of(baseline)) if simulate else baseline


_NOTHING_PROMISED = Promise(
    simulated_windows=0, false_alarms=0, shift_sd=0.0, windows_to_find=None, smallest_shift_sd=None, says=""
)


def _stratum(windows: Sequence[DriftWindow], name: str) -> StratumReference:
    counts = [window.strata[name].counts.get("items", 0) for window in windows if name in window.strata]
    return StratumReference(windows=sum(count >= LEAST_VALUES for count in counts), items=sum(counts))


def _mean(table: Table, strata: Sequence[str]) -> MeanReference | None:
    """Return what is usual for a mean; None if too few windows have values."""
    n, means = table.n, table.means
    known = np.isfinite(means)
    windows_of = known.sum(axis=0)
    enough = windows_of >= LEAST_STRATUM_WINDOWS
    if not enough.any() or known.any(axis=1).sum() < LEAST_WINDOWS // 2:
        return None
    n, means, known = n[:, enough], means[:, enough], known[:, enough]
    total, squares, windows_of = table.total[:, enough], table.squares[:, enough], windows_of[enough]
    counted = np.where(known, n, 0)
    usual = np.where(known, total, 0).sum(axis=0) / counted.sum(axis=0)
    inside = (np.where(known, squares - total**2 / np.maximum(n, 1), 0)).clip(min=0).sum() / max(
        1.0, (counted - known).sum()
    )
    # Deviations from a mean of m windows are too small by (m - 1) / m.
    deviations = np.where(known, means - usual, np.nan) * np.sqrt(windows_of / (windows_of - 1))
    chance = inside / np.maximum(n, 1)
    wander = max(0.0, float(np.nanmean(deviations**2 - chance)))
    items = counted.sum(axis=0)
    mean = float(np.average(usual, weights=items))
    sd = math.sqrt(inside + wander + float(np.average((usual - mean) ** 2, weights=items)))
    if sd < 1e-9:
        return None  # it never varies: any other value would be infinitely far
    variance = np.maximum(wander + chance, (1e-4 * sd) ** 2)
    weights = np.where(known, 1 / variance, 0)
    any_known = known.any(axis=1)
    units = deviations / np.sqrt(variance)
    scores = (np.nan_to_num(deviations) * weights).sum(axis=1)[any_known] / np.sqrt(weights.sum(axis=1)[any_known])
    memory = _memory(units, scores)
    spread = math.sqrt(max(1.0, float((scores**2).mean())) * memory)
    own = np.sqrt(np.maximum(1.0, np.nanmean(units**2, axis=0)) * memory)
    judged = [name for name, is_judged in zip(strata, enough, strict=True) if is_judged]
    return MeanReference(
        mean=mean,
        sd=sd,
        within_sd=math.sqrt(inside),
        wander_sd=math.sqrt(wander),
        spread=spread,
        memory=memory,
        window_sd=spread * float(np.median(1 / np.sqrt(weights.sum(axis=1)[any_known]))),
        strata={
            name: StratumMean(float(mean), float(alone)) for name, mean, alone in zip(judged, usual, own, strict=True)
        },
    )


def _memory(units: np.ndarray, scores: np.ndarray) -> float:
    """Return the variance of sums of consecutive windows over that of independent ones; at least 1.

    Args:
        units: (windows, strata), scores of strata alone; NaN where there is none.
        scores: (windows,), of all together.
    """
    found = _ratio_of_correlation(units, 1.0)
    if units.shape[1] > 1:
        found = max(found, math.sqrt(_ratio_of_correlation(scores[:, None], 0.0)))
    blocks = len(units) // _BLOCK
    power = float(np.nanmean(units**2))
    if power > 0 and units.shape[1] * (blocks - 1) >= _LEAST_FREEDOM:
        grouped = units[: blocks * _BLOCK].reshape(blocks, _BLOCK, -1)
        sums = np.nansum(grouped, axis=1) / np.sqrt(np.maximum(1, np.isfinite(grouped).sum(axis=1)))
        sums = sums - sums.mean(axis=0)
        found = max(found, float((sums**2).sum() / (sums.shape[1] * (blocks - 1)) / power))
    return max(1.0, found)


def _ratio_of_correlation(units: np.ndarray, standard_errors: float) -> float:
    """Return the ratio that windows would have whose memory fades by a constant factor (AR(1)), estimated on the high side."""
    pairs = units[1:] * units[:-1]
    number = int(np.isfinite(pairs).sum())
    if number < LEAST_STRATUM_WINDOWS or not (power := float(np.nanmean(units**2))) > 0:
        return 1.0  # too little is known, or the windows are all alike
    correlation = float(np.nanmean(pairs)) / power
    correlation += (1 + 3 * min(1.0, max(0.0, correlation))) / len(units) + standard_errors / math.sqrt(number)
    correlation = min(0.8, max(0.0, correlation))
    return (1 + correlation) / (1 - correlation)


def _shares(windows: Sequence[DriftWindow]) -> list[str]:
    """Return the shares to watch."""
    counts: dict[str, int] = {}
    bases: set[str] = set()
    for window in windows:
        for part in window.strata.values():
            bases |= {name for name in ("items", "files", "answers") if part.counts.get(name)}
            for name, number in part.counts.items():
                counts[name] = counts.get(name, 0) + number
    classes = sorted((name for name in counts if name.startswith("class.")), key=lambda name: -counts[name])
    fixed = ["refused", "exif", "turned", "not_jpeg", "grey", "abstained"]
    return [name for name in [*fixed, *classes[:MOST_CLASSES]] if share_of(name) in bases]


def _rate(windows: Sequence[DriftWindow], name: str, strata: Sequence[str]) -> RateReference:
    """Return what is usual for a share."""
    of = share_of(name) or "items"
    cases, bases = _counts(windows, name, strata), _counts(windows, of, strata)
    rate = (float(cases.sum()) + 0.5) / (float(bases.sum()) + 1)
    # Two cases of the common rate beside those of the stratum.
    rates = (cases.sum(axis=0) + 2) / (bases.sum(axis=0) + 2 / rate)
    usual, seen = bases @ rates, cases.sum(axis=1)
    known_from = float(min(cases.sum(), (bases - cases).sum()))
    chance = usual * (1 - rate)
    # What chance alone would make of the estimate is not taken for bursts.
    by_chance = math.sqrt(2 / len(windows)) * float(chance.sum())
    beyond = max(0.0, float(((seen - usual) ** 2 - chance).sum()) - by_chance) / max(1e-12, float((usual**2).sum()))
    units = ((seen - usual) / np.sqrt(np.maximum(1e-12, chance + beyond * usual**2)))[:, None]
    # As above; and of few cases no memory can be seen: counts of nothing are all alike.
    memory = _ratio_of_correlation(units - units.mean(), -1.0) if known_from >= _LEAST_CASES else 1.0
    typical = max(1e-9, float(np.mean(usual)))
    return RateReference(
        of=of,
        rate=rate,
        burstiness=memory * beyond + (memory - 1) / typical,
        known_from=known_from,
        strata={one: float(min(1.0, its)) for one, its in zip(strata, rates, strict=True)},
    )


def _counts(windows: Sequence[DriftWindow], name: str, strata: Sequence[str]) -> np.ndarray:
    return np.array(
        [
            [window.strata[one].counts.get(name, 0) if one in window.strata else 0 for one in strata]
            for window in windows
        ],
        float,
    )


def _warnings(
    windows: Sequence[DriftWindow],
    means: Mapping[str, MeanReference],
    references: Mapping[str, StratumReference],
    judged: Sequence[str],
    key: str,
    hours: int,
) -> tuple[str, ...]:
    found = []
    span_hours = (max(window.ended for window in windows) - windows[0].began) / 3600
    if span_hours < 24:
        found.append(
            f"the baseline spans {span_hours:.1f} h and knows no other hours of the day: what differs at night will "
            "count as drift"
        )
    elif not hours and span_hours >= 48:
        found.append("day and night are not told apart; with --hours 6 each quarter of the day has its own reference")
    if len(references) > len(judged):
        found.append(
            f"{len(references) - len(judged)} of {len(references)} strata are in fewer than {LEAST_STRATUM_WINDOWS} windows; "
            "they will count as new"
        )
    restless = [name for name, one in means.items() if one.memory >= 4]
    if restless:
        found.append(
            f"{', '.join(restless[:5])}: these wander slowly in the baseline itself, so a shift must be large to be told from "
            "it; record a baseline several times as long"
        )
    if missing := missing_key(windows):
        found.append(missing)
    if not key:
        found.append(
            "all items are one stratum: a new mix of cameras or users counts as drift; --drift-key names the attribute that "
            "tells them apart"
        )
    return tuple(found)
