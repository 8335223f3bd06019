"""Half precision: what the processor has, what float16 holds, and what a gate sees between the layers."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.catalogue import Methods
from headrace.optimize.goal import Goal
from headrace.optimize.half import FP16, why_no_float16
from headrace.optimize.search import optimize
from headrace.optimize.techniques import Subject
from headrace.runs.cpu_features import explain_slowness
from headrace.validate import measuring
from headrace.validate.golden import Golden
from headrace.validate.half_precision import find_broken, reaches
from headrace.validate.policy import Policy
from headrace.validate.variant_spec import parse_variant
from headrace.validate.variants import precision_of, validate_variants

WITH_FLOAT16 = frozenset({"avx512_fp16"})


@pytest.fixture
def large(nets: ModuleType, tmp_path: Path) -> Path:
    """The ordinary network with a million times as much behind its depthwise convolution; its answers are the same."""
    weights = nets.make_weights()
    for name, factor in (("dw.w", 1e6), ("dw.b", 1e6), ("pw.w", 1e-6)):
        weights[name] = (weights[name] * factor).astype(np.float32)
    made: Path = nets.save_net(tmp_path / "large.onnx", weights)
    return made


def subject(case: Any, model: Path, tmp_path: Path, flags: frozenset[str], **changes: Any) -> Subject:
    """Return a model that is to be made cheaper on a processor with these flags."""
    store = ArtifactStore(tmp_path / "artifacts")
    known: dict[str, Any] = {"calibration": case.calibration, "engines": ("onnx", "openvino"), **changes}
    return Subject(original=store.add(model), store=store, threads=1, flags=flags, **known)


def test_a_processor_without_float16_is_told(case: Any, tmp_path: Path) -> None:
    """By the flags that it would need."""
    why = why_no_float16(subject(case, case.model, tmp_path, frozenset({"avx512_bf16"})))
    assert why is not None
    assert "avx512_fp16" in str(why)


def test_it_is_tried_where_all_numbers_fit(case: Any, tmp_path: Path) -> None:
    """With the flags and with calibration data, without which nobody knows how large they get."""
    assert why_no_float16(subject(case, case.model, tmp_path, WITH_FLOAT16)) is None
    why = why_no_float16(subject(case, case.model, tmp_path, WITH_FLOAT16, calibration=None))
    assert "--data" in (why or "")


def test_the_tensor_that_is_too_large_is_named(case: Any, large: Path, tmp_path: Path) -> None:
    """Weights and what they make, in the order of computation; the search tells it as what was not tried."""
    why = why_no_float16(subject(case, large, tmp_path, WITH_FLOAT16))
    assert why is not None
    assert "65,504" in str(why)
    assert "dw.w (weight) reaches" in str(why)
    assert "dw.y (Conv) reaches" in str(why)
    assert "pw" not in str(why)


def test_the_reach_of_each_tensor_is_that_of_all_items(case: Any) -> None:
    """The last one's is the largest score of the items that were computed."""
    found = {one.name: one.largest for one in reaches(parse_variant(str(case.model)), case.inputs[:16])}
    model = onnx.load(str(case.model))
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert found["dw.w"] == pytest.approx(np.abs(weights["dw.w"]).max())
    assert found["the items"] == pytest.approx(np.abs(case.inputs[:16]).max())
    assert 0 < found["scores"] < math.inf


def test_the_search_says_why_float16_was_not_tried(case: Any, large: Path, tmp_path: Path) -> None:
    """With the processor that it needs, the model is to blame."""
    store, goal = ArtifactStore(tmp_path / "artifacts"), Goal(max_drop=0.02)
    with measuring.using(cpu_flags=lambda: WITH_FLOAT16):
        document = optimize(
            large, store=store, goal=goal, calibration=case.calibration, methods=Methods(of_the_file=(FP16,))
        )
    skipped = {one.technique: one.why for one in document.skipped}
    assert "dw.y" in skipped["fp16"]


