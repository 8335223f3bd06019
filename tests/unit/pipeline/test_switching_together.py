"""What stages that share a model have after another one is taken up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from headrace.base.plan import ModelPlan, Plan
from headrace.engines import open_model
from headrace.pipeline.following import Following, PlanFollower
from headrace.pipeline.model_slots import ModelSlots


def save(path: Path, operator: str) -> str:
    """Write a network of one layer."""
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


@pytest.mark.parametrize(("threads", "num_models"), [((1, 1), 1), ((1, 2), 2)])
def test_slots_that_shared_a_model_share_the_next_one(
    tmp_path: Path, threads: tuple[int, int], num_models: int
) -> None:
    """It is opened once for both, or it would be in memory twice; with other threads it is another model."""
    old, new, plan = save(tmp_path / "old.onnx", "Relu"), save(tmp_path / "new.onnx", "Abs"), tmp_path / "plan.toml"
    slots, model = ModelSlots(), open_model(ModelPlan(), old, 1)
    made = [
        slots.around(model, task=task, default=old, threads=own, calls=1)
        for task, own in zip("ab", threads, strict=True)
    ]
    for slot in made:
        slot(np.ones((1, 4), np.float32))
    follower = PlanFollower(Following(file=plan, judge=lambda *_: None, text=""), slots, Plan(), lambda _: None)
    plan.write_text(f'[model]\nartifact = "{new}"\n')
    assert not follower.look()  # it may be half written
    assert follower.look()
    assert {slot.variant["artifact"] for slot in made} == {"new.onnx"}
    assert len({id(slot.model) for slot in made}) == num_models


def test_a_model_for_images_of_another_size_needs_a_new_start(tmp_path: Path) -> None:
    """Images that are under way have the old size, so nothing changes, and what to do is said."""
    old, new, plan = save(tmp_path / "old.onnx", "Relu"), save(tmp_path / "new.onnx", "Abs"), tmp_path / "plan.toml"
    slots, said = ModelSlots(), list[str]()
    slot = slots.around(open_model(ModelPlan(), old, 1), task="", default=old, threads=1, calls=1)
    slot(np.ones((1, 4), np.float32))
    following = Following(file=plan, judge=lambda *_: None, text="", say=said.append)
    follower = PlanFollower(following, slots, Plan(), lambda _: None)
    plan.write_text(f'[model]\nartifact = "{new}"\ninput_side = 160\n')
    follower.look()
    assert not follower.look()
    assert slot.variant["artifact"] == "old.onnx"
    assert "input_side 160, was as the module's" in said[-1]
    assert "start the run again" in said[-1]
