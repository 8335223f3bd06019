"""Int8: the types that are fast on x86, what breaks it, and both repairs."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.base.errors import EngineError
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.equalization import equalize
from headrace.optimize.group_revert import revert
from headrace.optimize.int8 import quantize
from headrace.optimize.onnx_files import fold
from headrace.optimize.portability import find_portability
from headrace.optimize.presets import PRESETS, X86, X86_VNNI, find_preset
from headrace.optimize.techniques import LADDER, REPAIRS, Subject
from headrace.validate.precision_audit import audit_precision
from headrace.validate.variant_spec import parse_variant


def quantized(case: Any, source: Path, output: Path, *, signed: bool = False) -> Path:
    """Quantize with the case's calibration data."""
    quantize(source, case.calibration.inputs, output, signed=signed)
    return output


def right(case: Any, nets: ModuleType, path: Path) -> float:
    """Return the share of right answers on the golden set."""
    return float((nets.answers(path, case.inputs).argmax(axis=1) == case.golden.labels).mean())


@pytest.fixture
def folded(twin: Any, tmp_path: Path) -> Path:
    """The imbalanced network, folded."""
    fold(twin.model, tmp_path / "folded.onnx")
    return tmp_path / "folded.onnx"


def test_activations_are_unsigned_and_weights_signed(case: Any, nets: ModuleType, tmp_path: Path) -> None:
    """What ONNX Runtime has kernels for on x86; the answers stay right."""
    path = quantized(case, case.model, tmp_path / "int8.onnx")
    types = {tensor.data_type for tensor in onnx.load(str(path)).graph.initializer}
    assert {onnx.TensorProto.UINT8, onnx.TensorProto.INT8} <= types
    assert right(case, nets, path) > 0.98


@pytest.mark.full
def test_the_census_tells_signed_activations_from_unsigned_ones(case: Any, nets: ModuleType, tmp_path: Path) -> None:
    """Unsigned: the products run in int8. Signed: those before a sum do not, and it says why and what to do."""
    batch, model = case.inputs[:4], nets.save_residual(tmp_path / "net.onnx")
    good = audit_precision(parse_variant(str(quantized(case, model, tmp_path / "u8.onnx"))), batch, seconds=0.2)
    bad = audit_precision(
        parse_variant(str(quantized(case, model, tmp_path / "s8.onnx", signed=True))), batch, seconds=0.2
    )
    assert good.int8_share is not None
    assert bad.int8_share is not None
    assert good.int8_share == 1.0
    assert bad.int8_share < 0.75
    assert any("UInt8" in line for line in bad.advice)
    assert not any("UInt8" in line for line in good.advice)


def test_channels_of_different_sizes_break_int8_and_equalization_mends_it(
    twin: Any, nets: ModuleType, folded: Path, tmp_path: Path
) -> None:
    """The same function, a scale between two layers: int8 is often wrong, and right again after equalization."""
    broken = quantized(twin, folded, tmp_path / "int8.onnx")
    equalize(folded, tmp_path / "equalized.onnx")
    mended = quantized(twin, tmp_path / "equalized.onnx", tmp_path / "mended.onnx")
    assert right(twin, nets, broken) < 0.9
    assert right(twin, nets, mended) > 0.98


def test_putting_the_worst_group_back_mends_it_too(twin: Any, nets: ModuleType, folded: Path, tmp_path: Path) -> None:
    """It is the tensor between the layers; the others stay in int8."""
    broken = quantized(twin, folded, tmp_path / "int8.onnx")
    found = revert(broken, folded, twin.calibration.inputs, tmp_path / "mended.onnx", goal=0.025)
    assert 1 <= len(found.tensors) <= found.num_groups / 2
    assert found.error_after < found.error_before / 2
    assert right(twin, nets, tmp_path / "mended.onnx") > 0.98
    all_of, left = (
        [node.op_type for node in onnx.load(str(path)).graph.node].count("QuantizeLinear")
        for path in (broken, tmp_path / "mended.onnx")
    )
    assert left == all_of - len(found.tensors) > 0


