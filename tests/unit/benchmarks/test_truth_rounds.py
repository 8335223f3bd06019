"""How the benchmark of generated pipelines measures: blocks, pilots for the dose, and rounds that end once a gain is clear."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.truth import measuring, rounds
from benchmarks.truth.blocks import Settled
from benchmarks.truth.grammar import DOSES, Case, draw
from benchmarks.truth.pilot import find_dose, is_hopeless
from benchmarks.truth.rounds import AS_IT_IS, Gains, gain_of, is_clear
from benchmarks.truth.rows import Frozen, Pilot, Row, Said, Truth
from benchmarks.truth.scores import score
from benchmarks.truth.spec import Spec
from headrace.base.errors import HeadraceError
from headrace.compare.intervals import ALPHA
from headrace.compare.sequential import quarters
from headrace.compare.turns import Turns

MOST_ROUNDS = 12


def a_case(*, faults: int) -> Case:
    """Return the first case with so many faults, of doses that can be doubled."""
    cases = (draw(seed) for seed in itertools.count())
    return next(case for case in cases if len(case.planted) == faults and all(one.dose < 4 for one in case.planted))


# --- a block


def test_a_block_counts_from_the_time_on_when_queues_have_filled() -> None:
    """20 jobs a second come in the first moments and 100 later: the rate is the later one, whatever came before."""
    settled = Settled(seconds=0.4)
    times = [0.0, *(1 + 0.05 * number for number in range(4)), *(1.2 + 0.01 * number for number in range(200))]
    for now in times:
        if not settled.is_over.is_set():
            settled.note(now)
    assert settled.is_over.is_set()
    assert settled.rate == pytest.approx(100)


def test_a_slow_pipeline_gets_more_time() -> None:
    """At 15 jobs a second queues count as full after 1.5 s, and a block of 0.4 s lasts 0.8 s; three jobs give no rate."""
    settled, fed = Settled(seconds=0.4), 0
    while not settled.is_over.is_set() and fed < 100:
        settled.note(fed / 15)
        fed += 1
    assert settled.rate == pytest.approx(15)
    assert (fed - 1) / 15 == pytest.approx(1 / 15 + 1.5 + 0.8, abs=0.15)
    few = Settled(seconds=0.4)
    for now in (0.0, 1.0, 2.0, 3.0, 4.0):
        few.note(now)
    assert few.rate is None
    assert not few.is_over.is_set()


def test_queues_that_fill_slowly_do_not_count() -> None:
    """As in seed 301: 15 jobs a second for 1.5 s, then 50; the rate of a block is the one that stays."""
    settled = Settled(seconds=0.4)
    for now in [0.0, *(number / 15 for number in range(1, 24)), *(1.6 + number / 50 for number in range(100))]:
        settled.note(now)
    assert settled.is_over.is_set()
    assert settled.rate == pytest.approx(50, rel=0.02)


# --- pilots


def test_a_dose_is_doubled_until_its_cure_gains() -> None:
    """Throughput falls with the dose: a fault that costs a tenth is made stronger until it costs much, and no further."""
    case = a_case(faults=1)
    drawn = case.planted[0].dose

    def measure(spec: Spec) -> float:
        dose = next((factor for factor in (1, 2, 4) if spec == case.with_doses([factor]).spec), None)
        return 100.0 if dose is None else {1: 95.0, 2: 60.0, 4: 20.0}[dose]

    found, pilots = find_dose(case, 0.4, measure)
    assert found.planted[0].dose == round(2 * drawn, 2)
    assert [pilot.doses for pilot in pilots] == [(drawn,), (round(2 * drawn, 2),)]
    assert pilots[0].gains[0] == pytest.approx(100 / 95)
    assert found.seed == case.seed
    assert found.healthy == case.healthy


def test_a_fault_that_never_costs_anything_keeps_its_greatest_dose() -> None:
    """Trials end at the greatest dose that is drawn; the case runs with it and is counted by what is measured then."""
    found, pilots = find_dose(a_case(faults=2), 0.4, lambda spec: 100.0)
    assert all(one.dose <= DOSES[1] for one in found.planted)
    assert 2 <= len(pilots) <= 4
    assert pilots[-1].doses == tuple(one.dose for one in found.planted)


def test_fewer_jobs_come_to_a_healthy_pipeline_until_it_has_room() -> None:
    """It does 50 a second at most: jobs come more slowly until that is 1.6 times as many."""
    case = a_case(faults=0)

    def measure(spec: Spec) -> float:
        return min(50.0, spec.arrivals["per_second"] or 1e9)

    plenty = case.with_fewer_jobs(45 / case.spec.arrivals["per_second"])
    found, pilots = find_dose(plenty, 0.4, measure)
    assert len(pilots) == 2
    assert found.spec.arrivals["per_second"] == pytest.approx(0.6 * 45, rel=0.01)
    assert find_dose(found, 0.4, measure)[0] == found


def test_no_pipeline_runs_twice_in_the_pilots() -> None:
    """Without its only fault a case is the same whatever the dose: four trials are five blocks."""
    ran: list[str] = []
    find_dose(a_case(faults=1).with_doses([0.3]), 0.4, lambda spec: ran.append(str(spec)) or 100.0)
    assert len(ran) == len(set(ran)) == 5


def test_a_case_whose_last_trial_shows_nothing_ends_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is recorded or measured, and it is counted as harmless; a fault that may count goes on."""
    one, two = a_case(faults=1), a_case(faults=2)
    monkeypatch.setattr(measuring, "find_dose", lambda case, seconds: (case, (Pilot(doses=(1.0,), gains=(1.04,)),)))
    row = measuring.run_case(one, tmp_path, measuring.Length())
    assert not list(tmp_path.iterdir())
    assert score(row).reason == "harmless"
    assert "x1.04" in score(row).why
    assert not is_hopeless(two, Pilot(doses=(1.0, 1.0), gains=(None, 1.2)))


