"""Sources that work for each job: one of them does so for all receivers, and its thread has a core while it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.records import Receiving, SourceWork
from headrace.diagnose.bounds import find_bounds
from headrace.diagnose.replay import Replay
from headrace.runs.formats.prediction import Change

DELIVER = {"name": "deliver", "cpu": 1e-5, "kind": "io"}


def decoded(replay_of: Callable[..., Replay], step: dict[str, Any], gap: float, **more: Any) -> Replay:
    """Return a run over clips whose frames take 8 ms of a thread that decodes."""
    work = SourceWork(does="decodes", is_decoding=True, cpu_seconds=0.008, wait_seconds=0.0)
    return replay_of([{"name": "model", **step}, DELIVER], gap=gap, changes={"source_work": work}, **more)


def test_a_faster_model_waits_for_the_frames(replay_of: Callable[..., Replay]) -> None:
    """A model of 20 ms hides the 8 ms of the decoding; ten times as fast it does no more than is decoded."""
    replay = decoded(replay_of, {"wait": 0.02}, 0.02)

    assert replay.ratio(Change(speedups={"model": 10.0})) == pytest.approx(2.5, rel=0.05)
    assert replay.ratio(Change(speedups={"model": 10.0, "receiving": 2.0})) == pytest.approx(5.0, rel=0.05)
    assert replay.ratio(Change(settings=("source.receivers=4",), speedups={"model": 10.0})) == pytest.approx(
        2.5, rel=0.05
    )
    assert find_bounds(replay, Change(speedups={"model": 10.0}))[0].throughput == pytest.approx(125, rel=0.01)


def test_decoding_has_a_core_of_its_own_meanwhile(replay_of: Callable[..., Replay]) -> None:
    """On two cores 8 ms of decoding and 12 ms of a stage make 100 frames a second, however many workers that has."""
    replay = decoded(replay_of, {"cpu": 0.012}, 0.012)

    assert replay.ratio(Change(settings=("stages.model.workers=4",))) == pytest.approx(1.2, rel=0.05)


def test_stages_in_the_receivers_run_beside_the_decoding(replay_of: Callable[..., Replay]) -> None:
    """What one receiver runs itself goes on while the next frame is decoded, and two never run there."""
    replay = decoded(replay_of, {"cpu": 0.012, "executor": "inline"}, 0.012)

    assert replay.simulate().throughput == pytest.approx(1 / 0.012, rel=0.05)
    assert replay.ratio(Change(speedups={"model": 10.0})) == pytest.approx(1.5, rel=0.05)


def test_batches_in_the_receivers_are_what_was_decoded_meanwhile(replay_of: Callable[..., Replay]) -> None:
    """While a call of 80 ms runs, frames of 0.5 ms are decoded, as many as the source keeps ready: the next call has those."""
    work = SourceWork(does="decodes", is_decoding=True, cpu_seconds=0.0005, wait_seconds=0.0, jobs_ahead=4)
    model = {"name": "model", "kind": "device", "executor": "inline", "batch": 8, "wait": 0.08}
    replay = replay_of([model, DELIVER], gap=0.01, changes={"source_work": work})

    assert replay.simulate().throughput == pytest.approx(50, rel=0.03)
    assert find_bounds(replay)[0].throughput == pytest.approx(50, rel=0.03)
    assert replay.simulate(Change(settings=("source.receive_batch=2",))).throughput == pytest.approx(25, rel=0.03)


def test_jobs_that_come_at_a_rate_are_decoded_once_they_are_there(replay_of: Callable[..., Replay]) -> None:
    """Fewer than can be decoded are all through, each 8 ms and the model's 2 ms after it came; more are not."""
    replay = decoded(replay_of, {"wait": 0.002}, 0.008)

    assert replay.simulate(Change(arrival_rate=100.0)).throughput == pytest.approx(100, rel=0.05)
    assert replay.simulate(Change(arrival_rate=2.0)).latencies.min() == pytest.approx(0.01, rel=0.05)
    assert replay.simulate(Change(arrival_rate=500.0)).throughput == pytest.approx(125, rel=0.05)


def test_threads_that_decode_keep_their_cores_beside_a_model_in_the_receivers(replay_of: Callable[..., Replay]) -> None:
    """Two threads that decode for 8 ms take 16 ms of cores, also where the receivers run a model that takes none."""
    work = SourceWork(does="decodes", is_decoding=True, cpu_seconds=0.0, wait_seconds=0.008, threads=2)
    model = {"name": "model", "kind": "device", "executor": "inline", "wait": 0.001}
    replay = replay_of([model, DELIVER], gap=0.008, changes={"source_work": work})

    cores = next(bound for bound in find_bounds(replay) if bound.name == "cores")
    assert cores.throughput == pytest.approx(2 / 0.016, rel=0.02)


def test_an_answer_does_not_wait_for_the_decoding_before_it(replay_of: Callable[..., Replay]) -> None:
    """A frame counts from when it was there: faster decoding makes no answer come sooner."""
    replay = decoded(replay_of, {"wait": 0.002}, 0.008)
    before, after = (replay.simulate(Change(speedups={"receiving": times})).latencies for times in (1.0, 2.0))

    assert before.mean() == pytest.approx(after.mean(), rel=0.05)


def test_more_receivers_do_not_read_faster(replay_of: Callable[..., Replay]) -> None:
    """A source that reads in its receivers' calls does so in one of them at a time."""
    receiving = Receiving(
        num_receivers=1, calls=120, empty_calls=0, full_calls=0, jobs=120, asked=1200, call_seconds=1.2,
        empty_call_seconds=0.0, blocked_seconds=0.0, inline_seconds=0.0,
    )  # fmt: skip
    changes = {"source_work": SourceWork(does="reads rows"), "receiving": receiving}
    replay = replay_of([{"name": "model", "wait": 0.001}, DELIVER], gap=0.01, changes=changes)

    assert replay.simulate().throughput == pytest.approx(100, rel=0.05)
    assert replay.ratio(Change(settings=("source.receivers=4",))) == pytest.approx(1.0, rel=0.05)
