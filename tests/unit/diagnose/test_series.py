"""What changes over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.diagnose import profile_document
from headrace.diagnose.series import MOST_POINTS, thin


def test_a_short_series_is_kept_as_it_is() -> None:
    """Nothing is thinned that fits."""
    points = thin(np.arange(5.0), np.array([1.0, 5.0, 2.0, 4.0, 3.0]))
    assert [(point.at_seconds, point.value) for point in points] == [(0, 1), (1, 5), (2, 2), (3, 4), (4, 3)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=2000))
def test_thinning_keeps_extremes_order_and_bound(values: list[float]) -> None:
    """Never more points than allowed, in the order of time, with the greatest and the least among them."""
    points = thin(np.arange(len(values), dtype=float), np.array(values))
    assert len(points) <= MOST_POINTS
    assert min(values) == min(point.value for point in points)
    assert max(values) == max(point.value for point in points)
    times = [point.at_seconds for point in points]
    assert times == sorted(set(times))
    assert all(values[int(point.at_seconds)] == point.value for point in points)


def by_name(builder: Any) -> dict[tuple[str, str], Any]:
    """Return {(scope, name): series}."""
    return {(one.scope, one.name): one for one in profile_document(builder.finish()).series}


def test_gauges_carry_their_units(single_server: Any, builder: Any) -> None:
    """Units come from the table of names; counters since the start are drawn as throughput."""
    single_server(builder, np.arange(1000) * 0.01, np.full(1000, 0.004))
    builder.gauge("cpu0", "busy_ratio", np.arange(0.0, 10.0, 0.5), 0.5)
    found = by_name(builder)
    assert found["cpu0", "busy_ratio"].unit == "ratio"
    assert found["cpu0", "busy_ratio"].mean == pytest.approx(0.5)
    assert found["stage:work", "queue_depth"].unit == "items"
    assert ("run", "settled") not in found
    throughput = found["run", "throughput"]
    assert throughput.unit == "items/s"
    assert throughput.mean == pytest.approx(100, rel=0.02)


def test_queue_depths_that_nobody_sampled_come_from_spans(builder: Any) -> None:
    """A hundred items wait in the first second and are taken one every 0.1 s."""
    number = np.arange(100)
    builder.stage("work").stage("deliver")
    begun = 1.0 + number * 0.1
    builder.spans("work", arrived=number * 0.01, dequeued=begun, started=begun, ended=begun + 0.1)
    depth = by_name(builder)["stage:work", "queue_depth"]
    assert depth.maximum == pytest.approx(100, abs=1)
    assert depth.points[-1].value == 0
    middle = min(depth.points, key=lambda point: abs(point.at_seconds - 6.0))
    assert middle.value == pytest.approx(50, abs=2)


def test_samples_before_the_first_arrival_are_left_out(single_server: Any, builder: Any) -> None:
    """The report's time begins with the run's work."""
    single_server(builder, np.arange(1000) * 0.01, np.full(1000, 0.004), sample_seconds=0)
    builder.gauge("machine", "runnable", np.array([-2.0, -1.0, 1.0, 2.0]), np.array([9.0, 9.0, 1.0, 1.0]))
    assert by_name(builder)["machine", "runnable"].maximum == 1.0