def test_a_pilot_without_a_rate_says_so() -> None:
    """A pipeline that gives too few results has no gain, and its trials end."""
    _, pilots = find_dose(a_case(faults=1), 0.4, lambda spec: None)
    assert all(pilot.gains == (None,) for pilot in pilots)


# --- rounds


def run_looks(gains: Gains, before: np.ndarray, after: np.ndarray, name: str) -> None:
    """Give made-up rates of an alternative to the looks of the rounds, until all is clear."""
    turns: Turns[float] = Turns()
    for look in quarters(MOST_ROUNDS):
        while len(turns.rounds) < look.num_rounds:
            number = len(turns.rounds)
            turns.rounds.append({AS_IT_IS: before[number]} | ({name: after[number]} if gains.wants(name) else {}))
        if gains.look(turns):
            return


@pytest.mark.parametrize("tails", [3, 1000], ids=["heavy tails", "normal"])
@pytest.mark.parametrize("gain", [1.0, 1.1, 1.5])
def test_intervals_hold_whenever_the_rounds_end(tails: float, gain: float) -> None:
    """Of 1,500 made-up cases that end by the rule, at most 5 % miss the true gain, but for the chance of 1,500 draws."""
    random, missed, number = np.random.default_rng(int(100 * gain + tails)), 0, 1500
    for _ in range(number):
        noise = 0.05 * random.standard_t(tails, (2, MOST_ROUNDS))
        before, after = 100 * np.exp(noise[0]), 100 * gain * np.exp(noise[1])
        gains = Gains(["cure 0"], MOST_ROUNDS)
        run_looks(gains, before, after, "cure 0")
        truth = gains.truths["cure 0"]
        missed += not truth.low <= gain <= truth.high
    assert missed / number <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / number)


