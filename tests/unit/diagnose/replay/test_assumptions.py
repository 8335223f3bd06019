"""What predictions take for granted, and how far the interval reaches where the recorded run cannot know."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.diagnose.concurrency import LIMITED, UNKNOWN, count_under_way, fit_growth
from headrace.diagnose.gil_holders import SeenWithGil
from headrace.diagnose.replay import Replay
from headrace.diagnose.replay.gil_shares import find_gil_shares
from headrace.diagnose.whatif import predict
from headrace.runs.formats.isolation import CurvePoint, IsolationDocument, StageAlone
from headrace.runs.formats.prediction import Change, PredictionDocument
from headrace.runs.formats.profile import Estimate

Make = Callable[..., Replay]

ASKS = [
    {"name": "ask", "wait": 0.02, "kind": "io", "workers": 2},
    {"name": "deliver", "cpu": 0.00001, "kind": "io"},
]


def ratio_of(document: PredictionDocument) -> Estimate:
    """Return the predicted ratio."""
    assert document.throughput.ratio is not None
    return document.throughput.ratio


def test_workers_of_what_waits_outside_may_bring_nothing(replay_of: Make) -> None:
    """Two calls at a time were always under way: whether eight are answered as fast is not known."""
    document = predict(replay_of(ASKS), Change(settings=("ask.workers=8",)))
    ratio = ratio_of(document)
    assert ratio.mid > 3
    assert ratio.low <= 1.0
    assert document.assumes[0].startswith("calls of ask take as long 8 at a time as 2 at a time")
    assert any("limited in rate" in warning and "--set ask.workers=1" in warning for warning in document.warnings)


def test_fewer_calls_may_cost_nothing(replay_of: Make) -> None:
    """A service that is limited in rate answers one caller twice as fast as two."""
    ratio = ratio_of(predict(replay_of(ASKS), Change(settings=("ask.workers=1",))))
    assert ratio.mid == pytest.approx(0.5, rel=0.1)
    assert ratio.high >= 0.95


def test_a_run_that_shows_that_calls_do_not_grow_is_believed(replay_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the number of calls varied and their time did not, the interval is the usual one."""
    known = type(UNKNOWN)(0.0, 0.0, 0.03)
    monkeypatch.setattr("headrace.diagnose.assumptions.fit_growth", lambda evidence, stage: known)
    document = predict(replay_of(ASKS), Change(settings=("ask.workers=8",)))
    assert ratio_of(document).low > 2
    assert not any("calls of ask" in one for one in document.assumes)


def test_stages_that_only_take_time_are_known(replay_of: Make) -> None:
    """An emulated stage sleeps as long whatever else sleeps."""
    replay = replay_of(ASKS)
    asks = replay.demands.stages[0]
    asks.info = msgspec.structs.replace(asks.info, is_emulated=True)
    assert ratio_of(predict(replay, Change(settings=("ask.workers=8",)))).low > 2


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_growth_is_read_from_runs_whose_calls_vary(builder: Any, power: float) -> None:
    """Calls come in waves, one to eight at a time, and take as long as they did alone, or as many times as long."""
    from headrace.diagnose.evidence import collect

    rng = np.random.default_rng(3)
    starts, ends = [], []
    for wave in range(60):
        width = 1 + wave % 8
        begun = 10.0 * wave + np.arange(width) * 1e-3
        took = 0.05 * np.arange(1, width + 1) ** power * rng.lognormal(0, 0.05, width)
        starts.extend(begun)
        ends.extend(begun + took + 0.01)
    builder.stage("ask", kind="io", workers=8)
    builder.spans("ask", arrived=np.array(starts), ended=np.array(ends), cpu=1e-5)
    growth = fit_growth(collect(builder.finish()), "ask")
    assert growth.is_known
    assert growth.low - 0.12 <= power <= growth.high + 0.12


def test_calls_under_way_are_counted_when_each_begins() -> None:
    """The second begins within the first, the third as the first has ended."""
    started, ended = np.array([0, 5, 10]), np.array([10, 20, 30])
    assert count_under_way(started, ended).tolist() == [1, 2, 2]


COMPUTES = [
    {"name": "features", "cpu": 0.01, "releases_gil": False},
    {"name": "deliver", "cpu": 0.00001, "kind": "io"},
]


