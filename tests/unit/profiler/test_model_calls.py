"""What device stages ask of their models, and what is measured of it after the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.plan import Plan
from headrace.profiler.model_calls import model_calls
from headrace.profiler.post_run import add_isolation, add_layers
from headrace.runs.formats import isolation, layers
from headrace.sources.queue_source import QueueSource
from headrace.stages.stage import Stage, StageContext
from headrace.testing import ListSource, MemoryQueue

onnx = pytest.importorskip("onnx", reason="models are written by the onnx package; pip install onnx")


class Twice(Stage):
    """Calls its model twice for each batch, with twice the values the second time."""

    kind = "device"

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self.path = path

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Open the model."""
        model = context.open_model(self.path)

        def call(batch: Any) -> list[Any]:
            values = np.stack([np.frombuffer(one, np.float32) for one in batch])
            model({"x": values})
            return list(model({"x": values * 2}))

        return call


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Write y = x + x, and return the path."""
    helper, proto = onnx.helper, onnx.TensorProto
    ends = [helper.make_tensor_value_info(name, proto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", ends[:1], ends[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "double.onnx"
    )
    return str(tmp_path / "double.onnx")


def payloads(count: int) -> list[bytes]:
    """Return so many vectors of four numbers, as bytes; all of vector n are n."""
    return [np.full(4, number, np.float32).tobytes() for number in range(count)]


def quiet(_: str) -> None:
    """Show no progress."""


def test_the_first_call_of_each_model_is_noted_with_its_inputs(model: str) -> None:
    """At the Plan's batch size, with what the stage gave, as it was at the call; a second call is not noted."""
    pipeline = hr.Pipeline(ListSource(payloads(5)), stages=[Twice("infer", model)])
    (call,) = model_calls(pipeline, Plan().with_settings(["infer.batch=3", "model.engine='onnx'"]))
    assert (call.stage, call.artifact, call.engine, call.batch_size) == ("infer", Path(model), "onnx", 3)
    assert isinstance(call.inputs, dict)
    np.testing.assert_array_equal(call.inputs["x"], np.repeat(np.arange(3, dtype=np.float32)[:, None], 4, axis=1))


def test_a_pipeline_without_devices_calls_no_model() -> None:
    """Nothing is opened and no item is taken."""
    assert model_calls(hr.Pipeline(ListSource([b"a"]), stages=[hr.stage("work", len)]), Plan()) == []


@pytest.mark.full
def test_the_layers_of_the_first_model_are_written(model: str, tmp_path: Path) -> None:
    """The document in the folder is the one returned, and no unfinished file is left beside it."""
    folder = tmp_path / "run"
    folder.mkdir()
    pipeline = hr.Pipeline(ListSource(payloads(2)), stages=[Twice("infer", model)])
    said: list[str] = []
    plan = Plan().with_settings(["infer.batch=2", "model.engine='onnx'"])
    document = add_layers(pipeline, plan, folder, said.append, lambda: False)
    assert [file.name for file in folder.iterdir()] == [layers.FILE]
    assert document.batch_size == 2
    assert said[-1] == "layers of double.onnx at batch size 2"


def test_a_pipeline_without_a_model_has_no_layers(tmp_path: Path) -> None:
    """The error says what --layers needs, and nothing is written."""
    pipeline = hr.Pipeline(ListSource([b"a"]), stages=[hr.stage("work", len)])
    with pytest.raises(SettingsError, match="--layers needs a device stage that opens a model file"):
        add_layers(pipeline, Plan(), tmp_path, quiet, lambda: False)
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_fails_says_why(model: str) -> None:
    """The stage's own error is told, not that no model was called."""
    pipeline = hr.Pipeline(ListSource([b"abc"]), stages=[Twice("infer", model)])
    with pytest.raises(HeadraceError, match=r"stage infer failed on each of the first 1 items.*buffer size"):
        model_calls(pipeline, Plan().with_settings(["model.engine='onnx'"]))


def test_jobs_of_a_queue_are_not_taken_for_measuring(tmp_path: Path) -> None:
    """A queue's jobs cannot be read again: stages alone are refused, and nothing is written."""
    pipeline = hr.Pipeline(QueueSource(MemoryQueue()), stages=[hr.stage("work", len)])
    with pytest.raises(SettingsError, match="queue"):
        add_isolation(pipeline, Plan(), tmp_path, quiet, lambda: False, items=1, seconds=0.01)
    assert not (tmp_path / isolation.FILE).exists()
