"""Warm-up and drift, against series whose beginnings are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.base.records import Counters
from headrace.diagnose import profile_document
from headrace.diagnose.steady_state import Completions, _judge, truncation, warm_up_bins


def test_truncation_is_mser_as_defined() -> None:
    """The vectorized statistic has its minimum where the definition has it."""
    series = np.random.default_rng(1).normal(10, 1, 120) + 30 * np.exp(-np.arange(120) / 8)
    values = [((series[d:] - series[d:].mean()) ** 2).sum() / len(series[d:]) ** 2 for d in range(61)]
    assert truncation(series) == int(np.argmin(values))


def test_truncation_finds_the_end_of_a_step() -> None:
    """Exactly the values before the step are set apart; of a constant series none."""
    assert truncation(np.array([9.0] * 15 + [1.0, 1.1] * 40)) == 15
    assert truncation(np.ones(50)) == 0


def test_truncation_takes_at_most_half() -> None:
    """A series that changes until late loses half of it and no more."""
    assert truncation(np.where(np.arange(100) < 80, 100.0, np.arange(100))) <= 50


def test_a_noisy_beginning_is_no_warm_up() -> None:
    """MSER drops a first half whose mean is right and whose spread is not; it is kept."""
    series = np.where(np.arange(100) < 40, 10 + 5 * np.where(np.arange(100) % 2, 1, -1), 10.0)
    assert truncation(series) == 40
    assert warm_up_bins(series) == 0
    assert warm_up_bins(series + 3 * (np.arange(100) < 40)) == 40


def test_a_change_in_the_middle_is_no_warm_up() -> None:
    """Half of a run is not thrown away: that it changed is for the test of drift to say."""
    series = np.where(np.arange(100) < 48, 5.0, 10.0)
    assert truncation(series) == 48
    assert warm_up_bins(series) == 0


def test_a_rate_counts_from_one_completion_to_another() -> None:
    """Eleven completions a second apart are one a second, whatever time passed before the first."""
    done = Completions(np.arange(11) + 7.0, np.arange(1, 12.0), 1, is_sampled=False)
    assert done.rate(0.0, 17.0) == pytest.approx(1.0)


def test_the_error_of_a_rate_is_that_of_its_count() -> None:
    """Poisson arrivals: the count of n has a spread of sqrt(n); a steady stream has none, a short one none that is known."""
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(40):
        at = np.cumsum(rng.exponential(1.0, 900))
        errors.append(Completions(at, np.arange(1, 901.0), 1, is_sampled=False).relative_error(0.0, float(at[-1])))
    assert np.mean(errors) == pytest.approx(1 / 30, rel=0.15)
    even = Completions(np.arange(900.0), np.arange(1, 901.0), 1, is_sampled=False)
    assert even.relative_error(0.0, 899.0) < 0.003
    assert even.relative_error(0.0, 20.0) == 0.0


def test_a_rate_of_batches_is_not_too_high() -> None:
    """Ten batches of four, a second apart: four a second, though all of a batch comes at once."""
    at = np.repeat(np.arange(10.0), 4) + np.tile([0.0, 0.001, 0.002, 0.003], 10)
    done = Completions(at, np.arange(1, 41.0), 4, is_sampled=False)
    assert done.rate(0.0, 9.003) == pytest.approx(4.0, rel=1e-3)
    assert done.rate(2.5, 9.003) == pytest.approx(4.0, rel=1e-3)


def test_what_piled_up_before_a_slow_start_is_no_rate(builder: Any) -> None:
    """Thirty-two jobs that wait half a second for a model to warm up and leave within 10 ms are 63/s, and not 3,000/s."""
    at = np.arange(32) * 0.001
    builder.stage("read").stage("deliver")
    builder.spans("read", arrived=at, ended=at + 0.001)
    builder.spans("deliver", arrived=at + 0.5, ended=0.5 + np.arange(1, 33) * 0.0003)
    document = profile_document(builder.finish())
    assert document.throughput == pytest.approx(32 / 0.5096, rel=1e-3)
    assert all((stage.throughput or 0.0) < 70 for stage in document.stages)


def test_one_batch_has_no_rate() -> None:
    """Four completions within a millisecond are not four thousand a second."""
    done = Completions(np.array([1.0, 1.0003, 1.0006, 1.001]), np.arange(1, 5.0), 4, is_sampled=False)
    assert done.rate(0.0, 2.0) is None


def test_a_steady_run_is_steady(single_server: Any, builder: Any) -> None:
    """A deterministic server at a constant rate: nothing is set apart and nothing drifts."""
    document = profile_document(single_server(builder, np.arange(1000) * 0.01, np.full(1000, 0.004)).finish())
    assert document.window.is_steady is True
    assert document.window.warm_up_seconds <= 0.1
    assert document.throughput == pytest.approx(100, rel=1e-3)


def test_an_mm1_run_has_the_throughput_of_its_arrivals(busy_run: Any) -> None:
    """At half load what comes in goes out: the rate of the window is that of the arrivals in it."""
    document = profile_document(busy_run.finish())
    assert document.window.is_steady is not False
    assert document.throughput == pytest.approx(100, rel=0.1)


def test_a_drift_is_found_and_named(single_server: Any, builder: Any) -> None:
    """A server that gets slower all the time is not steady, and the sentence says what rose."""
    service = 0.01 * (1 + np.arange(2000) / 2000)
    arrived = np.concatenate([[0.0], np.cumsum(service)[:-1]])
    document = profile_document(single_server(builder, arrived, service).finish())
    assert document.window.is_steady is False
    assert "throughput fell" in document.window.says
    [check] = [check for check in document.checks if check.name == "steady_state"]
    assert check.status == "warning"
    assert document.trusted


def test_a_short_run_says_what_would_be_enough(single_server: Any, builder: Any) -> None:
    """Fifty jobs tell neither warm-up nor drift; the sentence names how many would."""
    document = profile_document(single_server(builder, np.arange(50) * 0.01, np.full(50, 0.004)).finish())
    assert document.window.is_steady is None
    assert document.window.warm_up_seconds == 0
    assert "50 jobs were settled, 100 would be enough" in document.window.says


def test_a_short_run_of_batches_needs_more(builder: Any) -> None:
    """With batches of 32, twenty bins of two batches each are needed."""
    batch = np.repeat(np.arange(10), 32)
    builder.stage("infer", kind="device").stage("deliver")
    builder.spans("infer", arrived=batch * 1.0, ended=batch + 0.9, batch_id=batch, batch_size=32)
    builder.spans("deliver", arrived=batch + 0.9, ended=batch + 0.9)
    document = profile_document(builder.finish())
    assert "1,280" in document.window.says
    assert document.throughput == pytest.approx(320 / 9.9)


def test_a_run_with_holes_takes_its_rate_from_the_exact_counter(single_server: Any, builder: Any) -> None:
    """Where one span in three was never recorded, the sampled counter gives the rate."""
    arrived = np.arange(3000) * 0.01
    single_server(builder, arrived, np.full(3000, 0.004))
    whole = {name: {"items": 3000} for name in ("work", "deliver")}
    keep = (np.arange(3000) % 300 < 200) | (np.arange(3000) == 2999)
    builder.tables = [table.filter(keep) for table in builder.tables]
    counters = Counters(received=3000, delivered=3000)
    document = profile_document(builder.finish(summary_changes=whole, counters=counters))
    assert document.throughput == pytest.approx(100, rel=0.01)
    assert document.stages[0].num_spans == 2001
    assert document.stages[0].items == 3000


def test_what_failed_is_no_throughput(builder: Any) -> None:
    """A hundred jobs a second, of which every second one fails: fifty are delivered."""
    at = np.arange(1000) * 0.01
    outcome = ["ok", "failed"] * 500
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=at, ended=at + 0.004, outcome=outcome)
    ids = [f"job-{number}" for number in range(0, 1000, 2)]
    builder.spans("deliver", arrived=at[::2] + 0.004, ended=at[::2] + 0.005, unit_id=ids)
    document = profile_document(builder.finish(counters=Counters(received=1000, delivered=500, dead_lettered=500)))
    assert document.throughput == pytest.approx(50, rel=0.01)
    [series] = [one for one in document.series if one.name == "throughput"]
    assert series.mean == pytest.approx(50, rel=0.02)


def test_a_rise_from_nothing_has_no_percentage() -> None:
    """Where next to nothing was done in the first half no share of it is quoted; else it is."""
    [risen, doubled] = [_judge([("throughput", drift, 0.01)], 10.0)[1] for drift in (1.999, 2 / 3)]
    assert "throughput rose more than tenfold" in risen
    assert "throughput rose by 100%" in doubled


@pytest.mark.parametrize(("second", "apart"), [(3.0, 3.0), (0.5, 0.0)])
def test_a_first_job_that_was_alone_is_set_apart_in_a_short_run(builder: Any, second: float, apart: float) -> None:
    """One of 3 s while a model was loaded, then forty at ten a second; not if others had come and waited meanwhile."""
    builder.stage("deliver", kind="io")
    arrived = np.concatenate([[0.0], second + np.arange(40) * 0.1])
    ended = np.maximum(arrived, 3.0) + 0.05
    ended[0] = 3.0
    builder.spans("deliver", arrived=arrived, ended=ended)
    document = profile_document(builder.finish())
    assert document.window.is_steady is None
    assert document.window.from_seconds == pytest.approx(apart)
    if apart:
        assert "went ahead alone" in document.window.says
        assert document.throughput == pytest.approx(10.0, rel=0.03)


def test_a_first_job_behind_which_all_others_only_waited_is_set_apart(builder: Any) -> None:
    """All were received at once by one thread that works on one after the other: 3 s for the first, then ten a second."""
    builder.stage("deliver", kind="io")
    ended = 3.0 + np.arange(40) * 0.1
    started = np.concatenate([[0.0], ended[:-1]])
    builder.spans("deliver", arrived=np.zeros(40), dequeued=started, started=started, ended=ended)
    document = profile_document(builder.finish())
    assert document.window.from_seconds == pytest.approx(3.0)
    assert document.throughput == pytest.approx(10.0, rel=0.03)
