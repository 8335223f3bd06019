"""What would fail on which engine, told from the file and by trying."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from headrace.base.errors import EngineError
from headrace.cli import main
from headrace.optimize.int8 import quantize
from headrace.optimize.portability import find_portability
from headrace.runs.formats.portability import Place, PortabilityDocument

ALL_FLAGS = frozenset({"amx_bf16", "amx_int8", "amx_fp16"})


def edited(case: Any, path: Path, change: Callable[[Any], object]) -> Path:
    """Write a changed copy of the network."""
    model = onnx.load(str(case.model))
    change(model)
    onnx.save(model, str(path))
    return path


def place(document: PortabilityDocument, name: str, **options: str) -> Place:
    """Return one of the places."""
    return next(one for one in document.places if (one.engine, one.options) == (name, options))


def test_an_ordinary_file_runs_and_what_is_missing_is_told(case: Any) -> None:
    """On both engines; TensorRT is not here, with the reason, and nothing in the file speaks against it."""
    document = find_portability(case.model, ALL_FLAGS)
    assert place(document, "onnx").outcome == "runs"
    assert place(document, "openvino", precision="bf16").outcome == "runs"
    tensorrt = place(document, "onnx", provider="tensorrt")
    assert tensorrt.outcome == "not here"
    assert "has no TensorrtExecutionProvider" in tensorrt.findings[0]


@pytest.mark.full
def test_pytorch_needs_a_recipe(case: Any) -> None:
    """One row, for it opens no ONNX file wherever it runs; what to name instead is told, once."""
    document = find_portability(case.model, ALL_FLAGS)
    (found,) = (one for one in document.places if one.engine == "torch")
    assert found.outcome == "needs a recipe"
    (finding,) = found.findings
    assert "not ONNX files; name a recipe as MODULE:ATTRIBUTE" in finding


@pytest.mark.full
def test_precisions_that_the_processor_does_not_have_are_poor(case: Any) -> None:
    """Without flags; float32 needs none."""
    document = find_portability(case.model, frozenset())
    assert place(document, "openvino", precision="f32").outcome == "runs"
    for precision, word in (("bf16", "bfloat16"), ("f16", "half precision")):
        poor = place(document, "openvino", precision=precision)
        assert (poor.outcome, word in poor.findings[0]) == ("poorly", True)


@pytest.mark.full
def test_a_fixed_batch_is_found_by_trying(case: Any, tmp_path: Path) -> None:
    """With the size that it takes, and how to get rid of it."""

    def fix(model: Any) -> None:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].Clear()
            value.type.tensor_type.shape.dim[0].dim_value = 1

    document = find_portability(edited(case, tmp_path / "fixed.onnx", fix), ALL_FLAGS)
    for one in (place(document, "onnx"), place(document, "openvino", precision="f32")):
        assert one.outcome == "fails"
        assert "batches of 1 alone" in one.findings[0]


@pytest.mark.full
def test_operators_of_one_engine_fail_elsewhere(case: Any, tmp_path: Path) -> None:
    """A contributed operator runs on ONNX Runtime's CPU; TensorRT will refuse it, which the file alone shows."""

    def own(model: Any) -> None:
        output = model.graph.output[0].name
        maker = next(node for node in model.graph.node if output in node.output)
        maker.output[list(maker.output).index(output)] = "before"
        model.graph.node.append(helper.make_node("QuickGelu", ["before"], [output], domain="com.microsoft"))
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    document = find_portability(edited(case, tmp_path / "own.onnx", own), ALL_FLAGS)
    assert place(document, "onnx").outcome == "runs"
    tensorrt = place(document, "onnx", provider="tensorrt")
    assert tensorrt.outcome == "fails"
    assert "QuickGelu of com.microsoft is not among the standard operators" in tensorrt.findings[0]


@pytest.mark.full
@pytest.mark.parametrize(("signed", "here", "there"), [(False, "runs", "fails"), (True, "poorly", "not here")])
def test_int8_is_for_one_target_or_the_other(case: Any, tmp_path: Path, signed: bool, here: str, there: str) -> None:
    """Unsigned activations are for the CPU, signed ones around 0 for TensorRT."""
    path = tmp_path / "int8.onnx"
    quantize(case.model, np.asarray(case.calibration.inputs), path, signed=signed)
    if signed:  # TensorRT takes them around 0

        def centre(model: Any) -> None:
            for tensor in model.graph.initializer:
                if tensor.data_type == onnx.TensorProto.INT8 and tensor.name.endswith("zero_point"):
                    zeros = np.zeros(tuple(tensor.dims), np.int8)
                    tensor.CopyFrom(onnx.numpy_helper.from_array(zeros, tensor.name))

        model = onnx.load(str(path))
        centre(model)
        onnx.save(model, str(path))
    document = find_portability(path, ALL_FLAGS)
    assert document.precision == "int8"
    assert place(document, "onnx").outcome == here
    assert place(document, "onnx", provider="tensorrt").outcome == there


def free(path: Path, *, inputs: list[Any], nodes: list[Any], outputs: list[Any], **constants: Any) -> Path:
    """Write a network of these inputs and outputs, (name, type, shape) each."""
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


FLOAT, INT32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32


