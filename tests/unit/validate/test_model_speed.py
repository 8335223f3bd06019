"""Races of two models: when they end, and that their intervals hold at all looks together."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from headrace.compare.intervals import _critical_rank
from headrace.compare.sequential import LOOK_ALPHA, LOOKS
from headrace.validate import model_speed
from headrace.validate.model_speed import RACE_ROUNDS, ROUNDS, Speed, Timing, measure_speed, measure_turns

BATCH = np.ones((1, 2))


class Ticks:
    """A clock that passes by what models take, and by nothing else; every third call is a little slower."""

    def __init__(self) -> None:
        self.now = 0.0
        self._uneven = itertools.cycle([0.99, 1.0, 1.02, 0.995, 1.005])

    def perf_counter(self) -> float:
        """Return seconds."""
        return self.now

    process_time = perf_counter

    def model(self, seconds: float) -> Any:
        """Return a model that takes so long."""

        def call(batch: Any) -> None:
            self.now += seconds * next(self._uneven)

        return call


@pytest.fixture
def clock() -> Ticks:
    """The clock that models are timed by."""
    return Ticks()


def is_sure(speed: Speed) -> bool:
    """Return whether B is surely faster than A by 2 %, or surely not."""
    return speed.low > 1.02 or speed.high <= 1.02


def raced(clock: Ticks, ratio: float, settled: Any = is_sure) -> Speed:
    """Race a model that is so many times as fast."""
    found = measure_speed(
        clock.model(0.02), clock.model(0.02 / ratio), BATCH, settled=settled, timing=Timing(clock=clock)
    )
    assert found is not None
    return found


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_what_is_sure_after_the_first_look_needs_no_more(clock: Ticks, ratio: float) -> None:
    """A candidate at half the speed is dropped after a quarter of the rounds, and so is the question of one at twice it."""
    found = raced(clock, ratio)
    assert found.rounds == RACE_ROUNDS // LOOKS == 8
    assert found.low <= ratio <= found.high
    assert found.cpu is not None
    assert found.cpu.low <= ratio <= found.cpu.high


def test_what_stays_open_gets_all_rounds(clock: Ticks) -> None:
    """Twice as many as are run where nobody races; it is asked at four looks, the last of which is the end."""
    looks: list[int] = []
    found = raced(clock, 1.02, lambda speed: bool(looks.append(speed.rounds)))
    assert found.rounds == 32 == 2 * ROUNDS
    assert looks == [8, 16, 24, 32]


def test_without_a_question_all_rounds_are_run_at_95_percent(clock: Ticks) -> None:
    """As `validate` measures: the interval is narrower than that of a look at as many rounds."""
    turns = [(1.0, float(middle), 1.0) for middle in np.exp(np.random.default_rng(3).normal(0.1, 0.1, 16))]
    alone, look = (model_speed._speed(turns, alpha) for alpha in (0.05, LOOK_ALPHA))
    assert alone is not None
    assert look is not None
    assert look.low < alone.low < alone.high < look.high
    found = measure_speed(clock.model(0.02), clock.model(0.01), BATCH, timing=Timing(clock=clock))
    assert found is not None
    assert found.rounds == ROUNDS


def test_a_race_that_is_stopped_keeps_what_it_has() -> None:
    """With too few rounds for an interval there is none."""
    rounds = itertools.count(1)
    found = measure_turns(lambda: 2.0, lambda: 1.0, stop=lambda: next(rounds) >= 10, settled=lambda speed: False)
    assert found is not None
    assert (found.rounds, found.ratio) == (10, pytest.approx(2.0))
    assert measure_turns(lambda: 2.0, lambda: 1.0, stop=lambda: True, settled=is_sure) is None


def test_more_noise_than_usual_widens_the_interval_and_says_so() -> None:
    """A that takes twice as long now and then decides less than a steady A, and its reader learns why and what to do."""

    def speed(spread: float) -> Speed:
        itself = np.resize([spread, -spread], 16)  # before and after B, whose mean stays the same
        found = model_speed._speed([(np.exp(one), 1 / 1.5, np.exp(-one)) for one in itself], 0.05)
        assert found is not None
        return found

    steady, uneven = speed(0.02), speed(0.35)
    assert steady.low == pytest.approx(1.5) == steady.high
    assert steady.noise_in_words == "A differs from itself by up to 4%"
    assert uneven.noise == pytest.approx(np.expm1(0.7))
    assert uneven.low == pytest.approx(1.5 * 1.25 / (1 + uneven.noise))
    assert uneven.low < 1.02 < uneven.ratio < uneven.high  # no gain that is sure
    assert uneven.noise_in_words.endswith(
        "by up to 101%, more than the usual 25%: the interval is wider by that; repeat it while less else runs"
    )


@pytest.mark.parametrize("noise", ["normal", "heavy", "uneven"])
@pytest.mark.parametrize("rounds", [32, 48])
def test_the_intervals_of_all_looks_hold_together(noise: str, rounds: int) -> None:
    """In 95 % of races none of the four misses the truth; at the usual level of one look they would not."""
    random, races = np.random.default_rng(11), 3000
    draws = {
        "normal": lambda: random.normal(size=(races, rounds)),
        "heavy": lambda: random.standard_t(2, size=(races, rounds)),
        "uneven": lambda: random.choice([-1.0, 1.0], (races, rounds)) * random.lognormal(0, 1.5, (races, rounds)),
    }
    differences = draws[noise]()
    missed = {alpha: np.zeros(races, bool) for alpha in (LOOK_ALPHA, 0.05)}
    for look in range(1, LOOKS + 1):
        n = look * rounds // LOOKS
        # The interval misses 0 where the rank sum of one sign is below the critical rank: the same test, seen from its side.
        values = differences[:, :n]
        ranks = np.abs(values).argsort(axis=1).argsort(axis=1) + 1
        above = (ranks * (values > 0)).sum(axis=1)
        least = np.minimum(above, n * (n + 1) // 2 - above)
        for alpha, found in missed.items():
            found |= least < _critical_rank(n, alpha)
    assert missed[LOOK_ALPHA].mean() <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / races)
    assert missed[0.05].mean() > 0.08
