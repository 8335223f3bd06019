"""What stages that share a model have after another one is taken up."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from headrace.base.plan import ModelPlan, Plan
from headrace.engines import open_model
from headrace.pipeline.following import LOOKS_GONE, Following, PlanFollower
from headrace.pipeline.model_slots import ModelSlot, ModelSlots


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


def following_new(tmp_path: Path) -> tuple[PlanFollower, ModelSlot, Path, list[str]]:
    """Return what follows a Plan that names new.onnx, which is in use, the module's own being old.onnx."""
    old, new, plan = save(tmp_path / "old.onnx", "Relu"), save(tmp_path / "new.onnx", "Abs"), tmp_path / "plan.toml"
    plan.write_text(f'[model]\nartifact = "{new}"\n')
    text, slots, said = plan.read_text(), ModelSlots(), list[str]()
    in_use = Plan.from_table(tomllib.loads(text))
    slot = slots.around(open_model(in_use.model, old, 1), task="", default=old, threads=1, calls=1)
    slot(np.ones((1, 4), np.float32))
    follower = PlanFollower(
        Following(file=plan, judge=lambda *_: None, text=text, say=said.append), slots, in_use, lambda _: None
    )
    return follower, slot, plan, said


def test_an_empty_file_is_no_plan(tmp_path: Path) -> None:
    """However long it stays empty, as a full disk leaves it, the model in use stays, and that is said once."""
    follower, slot, plan, said = following_new(tmp_path)
    plan.write_text("\n")
    assert not any(follower.look() for _ in range(5 * LOOKS_GONE))
    assert slot.variant["artifact"] == "new.onnx"
    assert len(said) == 1
    assert "the file is empty" in said[0]


def test_a_file_that_is_gone_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    """A tool that deletes the file and writes it again leaves the model in use."""
    follower, slot, plan, said = following_new(tmp_path)
    text = plan.read_text()
    for _ in range(2):
        plan.unlink()
        assert not any(follower.look() for _ in range(LOOKS_GONE))
        plan.write_text(text)
        assert not any(follower.look() for _ in range(3))
    assert slot.variant["artifact"] == "new.onnx"
    assert ["the file is gone" in line for line in said] == [True, True]


def test_a_file_that_stays_gone_takes_the_defaults(tmp_path: Path) -> None:
    """After some looks the module's own model is back, as a rollback to no Plan wants it."""
    follower, slot, plan, _ = following_new(tmp_path)
    plan.unlink()
    assert [follower.look() for _ in range(LOOKS_GONE + 1)] == [False] * LOOKS_GONE + [True]
    assert slot.variant["artifact"] == "old.onnx"


def followed_with_a_judge(tmp_path: Path, in_use: str = "Abs") -> tuple[PlanFollower, ModelSlot, Path, list[str]]:
    """Return what follows a Plan that names new.onnx, with a judge who turns everything down; old.onnx is the module's own."""
    old, new, plan = save(tmp_path / "old.onnx", "Relu"), save(tmp_path / "new.onnx", in_use), tmp_path / "plan.toml"
    plan.write_text(f'[model]\nartifact = "{new}"\n')
    slots, said = ModelSlots(), list[str]()
    planned = Plan.from_table(tomllib.loads(plan.read_text()))
    slot = slots.around(open_model(planned.model, old, 1), task="", default=old, threads=1, calls=1)
    slot(np.ones((1, 4), np.float32))
    following = Following(file=plan, judge=lambda *_: "its answers are others", say=said.append)
    follower = PlanFollower(following, slots, planned, lambda _: None)
    assert not follower.look()  # as it does while the run begins
    return follower, slot, plan, said


def test_the_way_back_to_the_own_model_needs_no_judge(tmp_path: Path) -> None:
    """The model in use may be the wrong one, so that every judge would refuse: the own one is what a new start would take."""
    follower, slot, plan, _ = followed_with_a_judge(tmp_path)
    plan.unlink()
    assert any(follower.look() for _ in range(LOOKS_GONE + 1))
    assert slot.variant["artifact"] == "old.onnx"


def test_an_own_model_that_was_exchanged_is_judged(tmp_path: Path) -> None:
    """A file that is not the one of the run's beginning was never in production here."""
    follower, slot, plan, said = followed_with_a_judge(tmp_path)
    save(tmp_path / "old.onnx", "Neg")
    plan.unlink()
    assert not any(follower.look() for _ in range(LOOKS_GONE + 1))
    assert slot.variant["artifact"] == "new.onnx"
    assert "the model stays: its answers are others; whoever wants it all the same starts the run again" in said[-1]


@pytest.mark.parametrize(
    ("settings", "switches"), [("threads = 1", True), ('options = {graph_optimization = "off"}', False)]
)
def test_an_own_model_with_other_settings_is_judged(tmp_path: Path, settings: str, switches: bool) -> None:
    """Options and engines change answers; threads do not."""
    follower, _, plan, _ = followed_with_a_judge(tmp_path)
    plan.write_text(f"[model]\n{settings}\n")
    assert any(follower.look() for _ in range(3)) is switches


def test_a_variant_that_was_here_needs_no_judge_while_its_file_is_the_same(tmp_path: Path) -> None:
    """The way back goes to a file, not to a name: one that was exchanged since is judged as any other."""
    follower, slot, plan, _ = followed_with_a_judge(tmp_path)
    text = plan.read_text()
    plan.unlink()
    assert any(follower.look() for _ in range(LOOKS_GONE + 1))
    save(tmp_path / "new.onnx", "Neg")
    plan.write_text(text)
    assert not any(follower.look() for _ in range(3))
    plan.write_text(f"# again\n{text}")
    save(tmp_path / "new.onnx", "Abs")
    assert any(follower.look() for _ in range(3))
    assert slot.variant["artifact"] == "new.onnx"


def test_the_file_is_the_same_wherever_code_of_the_run_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that changes the working folder does not make the Plan one that is gone, nor another folder's."""
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text("")
    said: list[str] = []
    follower = PlanFollower(
        Following(file=Path("plan.toml"), judge=lambda *_: None, say=said.append), ModelSlots(), Plan(), lambda _: None
    )
    monkeypatch.chdir("/")
    assert [follower.look() for _ in range(LOOKS_GONE + 2)] == [False] * (LOOKS_GONE + 2)
    assert said == []


def test_a_file_that_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    """It is looked at each second, for as long as somebody takes to mend it."""
    plan, said = tmp_path / "plan.toml", list[str]()
    plan.write_text("")
    follower = PlanFollower(
        Following(file=plan, judge=lambda *_: None, say=said.append), ModelSlots(), Plan(), lambda _: None
    )
    plan.unlink()
    plan.mkdir()
    for _ in range(5):
        assert not follower.look()
    assert len(said) == 1
    assert "the Plan in use stays: the file cannot be read: " in said[0]
    plan.rmdir()
    plan.write_text("")
    follower.look()
    plan.write_bytes(b"\xff")
    follower.look()
    assert len(said) == 2