def test_harm_that_is_everywhere_is_said(case: Any, tmp_path: Path) -> None:
    """In an ordinary network no few groups are to blame for what int8 costs."""
    fold(case.model, tmp_path / "folded.onnx")
    whole = tmp_path / "int8.onnx"
    # Weights of seven bits: products of eight saturate in a few layers on processors without VNNI, which is to blame there.
    quantize(tmp_path / "folded.onnx", case.calibration.inputs, whole, preset=X86)
    with pytest.raises(EngineError, match="no few groups"):
        revert(whole, tmp_path / "folded.onnx", case.calibration.inputs, tmp_path / "mended.onnx", goal=1e-9)
    with pytest.raises(EngineError, match="stopped by the budget with 0 of"):  # at once, and not blamed on the groups
        revert(
            whole,
            tmp_path / "folded.onnx",
            case.calibration.inputs,
            tmp_path / "mended.onnx",
            goal=1e-9,
            stop=lambda: True,
        )
    assert not (tmp_path / "mended.onnx").exists()


def test_one_array_for_a_model_with_two_inputs_is_refused(tmp_path: Path) -> None:
    """Calibration data have an array for each, by its name."""
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2]) for name in "abc"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["a", "b"], ["c"])], "two", info[:2], info[2:])
    onnx.save(onnx.helper.make_model(graph, ir_version=8), tmp_path / "two.onnx")
    with pytest.raises(EngineError, match=r"2 inputs \(a, b\)"):
        quantize(tmp_path / "two.onnx", np.zeros((40, 2), np.float32), tmp_path / "out.onnx")


def test_a_processor_without_int8_gets_weights_of_seven_bits(case: Any, nets: ModuleType, tmp_path: Path) -> None:
    """Chosen by the flags, where they are told; the answers stay right."""
    assert find_preset("here", frozenset({"avx512_vnni"})) is X86_VNNI
    assert find_preset("here", frozenset()) is X86_VNNI
    preset = find_preset("here", frozenset({"avx2"}))
    assert preset is X86
    path = tmp_path / "int8.onnx"
    assert quantize(case.model, case.calibration.inputs, path, preset=preset)["preset"] == "x86"
    weights = [array for array in arrays(path) if array.dtype == np.int8 and array.ndim > 1]
    assert weights
    assert all(np.abs(array.astype(int)).max() <= 64 for array in weights)
    assert right(case, nets, path) > 0.98


@pytest.mark.full
def test_tensorrt_gets_int8_around_zero(case: Any, nets: ModuleType, tmp_path: Path) -> None:
    """As far as a file tells, TensorRT takes it: signed, symmetric, biases in float."""
    path = tmp_path / "int8.onnx"
    quantize(case.model, case.calibration.inputs, path, preset=PRESETS["tensorrt"])
    kinds = {array.dtype.name for array in arrays(path)}
    assert "uint8" not in kinds
    assert "int32" not in kinds
    places = find_portability(path, frozenset()).places
    tensorrt = next(one for one in places if one.engine == "onnx" and one.options.get("provider") == "tensorrt")
    assert tensorrt.outcome != "fails"
    assert right(case, nets, path) > 0.98


@pytest.mark.parametrize(("target", "types"), [("tensorrt", "signed activations"), ("x86", "weights of 7 bits")])
def test_the_types_of_the_target_are_told(case: Any, tmp_path: Path, target: str, types: str) -> None:
    """As they are written, and not those of another target; NNCF, which chooses its own, is not asked for TensorRT."""
    store = ArtifactStore(tmp_path)
    subject = Subject(
        original=store.add(case.model), store=store, calibration=case.calibration, threads=1, flags=frozenset(),
        engines=("onnx",), target=target,
    )  # fmt: skip
    by_name = {one.name: one for one in (*LADDER, *REPAIRS)}
    (found,) = by_name["int8"].try_on(subject)
    assert types in found.hypothesis
    assert ("unsigned" in found.hypothesis) == (target == "x86")
    assert found.artifact.parameters["activations"] == ("int8" if target == "tensorrt" else "uint8")
    refused = str(by_name["int8-nncf"].why_not(subject))
    assert ("TensorRT takes int8 around zero alone" in refused) == (target == "tensorrt")


