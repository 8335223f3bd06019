"""ONNX Runtime, with NumPy as the oracle."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from headrace.base.errors import EngineError, SettingsError
from headrace.base.freed_memory import trim
from headrace.base.protocols import KeepsBuffers, TensorSpec
from headrace.engines import engine
from headrace.engines.onnx_engine import OnnxEngine
from headrace.engines.traits import BUILT_IN
from headrace.pipeline.garbage import resident_bytes
from headrace.samples.catalogue import SCENES_MODEL_PATH

MakeModel = Callable[..., Path]


def batch_of(size: int) -> np.ndarray:
    """Random inputs, always the same."""
    return np.random.default_rng(size).standard_normal((size, 4)).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_output(make_model: MakeModel, weights: np.ndarray, size: int) -> None:
    """One output comes as its array, for every batch size."""
    model = OnnxEngine().open(make_model(), threads=1, options={})
    np.testing.assert_allclose(model(batch_of(size)), batch_of(size) @ weights, rtol=1e-5)


def test_several_outputs(make_model: MakeModel, weights: np.ndarray) -> None:
    """Several outputs come by their names."""
    result = OnnxEngine().open(make_model(with_label=True), threads=1, options={})(batch_of(5))
    assert list(result) == ["scores", "label"]
    np.testing.assert_allclose(result["scores"], batch_of(5) @ weights, rtol=1e-5)
    np.testing.assert_array_equal(result["label"], (batch_of(5) @ weights).argmax(axis=1))


def test_inputs_by_name(make_model: MakeModel, weights: np.ndarray) -> None:
    """Inputs may be given by name."""
    model = OnnxEngine().open(make_model(), threads=1, options={})
    np.testing.assert_allclose(model({"x": batch_of(2)}), batch_of(2) @ weights, rtol=1e-5)


def test_calls_side_by_side(make_model: MakeModel, weights: np.ndarray) -> None:
    """Threads that call one model at once get each their own results."""
    model = OnnxEngine().open(make_model(), threads=1, options={})
    results: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda size=size: results.update({size: model(batch_of(size))})) for size in range(1, 9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for size in range(1, 9):
        np.testing.assert_allclose(results[size], batch_of(size) @ weights, rtol=1e-5)


def test_specs(make_model: MakeModel) -> None:
    """Inputs and outputs are described by name, type and shape, free axes by their names."""
    model = OnnxEngine().open(make_model(with_label=True), threads=1, options={})
    assert model.inputs == [TensorSpec("x", "tensor(float)", ("batch", 4))]
    assert model.outputs == [
        TensorSpec("scores", "tensor(float)", ("batch", 3)),
        TensorSpec("label", "tensor(int64)", ("batch",)),
    ]


def test_variant(make_model: MakeModel) -> None:
    """The variant names what ran: the file by its hash, the engine with its version, threads and provider."""
    path = make_model()
    assert OnnxEngine().open(path, threads=2, options={}).variant == {
        "engine": "onnx",
        "engine_version": onnxruntime.__version__,
        "artifact": "tiny.onnx",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "threads": 2,
        "sessions": 1,
        "provider": "CPUExecutionProvider",
    }


def test_metadata(make_model: MakeModel) -> None:
    """What the model file says of itself is passed on."""
    model = OnnxEngine().open(make_model(metadata={"classes": "cat,dog"}), threads=1, options={})
    assert model.metadata == {"classes": "cat,dog"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (2, 1, onnxruntime.ExecutionMode.ORT_SEQUENTIAL, "0")),
        ({"spin": True}, (2, 1, onnxruntime.ExecutionMode.ORT_SEQUENTIAL, "1")),
        ({"inter_op_threads": 2}, (2, 2, onnxruntime.ExecutionMode.ORT_PARALLEL, "0")),
    ],
)
def test_threads_reach_the_session(make_model: MakeModel, options: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """Threads and options are applied; inter-op threads with the mode without which they would not be used."""
    model: Any = OnnxEngine().open(make_model(), threads=2, options=options)
    applied = model._session.get_session_options()
    assert expected == (
        applied.intra_op_num_threads,
        applied.inter_op_num_threads,
        applied.execution_mode,
        applied.get_session_config_entry("session.intra_op.allow_spinning"),
    )
    assert applied.get_session_config_entry("session.inter_op.allow_spinning") == expected[-1]


@pytest.mark.parametrize(
    ("level", "name"), [({}, "ORT_ENABLE_ALL"), ({"graph_optimization": "off"}, "ORT_DISABLE_ALL")]
)
def test_graph_optimization_can_be_turned_off(make_model: MakeModel, level: dict[str, str], name: str) -> None:
    """It is on unless the Plan says otherwise."""
    model: Any = OnnxEngine().open(make_model(), threads=1, options=level)
    assert model._session.get_session_options().graph_optimization_level.name == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"graph_optimization": "none"},
            r"graph_optimization = 'none' is not possible; allowed: all, extended, basic, off",
        ),
        ({"inter_op": 2}, r"\[model\.options\]: unknown key 'inter_op'\. Did you mean 'inter_op_threads'\?"),
        ({"inter_op_threads": 0}, r"inter_op_threads = 0 is not possible; allowed: a whole number >= 1"),
        ({"spin": 1}, r"spin = 1 has the wrong type; expected true or false"),
    ],
)
def test_options_are_checked(make_model: MakeModel, options: dict[str, Any], message: str) -> None:
    """Unknown and impossible options are errors, with their place in the Plan."""
    with pytest.raises(SettingsError, match=message):
        OnnxEngine().open(make_model(), threads=1, options=options)


def test_no_file() -> None:
    """Without a file the message says where to name one."""
    with pytest.raises(EngineError, match=r"set the module's `model` or the Plan's model\.artifact"):
        OnnxEngine().open(None, threads=1, options={})


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named, and where relative paths start."""
    with pytest.raises(EngineError, match=r"model file .*none\.onnx does not exist; relative paths start at"):
        OnnxEngine().open(tmp_path / "none.onnx", threads=1, options={})


