"""The search against landscapes whose best point is known, by enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tuning_fakes import FormulaReplay, account, defaults_of

from headrace.base.coordinate_search import Axis
from headrace.base.goals import LatencyGoal
from headrace.base.plan import Plan, resolve
from headrace.tune.objective import Objective, Outlook
from headrace.tune.predictor import MeasuredRun, Predictor
from headrace.tune.search import FoundPoint, choose, search
from headrace.tune.space import Space

KINDS = {"fetch": "io", "work": "cpu", "device": "device"}
WORKERS = (1, 2, 4, 8, 16, 32)


def predictor_of(
    formula: Callable[[Plan], float],
    settings: list[str],
    axes: list[Axis[Any]],
    *,
    goal: LatencyGoal | None = None,
    arrival_rate: float | None = None,
) -> Predictor:
    """Return a predictor by formula around a Plan of three stages."""
    defaults = defaults_of(KINDS)
    plan = Plan().with_settings(settings)
    base = resolve(plan, defaults, 4)
    values = {axis.key: _value(base, axis.key) for axis in axes}
    space = Space(axes=tuple(axes), base=values, cores=4)
    measured = MeasuredRun(latencies={50.0: 1.0, 99.0: 1.0}, accounts={name: account(name) for name in KINDS})
    return Predictor(
        FormulaReplay(base, formula, defaults), space, measured,
        lambda changed: resolve(plan.with_settings(changed), defaults, 4), goal=goal, arrival_rate=arrival_rate,
    )  # fmt: skip


def _value(plan: Plan, key: str) -> int | str | None:
    if key == "decode.scale":
        return plan.decode.scale
    if key == "source.max_in_flight":
        return plan.source.max_in_flight
    _, stage, name = key.split(".")
    value: int = getattr(plan.stages[stage], name)
    return value


def workers_of(plan: Plan, stage: str) -> int:
    """Return how many a resolved Plan gives."""
    return plan.stages[stage].workers or 0


def bottlenecks(plan: Plan) -> float:
    """Stations in a row on four cores; the device takes 5 ms and 1 ms an item."""
    batch = plan.stages["device"].batch or 1
    limits = (
        workers_of(plan, "fetch") / 0.05,
        min(workers_of(plan, "work"), 4) / 0.01 * 0.98 ** max(0, workers_of(plan, "work") - 4),
        batch / (0.005 + 0.001 * batch),
    )
    return min(limits)


AXES = [
    Axis("stages.fetch.workers", WORKERS),
    Axis("stages.work.workers", (1, 2, 3, 4, 5)),
    Axis("stages.device.batch", (1, 2, 4, 8, 16)),
]


SCALES = [Axis("decode.scale", ("auto", "full"))]


def best_by_enumeration(predictor: Predictor) -> float:
    """Return the highest throughput ratio of the whole space."""
    points = itertools.product(*(axis.values for axis in predictor.space.axes))
    keys = [axis.key for axis in predictor.space.axes]
    outlooks = [predictor.predict(dict(zip(keys, point, strict=True))) for point in points]
    return max(outlook.ratio for outlook in outlooks if outlook is not None)


@pytest.mark.parametrize("workers", [1, 4, 32])
def test_the_best_of_all_is_found_where_no_step_alone_gains(workers: int) -> None:
    """Three stations that limit one another in turn: within 1 % of the best of the whole space, from any start."""
    predictor = predictor_of(bottlenecks, [f"fetch.workers={workers}", "work.workers=1"], AXES)
    found = search(predictor, Objective())
    assert found[0].outlook.ratio >= 0.99 * best_by_enumeration(predictor)


def test_the_best_is_no_larger_than_needed() -> None:
    """The device gives 167/s with a batch of 1: more workers than feed it are not taken, and what was too many goes."""
    predictor = predictor_of(bottlenecks, ["fetch.workers=8", "work.workers=5"], AXES[:2])
    found = search(predictor, Objective())
    assert dict(found[0].point) == {"stages.fetch.workers": 16, "stages.work.workers": 2}


def test_fewer_workers_are_found_where_more_do_harm() -> None:
    """Each worker above one costs a tenth, as with a lock or the GIL."""
    predictor = predictor_of(lambda plan: 100 * 0.9 ** workers_of(plan, "work"), ["work.workers=4"], AXES)
    assert search(predictor, Objective())[0].point["stages.work.workers"] == 1


def test_a_batch_of_one_is_kept_where_larger_ones_cost_more() -> None:
    """A cost that grows faster than the batch."""

    def superlinear(plan: Plan) -> float:
        batch = plan.stages["device"].batch or 1
        return batch / (0.01 * batch**1.5)

    predictor = predictor_of(superlinear, ["device.batch=8"], AXES)
    assert search(predictor, Objective())[0].point["stages.device.batch"] == 1


def test_the_base_stays_where_nothing_gains() -> None:
    """Of Plans that are as good, the one that changes nothing comes first."""
    predictor = predictor_of(lambda plan: 100.0, ["fetch.workers=1", "work.workers=1"], AXES)
    found = search(predictor, Objective())
    assert not predictor.space.list_changed(found[0].point)


def test_what_cannot_be_predicted_is_named_and_passed_over() -> None:
    """A batch that was not measured is refused, and the search goes on."""

    def bounded(plan: Plan) -> float:
        return 0.0 if (plan.stages["device"].batch or 1) > 4 else bottlenecks(plan)

    predictor = predictor_of(bounded, ["fetch.workers=32", "work.workers=4"], AXES)
    assert search(predictor, Objective())[0].point["stages.device.batch"] == 4
    assert "this Plan is beyond what was measured" in predictor.refused


def test_the_time_ends_the_search_but_not_the_shrinking() -> None:
    """After the first point no more are searched for; that one is still made no larger than needed."""
    left = itertools.count(1, -1)
    predictor = predictor_of(lambda plan: 100.0, ["fetch.workers=32", "work.workers=5"], AXES)
    found = search(predictor, Objective(), may_go_on=lambda: next(left) > 0, keeps_base=False)
    assert found[0].point == {"stages.fetch.workers": 1, "stages.work.workers": 1, "stages.device.batch": 1}


def test_latency_is_lowered_until_the_rate_would_suffer() -> None:
    """With Little's law and 20 jobs needed to keep the pipeline busy, 32 is the smallest limit that keeps the rate."""

    def closed(plan: Plan) -> float:
        return 100.0 * min(1.0, (plan.source.max_in_flight or 100) / 20)

    axes = [Axis("source.max_in_flight", (1, 2, 4, 8, 16, 32, 64, None))]
    predictor = predictor_of(closed, [], axes)
    assert search(predictor, Objective(name="latency"))[0].point == {"source.max_in_flight": 32}


