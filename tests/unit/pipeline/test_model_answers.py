"""A model that fails for one item, one batch or one size of batch: the item answers for it, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.records import OutcomeKind
from headrace.delivery.jsonl import JsonLines
from headrace.stages.stage import FunctionStage

Run = Callable[..., Any]
BATCHES = {"batch": 8, "max_wait_seconds": 0.2}


def with_nan(batch: Any) -> list[Any]:
    """Return NaN for what is below zero."""
    with np.errstate(invalid="ignore"):
        return list(np.sqrt(np.asarray(batch)))


def without_room(batch: Any) -> list[Any]:
    """Raise as an allocator does where more than two are asked for at once."""
    if len(batch) > 2:
        raise MemoryError("CUDA out of memory")
    return list(batch)


def device(function: Callable[[Any], Any], executor: str) -> tuple[list[Any], dict[str, Any]]:
    """Return a stage that takes batches, and its Plan."""
    plan = {"stages": {"p": {**BATCHES, "executor": executor, "workers": 1}}, "run": {"warm_up": False}}
    return [FunctionStage("p", function, kind="device")], plan


def test_nan_is_no_answer(run: Run, tmp_path: Path) -> None:
    """An item whose result is NaN or infinite is rejected with that reason, and not delivered as null; the others are."""
    stages, plan = device(with_nan, "thread")
    numbers = [1.0, 4.0, -1.0, 9.0, float("inf")]
    ran = run(stages, [np.array(number) for number in numbers], plan, delivery=JsonLines(tmp_path / "results.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {line["id"]: line["result"] for line in lines} == {"0": 1.0, "1": 2.0, "3": 3.0}
    assert ran.ids(OutcomeKind.REJECTED) == {"2", "4"}
    assert "it holds NaN or infinity" in ran.reason("2")


@pytest.mark.parametrize("executor", ["thread", "inline"])
def test_a_batch_too_large_for_the_device(run: Run, executor: str) -> None:
    """Where memory does not suffice for a batch it is halved until it does, and every item has its result."""
    stages, plan = device(without_room, executor)
    ran = run(stages, [np.array(float(number)) for number in range(16)], plan)
    assert {id_: float(value) for id_, value in ran.results.items()} == {str(n): float(n) for n in range(16)}


@pytest.mark.full
def test_no_memory_for_a_batch(run: Run) -> None:
    """Where there is no memory to stack inputs, the item fails that is too large, and the run goes on."""
    stages, plan = device(list, "thread")
    large = np.broadcast_to(np.float64(1), (2**24, 2**24))  # 2 PiB once it is stacked, 8 bytes until then
    ran = run(stages, [np.zeros(3), large, np.zeros(3)], plan)
    assert set(ran.results) == {"0", "2"}
    assert "Unable to allocate" in ran.reason("1")
