"""How workers, and stages, share a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.base.clock import SystemClock
from headrace.base.plan import Plan, resolve
from headrace.pipeline.opening import GroupSpec, open_group
from headrace.pipeline.thread_budget import budget, usable_cores
from headrace.samples.catalogue import SCENES_MODEL_PATH
from headrace.stages.inputs import ArrayInput
from headrace.stages.module import Module, ModuleContext

needs_two_cores = pytest.mark.skipif(usable_cores() < 2, reason="OpenVINO makes no more streams than there are cores")


class Scenes(Module):
    """Opens its model."""

    model = SCENES_MODEL_PATH
    input = ArrayInput()

    def load(self, context: ModuleContext) -> None:
        """Open it."""
        self.scenes = context.open_model()

    def process(self, batch: Any) -> Any:
        """Return the answers."""
        return self.scenes(batch)


class Noting(Scenes):
    """Notes which model each worker opened."""

    def __init__(self) -> None:
        self.opened: list[Any] = []

    def load(self, context: ModuleContext) -> None:
        """Open it, and note it."""
        super().load(context)
        self.opened.append(self.scenes)


@needs_two_cores
@pytest.mark.parametrize(("executor", "wanted"), [("thread", 2), ("process", 1)])
def test_a_shared_model_has_a_stream_for_each_worker(executor: str, wanted: int) -> None:
    """On one stream the calls of two workers would queue; a worker that is a process has a model of its own."""
    pytest.importorskip("openvino")
    (stage,) = Scenes().stages()[-1:]
    table = {"model": {"engine": "openvino"}, "stages": {stage.name: {"workers": 2, "executor": executor}}}
    plan = resolve(Plan.from_table(table), [stage.defaults()], 2)
    calls = budget(plan, [stage.defaults()], 2).model_calls[stage.name]
    opened = open_group(GroupSpec((stage,), plan, 0, 1, 1, model_calls=calls), SystemClock())
    assert [variant["streams"] for variant in opened.variants] == [wanted]


@needs_two_cores
@pytest.mark.parametrize("model", [{}, {"threads": 1}])
@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_two_stages_of_one_model_share_it(run: Any, engine: str, model: dict[str, Any]) -> None:
    """It is opened once, as the stage with the most workers needs it: a second time it would be there twice."""
    pytest.importorskip({"onnx": "onnxruntime"}.get(engine, engine))
    one, two = Noting(), Noting()
    items = [np.zeros((3, 64, 64), np.float32)] * 2
    plan = {
        "model": {"engine": engine, **model},
        "stages": {"one.process": {"workers": 1}, "two.process": {"workers": 2}},
    }
    ran = run(None, items, plan, modules={"one": one, "two": two}, source={"tasks": ["one", "two"]})
    assert len({id(opened) for opened in one.opened + two.opened}) == 1
    (variant,) = ran.result.variants
    assert variant.get("streams", 2) == 2


def test_stages_of_different_models_share_nothing() -> None:
    """Another file, or other settings for a task, is another model with the workers of its own stage."""

    class Others(Scenes):
        model = "others.onnx"

    stages = [stage.defaults() for name, module in (("a", Scenes()), ("b", Others()), ("c", Scenes()))
              for stage in module.stages(f"{name}.", name)]  # fmt: skip
    workers = {"a.process": {"workers": 1}, "b.process": {"workers": 4}, "c.process": {"workers": 2}}
    plan = resolve(Plan.from_table({"models": {"c": {"threads": 1}}, "stages": workers}), stages, 4)
    found = budget(plan, stages, 4)
    assert found.model_calls == {"a.process": 1, "b.process": 4, "c.process": 2}
    assert found.model_threads == {"a.process": 4, "b.process": 1, "c.process": 1}


def test_options_in_another_order_are_no_other_model() -> None:
    """What is opened once has one number of calls and threads, that of the stage with the most workers."""
    first = {"spin": True, "inter_op_threads": 2}
    second = dict(reversed(first.items()))
    stages = [stage.defaults() for name in "ab" for stage in Scenes().stages(f"{name}.", name)]
    table = {
        "models": {"a": {"options": first}, "b": {"options": second}},
        "stages": {"a.process": {"workers": 1}, "b.process": {"workers": 2}},
    }
    plan = resolve(Plan.from_table(table), stages, 4)
    found = budget(plan, stages, 4)
    assert found.model_calls == {"a.process": 2, "b.process": 2}
    assert found.model_threads == {"a.process": 2, "b.process": 2}