def test_a_goal_comes_before_throughput() -> None:
    """With at most half the base's latency allowed, throughput is given up for it."""

    def closed(plan: Plan) -> float:
        return 100.0 * min(1.0, (plan.source.max_in_flight or 100) / 64)

    goal = LatencyGoal(99.0, 0.641)
    axes = [Axis("source.max_in_flight", (16, 32, 64, None))]
    predictor = predictor_of(closed, [], axes, goal=goal)
    assert search(predictor, Objective(slo=goal))[0].point == {"source.max_in_flight": 64}


@pytest.mark.parametrize(("seconds", "workers"), [(0.010, 4), (0.050, 3)])
def test_the_least_that_keeps_a_goal_at_the_rate_of_arrivals(seconds: float, workers: int) -> None:
    """100/s each, 250/s come: two cannot do it, with three the wait is 20 ms, with four 6.7 ms."""
    goal = LatencyGoal(99.0, seconds)
    axes = [Axis("stages.work.workers", (1, 2, 3, 4, 5, 6, 7, 8))]
    predictor = predictor_of(
        lambda plan: 100.0 * (plan.stages["work"].workers or 1), ["work.workers=8"], axes, goal=goal, arrival_rate=250.0
    )
    objective = Objective(name="cost", slo=goal, rate=250.0)
    assert objective.is_open
    best, *_ = search(predictor, objective, keeps_base=False)
    assert best.point == {"stages.work.workers": workers}
    too_few = predictor.predict({"stages.work.workers": 2})
    assert too_few is not None
    assert too_few.latency_goal is None
    assert objective.measure_miss(too_few, predictor.base_throughput) > 0


def test_who_asks_for_throughput_has_no_arrivals() -> None:
    """A rate is then one that must be kept up, by a pipeline that is kept full; so it is where latency does not matter."""
    assert not Objective(slo=LatencyGoal(99.0, 1.0), rate=100.0).is_open
    assert not Objective(name="cost", rate=100.0).is_open
    assert not Objective(name="latency").is_open
    assert Objective(name="latency", rate=100.0).is_open
    assert Objective(name="latency", rate=100.0).floor_measured(50.0) == 0.97
    assert Objective(rate=100.0).floor_measured(50.0) == 2.0


def test_breaking_a_limit_is_worse_than_any_gain() -> None:
    """A tenth of a percent below the rate that must be kept weighs more than a hundredth of the latency."""
    objective = Objective(name="latency", rate=100.0)
    keeps, breaks = (
        Outlook(ratio=ratio, latency_p50=p50, latency_goal=None, cpu_ratio=None, size=1.0, memory_bytes=None)
        for ratio, p50 in ((1.03, 1.0), (1.019, 0.01))
    )
    assert objective.score(keeps, 100.0) > objective.score(breaks, 100.0)


def test_settings_that_are_words_are_searched_too() -> None:
    """Decoding at scale is no number."""
    predictor = predictor_of(
        lambda plan: 200.0 if plan.decode.scale == "auto" else 100.0, ['decode.scale="full"'], SCALES
    )
    assert search(predictor, Objective())[0].point == {"decode.scale": "auto"}


def test_those_chosen_differ() -> None:
    """After the best not its nearest neighbour, but one nearly as good that differs in more; never one that is much worse."""
    outlook = Outlook(ratio=1.0, latency_p50=None, latency_goal=None, cpu_ratio=None, size=1.0, memory_bytes=None)
    best, near, other, far = (
        FoundPoint({"a": a, "b": b, "c": c}, outlook, score)
        for a, b, c, score in ((1, 1, 1, 0.30), (2, 1, 1, 0.30), (2, 2, 2, 0.295), (9, 9, 9, 0.10))
    )
    assert choose([best, near, other, far], 2) == [best, other]
    assert choose([best, near, other, far], 4) == [best, other, near]


def test_points_that_were_measured_are_not_chosen_again() -> None:
    """The best is left out once it was measured."""
    predictor = predictor_of(bottlenecks, ["fetch.workers=1", "work.workers=1"], AXES)
    found: list[FoundPoint] = search(predictor, Objective())
    assert choose(found, 1, without=[found[0].point])[0].point != found[0].point
    assert choose([], 2) == []
