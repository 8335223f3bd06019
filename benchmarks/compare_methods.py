"""Which interval `headrace compare` should use: false alarms and changes found, on simulated pairs of blocks.

Each method sees the same pairs, under six kinds of noise. An alarm is an interval that does not hold 0 where A and B are the
same; a change is found when the interval of a true 5 % lies above 0.

    python -m benchmarks.compare_methods
"""

import argparse
import math
import sys
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from headrace.compare.intervals import paired_interval
from headrace.compare.turns import runs_backwards

SPREAD = 0.037
CHANGE = 0.05
RESAMPLES = 1000
#: Quantiles of Student's t at 97.5 % by number of pairs.
STUDENT = {8: 2.365, 12: 2.201, 16: 2.131, 20: 2.093, 24: 2.069}

Random = np.random.Generator
#: Pairs (comparisons, pairs) -> low and high, (comparisons,) each.
Method = Callable[[np.ndarray, Random], tuple[np.ndarray, np.ndarray]]


def _normal(random: Random, shape: tuple[int, int]) -> np.ndarray:
    return random.normal(0, SPREAD, shape)


def _heavy(random: Random, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_t(3, shape) * SPREAD / math.sqrt(3)


def _drift(random: Random, shape: tuple[int, int]) -> np.ndarray:
    return _normal(random, shape) + np.linspace(0, 0.25, shape[1]) * random.choice([-1, 1], (shape[0], 1))


def _slow(random: Random, shape: tuple[int, int]) -> np.ndarray:
    return _normal(random, shape) - (random.random(shape) < 0.06) * random.exponential(0.25, shape)


def _alike(random: Random, shape: tuple[int, int]) -> np.ndarray:
    values = _normal(random, shape)
    for index in range(1, shape[1]):
        values[:, index] = 0.6 * values[:, index - 1] + 0.8 * values[:, index]
    return values


def _switching(random: Random, shape: tuple[int, int]) -> np.ndarray:
    return _normal(random, shape) + 0.12 * (np.cumsum(random.random(shape) < 0.1, axis=1) % 2)


NOISES = {
    "normal": _normal,
    "heavy tails": _heavy,
    "drift": _drift,
    "slow periods": _slow,
    "alike": _alike,
    "switching": _switching,
}


def log_ratios(name: str, random: Random, count: int, num_pairs: int) -> np.ndarray:
    """Return log-ratios B/A of nothing but noise, in the order in which blocks are run: (count, pairs)."""
    rates = NOISES[name](random, (count, 2 * num_pairs))
    b_first = np.array([runs_backwards(number) for number in range(num_pairs)])
    first, second = rates[:, 0::2], rates[:, 1::2]
    return np.where(b_first, first - second, second - first)


def signed_rank(pairs: np.ndarray, random: Random) -> tuple[np.ndarray, np.ndarray]:
    intervals = [paired_interval(row) for row in pairs]
    return tuple(np.array([getattr(one, end) for one in intervals]) for end in ("low", "high"))  # type: ignore[return-value]


def student(pairs: np.ndarray, random: Random) -> tuple[np.ndarray, np.ndarray]:
    n, middle = pairs.shape[1], pairs.mean(axis=1)
    half = STUDENT[n] * pairs.std(axis=1, ddof=1) / math.sqrt(n)
    return middle - half, middle + half


def _resampled(pairs: np.ndarray, random: Random, statistic: Callable[..., np.ndarray]) -> np.ndarray:
    n = pairs.shape[1]
    return np.sort([statistic(pairs[:, drawn], axis=1) for drawn in random.integers(0, n, (RESAMPLES, n))], axis=0)


def percentile_median(pairs: np.ndarray, random: Random) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.quantile(_resampled(pairs, random, np.median), [0.025, 0.975], axis=0)
    return low, high


def _bca(pairs: np.ndarray, random: Random, statistic: Callable[..., np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """B. Efron, "Better bootstrap confidence intervals", 1987."""
    normal, n = NormalDist(), pairs.shape[1]
    drawn, seen = _resampled(pairs, random, statistic), statistic(pairs, axis=1)
    left_out = np.array([statistic(np.delete(pairs, index, axis=1), axis=1) for index in range(n)])
    away = left_out.mean(axis=0) - left_out
    acceleration = (away**3).sum(axis=0) / (6 * (away**2).sum(axis=0) ** 1.5 + 1e-30)
    ends: list[list[float]] = [[], []]
    for row in range(len(pairs)):
        below = np.mean(drawn[:, row] < seen[row]) + 0.5 * np.mean(drawn[:, row] == seen[row])
        bias = normal.inv_cdf(min(max(float(below), 0.001), 0.999))
        for end, z in zip(ends, (-1.96, 1.96), strict=True):
            level = normal.cdf(bias + (bias + z) / (1 - acceleration[row] * (bias + z)))
            end.append(drawn[min(RESAMPLES - 1, int(level * RESAMPLES)), row])
    return np.array(ends[0]), np.array(ends[1])


def bca_median(pairs: np.ndarray, random: Random) -> tuple[np.ndarray, np.ndarray]:
    return _bca(pairs, random, np.median)


def bca_mean(pairs: np.ndarray, random: Random) -> tuple[np.ndarray, np.ndarray]:
    return _bca(pairs, random, np.mean)


def _trimmed(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean without a fifth at each end, and its standard error (Tukey and McLaughlin)."""
    ordered, n = np.sort(pairs, axis=1), pairs.shape[1]
    cut = n // 5
    winsorized = np.clip(pairs, ordered[:, cut : cut + 1], ordered[:, n - cut - 1 : n - cut])
    error = winsorized.std(axis=1, ddof=1) / ((1 - 2 * cut / n) * math.sqrt(n))
    return ordered[:, cut : n - cut].mean(axis=1), error + 1e-12


def studentized_trimmed(pairs: np.ndarray, random: Random) -> tuple[np.ndarray, np.ndarray]:
    n = pairs.shape[1]
    middle, error = _trimmed(pairs)
    away = []
    for drawn in random.integers(0, n, (RESAMPLES, n)):
        again, its_error = _trimmed(pairs[:, drawn])
        away.append(np.abs(again - middle) / its_error)
    half = np.quantile(away, 0.95, axis=0) * error
    return middle - half, middle + half


METHODS: dict[str, Method] = {
    "signed-rank (used)": signed_rank,
    "Student's t": student,
    "bootstrap of the median, percentile": percentile_median,
    "bootstrap of the median, BCa": bca_median,
    "bootstrap of the mean, BCa": bca_mean,
    "bootstrap of the trimmed mean, studentized": studentized_trimmed,
}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_methods", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12, choices=STUDENT)
    parser.add_argument("--count", type=int, default=2000, help="comparisons for each cell")
    arguments = parser.parse_args()
    print("| interval | " + " | ".join(NOISES) + " |")
    print("|---" * (len(NOISES) + 1) + "|")
    for method, interval in METHODS.items():
        cells = []
        for number, name in enumerate(NOISES):
            random = np.random.default_rng(number)
            low, high = interval(log_ratios(name, random, arguments.count, arguments.pairs), random)
            alarms, found = np.mean((low > 0) | (high < 0)), np.mean(low + math.log1p(CHANGE) > 0)
            cells.append(f"{100 * alarms:.1f} / {100 * found:.0f}")
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
