"""Samples for the simulator's oracles."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

Draw = Callable[[int, float, int], list[float]]


@pytest.fixture
def exponential() -> Draw:
    """Return a function that draws exponential times; see `draw_exponential`."""
    return draw_exponential


def draw_exponential(seed: int, mean: float, count: int) -> list[float]:
    """Return exponentially distributed times, seconds, one from each of `count` slices of equal probability, in random order.

    Their mean is right to a fraction of a per mille, which leaves the order as the only noise: waits in a queue at 80 % need
    about two fifths of the jobs that independent draws would.
    """
    random = np.random.default_rng(seed)
    probability = (random.permutation(count) + random.random(count)) / count
    return [float(time) for time in -mean * np.log1p(-probability)]


@pytest.fixture
def erlang_c() -> Callable[[int, float], float]:
    """Return a function for the share of arrivals that must wait with so many servers and so much offered load.

    References:
        L. Kleinrock, Queueing Systems I, 1975, 3.5.
    """

    def share(servers: int, load: float) -> float:
        terms = [load**k / math.factorial(k) for k in range(servers)]
        last = load**servers / math.factorial(servers) / (1 - load / servers)
        return last / (sum(terms) + last)

    return share
