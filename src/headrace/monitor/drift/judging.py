"""Says what the detectors found: statistics that moved, strata that are new or silent, and what takes longer for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from headrace.monitor.drift.detectors import Detectors, MeanDetector, RateDetector
from headrace.monitor.drift.evidence import DETECTORS
from headrace.monitor.drift.learning import LEAST_WINDOWS
from headrace.monitor.drift.slower import SIZES, explain_slower
from headrace.monitor.drift.statistics import SECONDS, Statistic, statistic_of
from headrace.monitor.drift.strata import missing_key
from headrace.monitor.drift.times import moment
from headrace.runs.formats.drift import (
    DriftBaseline,
    DriftDocument,
    DriftPoint,
    DriftWindow,
    Score,
    SlowerPoint,
    SlowerStage,
    StratumNews,
)

#: Windows without a stratum that is in nearly all of the baseline's, after which it counts as silent.
SILENT_WINDOWS = 5
_NEARLY_ALL = 0.9
#: Items of a stratum that the baseline does not know, from which it is news: fewer may be a typing error.
NEWS_ITEMS = 20
#: Standard deviations that 99 of 100 windows lie within.
_USUAL = 2.58
#: Scores listed, and points of a chart.
_MOST_SCORES, _MOST_POINTS = 120, 200
#: Stages and strata whose courses are kept beside the sentence.
_MOST_SLOWER = 8
#: Evidence below this part of an alarm is not worth a line.
_LEAST_SCORE = 0.3


class Judge:
    """Compares windows with a baseline as they come.

    Args:
        baseline: What is usual.
        folder: For the document.
    """

    def __init__(self, baseline: DriftBaseline, folder: str = "") -> None:
        self.baseline = baseline
        self.folder = folder
        self._detectors = Detectors(baseline)
        self._items = self._lost = 0
        self._began: float | None = None
        self._new: dict[str, tuple[float, int]] = {}
        self._seen: dict[str, tuple[int, float]] = {}

    def add(self, window: DriftWindow) -> None:
        """Judge the next window."""
        self._detectors.add(window)
        self._items += window.items
        self._lost += window.lost
        self._began = window.began if self._began is None else self._began
        for name, part in window.strata.items():
            items = part.counts.get("items", 0)
            known = self.baseline.strata.get(name)
            if known is None or not self._is_judged(name):
                since, before = self._new.get(name, (window.began, 0))
                self._new[name] = since, before + items
            self._seen[name] = self._detectors.number, window.ended

    def _is_judged(self, name: str) -> bool:
        baseline = self.baseline
        return any(name in one.strata for one in baseline.means.values()) or any(
            name in rate.strata for rate in baseline.rates.values()
        )

    def is_alarm(self) -> bool:
        """Return whether any statistic has drifted."""
        return self._detectors.is_alarm()

    def document(self) -> DriftDocument:
        """Return where things stand."""
        detectors = self._detectors
        windows = list(detectors.windows)
        scores = sorted(self._scores(), key=_by_importance)
        alarms = [one for one in scores if one.alarm]
        news = self._news()
        slower = self._slower(alarms)
        latency = tuple(one.says for one in slower)
        ended = windows[-1].ended if windows else None
        said = _say(alarms, latency, news, detectors.number, self.baseline)
        return DriftDocument(
            verdict="drift" if alarms else "steady",
            says=tuple(said),
            folder=self.folder,
            windows=detectors.number,
            items=self._items,
            began=self._began,
            ended=ended,
            scores=tuple(scores[:_MOST_SCORES]),
            news=tuple(news),
            latency=latency,
            slower=tuple(slower[:_MOST_SLOWER]),
            refused_ratio=refused_ratio(windows[-1:]),
            refusals=_refusals(windows, alarms),
            series={name: tuple(self._series(name)) for name in self._charted(scores)},
            promise=self.baseline.promise,
            warnings=self.baseline.warnings,
            lost=self._lost,
        )

    def _scores(self) -> Iterable[Score]:
        number = self._detectors.number
        for name, one in self._detectors.means.items():
            if (known := statistic_of(name)) is None:
                continue
            shares = one.evidence / one.limit
            for column, stratum in enumerate([None, *one.strata]):
                detector = int(np.argmax(shares[:, column]))
                score = float(shares[detector, column])
                if stratum is None or score >= _LEAST_SCORE:
                    yield self._mean_score(name, known, one, detector, column, stratum, score, number)
        for rate in self._detectors.rates:
            shares = rate.evidence / rate.limit
            place = int(np.argmax(shares))
            if rate.stratum is None or shares[place] >= _LEAST_SCORE:
                yield self._rate_score(rate, place, float(shares[place]), number)

    def _mean_score(
        self, name: str, known: Statistic, one: MeanDetector, detector: int, column: int, stratum: str | None,
        score: float, number: int,
    ) -> Score:  # fmt: skip
        moved = one.mean_since(number, detector, column)
        usual = one.reference.mean if stratum is None else one.reference.strata[stratum].mean
        before, now = (10**usual, 10 ** (usual + moved)) if known.is_log else (usual, usual + moved)
        direction: Literal["up", "down"] = "up" if DETECTORS[detector] > 0 else "down"
        since = int(one.since[detector, column])
        shift = moved / one.reference.sd
        figures = f"{before:.3g} to {now:.3g}" + (f", {now / before:.2g}x" if known.is_log else "")
        return Score(
            statistic=name, stratum=stratum, score=score, alarm=score >= 1, direction=direction,
            since=self._at(since) if score > 0 else None, windows=number - since, shift_sd=shift,
            before=before, now=now,
            says=f"{known.up if direction == 'up' else known.down}{_whose(stratum, self.baseline)}: {name} {figures} "
            f"({shift:+.2g} sd)",
        )  # fmt: skip

    def _rate_score(self, rate: RateDetector, place: int, score: float, number: int) -> Score:
        before, now = rate.rates_since(number, place)
        is_up = (list(rate.multiples)[place] > 1) != rate.is_turned
        known = statistic_of(rate.name)
        assert known is not None
        return Score(
            statistic=rate.name, stratum=rate.stratum, score=score, alarm=score >= 1, direction="up" if is_up else "down",
            since=self._at(int(rate.since[place])) if score > 0 else None, windows=number - int(rate.since[place]),
            shift_sd=None, before=before, now=now,
            says=f"{known.up if is_up else known.down}{_whose(rate.stratum, self.baseline)}: {before:.2%} to {now:.2%} of "
            f"{rate.reference.of}".replace("%", " %"),
        )  # fmt: skip

    def _at(self, since: int) -> float | None:
        """Return when the window after the `since`th began; None if it is forgotten by now."""
        kept = self._detectors.windows
        place = since - (self._detectors.number - len(kept))
        return kept[place].began if 0 <= place < len(kept) else None

    def _news(self) -> list[StratumNews]:
        key = self.baseline.key or "stratum"
        found = [
            StratumNews(
                stratum=name, what="new", since=since, items=items,
                says=f"{key} {name!r} is new, or little known to the baseline: {items:,} items since {moment(since)}; they are "
                "judged with no other",
            )
            for name, (since, items) in self._new.items()
            if items >= NEWS_ITEMS
        ]  # fmt: skip
        for name, known in self.baseline.strata.items():
            last, at = self._seen.get(name, (0, self._began or 0.0))
            usual = known.windows >= _NEARLY_ALL * self.baseline.windows
            if usual and not self.baseline.hours and self._detectors.number - last >= SILENT_WINDOWS:
                says = f"{key} {name!r} is silent since {moment(at)}; it was in nearly all windows of the baseline"
                found.append(StratumNews(stratum=name, what="silent", since=at, items=0, says=says))
        return found

    def _slower(self, alarms: Sequence[Score]) -> list[SlowerStage]:
        """Return what takes longer with what changed: of the strata, if the sizes of few changed, else of all together."""
        found: list[SlowerStage] = []
        changed = dict.fromkeys(one.stratum for one in alarms if one.statistic in SIZES)
        alone = [stratum for stratum in changed if stratum is not None]
        is_few = 0 < len(alone) <= len(self.baseline.strata) / 2
        for stratum in alone if is_few or None not in changed else [None]:
            alarm = next(one for one in alarms if one.stratum == stratum and one.statistic in SIZES)
            changes = {}
            for name, one in self._detectors.means.items():
                columns = [None, *one.strata]
                if (name in SIZES or name.startswith(SECONDS)) and stratum in columns:
                    values = self._moved(name, stratum)[-max(1, alarm.windows) :]
                    changes[name] = float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
            since = moment(alarm.since) if alarm.since is not None else "the beginning"
            whose = "images" if stratum is None else f"images of {self.baseline.key or 'stratum'} {stratum!r}"
            found += [
                SlowerStage(
                    stage=one.stage, statistic=one.size, stratum=stratum, since=alarm.since, says=one.says,
                    points=tuple(self._courses(one.size, SECONDS + one.stage, stratum)),
                )
                for one in explain_slower(self.baseline.slower_with, changes, whose, since)
            ]  # fmt: skip
        return found

    def _courses(self, size: str, seconds: str, stratum: str | None) -> Iterable[SlowerPoint]:
        """Give the course of a size and of a CPU time, of which logarithms are kept, over the same windows."""
        rows = [self._moved(name, stratum)[-_MOST_POINTS:] for name in (size, seconds)]
        windows = list(self._detectors.windows)[-len(rows[0]) :]
        for window, *values in zip(windows, *rows, strict=True):
            factors = [10**value if math.isfinite(value) else None for value in values]
            yield SlowerPoint(at=window.ended, size=factors[0], seconds=factors[1])

    def _moved(self, name: str, stratum: str | None) -> list[float]:
        """Return how far the means of the last windows were from the usual one."""
        one = self._detectors.means[name]
        column = [None, *one.strata].index(stratum)
        return [float(row[column]) for row in one.moved]

    def _charted(self, scores: Sequence[Score]) -> list[str]:
        """Return the statistics of all together that are worth a chart: the most moved."""
        names = [one.statistic for one in scores if one.statistic in self._detectors.means]
        return list(dict.fromkeys(names))[:6]

    def _series(self, name: str) -> Iterable[DriftPoint]:
        one, known = self._detectors.means[name], statistic_of(name)
        change = (lambda value: 10**value) if known is not None and known.is_log else float
        usual = one.reference.mean
        windows = list(self._detectors.windows)
        rows = list(zip(windows[-len(one.moved) :], one.moved, one.usual_sd, strict=True))
        for window, moved, sd in rows[-_MOST_POINTS:]:
            band = _USUAL * sd if math.isfinite(sd) else 0.0
            value = float(moved[0])
            yield DriftPoint(
                at=window.ended,
                value=change(usual + value) if math.isfinite(value) else None,
                low=change(usual - band),
                high=change(usual + band),
            )


def judge(baseline: DriftBaseline, windows: Iterable[DriftWindow], folder: str = "") -> DriftDocument:
    """Return what comes of comparing windows, in the order of time, with a baseline."""
    one = Judge(baseline, folder)
    for window in windows:
        one.add(window)
    return one.document()


def recording(windows: Sequence[DriftWindow], folder: str, waiting: Sequence[DriftWindow] = ()) -> DriftDocument:
    """Return the document while there is no baseline.

    Args:
        windows: That are complete.
        folder: For the document.
        waiting: Parts that make no window yet; they tell whether jobs have the key.
    """
    missing = max(0, LEAST_WINDOWS - len(windows))
    says = (
        f"recording: {len(windows)} windows; a baseline takes {missing} more"
        if missing
        else f"recording: {len(windows)} windows, enough for a baseline: headrace monitor drift learn {folder}"
    )
    return DriftDocument(
        verdict="recording",
        says=(says,),
        folder=folder,
        windows=len(windows),
        windows_needed=missing,
        items=sum(window.items for window in windows),
        warnings=tuple(filter(None, (missing_key([*windows, *waiting]),))),
        began=windows[0].began if windows else None,
        ended=windows[-1].ended if windows else None,
        refused_ratio=refused_ratio(windows[-1:]),
        lost=sum(window.lost for window in windows),
    )


def say_waiting(waiting: Sequence[DriftWindow]) -> str:
    """Return what is said of parts that make no window yet."""
    items, sampled = sum(part.items for part in waiting), sum(part.sampled for part in waiting)
    return (
        f"{items:,} items more wait to fill a window; {sampled:,} of them were looked at closely, which is what counts "
        "(--drift-window, --drift-budget)"
    )


def refused_ratio(windows: Sequence[DriftWindow]) -> float | None:
    """Return the share of items that could not be decoded; None without items."""
    items = sum(part.counts.get("items", 0) for window in windows for part in window.strata.values())
    refused = sum(part.counts.get("refused", 0) for window in windows for part in window.strata.values())
    return refused / items if items else None


def _refusals(windows: Sequence[DriftWindow], alarms: Sequence[Score]) -> dict[str, int]:
    since = min((one.windows for one in alarms if one.statistic == "refused"), default=1)
    found: dict[str, int] = {}
    for window in windows[-max(1, since) :]:
        for part in window.strata.values():
            for name, number in part.counts.items():
                if name.startswith("decode."):
                    found[name] = found.get(name, 0) + number
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _whose(stratum: str | None, baseline: DriftBaseline) -> str:
    return "" if stratum is None else f" at {baseline.key or 'stratum'} {stratum!r}"


def _by_importance(one: Score) -> tuple[bool, bool, float]:
    """Alarms first, those of all together before those of one stratum."""
    return (not one.alarm, one.stratum is not None, -one.score)


def _say(
    alarms: Sequence[Score], latency: Sequence[str], news: Sequence[StratumNews], windows: int, baseline: DriftBaseline
) -> list[str]:
    if not alarms:
        usual = f"steady: {windows} windows are as usual" if windows else "nothing was judged yet: no window came since"
        return [usual, *(one.says for one in news)]
    together = {one.statistic for one in alarms if one.stratum is None}
    shown = [one for one in alarms if one.stratum is None or one.statistic not in together]
    lines = [f"{one.says}{'' if one.since is None else f', since {moment(one.since)}'}" for one in shown[:8]]
    if len(shown) > 8:
        lines.append(f"and {len(shown) - 8} more")
    return [*lines, *latency, *(one.says for one in news)]