def test_broken_file(tmp_path: Path) -> None:
    """A file with the form of a model and nothing of one in it is named, with ONNX Runtime's own words as the cause."""
    content = b"\x3a\x02\x08\x08"  # field 7, the graph, of two bytes
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(EngineError, match=r"model file .*broken\.onnx cannot be opened by ONNX Runtime: ") as caught:
        OnnxEngine().open(path, threads=1, options={})
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "torch"])
def test_every_engine_is_found(name: str) -> None:
    """Each name in the table leads to an engine; PyTorch's has a test of its own."""
    assert callable(engine(name).open)


def test_unknown_engine() -> None:
    """An engine that does not exist is an error with those that do."""
    with pytest.raises(
        SettingsError, match=r"model\.engine = 'onyx' is not possible; allowed: onnx, openvino, torch, emulated"
    ):
        engine("onyx")


def test_a_provider_that_is_not_here_is_refused_with_the_reason() -> None:
    """TensorRT without a GPU build: what is missing, what there is, and what to do; never the CPU without a word."""
    if "TensorrtExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has TensorRT")
    with pytest.raises(
        EngineError, match=r"tensorrt is not available here, because onnxruntime .* has no Tensorrt"
    ) as error:
        engine("onnx").open(SCENES_MODEL_PATH, threads=1, options={"provider": "tensorrt"})
    assert "CPUExecutionProvider" in str(error.value)
    assert "onnxruntime-gpu" in str(error.value)


def test_an_unknown_provider_is_a_mistake() -> None:
    """The known ones are told."""
    with pytest.raises(SettingsError, match="cpu, cuda, tensorrt"):
        engine("onnx").open(SCENES_MODEL_PATH, threads=1, options={"provider": "gpu"})


@pytest.mark.parametrize(("threads", "calls", "sessions"), [(1, 4, 1), (2, 1, 1), (2, 3, 3)])
def test_calls_side_by_side_share_no_threads(
    make_model: MakeModel, weights: np.ndarray, threads: int, calls: int, sessions: int
) -> None:
    """Threads belong to a session, so each call has one of its own; where a call has none but the caller's, all have one."""
    model = OnnxEngine().open(make_model(), threads=threads, options={}, calls=calls)
    assert model.variant["sessions"] == sessions
    results: dict[int, Any] = {}
    callers = [
        threading.Thread(target=lambda size=size: results.update({size: model(batch_of(size))})) for size in range(1, 9)
    ]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    for size, result in results.items():
        np.testing.assert_allclose(result, batch_of(size) @ weights, rtol=1e-5)
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        model(np.zeros((1, 5), np.float32))
    assert model(batch_of(2)).shape == (2, weights.shape[1])  # one that failed gave its session back


@pytest.mark.parametrize("threads", [1, 2])
def test_buffers_are_given_back_with_the_next_call(threads: int) -> None:
    """What a session kept for a batch of 48 is free after the next call of one, whose answer is the same; once for each."""
    model = OnnxEngine().open(SCENES_MODEL_PATH, threads=threads, options={}, calls=2)
    assert isinstance(model, KeepsBuffers)
    side = [axis if isinstance(axis, int) else 224 for axis in model.inputs[0].shape[1:]]
    one = np.zeros((1, *side), np.float32)
    before = model(one)
    for _ in range(2):
        model(np.zeros((48, *side), np.float32))
    full = resident_bytes()
    model.give_back_buffers()
    np.testing.assert_array_equal(model(one), before)
    np.testing.assert_array_equal(model(one), before)
    trim()
    assert full - resident_bytes() > 30e6
    assert not model._to_shrink
