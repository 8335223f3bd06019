"""OpenVINO, with NumPy as the oracle."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

from headrace.base.errors import EngineError, SettingsError
from headrace.base.protocols import TensorSpec
from headrace.engines import engine
from headrace.engines.openvino_engine import OpenVinoEngine, OpenVinoOptions, compile_settings
from headrace.pipeline.thread_budget import usable_cores

MakeModel = Callable[..., Path]


def batch_of(size: int) -> np.ndarray:
    """Random inputs, always the same."""
    return np.random.default_rng(size).standard_normal((size, 4)).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_output(make_model: MakeModel, weights: np.ndarray, size: int) -> None:
    """One output comes as its array, for every batch size, at full precision."""
    model = OpenVinoEngine().open(make_model(), threads=1, options={})
    np.testing.assert_allclose(model(batch_of(size)), batch_of(size) @ weights, rtol=1e-5)


def test_several_outputs_and_inputs_by_name(make_model: MakeModel, weights: np.ndarray) -> None:
    """Several outputs come by their names."""
    result = OpenVinoEngine().open(make_model(with_label=True), threads=1, options={})({"x": batch_of(5)})
    assert list(result) == ["scores", "label"]
    np.testing.assert_allclose(result["scores"], batch_of(5) @ weights, rtol=1e-5)
    np.testing.assert_array_equal(result["label"], (batch_of(5) @ weights).argmax(axis=1))


def test_an_earlier_result_outlives_later_calls(make_model: MakeModel, weights: np.ndarray) -> None:
    """A result is the caller's: the next call does not write over it."""
    model = OpenVinoEngine().open(make_model(), threads=1, options={})
    first = model(batch_of(3))
    model(np.zeros((3, 4), np.float32))
    np.testing.assert_allclose(first, batch_of(3) @ weights, rtol=1e-5)


def test_calls_side_by_side(make_model: MakeModel, weights: np.ndarray) -> None:
    """Threads that call one model at once get each their own results."""
    model = OpenVinoEngine().open(make_model(), threads=1, options={})
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
    """Inputs and outputs are described as by the onnx engine, but for the names of free axes."""
    model = OpenVinoEngine().open(make_model(with_label=True), threads=1, options={})
    assert model.inputs == [TensorSpec("x", "tensor(float)", ("?", 4))]
    assert model.outputs == [
        TensorSpec("scores", "tensor(float)", ("?", 3)),
        TensorSpec("label", "tensor(int64)", ("?",)),
    ]


def test_variant_tells_the_precision_that_was_compiled_for(make_model: MakeModel) -> None:
    """Left alone, OpenVINO takes bfloat16 where the processor has it; here it is said, and `f32` unless the Plan says other."""
    path = make_model()
    assert OpenVinoEngine().open(path, threads=1, options={}).variant == {
        "engine": "openvino",
        "engine_version": openvino.__version__,
        "artifact": "tiny.onnx",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "threads": 1,
        "streams": 1,
        "threads_of_all_streams": 1,
        "precision": "f32",
    }


def test_settings_reach_the_compiler() -> None:
    """Precision and threads, and no core is taken for itself."""
    settings = compile_settings(threads=2, options={"precision": "bf16"})
    assert (settings["INFERENCE_PRECISION_HINT"], settings["INFERENCE_NUM_THREADS"]) == ("bf16", 2)
    assert settings["ENABLE_CPU_PINNING"] is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precison": "bf16"}, r"unknown key 'precison'\. Did you mean 'precision'\?"),
        ({"streams": 0}, r"streams = 0 is not possible; allowed: a whole number >= 1"),
        ({"streams": "two"}, r"streams = 'two' has the wrong type"),
        ({"precision": "int8"}, r"precision = 'int8' is not possible; allowed: f32, bf16, f16"),
    ],
)
def test_options_are_checked(make_model: MakeModel, options: dict[str, Any], message: str) -> None:
    """Unknown options and impossible values are refused."""
    with pytest.raises(SettingsError, match=message):
        OpenVinoEngine().open(make_model(), threads=1, options=options)


@pytest.mark.skipif(usable_cores() < 2, reason="OpenVINO makes no more streams than there are cores")
@pytest.mark.parametrize(("options", "calls"), [({}, 2), ({"streams": 2}, 1)])
def test_each_call_side_by_side_has_a_stream(make_model: MakeModel, options: dict[str, Any], calls: int) -> None:
    """As many as workers share the model, or as the Plan says; told as OpenVINO reports it."""
    variant = OpenVinoEngine().open(make_model(), threads=1, options=options, calls=calls).variant
    assert (variant["streams"], variant["threads_of_all_streams"], variant["threads"]) == (2, 2, 1)


def test_streams_that_cannot_be_had_are_refused(make_model: MakeModel) -> None:
    """OpenVINO makes fewer without a word; here it is said, and what to do."""
    with pytest.raises(EngineError, match=r"streams = 4096 with threads = 1 needs 4096 cores.*leave streams out"):
        OpenVinoEngine().open(make_model(), threads=1, options={"streams": 4096})


def test_workers_beyond_the_cores_share_streams(make_model: MakeModel) -> None:
    """Then calls wait for one another, as they would for a core, and nothing is refused."""
    variant = OpenVinoEngine().open(make_model(), threads=1, options={}, calls=4096).variant
    assert variant["streams"] < 4096


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    """No file named, none there, none that is a model."""
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x3a\x02\x08\x08")  # field 7, the graph, of two bytes
    for artifact, message in (
        (None, "needs a model file"),
        (tmp_path / "none.onnx", "does not exist"),
        (broken, "cannot be opened by OpenVINO"),
    ):
        with pytest.raises(EngineError, match=message):
            OpenVinoEngine().open(artifact, threads=1, options={})


def test_a_batch_of_the_wrong_shape_is_refused(make_model: MakeModel) -> None:
    """By an error of ours, which ends the items and not the run."""
    model = OpenVinoEngine().open(make_model(), threads=1, options={})
    with pytest.raises(EngineError, match="refuses a batch"):
        model(np.zeros((2, 5), np.float32))


def test_a_plan_names_it() -> None:
    """`model.engine = "openvino"`."""
    assert isinstance(engine("openvino"), OpenVinoEngine)
    assert OpenVinoOptions().precision == "f32"
