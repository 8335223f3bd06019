import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from headrace.base.errors import EngineError, MissingExtra
from headrace.profiler.layers.graph_count import count_graph


def test_a_small_network_by_hand(tmp_path: Path, models: ModuleType) -> None:
    """The count is the one by hand, at each batch size of a dynamic model."""
    path = models.small_network(tmp_path / "m.onnx")
    for batch in (1, 7):
        counted = count_graph(path, {"image": (batch, 3, 32, 32)})
        assert counted.flops == models.small_network_flops(batch, relu=True)
        assert not counted.uncounted
    assert counted.attributes["pool"] == {"kernel_shape": [2, 2]}


@pytest.mark.parametrize(("build", "macs"), [("resnet50", 4.09e9), ("mobilenet_v2", 0.300e9)])
def test_known_networks_agree_with_the_literature(tmp_path: Path, models: ModuleType, build: str, macs: float) -> None:
    """Published multiply-adds leave out elementwise operations: within 4 %, and linear in the batch."""
    path = getattr(models, build)(tmp_path / "m.onnx")
    one, eight = (count_graph(path, {"image": (batch, 3, 224, 224)}).flops for batch in (1, 8))
    assert one == pytest.approx(2 * macs, rel=0.04)
    assert eight == 8 * one


def test_what_constants_give_is_not_counted(tmp_path: Path, models: ModuleType) -> None:
    """A product of two weights is computed once, when the model is opened."""
    nodes = [
        models.node("MatMul", ["a", "b"], ["ab"]),
        models.node("MatMul", ["x", "ab"], ["y"]),
    ]
    weights = {"a": np.ones((100, 100), np.float32), "b": np.ones((100, 5), np.float32)}
    path = models.save(tmp_path / "m.onnx", nodes, {"x": ("n", 100)}, ["y"], weights)
    assert count_graph(path, {"x": (3, 100)}).flops == 2 * 3 * 100 * 5


def test_large_weights_keep_their_meaning(tmp_path: Path, models: ModuleType) -> None:
    """A weight too large to be a shape still gives its own to the product; a small one still reshapes."""
    nodes = [
        models.node("Reshape", ["x", "shape"], ["flat"]),
        models.node("MatMul", ["flat", "w"], ["y"]),
    ]
    weights = {"shape": np.array([-1, 400], np.int64), "w": np.ones((400, 30), np.float32)}
    path = models.save(tmp_path / "m.onnx", nodes, {"x": ("n", 20, 20)}, ["y"], weights)
    assert count_graph(path, {"x": (6, 20, 20)}).flops == 2 * 6 * 400 * 30


def test_unknown_operators_are_named(tmp_path: Path, models: ModuleType) -> None:
    """They are counted apart and not as nothing."""
    nodes = [models.node("Det", ["x"], ["y"]), models.node("Relu", ["x"], ["z"])]
    path = models.save(tmp_path / "m.onnx", nodes, {"x": (4, 3, 3)}, ["y", "z"], {})
    counted = count_graph(path, {"x": (4, 3, 3)})
    assert (counted.flops, counted.uncounted) == (36, {"Det": 1})


def test_a_file_that_is_no_model_says_so(tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    with pytest.raises(EngineError, match=r"m\.onnx"):
        count_graph(tmp_path / "m.onnx", {})


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is an error that says how to install it."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"headrace\[onnx\]"):
        count_graph(tmp_path / "m.onnx", {})