@pytest.mark.full
def test_free_axes_whole_numbers_and_states_are_called(tmp_path: Path) -> None:
    """An image of any size, an index into a table, a state without items: all of them run on both engines."""
    pooled = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[32, 32]),
        helper.make_node("GlobalMaxPool", ["p"], ["y"]),
    ]
    looked_up = [helper.make_node("Gather", ["table", "x"], ["y"])]
    stepped = [helper.make_node("Add", ["x", "bias"], ["y"]), helper.make_node("Identity", ["state"], ["next"])]
    table = np.ones((5, 2), np.float32)
    files = [
        free(
            tmp_path / "image.onnx", inputs=[("x", FLOAT, ["n", 3, "h", "w"])], nodes=pooled,
            outputs=[("y", FLOAT, ["n", 3, 1, 1])],
        ),
        free(
            tmp_path / "index.onnx", inputs=[("x", INT32, ["n", 7])], nodes=looked_up, outputs=[("y", FLOAT, ["n", 7, 2])],
            table=table,
        ),
        free(
            tmp_path / "state.onnx", inputs=[("x", FLOAT, ["n", 4]), ("state", FLOAT, [2, 3])], nodes=stepped,
            outputs=[("y", FLOAT, ["n", 4]), ("next", FLOAT, [2, 3])], bias=np.float32(1),
        ),
    ]  # fmt: skip
    for file in files:
        document = find_portability(file, ALL_FLAGS)
        assert place(document, "onnx").outcome == "runs"
        assert place(document, "openvino", precision="f32").outcome == "runs"


@pytest.mark.full
def test_a_batch_that_is_not_the_first_axis_of_the_answer_is_known_by_its_name(tmp_path: Path) -> None:
    """Recognisers of text answer (time, items, characters)."""
    nodes = [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0, 2])]
    file = free(
        tmp_path / "time.onnx", inputs=[("x", FLOAT, ["n", 5, 4])], nodes=nodes, outputs=[("y", FLOAT, [5, "n", 4])]
    )
    assert place(find_portability(file, ALL_FLAGS), "onnx").outcome == "runs"


@pytest.mark.full
def test_what_was_not_called_is_not_said_to_run(tmp_path: Path) -> None:
    """Where nothing can be made up it opens, and says what to give; with that it is called."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    file = free(
        tmp_path / "odd.onnx", inputs=[("x", FLOAT, ["n", "k"])], nodes=nodes, outputs=[("y", FLOAT, ["n", 7, 11])],
        shape=np.int64([-1, 7, 11]),
    )  # fmt: skip
    found = place(find_portability(file, ALL_FLAGS), "onnx")
    assert found.outcome == "opens"
    assert "it was not called" in found.findings[0]
    assert "give --golden" in found.findings[0]
    items = np.zeros((2, 77), np.float32)
    assert place(find_portability(file, ALL_FLAGS, items=items), "onnx").outcome == "runs"


@pytest.mark.full
def test_several_inputs_are_given_by_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In an .npz file with an array for each, of one call."""
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["both"], axis=1),
        helper.make_node("Reshape", ["both", "shape"], ["y"]),
    ]
    file = free(
        tmp_path / "two.onnx", inputs=[("a", FLOAT, ["n", "j"]), ("b", FLOAT, ["n", "k"])], nodes=nodes,
        outputs=[("y", FLOAT, ["n", 7, 11])], shape=np.int64([-1, 7, 11]),
    )  # fmt: skip
    feed = tmp_path / "feed.npz"
    np.savez(feed, a=np.zeros((2, 70), np.float32), b=np.zeros((2, 7), np.float32))
    assert main(["optimize", str(file), "--portability", "--golden", str(feed), "--json"]) == 0
    places = json.loads(capsys.readouterr().out)["places"]
    assert places[0]["outcome"] == "runs"
    np.savez(feed, a=np.zeros((2, 70), np.float32))
    assert main(["optimize", str(file), "--portability", "--golden", str(feed)]) == 2
    assert (
        "b is missing; give an array (items, ...) for each of the model's inputs, by its name"
        in capsys.readouterr().err
    )


@pytest.mark.full
def test_the_command_prints_it(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON."""
    assert main(["optimize", str(case.model), "--portability"]) == 0
    assert "provider=tensorrt" in capsys.readouterr().out
    assert main(["optimize", str(case.model), "--portability", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "headrace.portability/1"


RECIPE = """
import numpy as np

class Recipe:
    example = np.zeros((1, 3, 8, 8), np.float32)
    def build(self):
        import torch
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).eval()

recipe, no_recipe = Recipe(), 5
"""


@pytest.mark.full
@pytest.mark.parametrize("look", [["--portability"], ["--explain"]])
def test_a_recipe_is_converted_first(look: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its file is looked at, and kept beside the ledger, where it is told to be."""
    pytest.importorskip("torch")
    own = tmp_path / f"own{look[0].replace('-', '_')}.py"
    own.write_text(RECIPE)
    ledger = ["--ledger", str(tmp_path / "ledger.sqlite"), "--json"]
    assert main(["optimize", f"{own}:recipe", *look, *ledger]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["schema"] in ("headrace.portability/1", "headrace.census/1")
    assert [one["outcome"] for one in found.get("places", []) if one["engine"] == "torch"] in ([], ["runs"])
    (file,) = (tmp_path / "artifacts").rglob("recipe.onnx")
    assert f"converted: {file}" in told.err


def test_what_is_no_recipe_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what was found under the name, and what was expected."""
    (tmp_path / "no_recipe.py").write_text(RECIPE)
    ledger = ["--ledger", str(tmp_path / "ledger.sqlite")]
    assert main(["optimize", f"{tmp_path / 'no_recipe.py'}:no_recipe", "--portability", *ledger]) == 2
    told = capsys.readouterr().err
    assert "is a int; expected an object with" in told


def test_what_is_no_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file is misuse, a file of something else an error."""
    assert main(["optimize", str(tmp_path / "no.onnx"), "--portability"]) == 2
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "text.onnx").write_text("text")
    with pytest.raises(EngineError):
        find_portability(tmp_path / "text.onnx", ALL_FLAGS)
