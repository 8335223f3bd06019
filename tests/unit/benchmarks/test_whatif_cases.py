"""The what-if benchmark: what is asked of the prediction is what is made of the pipeline."""

from __future__ import annotations

import pytest

from benchmarks.faults import SHAPES, Case
from benchmarks.faults.shapes import Computed
from benchmarks.whatif_cases import WHAT_IFS
from headrace.stages.module import ProcessStage


def costs(case: Case, stage: str) -> list[float]:
    """Return the stated costs of a stage with a computed model, seconds."""
    found = case.stage(stage)
    module = found.module if isinstance(found, ProcessStage) else found.function.__self__  # type: ignore[attr-defined]
    assert isinstance(module, Computed)
    names = ("call_seconds", "item_seconds") if stage == "process" else ("python_seconds",)
    return [getattr(module, name) for name in names]


@pytest.mark.parametrize("shape", ["decode_heavy", "python_preprocess"])
def test_faster_stages_take_as_much_less_as_the_change_says(shape: str) -> None:
    """A computed stage that is asked to be twice as fast costs half of what the shape of today makes it cost."""
    base = SHAPES[shape]()
    asked = [one for one in WHAT_IFS[shape] if one.change.speedups]
    assert asked

    for what_if in asked:
        made = what_if.make(base)
        for stage in ("preprocess", "process") if shape == "python_preprocess" else ("process",):
            factor = what_if.change.speedups.get(stage, 1.0)
            assert costs(made, stage) == pytest.approx([cost / factor for cost in costs(base, stage)])