def save_half(path: Path, factor: float) -> Path:
    """Write a network in float16 that multiplies by a number, cuts off at 6 and multiplies again, and return its path."""
    constants = [
        numpy_helper.from_array(np.array([value], np.float16), name)
        for name, value in (("factor", factor), ("back", 1.0))
    ]
    bounds = [numpy_helper.from_array(np.float16(value), name) for name, value in (("zero", 0.0), ("six", 6.0))]
    nodes = [
        helper.make_node("Cast", ["image"], ["small"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["small", "factor"], ["times"]),
        helper.make_node("Clip", ["times", "zero", "six"], ["cut"]),
        helper.make_node("Mul", ["cut", "back"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["scores"], to=TensorProto.FLOAT),
    ]
    shape = ["batch", 4]
    graph = helper.make_graph(
        nodes, "half", [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, shape)], [*constants, *bounds],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def save_float(half: Path, path: Path) -> Path:
    """Write the same network in float32 and return its path."""
    model = onnx.load(half)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            attribute.i = TensorProto.FLOAT
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("factor", "outcome"), [(30000.0, "rejected"), (2.0, "passed")])
def test_an_overflow_that_no_answer_shows_is_found(tmp_path: Path, factor: float, outcome: str) -> None:
    """A network in float16 whose infinity the next layer cuts off at 6: same answers, and the layer is named."""
    half = save_half(tmp_path / "half.onnx", factor)
    whole = save_float(half, tmp_path / "float.onnx")
    items = np.abs(np.random.default_rng(0).standard_normal((8, 4))).astype(np.float32) + 3.0
    np.savez(tmp_path / "golden.npz", inputs=items)
    golden = Golden(name="eight", inputs=items, labels=None, sha256="")
    a, b = parse_variant(str(whole)), parse_variant(str(half))
    assert precision_of(b) == "f16"
    document = validate_variants(a, b, golden, Policy(), gates=("static", "parity"))
    gate = document.gates[-1]
    assert (gate.name, gate.outcome) == ("parity", outcome)
    if outcome == "rejected":
        assert gate.values["relative_l2"] == 0
        assert document.diverges_at == "times"
        assert "times (Mul) is infinite" in gate.says


def test_an_overflow_is_found_on_images_of_another_size_too(tmp_path: Path) -> None:
    """Each is looked into with the items that it takes."""
    half = save_half(tmp_path / "half.onnx", 30000.0)
    whole = save_float(half, tmp_path / "float.onnx")
    items = np.abs(np.random.default_rng(0).standard_normal((8, 4))).astype(np.float32) + 3.0
    golden = Golden(name="eight", inputs=items, labels=None, sha256="", scaled=lambda side: items)
    a, b = parse_variant(str(whole)), parse_variant(f"{half}@onnx,input_side=2")
    document = validate_variants(a, b, golden, Policy(retrained=True), gates=("static", "parity"))
    assert (document.gates[-1].outcome, document.diverges_at) == ("rejected", "times")


def save_cast(path: Path, half: bool) -> str:
    """Write a network that multiplies by a million and cuts off at 6, what is between the two in half precision or not."""
    numbers = [numpy_helper.from_array(np.float32(one), name) for name, one in (("mega", 1e6), ("zero", 0), ("six", 6))]
    through = [
        helper.make_node("Cast", ["times"], ["small"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["small"], ["back"], to=TensorProto.FLOAT),
    ]
    nodes = [
        helper.make_node("Mul", ["image", "mega"], ["times"]), *(through if half else []),
        helper.make_node("Clip", ["back" if half else "times", "zero", "six"], ["scores"]),
    ]  # fmt: skip
    shape = ["batch", 4]
    graph = helper.make_graph(
        nodes, "cast", [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, shape)], numbers,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


@pytest.mark.parametrize(("size", "found"), [(1.0, ["small"]), (0.01, [])])
def test_what_a_cast_makes_infinite_and_the_next_layer_cuts_off_is_found(
    tmp_path: Path, size: float, found: list[str]
) -> None:
    """The tensor is in B alone: it is held against what it was cast from."""
    a, b = (parse_variant(save_cast(tmp_path / f"{half}.onnx", half)) for half in (False, True))
    items = np.full((2, 4), size, np.float32)
    assert [one.name for one in find_broken(a, b, items)] == found


def test_a_precision_that_the_engine_does_not_take_is_rejected(case: Any) -> None:
    """OpenVINO goes over to another one without a word; and one without instructions for it is slower."""
    exact = parse_variant(f"{case.model}@openvino")
    asked = parse_variant(f"{case.model}@openvino,precision=f16")
    with measuring.using(cpu_flags=lambda: WITH_FLOAT16):
        document = validate_variants(exact, asked, case.golden, Policy(), gates=("static",))
    used = asked.open().variant["precision"]
    assert document.gates[0].outcome == ("passed" if used == "f16" else "rejected")
    assert used == "f16" or f"computes in {used} here" in document.gates[0].says
    brief = parse_variant(f"{case.model}@openvino,precision=bf16")
    with measuring.using(cpu_flags=lambda: frozenset({"avx2"})):
        document = validate_variants(exact, brief, case.golden, Policy())
    assert [(gate.name, gate.outcome) for gate in document.gates] == [("static", "rejected")]


def test_where_no_flags_are_told_nothing_is_known_of_them() -> None:
    """Systems without /proc/cpuinfo."""
    assert explain_slowness("f16", frozenset()) is None
    assert explain_slowness("f32", frozenset({"avx2"})) is None
    assert "avx512_bf16" in (explain_slowness("bf16", frozenset({"avx2"})) or "")
