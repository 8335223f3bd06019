"""Hostile files on their way through a whole pipeline: each ends alone, with a code, and good ones keep their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.hostile_inputs import mutated_files
from benchmarks.hostile_inputs.files import bombs, damaged_files, odd_files
from benchmarks.hostile_inputs.mutations import good_files
from headrace.base.records import OutcomeKind
from headrace.stages.decode import DecodeStage, ResizeStage
from headrace.stages.inputs import ImageInput

Run = Callable[..., Any]
WANTED = ImageInput(short_side=64, crop=64)
STAGES = [DecodeStage("decode", WANTED), ResizeStage("resize", WANTED)]
IN_PROCESS = {"executor": "process", "workers": 1, "time_limit_seconds": 60, "memory_limit_bytes": "1GB"}


@pytest.mark.parametrize("plan", [{}, IN_PROCESS], ids=["threads", "process"])
def test_each_ends_alone(run: Run, plan: dict[str, Any]) -> None:
    """Among hostile files good images keep their results, and every refusal has a code and is counted under it."""
    good = list(good_files().values())
    bad = [*bombs().values(), *(file.data for file in damaged_files()), *(file.data for file in mutated_files(100, 7))]
    ran = run(STAGES, [*good, *bad, *good], {"stages": {"decode": plan}})
    first, last = range(len(good)), range(len(good) + len(bad), 2 * len(good) + len(bad))
    for one, other in zip(first, last, strict=True):
        assert (ran.results[str(one)] == ran.results[str(other)]).all()
    rejected = ran.ids(OutcomeKind.REJECTED)
    assert ran.ids(OutcomeKind.DEAD_LETTERED) == set()
    assert all(": decode." in ran.reason(id_) for id_ in rejected)
    notes = ran.result.counters.notes
    assert sum(number for name, number in notes.items() if name.startswith("decode.rejected.")) == len(rejected) > 80
    assert "worker_restarts" not in notes


def test_too_much_memory_is_a_verdict(run: Run) -> None:
    """An image that needs more memory than its process may have is rejected as that, and the process serves the next."""
    large, small = odd_files()["49 Mpx png of 48 KB"], good_files()["png"]
    plan = {"decode": {**IN_PROCESS, "memory_limit_bytes": "64MB"}}
    ran = run(STAGES, [small, large, small], {"stages": plan})
    assert set(ran.results) == {"0", "2"}
    assert ran.reason("1").startswith("decode: item 1: decode.memory: a png file of 47705 bytes, 7000 x 7000 pixels")
    assert "worker_restarts" not in ran.result.counters.notes


@pytest.mark.real_clock
def test_too_much_time_ends_the_item(run: Run) -> None:
    """An image that takes longer than the limit is stopped with its process; the next is decoded by another."""
    large, small = bombs()["178 Mpx png"], good_files()["png"]
    plan = {
        "stages": {"decode": {"executor": "process", "workers": 1, "time_limit_seconds": 0.4}},
        "decode": {"max_pixels": 10**9, "max_decoded_bytes": "1GB"},
    }
    ran = run(STAGES, [large, small], plan)
    assert "1" in ran.results
    assert "took longer than time_limit_seconds = 0.4" in ran.reason("0")
    assert ran.result.counters.notes["worker_restarts"] >= 1
