"""What is taken for granted of processes and of the GIL where a run does not show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.diagnose.replay import Replay
from headrace.runs.formats.prediction import Change


def step(name: str, **values: Any) -> dict[str, Any]:
    """Return one stage of a recorded run; see `conftest.Step`."""
    return {"name": name, **values}


def test_a_model_is_not_taken_to_keep_the_gil(replay_of: Callable[..., Replay]) -> None:
    """3 ms of pure Python beside 3 ms of a model on two cores do 333/s: the model calls C code, whatever its stage promised."""
    steps = [
        step("prepare", cpu=0.003, releases_gil=False),
        step("process", cpu=0.003, kind="device", releases_gil=False),
        step("deliver", cpu=1e-6),
    ]
    assert replay_of(steps).simulate().throughput == pytest.approx(1 / 0.003, rel=0.05)


def test_only_what_goes_in_and_comes_out_of_a_process_is_moved(replay_of: Callable[..., Replay]) -> None:
    """An image that is made and made small within one process is never moved: only the bytes before and after count."""
    small = [step("decode", cpu=0.002, workers=2), step("deliver", cpu=1e-6)]
    inline = [step("decode", cpu=0.001, workers=2), step("resize", cpu=0.001), step("deliver", cpu=1e-6)]
    change = Change(settings=("decode.executor=process",))
    alone = replay_of(small).ratio(change)
    together = replay_of(inline, settings=["model.threads=1", "resize.executor=inline"]).ratio(change)
    assert together == pytest.approx(alone, rel=0.02)


def test_a_run_that_was_faster_than_one_gil_lets_go_of_it(replay_of: Callable[..., Replay]) -> None:
    """Two workers of 4 ms did 450/s, where code that keeps the GIL does 250/s: not the cores were faster, it was free."""
    steps = [step("digest", cpu=0.004, workers=2, releases_gil=False), step("deliver", cpu=1e-6)]
    replay = replay_of(steps, gap=1 / 450)
    assert replay.misfit == pytest.approx(0.0, abs=0.12)
    assert replay.holds_gil["digest"] < 0.3
    assert replay.machine.slowdown >= 0.95
    assert replay.ratio(Change(settings=("digest.workers=1",))) == pytest.approx(250 / 450, rel=0.1)


@pytest.mark.parametrize(("size", "seconds"), [(70_000, 0.006), (2_000, 0.003)], ids=["large", "small"])
def test_large_results_become_text_with_the_gil(replay_of: Callable[..., Replay], size: int, seconds: float) -> None:
    """3 ms of pure Python beside 3 ms of a delivery on two cores: results of 70 kB take turns with it, as JSON does."""
    steps = [
        step("prepare", cpu=0.003, releases_gil=False, bytes_out=size),
        step("deliver", cpu=0.003, bytes_in=size),
    ]
    assert replay_of(steps, gap=seconds).simulate().throughput == pytest.approx(1 / seconds, rel=0.05)
    assert replay_of(steps, gap=seconds).holds_gil["deliver"] == (1.0 if size > 10_000 else 0.0)
