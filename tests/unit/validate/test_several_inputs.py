"""Models of several inputs: sets, gates, int8 and refusals; small networks as detectors and speech models are exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.errors import EngineError, SettingsError
from headrace.cli import main
from headrace.optimize.int8 import quantize
from headrace.validate.disjoint import check_disjoint
from headrace.validate.edge_inputs import find_broken_inputs
from headrace.validate.golden import Golden, read_golden
from headrace.validate.items import NamedItems, batch_of
from headrace.validate.memory import measure_memory
from headrace.validate.policy import Policy
from headrace.validate.robustness import judge_robustness
from headrace.validate.variant_spec import parse_variant
from headrace.validate.variants import validate_variants

FLOAT = TensorProto.FLOAT
Inputs = dict[str, list[Any]]
UNTIMED = ("static", "census", "parity", "batches", "extremes", "accuracy")


def saved(path: Path, inputs: Inputs, nodes: list[Any], constants: dict[str, Any], outputs: Inputs) -> Path:
    """Write a network of float32 inputs; of a scalar's type int64."""
    kinds = {name: FLOAT if shape else TensorProto.INT64 for name, shape in inputs.items()}
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def scaled_net(path: Path, names: tuple[str, str] = ("image", "scale_factor"), *, is_scale_read: bool = True) -> Path:
    """Write a network of an image and its scale whose five scores depend on both."""
    random = np.random.default_rng(0)
    image, scale = names
    nodes = [
        helper.make_node("Conv", [image, "kernel"], ["a"], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("Gemm", ["d", "w"], ["e"]),
        helper.make_node("Gemm", [scale, "v"], ["f"]),
        helper.make_node("Mul", ["f", "read"], ["g"]),
        helper.make_node("Add", ["e", "g"], ["y"]),
    ]
    constants = {
        "kernel": random.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "w": 3 * random.standard_normal((8, 5)).astype(np.float32),
        "v": 30 * random.standard_normal((2, 5)).astype(np.float32),
        "read": np.float32(is_scale_read),
    }
    inputs = {image: ["batch", 3, 16, 16], scale: ["batch", 2]}
    return saved(path, inputs, nodes, constants, {"y": ["batch", 5]})


def arrays(num_items: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Return images with a clear colour and scales."""
    random = np.random.default_rng(seed)
    image = random.random((num_items, 3, 16, 16)) + random.random((num_items, 3, 1, 1)) * 2
    return {
        "image": image.astype(np.float32),
        "scale_factor": random.uniform(0.5, 2, (num_items, 2)).astype(np.float32),
    }


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """Return the network of an image and its scale."""
    return scaled_net(tmp_path / "net.onnx")


@pytest.fixture
def golden_file(tmp_path: Path, net: Path) -> Path:
    """Return a golden set with the network's own answers as labels."""
    given = arrays(300)
    labels = parse_variant(str(net)).open()(given).argmax(axis=1)
    np.savez(tmp_path / "golden.npz", **given, labels=labels, slice_light=np.where(labels % 2, "dark", "bright"))
    return tmp_path / "golden.npz"


def read(file: Path, net: Path) -> Golden:
    """Return the set of a file for a network."""
    return read_golden(file, lambda: parse_variant(str(net)).open().inputs)


def outcomes(document: Any) -> dict[str, str]:
    """Return what each gate said."""
    return {gate.name: gate.outcome for gate in document.gates}


def test_a_file_has_an_array_for_each_input_by_its_name(golden_file: Path, net: Path) -> None:
    """Beside labels and parts as for any model; the fingerprint depends on every input."""
    golden = read(golden_file, net)
    assert isinstance(golden.inputs, NamedItems)
    assert (len(golden), set(golden.slices)) == (300, {"light"})
    feed = batch_of(golden.inputs, 302)
    assert {name: array.shape for name, array in feed.items()} == {
        "image": (302, 3, 16, 16),
        "scale_factor": (302, 2),
    }  # type: ignore[union-attr]
    with np.load(golden_file) as found:
        changed = {name: found[name] for name in found}
    changed["scale_factor"] = changed["scale_factor"] + 1
    np.savez(golden_file, **changed)
    assert read(golden_file, net).sha256 != golden.sha256


def test_inputs_that_are_missing_or_of_other_lengths_are_refused(tmp_path: Path, net: Path) -> None:
    """With the names that there are and those that are expected; so is one array for several inputs."""
    given = arrays(4)
    np.savez(tmp_path / "a.npz", image=given["image"])
    with pytest.raises(SettingsError, match=r"takes image, scale_factor: scale_factor is missing"):
        read(tmp_path / "a.npz", net)
    np.savez(tmp_path / "b.npz", image=given["image"], scale_factor=given["scale_factor"][:3])
    with pytest.raises(SettingsError, match=r"image \[4, 3, 16, 16\], scale_factor \[3, 2\]; expected the same number"):
        read(tmp_path / "b.npz", net)
    np.savez(tmp_path / "c.npz", inputs=given["image"])
    spec = parse_variant(str(net))
    with pytest.raises(SettingsError, match=r"takes 2 inputs \(image, scale_factor\): give an .npz"):
        validate_variants(spec, spec, read(tmp_path / "c.npz", net), Policy())


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_int8_of_several_inputs_is_made_and_judged(golden_file: Path, net: Path, tmp_path: Path, engine: str) -> None:
    """Ranges come from all inputs, and every gate asks with all of them."""
    golden = read(golden_file, net)
    facts = quantize(net, NamedItems(arrays(64, seed=7)), tmp_path / "int8.onnx")
    assert facts["calibration_items"] == 64
    b = parse_variant(f"{tmp_path / 'int8.onnx'}@{engine}")
    policy = Policy(batch=4, max_drop=0.1, max_slice_drop=0.2)
    found = outcomes(
        validate_variants(parse_variant(str(net)), b, golden, policy, gates=("static", "parity", "accuracy"))
    )
    assert found == {"static": "passed", "parity": "passed", "accuracy": "passed"}
    with pytest.raises(EngineError, match=r"takes 2 inputs \(image, scale_factor\), and the items have image"):
        quantize(net, NamedItems({"image": arrays(64)["image"]}), tmp_path / "other.onnx")


def test_a_model_that_forgets_an_input_is_rejected(net: Path, tmp_path: Path) -> None:
    """Its answers are those of other scales."""
    b = parse_variant(str(scaled_net(tmp_path / "b.onnx", is_scale_read=False)))
    golden = Golden(name="set", inputs=NamedItems(arrays(200)), labels=None, sha256="")
    document = validate_variants(parse_variant(str(net)), b, golden, Policy(batch=4), gates=UNTIMED)
    assert (document.verdict, document.gates[-1].name) == ("reject", "parity")


def test_inputs_of_other_names_are_another_model(net: Path, tmp_path: Path) -> None:
    """Two inputs of one shape could be exchanged by their order."""
    b = parse_variant(str(scaled_net(tmp_path / "b.onnx", ("image", "im_shape"))))
    document = validate_variants(parse_variant(str(net)), b, None, Policy())
    assert document.verdict == "reject"
    assert "told apart by their names" in document.says


def test_without_a_set_noise_is_made_up_for_all_inputs(net: Path) -> None:
    """And the gates that noise can pass are passed."""
    b = parse_variant(f"{net}@openvino")
    found = outcomes(validate_variants(parse_variant(str(net)), b, None, Policy(batch=2), gates=UNTIMED))
    assert {name for name, outcome in found.items() if outcome == "passed"} == {
        "static",
        "parity",
        "batches",
        "extremes",
    }


def test_a_state_on_its_own_axis_and_a_scalar_are_handed_over_as_the_model_takes_them(tmp_path: Path) -> None:
    """As speech models have them: (layers, items, numbers), and a sampling rate for all items."""
    nodes = [
        helper.make_node("ReduceMean", ["state"], ["own"], axes=[0], keepdims=0),
        helper.make_node("Cast", ["sr"], ["rate"], to=FLOAT),
        helper.make_node("Div", ["own", "rate"], ["part"]),
        helper.make_node("Add", ["x", "part"], ["y"]),
    ]
    shapes: Inputs = {"x": ["batch", 4], "state": [2, "batch", 4], "sr": []}
    net = saved(tmp_path / "vad.onnx", shapes, nodes, {}, {"y": ["batch", 4]})
    random = np.random.default_rng(0)
    given = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in (("x", (9, 4)), ("state", (9, 2, 4)))
    }
    np.savez(tmp_path / "golden.npz", **given, sr=np.int64(2))
    golden = read(tmp_path / "golden.npz", net)
    answer = parse_variant(str(net)).open()(batch_of(golden.inputs, 9))
    assert np.allclose(answer, given["x"] + given["state"].mean(axis=1) / 2)
    b = parse_variant(f"{net}@openvino")
    for items in (golden, None):
        found = outcomes(
            validate_variants(parse_variant(str(net)), b, items, Policy(batch=3), gates=("static", "parity"))
        )
        assert found == {"static": "passed", "parity": "passed"}


def test_extremes_are_made_of_the_input_with_the_most_numbers() -> None:
    """The image becomes black; its scale stays what it is."""
    seen: list[tuple[bool, bool]] = []

    def a(feed: Any) -> np.ndarray:
        seen.append((bool((feed["image"][0] == 0).all()), bool((feed["scale_factor"] == 0).any())))
        return np.ones((len(feed["image"]), 2), np.float32)

    assert not find_broken_inputs(a, a, NamedItems(arrays(4)), same_engine=True)
    assert (True, False) in seen
    assert (True, True) not in seen


def test_two_sets_are_apart_where_an_input_differs() -> None:
    """Items are the same where all their inputs are."""
    one = Golden(name="one", inputs=NamedItems(arrays(5)), labels=None, sha256="")
    with pytest.raises(SettingsError, match="5 items of --data one"):
        check_disjoint({"--data": one, "--golden": one})
    given = arrays(5)
    given["scale_factor"] = given["scale_factor"] + 1
    check_disjoint({"--data": one, "--golden": Golden(name="b", inputs=NamedItems(given), labels=None, sha256="")})


def test_robustness_spoils_the_picture_among_the_inputs(golden_file: Path, net: Path, tmp_path: Path) -> None:
    """A candidate that differs where the picture is spoiled is found by it."""
    golden = read(golden_file, net)
    model: Callable[[Any], Any] = parse_variant(str(net)).open()

    def blind_in_the_dark(feed: Any) -> Any:
        scores = model(feed)
        return np.where(feed["image"].max(axis=(1, 2, 3), keepdims=True)[:, 0, 0] < 1.5, scores[:, ::-1], scores)

    assert judge_robustness((model, model), golden, Policy(batch=16), items=300).outcome == "passed"
    found = judge_robustness((model, blind_in_the_dark), golden, Policy(batch=16), items=300)
    assert found.outcome == "rejected"
    assert "dark" in found.says.partition(":")[0]


def test_memory_of_several_inputs_is_measured(net: Path) -> None:
    """In a process of its own, which is handed all of them."""
    found = measure_memory(parse_variant(str(net)), arrays(2))
    assert found is not None
    assert found > 0


@pytest.mark.full
def test_the_commands_take_models_of_several_inputs(
    golden_file: Path, net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`validate`, `optimize --explain` and `--portability` from one file."""
    given = arrays(64, seed=9)
    np.savez(tmp_path / "data.npz", **given)
    sets = ["--golden", str(golden_file), "--data", str(tmp_path / "data.npz")]
    assert main(["validate", str(net), f"{net}@onnx,threads=2", *sets, "--max-drop", "2pt"]) == 0
    assert "ACCEPT" in capsys.readouterr().out
    assert main(["optimize", str(net), "--explain", "--data", str(tmp_path / "data.npz")]) == 0
    assert main(["optimize", str(net), "--portability", "--golden", str(golden_file), "--json"]) == 0
    assert '"fails"' not in capsys.readouterr().out
