"""The path of one slow item."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.diagnose import profile_document


def run_with(builder: Any, count: int, latency: Any) -> Any:
    """Items a hundredth of a second apart through work and deliver, with given latencies."""
    at = np.arange(count) * 0.01
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=at, ended=at + latency - 0.001, thread=[f"work-{i % 7}" for i in range(count)])
    builder.spans("deliver", arrived=at + latency - 0.001, ended=at + latency)
    return builder


def test_the_item_nearest_p99_is_shown(builder: Any) -> None:
    """Of a thousand latencies from 2 to 12 ms, the one of 11.9 ms, and not the slowest."""
    latency = 0.002 + 0.01 * np.random.default_rng(1).permutation(1000) / 1000
    item = profile_document(run_with(builder, 1000, latency).finish()).slow_item
    assert item is not None
    assert item.latency == pytest.approx(0.0119, abs=3e-5)
    assert item.percentile == pytest.approx(99, abs=0.2)
    assert [span.stage for span in item.spans] == ["work", "deliver"]
    assert item.spans[0].arrived == 0
    assert item.spans[-1].put == pytest.approx(item.latency)
    assert item.spans[0].cpu is None


def test_without_a_p99_the_slowest_is_shown(builder: Any) -> None:
    """Fifty items have no p99."""
    latency = np.where(np.arange(50) == 20, 0.5, 0.01)
    item = profile_document(run_with(builder, 50, latency).finish()).slow_item
    assert item is not None
    assert (item.unit_id, item.percentile) == ("job-20", 100)


def fan(builder: Any, children: int) -> Any:
    """One job cut into children that end one after the other, mended and delivered."""
    number = np.arange(children)
    for name, role in (("cut", "fan_out"), ("part", "map"), ("mend", "join")):
        builder.stage(name, role=role)
    builder.stage("deliver")
    builder.spans("cut", arrived=[0.0], ended=[0.01])
    ids = [f"job-0/{index}" for index in number]
    builder.spans("part", arrived=number * 0 + 0.01, ended=0.02 + number * 0.01, unit_id=ids, parent_id="job-0")
    end = 0.02 + children * 0.01
    builder.spans("mend", arrived=[end], ended=[end + 0.01])
    return builder.spans("deliver", arrived=[end + 0.01], ended=[end + 0.02])


def test_the_children_of_a_fan_out_are_part_of_the_path(builder: Any) -> None:
    """A job of three parts has six spans, and the latency of the whole."""
    document = profile_document(fan(builder, 3).finish())
    item = document.slow_item
    assert item is not None
    assert [span.stage for span in item.spans] == ["cut", "part", "part", "part", "mend", "deliver"]
    assert item.spans[1].unit_id == "job-0/0"
    assert item.latency == document.latency.mean == pytest.approx(0.07)


def test_of_many_children_the_last_to_end_is_shown(builder: Any) -> None:
    """Five hundred parts would hide the path; the one that held the job up is in it."""
    item = profile_document(fan(builder, 500).finish()).slow_item
    assert item is not None
    assert [span.unit_id for span in item.spans] == ["job-0", "job-0/499", "job-0", "job-0"]


def test_another_attempt_is_another_path(builder: Any) -> None:
    """A job that was offered again is shown from its second arrival on."""
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=[0.0], ended=[0.1], outcome="failed", unit_id=["a"])
    builder.spans("work", arrived=[5.0], ended=[5.1], attempt=2, unit_id=["a"])
    builder.spans("deliver", arrived=[5.1], ended=[5.2], attempt=2, unit_id=["a"])
    item = profile_document(builder.finish()).slow_item
    assert item is not None
    assert item.latency == pytest.approx(0.2)
    assert [span.outcome for span in item.spans] == ["ok", "ok"]
