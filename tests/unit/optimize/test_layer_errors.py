"""Where two variants begin to differ."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from headrace.base.errors import EngineError
from headrace.cli import main
from headrace.optimize.int8 import quantize
from headrace.optimize.onnx_files import fold
from headrace.validate.layer_errors import first_beyond, layer_errors
from headrace.validate.policy import Policy
from headrace.validate.variant_spec import parse_variant
from headrace.validate.variants import validate_variants


@pytest.fixture
def broken(case: Any, tmp_path: Path) -> Path:
    """The network with a NaN in the weights of its third convolution."""
    model = onnx.load(case.model)
    for tensor in model.graph.initializer:
        if tensor.name == "pw.w":
            array = np.array(numpy_helper.to_array(tensor))
            array[0, 0] = np.nan
            tensor.CopyFrom(numpy_helper.from_array(array, "pw.w"))
    onnx.save(model, tmp_path / "broken.onnx")
    return tmp_path / "broken.onnx"


def test_the_layer_that_breaks_is_named(case: Any, broken: Path) -> None:
    """Everything before it is the same to the last digit."""
    found = layer_errors(parse_variant(str(case.model)), parse_variant(str(broken)), case.inputs)
    by_name = {one.name: one for one in found}
    assert by_name["dw.a"].relative_l2 == 0
    assert by_name["dw.a"].sqnr_db is None
    first = first_beyond(found, "f32")
    assert first is not None
    assert (first.name, first.operator, first.relative_l2) == ("pw.y", "Conv", None)


def test_the_gate_says_where(case: Any, broken: Path) -> None:
    """In its sentence and in the document."""
    document = validate_variants(
        parse_variant(str(case.model)), parse_variant(str(broken)), case.golden, Policy(), gates=("static", "parity")
    )
    assert document.verdict == "reject"
    assert document.diverges_at == "pw.y"
    assert "pw.y (Conv, NaN or infinite)" in document.says


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_int8_of_a_hostile_network_diverges_where_its_channels_differ(twin: Any, tmp_path: Path, engine: str) -> None:
    """On both engines: the depthwise convolution, whose channels have very different sizes, or what follows it."""
    folded, int8 = tmp_path / "folded.onnx", tmp_path / "int8.onnx"
    fold(twin.model, folded)
    quantize(folded, twin.calibration.inputs, int8)
    found = layer_errors(parse_variant(str(folded)), parse_variant(f"{int8}@{engine}"), twin.inputs)
    assert len(found) >= 4
    first = first_beyond(found, "int8")
    assert first is not None
    assert first.name.startswith(("pw", "dw"))
    assert all(one.sqnr_db is None or one.sqnr_db < 120 for one in found)


def test_files_without_a_common_name_cannot_be_compared(case: Any, nets: ModuleType, tmp_path: Path) -> None:
    """And it is said."""
    other = nets.save_residual(tmp_path / "other.onnx")
    model = onnx.load(other)
    for node in model.graph.node:
        node.input[:] = [
            f"other.{name}" if not name.endswith(".w") and name != "image" else name for name in node.input
        ]
        node.output[:] = [f"other.{name}" for name in node.output]
    model.graph.output[0].name = f"other.{model.graph.output[0].name}"
    onnx.save(model, other)
    with pytest.raises(EngineError, match="no tensor of the same name"):
        layer_errors(parse_variant(str(case.model)), parse_variant(str(other)), case.inputs)


@pytest.mark.full
def test_explain_shows_the_layers(case: Any, broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --against; the first that differs is marked."""
    sets = ["--data", str(case.folder / "calibration.npz")]
    assert main(["optimize", str(broken), "--explain", "--against", str(case.model), *sets]) == 0
    told = capsys.readouterr().out
    assert "SQNR" in told
    assert "*  pw.y" in told
