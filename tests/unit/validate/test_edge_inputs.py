"""What no golden set asks: the same item in other batches, and inputs at the edge; each refused by its own gate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.cli import main
from headrace.runs.formats.variants import Gate, ValidationDocument
from headrace.validate import measuring
from headrace.validate.edge_inputs import compare_batches, find_broken_inputs, probes
from headrace.validate.golden import Golden
from headrace.validate.model_speed import Timing
from headrace.validate.policy import Policy
from headrace.validate.variant_spec import parse_variant
from headrace.validate.variants import validate_variants

FEATURES, CLASSES = 12, 4
WEIGHTS = np.random.default_rng(1).standard_normal((FEATURES, CLASSES)).astype(np.float32)
Node = Any
DECLARING = """
import headrace as hr

class Faces(hr.Module):
    model = "a.onnx"
    input = hr.ArrayInput()
    output = hr.Embedding()

    def process(self, batch):
        return list(batch)

pipeline = hr.Pipeline(hr.folder("."), module=Faces(), delivery=hr.jsonl("out.jsonl"))
"""


def save(path: Path, *nodes: Node, batch: Any = "batch", **constants: Any) -> str:
    """Write a model that gives `y` for `x` and the scores `s` of x; the nodes go on from there."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["s"]), *(nodes or [helper.make_node("Identity", ["s"], ["y"])])], "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, CLASSES])],
        [numpy_helper.from_array(np.asarray(one), name) for name, one in {"w": WEIGHTS, **constants}.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def leaking(path: Path) -> str:
    """Write a model that takes the mean of the batch from each answer."""
    mean = helper.make_node("ReduceMean", ["s"], ["mean"], axes=[0], keepdims=1)
    part = helper.make_node("Mul", ["mean", "share"], ["part"])
    return save(path, mean, part, helper.make_node("Sub", ["s", "part"], ["y"]), share=np.float32(0.5))


def nan_on_zeros(path: Path) -> str:
    """Write a model that divides by the largest number of an item."""
    most = helper.make_node("ReduceMax", ["x"], ["most"], axes=[1], keepdims=1)
    one = helper.make_node("Div", ["most", "most"], ["one"])
    return save(path, most, one, helper.make_node("Mul", ["s", "one"], ["y"]))


@pytest.fixture
def golden() -> Golden:
    """Items without labels."""
    inputs = np.random.default_rng(2).standard_normal((64, FEATURES)).astype(np.float32)
    return Golden(name="set", inputs=inputs, labels=None, sha256="")


def judge(a: str, b: str, golden: Golden | None, batch: int = 1) -> ValidationDocument:
    """Return what the gates say that need no time."""
    gates = ("static", "parity", "batches", "extremes")
    return validate_variants(parse_variant(a), parse_variant(b), golden, Policy(batch=batch), gates=gates)


def last(document: ValidationDocument) -> Gate:
    """Return the last gate."""
    return document.gates[-1]


def test_an_answer_that_depends_on_its_neighbours_is_refused(tmp_path: Path, golden: Golden) -> None:
    """Though nobody asked for more than one item a call."""
    document = judge(save(tmp_path / "a.onnx"), leaking(tmp_path / "b.onnx"), golden)
    assert [gate.name for gate in document.gates if gate.outcome == "rejected"] in (["batches"], ["parity"])
    alone = Golden(name="one", inputs=golden.inputs[:1], labels=np.zeros(1, np.int64), sha256="")
    assert last(judge(save(tmp_path / "a.onnx"), leaking(tmp_path / "b.onnx"), alone)).name == "extremes"
    labelled = Golden(name="set", inputs=golden.inputs, labels=np.zeros(64, np.int64), sha256="")
    gate = last(judge(save(tmp_path / "a.onnx"), leaking(tmp_path / "b.onnx"), labelled))
    assert (gate.name, gate.outcome) == ("batches", "rejected")
    assert "depends on what else is in the batch" in gate.says


def test_what_the_model_in_use_does_too_is_no_defect_of_the_candidate(tmp_path: Path, golden: Golden) -> None:
    """It looks at its neighbours, or gives NaN for zeros, as the other does."""
    for make in (leaking, nan_on_zeros):
        document = judge(make(tmp_path / "a.onnx"), make(tmp_path / "b.onnx"), golden)
        assert [gate.outcome for gate in document.gates] == ["passed"] * 4


def test_nan_for_black_is_refused(tmp_path: Path, golden: Golden) -> None:
    """The input is named."""
    gate = last(judge(save(tmp_path / "a.onnx"), nan_on_zeros(tmp_path / "b.onnx"), golden))
    assert (gate.name, gate.outcome) == ("extremes", "rejected")
    assert "zeros" in gate.says


@pytest.mark.parametrize("engine", ["", "@openvino", "@onnx,threads=2"])
def test_a_right_variant_passes_both(tmp_path: Path, golden: Golden, engine: str) -> None:
    """On noise too, and whatever the size of the batch."""
    a = save(tmp_path / "a.onnx")
    for items, batch in ((golden, 1), (golden, 32), (None, 8)):
        document = judge(a, f"{a}{engine}", items, batch)
        assert [(gate.name, gate.outcome) for gate in document.gates[-2:]] == [
            ("batches", "passed"),
            ("extremes", "passed"),
        ]


def test_a_model_of_one_size_of_batch_is_asked_nothing_about_others(tmp_path: Path, golden: Golden) -> None:
    """The gate is left out."""
    a = save(tmp_path / "a.onnx", batch=1)
    assert [gate.name for gate in judge(a, a, golden).gates] == ["static", "parity", "extremes"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float64])
