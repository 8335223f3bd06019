"""From the first windows: the CPU time that an item of a given size should take in a stage, and how much windows differ anyway.

How this works: all items of the reference windows give one regression per stage: CPU time on bytes in, bytes out, their roots
and 1 / batch size. A window's score is the logarithm of its CPU time over what the regression expects of its items, so that
larger images are no slowdown. The machine is faster in some minutes than in others, for all stages more or less alike; so a
stage is compared with what the others' scores lead to expect of it, by a regression over the reference windows. What all stages
have in common is a series of its own, `ALL_STAGES`. It is compared in the same way with the yardstick, a piece of work that was
done beside the run; without one the machine's speed cannot be told apart from a change of the code there.
What is left of each series wanders: neighbouring windows of a run are alike. So the next window is compared with what the one
before leads to expect, with the correlation that the reference windows have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.monitor.history.moments import INPUTS, add_windows, as_matrix
from headrace.runs.formats.history import ALL_STAGES, HistoryWindow, StageWindow

#: Fewest windows that make a baseline.
FEWEST_WINDOWS = 12
#: Fewest spans of a stage in a window that count; a mean of fewer says little.
FEWEST_ROWS = 30
#: By how much runs differ as a whole (memory layout, place of threads): the standard deviation that is supposed before there
#: are many; it weighs as much as what so many runs tell. Of stages among one another, and of all of them beside the yardstick,
#: where what the whole run has in common does not drop out, and the yardstick has the same.
_RUNS_DIFFER, _RUNS_DIFFER_FROM_YARDSTICK, _RUNS_SUPPOSED = 0.01, 0.02, 4
#: Input like nothing in the baseline: further from its mean than so many standard deviations of its items, or, where its items
#: were all alike, by more than this share.
_UNLIKE_DEVIATIONS, _UNLIKE_SHARE = 3.0, 0.02
#: An input that varies less than this share of its mean among the items explains nothing.
_CONSTANT = 1e-3
#: Neighbouring windows of a run are taken to be correlated so far as long as there are too few to tell.
#: Runs of so many windows on average have a level of their own.
_LONG_RUN = 8
_UNKNOWN_CORRELATION, _FEWEST_PAIRS, _MOST_CORRELATION = 0.5, 8, 0.95
#: How a stage follows the others is drawn towards their mean as by so many windows.
_PRIOR_WINDOWS, _ROUNDS = 4, 30
#: Stages follow the machine's speed to different degrees: where it is beyond what the baseline has seen, this share of what
#: lies beyond tells nothing.
_FOLLOW_DIFFERENTLY = 0.3
#: Spreads are known from few windows: the largest that fits with 90 % confidence is used.
_CONFIDENCE_Z = 1.2816


@dataclass(frozen=True, slots=True)
class Window:
    """One window of a run, by its stages' sums."""

    began: float
    """Unix seconds."""
    run: str
    """Windows of one run follow one another."""
    stages: Mapping[str, StageWindow]
    yardstick: StageWindow | None = None
    """What a piece of work took that is always the same."""


def as_window(run: str, window: HistoryWindow) -> Window:
    """Return a window as the history keeps it, of a run."""
    return Window(window.began_unix_seconds, run, window.stages, window.yardstick)