def test_a_clear_gain_ends_after_three_rounds() -> None:
    """An alternative that is clear is not run again; one that may get clear goes on, and one that cannot ends."""
    steady, gains = np.full(MOST_ROUNDS, 100.0), Gains(["cure 0"], MOST_ROUNDS)
    run_looks(gains, steady, 1.5 * steady, "cure 0")
    assert gains.truths["cure 0"].pairs == 3
    assert not gains.wants("cure 0")
    for noise, middle, pairs, is_gain in ((0.8, 1.0, 6, None), (0.09, 1.145, 9, True)):
        unclear = Gains(["cure 0"], MOST_ROUNDS)
        rates = 100 * middle * np.exp(np.tile([noise, -noise], MOST_ROUNDS // 2))
        run_looks(unclear, steady, rates, "cure 0")
        assert unclear.truths["cure 0"].pairs == pairs
        assert unclear.truths["cure 0"].is_gain is is_gain


def test_a_change_need_not_be_clear() -> None:
    """It is measured until its ratio is known well, and for nine rounds at most."""
    assert is_clear("change 0", Truth(ratio=1.0, low=0.9, high=1.1, pairs=3))
    assert not is_clear("change 0", Truth(ratio=1.0, low=0.5, high=2.0, pairs=6))
    assert is_clear("change 0", Truth(ratio=1.0, low=0.5, high=2.0, pairs=9))
    assert not is_clear("cure 0", Truth(ratio=1.2, low=0.5, high=2.0, pairs=6))
    assert not is_clear("cure 0", None)


def test_gains_of_few_pairs() -> None:
    """Two pairs tell nothing; three tell the mean, within Student's interval worked out by hand."""
    assert gain_of([(1.0, 1.5), (1.0, 1.5)]) is None
    found = gain_of([(1.0, math.exp(value)) for value in (0.1, 0.2, 0.3)])
    assert found is not None
    assert math.log(found.ratio) == pytest.approx(0.2)
    assert math.log(found.high) == pytest.approx(0.2 + 7.3109 * 0.1 / math.sqrt(3), abs=1e-4)


def test_an_alternative_without_rates_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gives too few results has no truth, and the others have theirs; the time ends the rounds."""
    slow, spec = a_case(faults=2).spec, a_case(faults=1).spec
    monkeypatch.setattr(rounds, "throughput", lambda one, seconds: None if one == slow else 100.0)
    found = rounds.measure_gains({AS_IT_IS: spec, "cure 0": slow, "change 0": spec}, 0.4, MOST_ROUNDS, 60.0)
    assert set(found.truths) == {"change 0"}
    assert found.rates == {AS_IT_IS: 100.0, "change 0": 100.0}
    assert found.num_rounds == MOST_ROUNDS
    ended = rounds.measure_gains({AS_IT_IS: spec, "cure 0": slow}, 0.4, MOST_ROUNDS, 0.0)
    assert ended.num_rounds == 1


def test_the_next_look_comes_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rounds in the time, of which the look after three told too little: the truth is that of five."""
    spec, other, clock = a_case(faults=1).spec, a_case(faults=2).spec, itertools.count()
    rates = itertools.cycle([100.0, 150.0, 170.0, 130.0])
    monkeypatch.setattr(rounds, "throughput", lambda one, seconds: next(rates) if one == other else 100.0)
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    found = rounds.measure_gains({AS_IT_IS: spec, "cure 0": other}, 0.4, MOST_ROUNDS, 5.0)
    assert found.num_rounds == found.truths["cure 0"].pairs == 5


# --- a case


def test_an_experiment_that_fails_leaves_what_the_recording_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case is not lost: its verdict after experiments is the one before, and the reason is kept."""

    def fail(*arguments: object, **more: object) -> None:
        raise HeadraceError("no results came")

    monkeypatch.setattr(measuring, "add_experiment", fail)
    case = a_case(faults=1)
    before = measuring.FrozenCase(seed=case.seed, at_unix_seconds=0.0, said=Said(first=None), predictions=())
    found = measuring._experiment(case, tmp_path, [], 1.0, before)
    assert "no results came" in found.problem
    assert (found.said, found.predictions) == (before.said, before.predictions)


def test_a_case_that_cannot_run_is_a_row_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs none of the others; nothing of it stays behind, and its row says how long each part took."""

    def fail(*arguments: object, **more: object) -> None:
        raise OSError("no control group")

    monkeypatch.setattr(measuring, "find_dose", fail)
    row = measuring.run_case(draw(0), tmp_path, measuring.Length())
    assert "no control group" in row.problem
    assert set(row.phases) == {"pilot"}
    assert not list(tmp_path.iterdir())


def test_rows_of_before_can_be_read() -> None:
    """A row without pilots, phases and rounds, as older results have, still is one."""
    row = Row(case=draw(0))
    assert (row.pilots, row.phases, row.rounds) == ((), {}, 0)
    assert Frozen(kind="workers", says="", change=None, predicted=None).refused == ""  # type: ignore[arg-type]
