"""What a deadline does to a recorded run when more comes than it can answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.base.errors import SettingsError
from headrace.diagnose.replay import Replay
from headrace.diagnose.whatif import predict
from headrace.runs.formats.prediction import Change

Make = Callable[..., Replay]

#: A device of 10 ms + 1 ms per item, after downloads of 5 ms: batches of 8 do 444/s.
STEPS: Sequence[dict[str, Any]] = [
    {"name": "fetch", "wait": 0.005, "kind": "io", "workers": 64},
    {"name": "process", "wait": 0.011, "kind": "device"},
    {"name": "deliver", "cpu": 1e-6},
]
CURVE = {size: [0.010 + 0.001 * size] * 3 for size in (1, 2, 4, 8)}
LIMIT = 8 / 0.018
BATCHES = ("process.batch=8",)


def served(replay_of: Make) -> Replay:
    """Return the run."""
    return replay_of(STEPS, changes={"cost_curves": {"process": CURVE}})


@pytest.mark.parametrize("load", [2, 3])
def test_overload_costs_no_goodput(replay_of: Make, load: int) -> None:
    """At two and three times the limit the device does what it can, and nearly all that is let in comes in time."""
    change = Change(settings=BATCHES, arrival_rate=load * LIMIT, deadline_seconds=0.2)
    document = predict(served(replay_of), change)
    assert document.goodput is not None
    assert document.goodput.predicted is not None
    assert 0.95 * LIMIT <= document.goodput.predicted.mid <= 1.02 * LIMIT
    assert document.latency_p99.predicted is not None
    assert document.latency_p99.predicted.mid <= 0.2
    assert document.says.endswith("a deadline of 200 ms")


def test_letting_everything_in_costs_nearly_all(replay_of: Make) -> None:
    """What `serve.admission = "all"` would be at twice the limit is predicted, too."""
    settings = (*BATCHES, 'serve.admission="all"')
    change = Change(settings=settings, arrival_rate=2 * LIMIT, deadline_seconds=0.2)
    document = predict(served(replay_of), change)
    assert document.goodput is not None
    assert document.goodput.predicted is None or document.goodput.predicted.mid < 0.6 * LIMIT


def test_below_the_limit_all_is_in_time(replay_of: Make) -> None:
    """At a fifth of it goodput is the rate of arrival, and latencies are those without a deadline."""
    replay = served(replay_of)
    change = Change(settings=BATCHES, arrival_rate=LIMIT / 5, deadline_seconds=0.2)
    document = predict(replay, change)
    assert document.goodput is not None
    assert document.goodput.predicted is not None
    assert document.goodput.predicted.mid == pytest.approx(LIMIT / 5, rel=0.1)
    without = predict(replay, Change(settings=BATCHES, arrival_rate=LIMIT / 5))
    assert without.goodput is None
    assert document.latency_p50.predicted is not None
    assert without.latency_p50.predicted is not None
    assert document.latency_p50.predicted.mid == pytest.approx(without.latency_p50.predicted.mid, rel=0.1)


def test_a_deadline_needs_arrivals(replay_of: Make) -> None:
    """Of a run that took its jobs as fast as it could nobody knows when they would have come."""
    with pytest.raises(SettingsError, match="only where jobs come by themselves; say how many: --arrival-rate"):
        served(replay_of).simulate(Change(deadline_seconds=0.2))
