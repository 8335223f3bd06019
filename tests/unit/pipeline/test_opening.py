"""How the workers of a stage share a model."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.clock import SystemClock
from headrace.base.plan import Plan, resolve
from headrace.pipeline.governor import usable_cores
from headrace.pipeline.opening import GroupSpec, open_group
from headrace.samples.catalogue import SCENES_MODEL_PATH
from headrace.stages.module import Module, ModuleContext

pytest.importorskip("openvino")


class Scenes(Module):
    """Opens its model."""

    model = SCENES_MODEL_PATH

    def load(self, context: ModuleContext) -> None:
        """Open it."""
        self.scenes = context.open_model()

    def process(self, batch: Any) -> Any:
        """Return the answers."""
        return self.scenes(batch)


@pytest.mark.skipif(usable_cores() < 2, reason="OpenVINO makes no more streams than there are cores")
@pytest.mark.parametrize(("executor", "wanted"), [("thread", 2), ("process", 1)])
def test_a_shared_model_has_a_stream_for_each_worker(executor: str, wanted: int) -> None:
    """On one stream the calls of two workers would queue; a worker that is a process has a model of its own."""
    (stage,) = Scenes().stages()[-1:]
    table = {"model": {"engine": "openvino"}, "stages": {stage.name: {"workers": 2, "executor": executor}}}
    plan = resolve(Plan.from_table(table), [stage.defaults()], 2)
    opened = open_group(GroupSpec((stage,), plan, 0, 1, 1), SystemClock())
    assert [variant["streams"] for variant in opened.variants] == [wanted]
