"""Noise of shared machines, and pairs of blocks made of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from headrace.compare.turns import runs_backwards

#: Spread of the logarithm of a block's rate. Blocks of one second of a two-thread Python stage and of decoding with a small
#: model showed 2.8 % to 4 % on a shared machine of two cores; `benchmarks/compare_power.py` measures it. Of 60 such blocks,
#: 4 met a slow period and lost a quarter to a third.
SPREAD = 0.03

Noise = Callable[[np.random.Generator, int], np.ndarray]


def normal(random: np.random.Generator, n: int) -> np.ndarray:
    """Every block for itself."""
    return random.normal(0, SPREAD, n)


def heavy_tailed(random: np.random.Generator, n: int) -> np.ndarray:
    """Student's t with three degrees of freedom, of the same spread."""
    return random.standard_t(3, n) * SPREAD / math.sqrt(3)


def drifting(random: np.random.Generator, n: int) -> np.ndarray:
    """Faster or slower by a quarter from the first block to the last."""
    return normal(random, n) + np.linspace(0, 0.25, n) * random.choice([-1, 1])


def slow_periods(random: np.random.Generator, n: int) -> np.ndarray:
    """One block in seventeen loses a quarter on average."""
    return normal(random, n) - (random.random(n) < 0.06) * random.exponential(0.25, n)


def autocorrelated(random: np.random.Generator, n: int) -> np.ndarray:
    """Neighbours are alike: correlation 0.6."""
    values = normal(random, n)
    for index in range(1, n):
        values[index] = 0.6 * values[index - 1] + 0.8 * values[index]
    return values


def switching(random: np.random.Generator, n: int) -> np.ndarray:
    """The machine changes between two speeds, 12 % apart, every ten blocks or so."""
    return normal(random, n) + 0.12 * (np.cumsum(random.random(n) < 0.1) % 2)


@pytest.fixture(params=[normal, heavy_tailed, drifting, slow_periods, autocorrelated, switching])
def noise(request: pytest.FixtureRequest) -> Noise:
    """Each kind of noise: logarithms of the rates of n blocks, one after the other."""
    found: Noise = request.param
    return found


@pytest.fixture
def make_pairs(noise: Noise) -> Callable[[np.random.Generator, int, float], list[tuple[float, float]]]:
    """Makes pairs of blocks as they would be measured: in the order of the comparison, B faster by a ratio."""

    def make(random: np.random.Generator, num_pairs: int, ratio: float) -> list[tuple[float, float]]:
        rates = 100 * np.exp(noise(random, 2 * num_pairs))
        pairs = []
        for number in range(num_pairs):
            first, second = float(rates[2 * number]), float(rates[2 * number + 1])
            a, b = (second, first) if runs_backwards(number) else (first, second)
            pairs.append((a, b * ratio))
        return pairs

    return make
