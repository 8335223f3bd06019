"""A search for what needs less CPU time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.optimization_text import as_text
from headrace.ledger.ledger import Ledger
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.goal import Goal
from headrace.optimize.search import optimize
from headrace.validate import measuring
from headrace.validate.model_speed import CpuTime, Speed

#: {(engine, is quantized): (times as fast, times less CPU time)}
KNOWN = {
    ("onnx", False): (1.0, 1.0), ("openvino", False): (0.8, 3.0), ("onnx", True): (2.0, 2.0), ("openvino", True): (3.0, 1.2),
}  # fmt: skip


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """What is fast is not what is cheap here; nothing is timed, what is tested is what is made of it."""

    def measured(a: Any, b: Any, batch: Any, **_: Any) -> Speed:
        speed, less = KNOWN[b.variant["engine"], "int8" in Path(b.variant["artifact"]).name]
        cpu = CpuTime(ratio=less, low=0.98 * less, high=1.02 * less, a_seconds=0.008, b_seconds=0.008 / less)
        return Speed(
            ratio=speed, low=0.98 * speed, high=1.02 * speed, noise=0.01, a_seconds=0.01, b_seconds=0.01 / speed, rounds=16,
            cpu=cpu,
        )  # fmt: skip

    with measuring.using(measure_speed=measured, census_seconds=0.05):
        yield


@pytest.mark.full
def test_the_one_that_needs_least_cpu_time_at_no_lower_rate(case: Any, tmp_path: Path) -> None:
    """Not the fastest, nor what needs less because it is slower; in seconds and in money, and in the table."""
    goal = Goal(max_drop=0.02, batch=8, objective="cost", price_per_hour=3.6, cores=2, max_slice_drop=0.5)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document = optimize(
            case.model, store=ArtifactStore(tmp_path / "artifacts"), goal=goal, calibration=case.calibration,
            golden=case.golden, memory=ledger.attempts,
        )  # fmt: skip
    chosen = next(one for one in document.attempts if one.candidate == document.recommended)
    assert (chosen.technique, chosen.settings["engine"]) == ("int8", "onnx")
    assert chosen.cpu is not None
    assert chosen.cpu.mid == 2.0
    assert chosen.asked is not None
    assert chosen.asked.max_slice_drop == 0.5
    slower = next(one for one in document.attempts if one.technique == "openvino")
    assert (slower.verdict, slower.gate) == ("reject", "speed")
    assert "2.00 times less CPU time (1.96 to 2.04), 500 us an item instead of 1.00 ms" in document.says
    assert "for a million items 0.25 of your money instead of 0.5" in document.says
    assert "times less CPU" in as_text(document, None)