def test_inputs_of_any_type_are_probed_with_what_they_can_hold(dtype: Any) -> None:
    """Whole numbers stay within those of the golden set, as the numbers of tokens must; only floating ones get NaN."""
    items = np.arange(24).reshape(8, 3).astype(dtype)
    seen: list[np.ndarray] = []

    def spy(batch: np.ndarray) -> np.ndarray:
        seen.append(batch)
        return batch.astype(np.float32)

    assert find_broken_inputs(spy, spy, items, same_engine=True) == []
    assert {batch.dtype for batch in seen} == {np.dtype(dtype)}
    numbers = np.concatenate([batch.ravel().astype(float) for batch in seen])
    assert np.nanmin(numbers) >= 0
    assert np.nanmax(numbers) <= 23
    assert np.isnan(numbers).any() == (np.dtype(dtype).kind == "f")


def test_an_item_of_nan_must_not_spoil_its_neighbour() -> None:
    """A candidate on another engine may give NaN for NaN where the one in use gives a number."""

    def own(batch: np.ndarray) -> np.ndarray:
        return np.asarray(np.nan_to_num(batch))

    def spoiled(batch: np.ndarray) -> np.ndarray:
        return np.asarray(batch + 0 * batch.mean())

    items = np.ones((8, 3), np.float32)
    assert find_broken_inputs(own, lambda batch: batch, items, same_engine=False) == []
    assert find_broken_inputs(own, lambda batch: batch, items, same_engine=True) == ["NaN"]
    assert find_broken_inputs(own, spoiled, items, same_engine=False) == ["an item beside one of NaN"]


def test_what_a_model_refuses_is_not_held_against_it() -> None:
    """A file that says it takes one or eight; the others are left out, and one alone cannot be compared."""

    def of_sizes(*sizes: int) -> Callable[[np.ndarray], np.ndarray]:
        def model(batch: np.ndarray) -> np.ndarray:
            if len(batch) not in sizes:
                raise ValueError("another size")
            return batch - batch.mean()

        return model

    items = probes(np.random.default_rng(0).standard_normal((3, 5)), 8)
    assert len(items) == 8
    apart = compare_batches(of_sizes(1, 8), items, [1, 2, 8], None)
    assert apart is not None
    assert (apart.size, apart.off > 0.1, apart.changed) == (8, True, None)
    assert compare_batches(of_sizes(1), items, [1, 2, 8], None) is None


def test_the_module_of_the_pipeline_says_what_answers_mean(
    tmp_path: Path, golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of two axes are taken for scores of classes, unless the module says that they are embeddings."""
    a = save(tmp_path / "a.onnx")
    shorter = save(tmp_path / "b.onnx", helper.make_node("Mul", ["s", "by"], ["y"]), by=np.float32(0.9))
    (tmp_path / "declaring_jobs.py").write_text(DECLARING)
    np.savez(tmp_path / "golden.npz", inputs=golden.inputs)
    monkeypatch.chdir(tmp_path)
    said = {}
    for options in ((), ("--pipeline", "declaring_jobs.py:pipeline")):
        with measuring.using(timing=Timing(0.0005)):
            main(["validate", a, shorter, "--golden", "golden.npz", "--json", *options])
        parity = next(gate for gate in json.loads(capsys.readouterr().out)["gates"] if gate["name"] == "parity")
        said[bool(options)] = parity["says"]
    assert "compared as classes" in said[False]
    assert "compared as embeddings" in said[True]
