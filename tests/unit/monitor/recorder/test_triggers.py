"""When an incident is written unasked."""

from headrace.base.goals import parse_slo
from headrace.base.records import Span
from headrace.monitor.recorder.triggers import Latencies, Progress, check_latency


def _span(unit: str, stage: str, arrived: float, put: float) -> Span:
    times = [round(seconds * 1e9) for seconds in (arrived, arrived, arrived, put, put)]
    return Span(
        "item", unit, None, stage, "p", "h", 1, "t", 0, 1, "ok", *times, None, None, None, None, None, 0, 0, 0, None
    )


def test_a_goal_is_missed_by_more_jobs_than_it_allows() -> None:
    """One of a hundred may be slow at p99; a few jobs prove nothing."""
    goal = parse_slo("p99=500ms")
    assert check_latency(goal, [0.1] * 990 + [0.6] * 9) is None
    assert check_latency(goal, [0.1] * 20 + [0.6] * 4) is None
    found = check_latency(goal, [0.1] * 480 + [0.6] * 20)
    assert found is not None
    assert found.kind == "slo"
    assert "20 of 500" in found.says


def test_latency_counts_from_the_first_stage_to_the_delivery() -> None:
    """Only jobs that ended in the last seconds."""
    latencies = Latencies(["fetch"], "deliver")
    latencies.note([_span("a", "fetch", 0.0, 0.2), _span("b", "fetch", 8.0, 8.2)])
    latencies.note([_span("a", "deliver", 0.3, 1.0), _span("b", "deliver", 8.5, 9.0), _span("c", "deliver", 8.5, 9.0)])
    assert sorted(latencies.recent(round(9.5e9))) == [1.0, 1.0]
    assert latencies.recent(round(12e9)) == [1.0]
    assert latencies.recent(round(30e9)) == []


def test_spans_may_come_in_any_order() -> None:
    """A worker tells of a stage when it has handed the item on; the next one may be faster."""
    latencies = Latencies(["fetch"], "deliver")
    latencies.note([_span("a", "deliver", 0.3, 1.0)])
    latencies.note([_span("b", "deliver", 0.3, 1.0), _span("b", "fetch", 0.0, 0.2), _span("a", "fetch", 0.0, 0.2)])
    assert latencies.recent(round(2e9)) == [1.0, 1.0]


def test_jobs_that_came_with_their_content_count_too() -> None:
    """A request's body is not downloaded, so the job begins with decoding; a download is part of the latency."""
    latencies = Latencies(["fetch", "decode"], "deliver")
    latencies.note([_span("a", "decode", 0.2, 0.5), _span("b", "fetch", 0.0, 0.2), _span("b", "decode", 0.2, 0.5)])
    latencies.note([_span("a", "deliver", 0.5, 1.0), _span("b", "deliver", 0.5, 1.0)])
    assert sorted(latencies.recent(round(2e9))) == [0.8, 1.0]


def test_a_stall_is_reported_once() -> None:
    """Jobs are inside and none ends; another stall is another incident."""
    progress = Progress(None, stall_seconds=20.0)
    inside = {"settled": 5.0, "failed": 0.0, "in_flight": 3.0}
    found = [progress.look(float(now), inside, 0.1) for now in range(60)]
    assert [now for now, trigger in enumerate(found) if trigger is not None] == [20]
    assert progress.look(61.0, {**inside, "settled": 6.0}, 0.1) is None
    assert progress.look(90.0, {**inside, "settled": 6.0}, 0.1) is not None


def test_slow_jobs_are_no_stall() -> None:
    """Where a job takes 10 s, 60 s without one that ends are nothing; nor are they where nothing is inside."""
    for inside, usual in (({"settled": 5.0, "in_flight": 3.0}, 10.0), ({"settled": 5.0, "in_flight": 0.0}, 0.1)):
        progress = Progress(None, stall_seconds=20.0)
        assert not any(progress.look(float(now), inside, usual) for now in range(60))


def test_failures_above_the_share_are_reported() -> None:
    """Of the last seconds, not of the whole run."""
    progress = Progress(0.1)
    assert progress.look(0.0, {"settled": 10_000.0, "failed": 0.0, "in_flight": 1.0}, 0.1) is None
    assert progress.look(5.0, {"settled": 10_050.0, "failed": 4.0, "in_flight": 1.0}, 0.1) is None
    found = progress.look(6.0, {"settled": 10_060.0, "failed": 9.0, "in_flight": 1.0}, 0.1)
    assert found is not None
    assert found.kind == "errors"
