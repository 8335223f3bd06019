"""Runs of `headrace serve`: what clients post needs no download, so its job begins at the second stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.diagnose.replay import Replay
from headrace.runs.formats.prediction import Change


def served(replay_of: Callable[..., Replay], posted: int) -> Replay:
    """Return a run of 120 jobs of which each `posted`-th was posted, and the others had to be downloaded for 30 ms."""
    steps: list[dict[str, Any]] = [
        {"name": "fetch", "wait": 0.03, "kind": "io", "work": "download", "posted": posted},
        {"name": "decode", "cpu": 0.004},
        {"name": "deliver", "cpu": 1e-5, "kind": "io"},
    ]
    return replay_of(steps, gap=0.04 if posted > 1 else 0.01)


def test_posted_jobs_are_whole(replay_of: Callable[..., Replay]) -> None:
    """Where nothing was downloaded, all jobs can be replayed, and a faster download changes nothing."""
    replay = served(replay_of, posted=1)

    assert replay.demands.num_jobs == 120
    assert replay.simulate(Change(speedups={"fetch": 0.1})).throughput == replay.simulate().throughput
    assert replay.simulate(Change(settings=("decode.executor=inline",))).throughput > 0


def test_only_what_is_downloaded_meets_the_download(replay_of: Callable[..., Replay]) -> None:
    """Of jobs of both kinds, one half goes through the first stage: its worker is busy for 15 ms a job."""
    replay = served(replay_of, posted=2)
    simulated = replay.simulate(Change(drop=("decode",)))

    assert replay.demands.num_jobs == 120
    assert replay.demands.routes.shape == (2, 3)
    assert simulated.throughput == pytest.approx(1 / 0.015, rel=0.05)
