"""Runs whose jobs come more slowly than they could be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.records import Receiving
from headrace.diagnose.replay import Replay
from headrace.diagnose.whatif import predict
from headrace.runs.formats.prediction import Change


def receiving(age_seconds: float) -> Receiving:
    """Return receivers that spent nearly all of 2.4 s within calls that each brought one job of this age."""
    return Receiving(
        num_receivers=1,
        calls=120,
        empty_calls=0,
        full_calls=0,
        jobs=120,
        asked=1200,
        call_seconds=2.3,
        empty_call_seconds=0.0,
        blocked_seconds=0.0,
        inline_seconds=0.0,
        mean_age_seconds=age_seconds,
        last_age_seconds=age_seconds,
    )


def recorded(replay_of: Callable[..., Replay], age_seconds: float, cpu: Any = 0.004) -> Replay:
    """Return a run of 50 jobs a second, of the 250 that it could do."""
    steps = [{"name": "work", "cpu": cpu}, {"name": "deliver", "cpu": 1e-5, "kind": "io"}]
    return replay_of(steps, gap=0.02, changes={"receiving": receiving(age_seconds)})


def test_calls_that_wait_for_the_next_job_limit_nothing(replay_of: Callable[..., Replay]) -> None:
    """Where jobs are new when they are received, calls waited for them: more could come, up to 1 / 4 ms."""
    replay = recorded(replay_of, age_seconds=0.0002)

    assert replay.simulate().throughput == pytest.approx(50, rel=0.02)
    assert replay.simulate(Change(arrival_rate=100)).throughput == pytest.approx(100, rel=0.05)
    assert replay.simulate(Change(arrival_rate=1000)).throughput == pytest.approx(250, rel=0.02)


def test_calls_that_bring_old_jobs_are_the_limit(replay_of: Callable[..., Replay]) -> None:
    """Where jobs have waited for seconds, the calls are slow: more would not be received."""
    assert recorded(replay_of, age_seconds=3.0).simulate(Change(arrival_rate=1000)).throughput < 60


def test_jobs_that_were_not_metered_came_all_the_same(replay_of: Callable[..., Replay]) -> None:
    """The meters rest for a third of the time: jobs still come 50 a second."""
    cpu = np.where(np.arange(120) // 20 % 3 == 1, np.nan, 0.004)

    assert recorded(replay_of, 0.0002, cpu).simulate().throughput == pytest.approx(50, rel=0.03)


def test_latency_is_as_unsure_as_that_of_the_recorded_run_was_wrong(replay_of: Callable[..., Replay]) -> None:
    """Where the run took twice as long as its simulation, twice as long is within the interval of what is predicted."""
    replay = recorded(replay_of, age_seconds=0.0002)
    sure = predict(replay, Change(speedups={"work": 1.5})).latency_p50.predicted
    latency = replay.document.latency
    slow = tuple(msgspec.structs.replace(one, value=2 * (one.value or 0.0)) for one in latency.percentiles)
    replay.document = msgspec.structs.replace(
        replay.document, latency=msgspec.structs.replace(latency, percentiles=slow)
    )
    unsure = predict(replay, Change(speedups={"work": 1.5})).latency_p50.predicted
    assert sure is not None
    assert unsure is not None
    assert unsure.mid == sure.mid
    assert unsure.high > 1.9 * sure.mid > 1.3 * sure.high