@dataclass(frozen=True, slots=True)
class CostModel:
    """What an item of one stage should take."""

    inputs: np.ndarray
    """Means of `moments.INPUTS` but the first: float64, (5,)."""
    deviations: np.ndarray
    """Standard deviations over the items, (5,)."""
    slopes: np.ndarray
    """ms for each unit, (5,)."""
    cpu: float
    """Mean, ms."""
    noise: float
    """Variance of an item's CPU time that size does not explain, ms^2."""
    inverse: np.ndarray
    """Of the inputs' sums of squares, (5, 5)."""

    @classmethod
    def fit(cls, windows: Sequence[StageWindow]) -> CostModel | None:
        """Return the regression over all items of some windows; None if they took no CPU time."""
        total = add_windows(windows)
        sums = as_matrix(total) * (total.rows / total.moments[0])  # of one in eight items each stands for eight
        count, means = sums[0, 0], sums[0, 1:] / sums[0, 0]
        centred = sums[1:, 1:] - count * np.outer(means, means)
        if means[-1] <= 0:
            return None
        deviations = np.sqrt(np.maximum(np.diag(centred)[:-1], 0) / count)
        varying = deviations > _CONSTANT * np.maximum(np.abs(means[:-1]), 1e-9)
        inverse = np.zeros((len(INPUTS) - 1,) * 2)
        chosen = np.ix_(varying, varying)
        # Scaled: bytes and shares of a batch differ by orders of magnitude.
        scale = np.outer(deviations, deviations)[chosen] * count
        inverse[chosen] = np.linalg.pinv(centred[:-1, :-1][chosen] / scale, rcond=1e-6) / scale
        slopes = inverse @ centred[:-1, -1]
        noise = max(0.0, float(centred[-1, -1] - slopes @ centred[:-1, -1])) / count
        return cls(means[:-1], deviations, slopes, float(means[-1]), noise, inverse)

    def score(self, window: StageWindow) -> tuple[float, float]:
        """Return the logarithm of a window's CPU time over the expected one, and its variance by what items differ in."""
        sums = as_matrix(window)
        means = sums[0, 1:] / sums[0, 0]
        away = means[:-1] - self.inputs
        expected = max(self.cpu + float(self.slopes @ away), self.cpu / 10)
        cpu = max(float(means[-1]), self.cpu / 100)
        variance = self.noise * (1 / window.rows + float(away @ self.inverse @ away)) / expected**2
        return math.log(cpu / expected), variance

    def find_unlike(self, window: StageWindow) -> str:
        """Return which input of a window is like none in the baseline, in words; empty if none is."""
        sums = as_matrix(window)
        means = sums[0, 1:-1] / sums[0, 0]
        room = np.maximum(_UNLIKE_DEVIATIONS * self.deviations, _UNLIKE_SHARE * np.abs(self.inputs))
        for name, mean, usual, most in zip(INPUTS[1:], means, self.inputs, room, strict=True):
            if abs(mean - usual) > most:
                return f"{name} is {mean:.3g} per item, in the baseline {usual:.3g}"
        return ""


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of windows: float64, (windows, stages); NaN where a stage has too few items, or other ones than the baseline."""

    stages: tuple[str, ...]
    values: np.ndarray
    variances: np.ndarray
    unlike: tuple[str, ...]
    """For each window why an input of it is like none in the baseline; empty if none is."""
    machine: np.ndarray
    """Logarithm of the yardstick's time over that of the baseline, (windows,); NaN where it was not measured."""

    def choose(self, stages: Sequence[str]) -> Scores:
        """Return those of some stages."""
        columns = [self.stages.index(stage) for stage in stages]
        return Scores(tuple(stages), self.values[:, columns], self.variances[:, columns], self.unlike, self.machine)

    def first(self, size: int) -> Scores:
        """Return those of the first windows."""
        return Scores(self.stages, self.values[:size], self.variances[:size], self.unlike[:size], self.machine[:size])


@dataclass(frozen=True, slots=True)
class Costs:
    """What items should take in each stage."""

    models: Mapping[str, CostModel]
    yardstick: CostModel | None = None
    """None if too few windows have one."""

    @classmethod
    def fit(cls, windows: Sequence[Window]) -> Costs:
        """Return those of the reference windows, for stages that most of them have."""
        models = {}
        for stage in dict.fromkeys(name for window in windows for name in window.stages):
            known = [
                window.stages[stage]
                for window in windows
                if stage in window.stages and window.stages[stage].rows >= FEWEST_ROWS
            ]
            if len(known) >= max(FEWEST_WINDOWS, len(windows) / 2) and (model := CostModel.fit(known)) is not None:
                models[stage] = model
        measured = [window.yardstick for window in windows if window.yardstick is not None]
        is_enough = len(measured) >= max(FEWEST_WINDOWS, len(windows) / 2)
        return cls(models, CostModel.fit(measured) if is_enough else None)

    def score(self, windows: Sequence[Window]) -> Scores:
        """Return the scores of windows."""
        shape = (len(windows), len(self.models))
        values, variances, unlike = np.full(shape, np.nan), np.zeros(shape), [""] * len(windows)
        for column, (stage, model) in enumerate(self.models.items()):
            for row, window in enumerate(windows):
                sums = window.stages.get(stage)
                if sums is None or sums.rows < FEWEST_ROWS:
                    continue
                if reason := model.find_unlike(sums):
                    unlike[row] = unlike[row] or f"{stage}: {reason}"
                    continue
                values[row, column], variances[row, column] = model.score(sums)
        machine = np.full(len(windows), np.nan)
        for row, window in enumerate(windows):
            if self.yardstick is not None and window.yardstick is not None:
                machine[row], _ = self.yardstick.score(window.yardstick)
        return Scores(tuple(self.models), values, variances, tuple(unlike), machine)


