"""How the cost of a stage's items changes with time, size and company. Arrays in, numbers out; nothing here knows a verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.diagnose.span_columns import Array

#: Items below which a trend is chance.
FEWEST_ITEMS = 40
#: Bins of time in which rates are compared.
_BINS = 24
_ITEMS_PER_BIN = 4
#: Standard errors between beginning and end that hardly come by chance, though items close in time are alike.
_SURE = 4.0
#: Relative spread below which a regressor says nothing.
_LEAST_SPREAD = 0.10


@dataclass(frozen=True, slots=True)
class Growth:
    """Something at the beginning and at the end of the window."""

    early: float
    """Mean of the first fifth of the items."""
    late: float
    """Mean of the last fifth."""
    mean: float
    errors: float
    """late - early in standard errors of that difference."""

    @property
    def is_rise(self) -> bool:
        """Whether the end surely lies above the beginning."""
        return self.errors >= _SURE

    @property
    def ratio(self) -> float:
        """The end over the beginning."""
        return self.late / self.early if self.early > 0 else float("inf")

    @property
    def excess_share(self) -> float:
        """Share of the whole that would be saved had all been as at the beginning."""
        return max(0.0, 1 - self.early / self.mean) if self.mean > 0 else 0.0


def growth(started: Array, values: Array) -> Growth | None:
    """Return how a value grew over time, finite values only; None of too few.

    Args:
        started: When each item began, any unit.
        values: float64.
    """
    known = np.isfinite(values)
    if int(known.sum()) < FEWEST_ITEMS:
        return None
    ordered = values[known][np.argsort(started[known], kind="stable")]
    fifth = len(ordered) // 5
    # Medians of groups would hide what a few items cost; means of the middle nine tenths do not follow one outlier.
    early, late = _inner(ordered[:fifth]), _inner(ordered[-fifth:])
    error = float(np.sqrt(early.var() / len(early) + late.var() / len(late)))
    rise = float(late.mean() - early.mean())
    errors = rise / error if error > 0 else float(np.sign(rise)) * np.inf if rise else 0.0
    return Growth(float(early.mean()), float(late.mean()), float(_inner(ordered).mean()), errors)


def _inner(values: Array) -> Array:
    low, high = np.percentile(values, [5, 95])
    return np.asarray(values[(values >= low) & (values <= high)])


def slow_share(seconds: Array, times_median: float) -> tuple[float, float]:
    """Return the share of items slower than so many medians, and the share of all time that they take beyond the median.

    Args:
        seconds: float64, not empty.
        times_median: Multiple of the median from which an item is slow.
    """
    median = float(np.median(seconds))
    slow = seconds > times_median * median
    total = float(seconds.sum())
    return float(slow.mean()), float((seconds[slow] - median).sum()) / total if total > 0 else 0.0


def size_share(seconds: Array, sizes: Array) -> float | None:
    """Return the share of the mean time that grows with size, by least squares; None where sizes hardly differ.

    Args:
        seconds: float64.
        sizes: float64, >= 0.
    """
    mean = float(sizes.mean()) if len(sizes) else 0.0
    if len(sizes) < FEWEST_ITEMS or mean <= 0 or float(sizes.std()) < _LEAST_SPREAD * mean:
        return None
    slope = float(np.cov(sizes, seconds)[0, 1] / sizes.var(ddof=1))
    whole = float(seconds.mean())
    return float(np.clip(slope * mean / whole, 0.0, 1.0)) if whole > 0 else None


def correlation(first: Array, second: Array) -> float | None:
    """Return Pearson's correlation; None where one of the two does not vary."""
    if len(first) < FEWEST_ITEMS or not first.std() > 0 or not second.std() > 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def rates_over_time(started: Array, ended: Array, amounts: Array) -> Array | None:
    """Return amount per bin of time, each item's spread evenly over its service; None of too few items.

    The first and the last tenth of the time are left out: there the workers are not all at work.

    Args:
        started: float64 seconds.
        ended: float64 seconds.
        amounts: float64, such as bytes, or ones to count items.
    """
    num_bins = min(_BINS, len(started) // _ITEMS_PER_BIN)
    if num_bins < 8:
        return None
    first, last = float(started.min()), float(ended.max())
    margin = (last - first) / 10
    edges = np.linspace(first + margin, last - margin, num_bins + 1)
    return np.asarray(np.diff(_amount_until(edges, started, ended, amounts)))


def _amount_until(at: Array, started: Array, ended: Array, amounts: Array) -> Array:
    """Return the sum over items of what each had of its amount by each moment."""
    rate = amounts / np.maximum(ended - started, 1e-9)
    by_start, by_end = np.argsort(started), np.argsort(ended)
    # A ramp that begins at `started` and stops at `ended`: two cumulative sums instead of items x moments.
    return np.asarray(_ramp(at, started[by_start], rate[by_start]) - _ramp(at, ended[by_end], rate[by_end]))


def _ramp(at: Array, begins: Array, rate: Array) -> Array:
    num = np.searchsorted(begins, at, "right")
    slopes = np.concatenate([[0.0], np.cumsum(rate)])[num]
    offsets = np.concatenate([[0.0], np.cumsum(rate * begins)])[num]
    return np.asarray(slopes * at - offsets)


def spread(values: Array) -> float:
    """Return standard deviation over mean; 0 where the mean is."""
    mean = float(values.mean())
    return float(values.std(ddof=1)) / mean if mean > 0 and len(values) > 1 else 0.0


def company(started: Array, ended: Array) -> Array:
    """Return for each service how many services, its own included, went on side by side, on average over its time.

    Args:
        started: float64 seconds.
        ended: float64 seconds.
    """
    own = np.maximum(ended - started, 1e-9)
    ones = np.ones(len(started))
    order_start, order_end = np.sort(started), np.sort(ended)

    def sum_work(at: Array) -> Array:
        """Time worked by all until each moment."""
        return np.asarray(_ramp(at, order_start, ones) - _ramp(at, order_end, ones))

    return np.asarray((sum_work(started + own) - sum_work(started)) / own)


@dataclass(frozen=True, slots=True)
class FirstSights:
    """The first item of each kind, held against those after it."""

    num_kinds: int
    share: float
    """Of all time: what first items took beyond the usual of their kind."""
    times: float
    """Median over kinds of the first item's time over the usual of its kind."""


def first_sights(started: Array, seconds: Array, codes: Array, expected: Array | None = None) -> FirstSights | None:
    """Return what the first calls of each kind cost; None where no kind is known, or nothing to hold them against.

    A kind seen once is held against the median of all that are not first; if there is none, against what is expected.

    Args:
        started: When each began.
        seconds: What each took; NaN where not measured.
        codes: int, which kind each is of; negative: not known.
        expected: What each should take, seconds; None: not known.
    """
    known = np.flatnonzero((codes >= 0) & np.isfinite(seconds))
    total = float(np.nansum(seconds))
    if not len(known) or total <= 0:
        return None
    order = known[np.argsort(started[known], kind="stable")]
    kinds, index = np.unique(codes[order], return_index=True)
    firsts = order[index]
    rest = np.setdiff1d(order, firsts, assume_unique=True)
    if len(rest):
        usual = np.full(int(kinds.max()) + 1, float(np.median(seconds[rest])))
        for kind in np.unique(codes[rest]):
            usual[kind] = np.median(seconds[rest][codes[rest] == kind])
        least = usual[codes[firsts]]
    elif expected is not None:
        least = expected[firsts]
    else:
        return None
    excess = np.maximum(seconds[firsts] - least, 0.0)
    times = float(np.median(seconds[firsts] / np.maximum(least, 1e-9)))
    return FirstSights(len(kinds), float(excess.sum()) / total, times)


@dataclass(frozen=True, slots=True)
class Kinds:
    """Values that fall into two groups with a gap between them."""

    is_large: Array
    """bool, for each value."""
    usual: float
    """Median of the small ones."""
    large: float
    """Median of the large ones."""
    explained: float
    """Share of the spread (of logarithms) that lies between the groups: 0.64 for one bell curve, 0.75 for even values."""

    @property
    def share(self) -> float:
        """Share of the values that are large."""
        return float(self.is_large.mean())


def two_kinds(values: Array) -> Kinds | None:
    """Return the best division of positive values into small and large ones; None of too few, or if all are alike.

    References:
        N. Otsu, "A threshold selection method from gray-level histograms", 1979.
    """
    if len(values) < FEWEST_ITEMS or not (values > 0).all():
        return None
    logs = np.sort(np.log(values))
    count, total = np.arange(1, len(logs)), np.cumsum(logs)
    below, above = total[:-1] / count, (total[-1] - total[:-1]) / (len(logs) - count)
    between = count * (len(logs) - count) * (above - below) ** 2 / len(logs) ** 2
    best, spread_of_all = int(np.argmax(between)), float(logs.var())
    if spread_of_all <= 0:
        return None
    is_large = np.log(values) > (logs[best] + logs[best + 1]) / 2
    if not is_large.any() or is_large.all():
        return None
    return Kinds(
        is_large,
        float(np.median(values[~is_large])),
        float(np.median(values[is_large])),
        float(between[best]) / spread_of_all,
    )