def alone(two_blocked: float, *, num_items: int = 100) -> IsolationDocument:
    """Return what the stage benchmark measured of `features`: 10 ms of a core, and so much blocked beside another thread."""
    points = tuple(
        CurvePoint(
            workers=workers, batch_size=None, throughput=100.0, throughput_low=100.0, throughput_high=100.0, cpu=0.01,
            run_delay=0.0, blocked=blocked, service=0.01 + blocked, num_items=num_items,
        )
        for workers, blocked in ((1, 0.0), (2, two_blocked))
    )  # fmt: skip
    stage = StageAlone(
        name="features", kind="cpu", executor="thread", cpu_demand=0.01, wait_demand=0.0, curve=points,
        knee_workers=None, best_throughput=100.0,
    )  # fmt: skip
    return IsolationDocument(
        pipeline="p", plan_id="p1", num_items=8, stages=(stage,), variations=(), device_ceiling=None,
        feeding_headroom=None,
    )  # fmt: skip


def test_whether_a_stage_keeps_the_gil_is_not_known_from_one_worker(replay_of: Make) -> None:
    """One worker of code that promised nothing: a second one may bring nothing or all, and it is said how to measure it."""
    document = predict(replay_of(COMPUTES), Change(settings=("features.workers=2",)))
    ratio = ratio_of(document)
    assert ratio.low < 1.0
    assert ratio.high > 1.8
    assert any("features keeps the GIL for 100% of its work" in one for one in document.assumes)
    assert any("--isolate" in warning for warning in document.warnings)


@pytest.mark.parametrize(("blocked", "share"), [(0.0, 0.0), (0.0025, 0.5), (0.01, 1.0), (0.02, 1.0)])
def test_the_share_of_the_gil_is_measured_alone(replay_of: Make, blocked: float, share: float) -> None:
    """Two threads of it wait for one another as long as they work: all of it with the GIL; not at all: none of it."""
    stages = replay_of(COMPUTES).demands.stages
    assert find_gil_shares(alone(blocked), stages) == pytest.approx({"features": share})


def test_too_few_calls_measure_nothing(replay_of: Make) -> None:
    """A handful of calls may have missed one another."""
    assert find_gil_shares(alone(0.0, num_items=5), replay_of(COMPUTES).demands.stages) == {}


def test_a_measured_share_is_used_and_no_longer_doubted(replay_of: Make) -> None:
    """NumPy code that never waited for its twin: a second worker brings twice as much."""
    replay = replay_of(COMPUTES)
    measured = replay.with_gil_shares({"features": 0.0})
    measured.measured_gil_shares = {"features": 0.0}
    document = predict(measured, Change(settings=("features.workers=2",)))
    assert ratio_of(document).mid == pytest.approx(2.0, rel=0.1)
    assert ratio_of(document).low > 1.6
    assert "features keeps the GIL for 0% of its work, as it did alone" in document.assumes
    assert not any("GIL" in warning for warning in document.warnings)


def test_a_share_that_was_seen_is_used_and_no_longer_doubted(replay_of: Make) -> None:
    """Fifty looks at its threads at work never found them with the GIL, though the stage does not promise to let go of it."""
    measured = replay_of(COMPUTES).with_gil_shares({"features": 0.0})
    measured.seen_with_gil = {"features": SeenWithGil(50, 0)}
    document = predict(measured, Change(settings=("features.workers=2",)))
    assert ratio_of(document).mid == pytest.approx(2.0, rel=0.1)
    assert "features keeps the GIL for 0% of its work, as 50 looks at its threads say" in document.assumes
    assert not any("GIL" in warning for warning in document.warnings)


def test_another_way_that_contradicts_the_run_is_left_out(replay_of: Make) -> None:
    """Three workers that together did three times one worker's work did not keep the GIL, whatever they promised."""
    steps = [{"name": "features", "cpu": 0.01, "releases_gil": False, "workers": 3}, COMPUTES[1]]
    replay = replay_of(steps, gap=0.0034, cores=4).with_gil_shares({"features": 0.0})
    assert abs(replay.misfit) < 0.1
    document = predict(replay, Change(settings=("features.workers=4",)))
    assert ratio_of(document).low > 0.8
    assert not any("--isolate" in warning for warning in document.warnings)


def test_every_prediction_says_what_it_takes_for_granted(replay_of: Make) -> None:
    """Each kind of change has a line of its own, and all of them one on jobs and neighbours."""
    document = predict(replay_of(ASKS), Change(speedups={"ask": 2.0}, arrival_rate=20.0))
    assert document.assumes == (
        "jobs come at random, independent of one another",
        "the stage's work and its waiting shrink alike",
        "jobs, and what other programs do, are as in the run",
    )