@dataclass(frozen=True, slots=True)
class Series:
    """What is expected of one series of scores, from the reference windows."""

    name: str
    """The stage, or `ALL_STAGES`."""
    column: int
    """Of the stage; -1: all together."""
    weights: np.ndarray
    """Of the stages' scores: of those that make up `ALL_STAGES`; or of the others, as this one follows them, (stages,)."""
    follows: float
    """How `ALL_STAGES` follows the yardstick; 0 for stages, and where there is none."""
    level: float
    correlation: float
    """Of neighbouring windows of a run."""
    first: float
    """Standard deviation of a run's first window."""
    next: float
    """The same of a window, given the one before."""
    item_variance: float
    """Part of it that comes from how many items a usual window has."""
    freedom: int
    level_error: float
    """Standard error of the level."""
    usual: float
    """Beyond this, in either direction, the baseline has not seen what it is compared with."""
    run_spread: float
    """Standard deviation of whole runs."""
    known_runs: frozenset[str]
    """Runs that the level was made from, among others."""

    def doubt(self, run: str) -> float:
        """Return by how much the windows of a run may lie off the level, all of them alike, for no reason: two deviations."""
        spread = 0.0 if run in self.known_runs else self.run_spread
        return 2 * math.hypot(self.level_error, spread)

    def residuals(self, scores: Scores) -> Residuals:
        """Return what is left of the windows' scores."""
        own, variance, others = _compare(scores, self.column, self.weights, self.follows)
        beyond = np.maximum(0.0, np.nan_to_num(np.abs(others)) - self.usual)
        more = np.maximum(0.0, np.nan_to_num(variance) - self.item_variance)
        return Residuals(own - self.level, more, _FOLLOW_DIFFERENTLY * beyond)


@dataclass(frozen=True, slots=True)
class Residuals:
    """What is left of the scores of windows when what is expected is taken out; all (windows,)."""

    values: np.ndarray
    """NaN where a window cannot be compared."""
    variances: np.ndarray
    """By how much more each may vary than a usual window."""
    doubts: np.ndarray
    """By how much each may lie off because the machine is faster or slower than ever in the baseline."""


def fit_series(scores: Scores, runs: Sequence[str], size: int) -> list[Series]:
    """Return what is expected of each stage, where there are several, and of all together.

    Args:
        scores: Of windows in order.
        runs: Of each window.
        size: The first so many are the reference.
    """
    if not scores.stages:
        return []
    scores = scores.first(size)
    runs = runs[:size]
    weights = 1 / (np.nanvar(scores.values, axis=0) + 1e-6)
    found = [_fit(scores, runs, ALL_STAGES, -1, weights / weights.sum())]
    if len(scores.stages) > 1:
        for column, stage in enumerate(scores.stages):
            found.append(_fit(scores, runs, stage, column, _follow(scores.values, column, weights)))
    return [one for one in found if one is not None]


def _follow(values: np.ndarray, column: int, weights: np.ndarray) -> np.ndarray:
    """Return how a stage's scores follow those of the others: least squares, (stages,).

    None may be negative, or a stage would look slower when another one gets slower. With few windows it comes out near the
    others' mean.
    """
    prior = np.where(np.arange(len(weights)) == column, 0.0, weights)
    prior /= prior.sum()
    centred = values - np.nanmean(values, axis=0)
    centred = np.nan_to_num(centred[~np.isnan(centred[:, column])])
    products = centred.T @ centred
    ridge = _PRIOR_WINDOWS * float(np.mean(np.var(centred, axis=0)))
    found: np.ndarray = prior.copy()
    for _ in range(_ROUNDS):
        for other in np.flatnonzero(prior):
            rest = products[other, column] - products[other] @ found + products[other, other] * found[other]
            found[other] = max(0.0, (rest + ridge * prior[other]) / (products[other, other] + ridge))
    return found


def _follow_machine(scores: Scores, weights: np.ndarray) -> float:
    """Return how all stages together follow the yardstick, drawn towards one to one; 0 without one."""
    known = ~np.isnan(scores.machine)
    if not known.any():
        return 0.0
    mean = (_fill(scores.values, weights) @ weights)[known]
    mean, machine = mean - np.nanmean(mean), scores.machine[known] - scores.machine[known].mean()
    ridge = _PRIOR_WINDOWS * float(np.var(machine)) + 1e-9
    product = float(np.nan_to_num(mean) @ machine)
    return float(np.clip((product + ridge) / (float(machine @ machine) + ridge), 0.1, 3.0))


