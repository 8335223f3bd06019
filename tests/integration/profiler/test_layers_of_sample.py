import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import headrace
from headrace.profiler.layers import as_text, measure_layers
from headrace.runs.formats.layers import LayersDocument

SAMPLE = Path(headrace.__file__).parent / "samples" / "models" / "scenes.onnx"
MACS = 39e6
"""Multiply-adds an image, as `scenes.md` states them."""


def measure(batch_size: int, **settings: object) -> LayersDocument:
    """Measure the shipped model on made-up photographs."""
    images = np.random.default_rng(0).standard_normal((3, 3, 224, 224), np.float32)
    return measure_layers(SAMPLE, threads=1, batch_size=batch_size, inputs=images, seconds=0.5, **settings)  # type: ignore[arg-type]


def check_document(document: LayersDocument, batch_size: int) -> None:
    """Check what holds for every engine."""
    assert document.total_flops == pytest.approx(2 * MACS * batch_size, rel=0.05)
    assert sum(layer.seconds for layer in document.layers) == pytest.approx(document.latency_seconds)
    assert sum(layer.share for layer in document.layers) == pytest.approx(1.0)
    assert document.num_calls > 0
    assert document.ceilings is not None
    assert document.ceilings.flops_per_second > 1e9
    assert {layer.bound for layer in document.layers} <= {"compute", "memory", "overhead", "unknown"}
    assert msgspec.json.decode(msgspec.json.encode(document), type=LayersDocument) == document
    assert "ceilings here" in as_text(document)


@pytest.mark.measures
def test_the_sample_model_in_onnx_runtime() -> None:
    """Fifteen convolutions, the two counts agree within 5 %, and most of the time is judged."""
    document = measure(4)
    check_document(document, 4)
    assert sum(layer.operator == "Conv" for layer in document.layers) == 15
    if document.flops_cross_check is not None:  # needs the onnx package
        assert document.total_flops == pytest.approx(document.flops_cross_check, rel=0.05)
    assert sum(layer.share for layer in document.layers if layer.bound != "unknown") > 0.5


@pytest.mark.measures
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_the_sample_model_in_openvino(precision: str) -> None:
    """The same table from another engine: the protocol fits, the operations are the same."""
    pytest.importorskip("openvino", reason="needs OpenVINO; pip install 'headrace[openvino]'")
    document = measure(4, engine="openvino", options={"precision": precision})
    check_document(document, 4)
    assert sum("Convolution" in layer.operator for layer in document.layers) == 15
    assert document.engine == "openvino"
    if precision == "f32":
        assert {layer.precision for layer in document.layers} == {"float32"}


def test_ctrl_c_works_after_openvino() -> None:
    """A signal after a look into OpenVINO reaches Python, and does not crash the process."""
    pytest.importorskip("openvino", reason="needs OpenVINO; pip install 'headrace[openvino]'")
    program = f"""
import pathlib, signal
from headrace.profiler.layers import measure_layers
measure_layers(pathlib.Path({str(SAMPLE)!r}), engine="openvino", threads=1, batch_size=1, inputs=None, calls=3)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted"), done.stderr