def test_fewer_cores_meet_their_share_of_other_programs(replay_of: Make) -> None:
    """On one core of two there is half of the one other program; at best none, and then a job takes what it took."""
    replay = replay_of([{"name": "work", "cpu": 0.01}, COMPUTES[1]], gap=0.01)
    replay.machine = dataclasses.replace(replay.machine, others=1.0, taken=1.0)
    document = predict(replay, Change(cores=1.0))
    ratio = ratio_of(document)
    assert 0.4 < ratio.mid < 0.75
    assert ratio.high >= 0.95
    assert any("moved to the other cores" in warning for warning in document.warnings)


def limited_calls(per_second: float, workers: int, count: int) -> tuple[Any, Any]:
    """Return when calls began and were answered: 10 ms after their turn, of which there are so many in a second."""
    free, begin, started, ended = 0.0, [0.0] * workers, [], []
    for number in range(count):
        worker = number % workers
        free = max(free + 1.0 / per_second, begin[worker])
        started.append(begin[worker])
        ended.append(free + 0.010)
        begin[worker] = free + 0.011
    return np.array(started), np.array(ended)


def test_even_answers_show_a_limit_in_rate(builder: Any) -> None:
    """Six callers of 50 answers a second: they come every 20 ms, and the first ones came sooner than any later."""
    from headrace.diagnose.evidence import collect

    started, ended = limited_calls(50.0, 6, 200)
    builder.stage("ask", kind="io", workers=6)
    builder.spans("ask", arrived=started, ended=ended, cpu=1e-5)
    assert fit_growth(collect(builder.finish()), "ask") == LIMITED


@pytest.mark.parametrize("left_out", [False, True])
def test_who_stands_in_line_is_known_by_the_first_calls(builder: Any, left_out: bool) -> None:
    """Forty callers of 100 answers a second, which they take up late, by luck: the first ones had nobody before them.

    Spans that are left out later make those under way seem fewer, and change nothing of that.
    """
    from headrace.diagnose.evidence import collect

    started, ended = limited_calls(100.0, 40, 600)
    ended = ended + np.random.default_rng(4).exponential(0.02, 600)
    weight = np.where(np.arange(600) >= 300, 2, 1) if left_out else np.ones(600, int)
    kept = (weight == 1) | (np.arange(600) % 2 == 0)
    builder.stage("ask", kind="io", workers=40)
    ids = [f"job-{number}" for number in range(int(kept.sum()))]
    columns = {"arrived": started[kept], "ended": ended[kept], "cpu": 1e-5, "unit_id": ids, "weight": weight[kept]}
    builder.spans("ask", **columns)
    growth = fit_growth(collect(builder.finish()), "ask")
    assert growth != LIMITED
    assert growth.is_in_line


def test_slow_answers_are_no_limit(builder: Any) -> None:
    """Six callers that each wait for 120 ms, more or less: nothing says what more of them would get."""
    from headrace.diagnose.evidence import collect

    took = 0.12 * np.random.default_rng(4).lognormal(0, 0.3, 200)
    free, started, ended = [0.0] * 6, [], []
    for one in took:
        worker = int(np.argmin(free))
        started.append(free[worker])
        free[worker] += one
        ended.append(free[worker])
    builder.stage("ask", kind="io", workers=6)
    builder.spans("ask", arrived=np.array(started), ended=np.array(ended), cpu=1e-5)
    growth = fit_growth(collect(builder.finish()), "ask")
    assert growth == UNKNOWN
    assert not growth.is_in_line


def test_workers_of_a_limited_service_are_predicted_to_bring_nothing(
    replay_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times as many callers of a service that sets the pace: the same rate; if it was none, the interval reaches to it."""
    monkeypatch.setattr("headrace.diagnose.replay.demands.fit_growth", lambda evidence, stage: LIMITED)
    document = predict(replay_of(ASKS), Change(settings=("ask.workers=8",)))
    ratio = ratio_of(document)
    assert ratio.mid == pytest.approx(1.0, abs=0.05)
    assert ratio.high > 3
    assert document.change == Change(settings=("ask.workers=8",))
    assert document.assumes[0] == "what ask asks is limited in rate, as the pace of its answers shows"


def test_calls_that_waited_for_a_core_say_nothing_of_whom_they_ask(
    replay_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five milliseconds of an answer and twenty of waiting for a core: a pace, if there is one, is this machine's own."""
    monkeypatch.setattr("headrace.diagnose.replay.demands.fit_growth", lambda evidence, stage: LIMITED)
    steps = [{"name": "ask", "wait": 0.005, "delay": 0.02, "kind": "io", "workers": 2}, ASKS[1]]
    document = predict(replay_of(steps, gap=0.003), Change(settings=("ask.workers=1",)))
    assert document.assumes[0].startswith("calls of ask take as long")