def test_percentiles_leave_out_what_is_rare(
    case: Any, nets: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One value that is two hundred times as large as all others takes no steps away from the rest."""
    items = np.array(case.calibration.inputs)
    items[0, 0, 0, 0] = 200 * np.abs(items).max()
    wide, narrow = tmp_path / "minmax.onnx", tmp_path / "percentile.onnx"
    quantize(case.model, items, wide)
    assert quantize(case.model, items, narrow, calibrator="percentile")["calibrator"] == "percentile"
    assert right(case, nets, wide) < 0.9
    assert right(case, nets, narrow) > 0.98
    assert capfd.readouterr().out == ""


def arrays(path: Path) -> list[np.ndarray]:
    """Return the weights of a model file."""
    return [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(str(path)).graph.initializer]


def older(case: Any, path: Path) -> Path:
    """Write the network in the operators of opset 12, as PaddlePaddle exports its models."""
    model = onnx.load(str(case.model))
    model.opset_import[0].version = 12
    onnx.save(model, str(path))
    return path


def test_a_model_in_older_operators_is_folded_into_newer_ones(case: Any, nets: ModuleType, tmp_path: Path) -> None:
    """DequantizeLinear has scales for each channel since opset 13: before, the file could not be opened."""
    fold(older(case, tmp_path / "old.onnx"), tmp_path / "folded.onnx")
    made = quantize(tmp_path / "folded.onnx", case.calibration.inputs, tmp_path / "int8.onnx")
    assert made["weights"] == "int8 per channel"
    assert right(case, nets, tmp_path / "int8.onnx") > 0.98


def test_what_stays_in_older_operators_is_quantized_per_tensor(case: Any, nets: ModuleType, tmp_path: Path) -> None:
    """As a file that can be opened and called."""
    made = quantize(older(case, tmp_path / "old.onnx"), case.calibration.inputs, tmp_path / "int8.onnx")
    assert made["weights"] == "int8 per tensor"
    assert len(nets.answers(tmp_path / "int8.onnx", case.inputs[:2])) == 2


def dense(path: Path, *, integers: bool = False) -> Path:
    """Write a classifier whose bias has two axes, which ONNX Runtime stumbles over; of whole numbers where asked."""
    random = np.random.default_rng(0)
    kind = onnx.TensorProto.INT32 if integers else onnx.TensorProto.FLOAT
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["f"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Gemm", ["f", "w", "b"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes, "dense", [onnx.helper.make_tensor_value_info("x", kind, ["n", 8])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 5])],
        [
            onnx.numpy_helper.from_array(random.standard_normal((8, 5)).astype(np.float32), "w"),
            onnx.numpy_helper.from_array(np.ones((1, 5), np.float32), "b"),
        ],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)], ir_version=8), str(path))
    return path


@pytest.mark.parametrize("integers", [False, True])
def test_where_one_way_fails_the_next_is_tried(tmp_path: Path, integers: bool) -> None:
    """Instead of NumPy's words on arrays; the file says which way it was."""
    items = np.random.default_rng(0).integers(0, 9, (32, 8)).astype(np.int32 if integers else np.float32)
    made = quantize(dense(tmp_path / "dense.onnx", integers=integers), items, tmp_path / "int8.onnx")
    assert made["weights"] == "int8 per channel, biases as they are"


def test_what_no_way_can_quantize_is_told_with_each_reason(tmp_path: Path) -> None:
    """Calibration data that the model does not take, for instance."""
    with pytest.raises(
        EngineError, match=r"cannot quantize dense.onnx in any way .*int8 per channel: .*int8 per tensor: "
    ):
        quantize(dense(tmp_path / "dense.onnx"), np.zeros((32, 3), np.float32), tmp_path / "int8.onnx")
