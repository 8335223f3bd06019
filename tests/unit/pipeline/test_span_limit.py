"""The limit on recorded spans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.base.metering import Metering
from headrace.pipeline.span_limit import SpanLimit

SECOND = 10**9


class Seconds:
    """Tells a limit of 5,000 spans a second, once a second, how many passages there were."""

    def __init__(self, per_second: float = 5_000) -> None:
        self.metering = Metering()
        self.limit = SpanLimit(self.metering, 0)
        self.limit.per_second = per_second
        self._now = self._passages = 0

    def tell(self, rate: float) -> int:
        """Let a second pass with so many passages, and return one job in how many is recorded from now."""
        self._now += SECOND
        self._passages += int(rate)
        self.limit.look(self._now, self._passages)
        return self.metering.every


def test_all_is_recorded_below_the_limit() -> None:
    """A rate at the limit changes nothing."""
    seconds = Seconds()
    assert seconds.tell(5_000) == 1
    assert [change.every for change in seconds.limit.changes] == [1]


@pytest.mark.parametrize(("rate", "every"), [(5_001, 2), (20_000, 4), (20_001, 8), (60_000, 16), (1e6, 256)])
def test_above_it_the_smallest_power_of_two_is_taken(rate: float, every: int) -> None:
    """As many jobs are left out as needed, and at once."""
    assert Seconds().tell(rate) == every


def test_it_does_not_flutter() -> None:
    """A rate that goes down a little keeps the decision; one that falls below a quarter of the limit takes it back."""
    seconds = Seconds()
    assert [seconds.tell(rate) for rate in (6_000, 4_000, 2_600, 2_400, 600)] == [2, 2, 2, 1, 1]


def test_each_change_is_noted_with_its_moment() -> None:
    """The changes say from when on one job in how many was recorded."""
    seconds = Seconds()
    for rate in (6_000, 6_000, 100):
        seconds.tell(rate)
    changes = [(change.at_ns, change.every) for change in seconds.limit.changes]
    assert changes == [(0, 1), (SECOND, 2), (3 * SECOND, 1)]


def test_an_absurd_rate_ends() -> None:
    """The search for a power of two ends, whatever the rate."""
    assert Seconds(1).tell(1e300) == 1 << 16


def test_far_above_the_limit_nobody_waits_for_the_next_second() -> None:
    """At 60,000 spans a second the decision comes after a third of a second; it counts what is recorded, not what passes."""
    metering = Metering()
    limit = SpanLimit(metering, 0)
    limit.per_second = 5_000
    limit.look(SECOND // 3, 20_000)
    assert metering.every == 1
    limit.look(SECOND // 3, 20_001)
    assert metering.every == 16
    limit.look(SECOND // 2, 100_000)
    assert len(limit.changes) == 2


def test_a_run_folder_keeps_a_bounded_number_of_spans(run: Callable[..., Any], tmp_path: Any) -> None:
    """A plain run leaves out whole jobs too, the spans that are left say how many each stands for, and counts are exact."""
    from headrace.runs.reader import read_run

    stages = [hr.stage(f"s{number}", str) for number in range(20)]
    plan = {"stages": {stage.name: {"executor": "inline"} for stage in stages}}
    ran = run(stages, range(4_000), plan, output=tmp_path / "run")
    spans = read_run(tmp_path / "run").spans().to_pylist()
    assert ran.result.counters.delivered == 4_000
    assert len(ran.spans) == 4_000 * 21
    by_job: dict[str, int] = {}
    for span in spans:
        by_job[span["unit_id"]] = by_job.get(span["unit_id"], 0) + 1
    assert set(by_job.values()) == {21}
    assert len(spans) < 4_000 * 21
    assert {span["weight"] for span in spans} > {1}