def _fit(scores: Scores, runs: Sequence[str], name: str, column: int, weights: np.ndarray) -> Series | None:
    """Return what is expected of a series; None if too few windows have both it and what it is compared with."""
    follows = _follow_machine(scores, weights) if column < 0 else 0.0
    own, variance, others = _compare(scores, column, weights, follows)
    known = ~np.isnan(own)
    if known.sum() < FEWEST_WINDOWS / 2:
        return None
    level = float(own[known].mean())
    left = own - level
    within = _centre_runs(left, runs)
    correlation, usable = _correlate(within, runs)
    freedom = max(1, int(known.sum()) - 3)
    first = float(np.std(left[known], ddof=1)) * _largest_likely(freedom)
    steps = (within[1:] - correlation * within[:-1])[usable]
    enough = len(steps) >= _FEWEST_PAIRS
    following = float(np.std(steps)) * _largest_likely(max(1, len(steps) - 3)) if enough else first
    return Series(
        name=name,
        column=column,
        weights=weights,
        follows=follows,
        level=level,
        correlation=correlation,
        first=max(first, 1e-4),
        next=max(following, 1e-4),
        item_variance=float(np.median(variance[known])),
        freedom=freedom,
        level_error=following / (1 - correlation) / math.sqrt(known.sum()),
        usual=2 * float(np.nanstd(others[known])),
        run_spread=_spread_of_runs(left, runs, _RUNS_DIFFER_FROM_YARDSTICK if follows else _RUNS_DIFFER),
        known_runs=frozenset(runs),
    )


def _compare(
    scores: Scores, column: int, weights: np.ndarray, follows: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a stage's scores without what the others' explain, their variances, and what explains them: (windows,) each.

    Args:
        scores: Of windows.
        column: The stage; -1: all of them together, which the yardstick explains, where there is one.
        weights: Of the stages, (stages,).
        follows: See `Series`.
    """
    mean = _fill(scores.values, weights) @ weights
    if column < 0:
        explained = follows * scores.machine if follows else np.zeros(len(mean))
        return mean - explained, scores.variances @ weights**2, explained
    return scores.values[:, column] - mean, scores.variances[:, column], mean


def _spread_of_runs(left: np.ndarray, runs: Sequence[str], supposed: float) -> float:
    """Return the standard deviation of whole runs, beyond that of their windows (one-way analysis of variance).

    Args:
        left: Of windows.
        runs: Of each window.
        supposed: What it is taken to be before there are runs.
    """
    groups: dict[str, list[float]] = {}
    for run, value in zip(runs, left, strict=True):
        if not math.isnan(value):
            groups.setdefault(run, []).append(float(value))
    several = [group for group in groups.values() if len(group) > 1]
    if not several and len(groups) > 1:  # each window is a run: the windows' spread has it all
        return 0.0
    within = float(np.sum([np.var(group) * len(group) for group in several]) / sum(len(group) - 1 for group in several))
    means, known = [float(np.mean(group)) for group in groups.values()], len(groups) - 1
    of_means = within * float(np.mean([1 / len(group) for group in groups.values()]))
    seen = max(0.0, float(np.var(means, ddof=1)) - of_means) if known else 0.0
    return math.sqrt((known * seen + _RUNS_SUPPOSED * supposed**2) / (known + _RUNS_SUPPOSED))


def _centre_runs(left: np.ndarray, runs: Sequence[str]) -> np.ndarray:
    """Return what is left without the mean of each run, if they are long: by how much runs differ as a whole is known apart."""
    names, numbers = np.unique(np.array(runs), return_inverse=True)
    if len(left) < _LONG_RUN * len(names):
        return left
    centred = left.copy()
    for number in range(len(names)):
        own = left[numbers == number]
        if not np.isnan(own).all():
            centred[numbers == number] -= np.nanmean(own)
    return centred


def _correlate(left: np.ndarray, runs: Sequence[str]) -> tuple[float, np.ndarray]:
    """Return the correlation of neighbours, raised by its bias, and which windows follow one of their run: (windows - 1,)."""
    pairs = np.array([before == after for before, after in itertools.pairwise(runs)], dtype=bool)
    usable: np.ndarray = pairs & ~np.isnan(left[1:]) & ~np.isnan(left[:-1])
    count = int(usable.sum())
    if count < _FEWEST_PAIRS:
        return _UNKNOWN_CORRELATION, usable
    before, after = left[:-1][usable], left[1:][usable]
    size = float(np.sqrt((before @ before) * (after @ after)))
    found = float(before @ after) / size if size else 0.0
    bias = (1 + 3 * found) * len(set(runs)) / (count + len(set(runs)))
    return float(np.clip(found + bias, 0.0, _MOST_CORRELATION)), usable


def _fill(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return scores with the mean of a window's known ones in place of those that are not; NaN where none is known."""
    known = ~np.isnan(values) & (weights > 0)
    number = known.sum(axis=1)
    sums = np.where(known, values, 0.0).sum(axis=1)
    means = np.divide(sums, number, out=np.full(len(values), np.nan), where=number > 0)
    filled: np.ndarray = np.where(known, values, np.where(weights > 0, means[:, None], 0.0))
    return filled


def _largest_likely(freedom: int) -> float:
    """Return by how much a standard deviation may be larger than the one seen, with 90 % confidence (Wilson and Hilferty)."""
    part = 2 / (9 * freedom)
    return math.sqrt(1 / max((1 - part - _CONFIDENCE_Z * math.sqrt(part)) ** 3, 0.05))
