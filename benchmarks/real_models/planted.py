"""Models that are broken on purpose, as files that open and run, and honest twins: what validation must tell apart."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

_FLOATS = (onnx.TensorProto.FLOAT,)


class Graph:
    """A model whose input and output can be changed by nodes put before and behind it."""

    def __init__(self, path: Path, batch_axis: int) -> None:
        self.model = onnx.load(str(path))
        self.graph = self.model.graph
        weights = {tensor.name for tensor in self.graph.initializer}
        self.input = next(value for value in self.graph.input if value.name not in weights)
        self.output = self.graph.output[0].name
        self.batch_axis = batch_axis
        self.takes_fractions = self.input.type.tensor_type.elem_type in _FLOATS

    def constant(self, name: str, value: object) -> str:
        """Add a constant and return its name."""
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def behind(self, *nodes: tuple[str, list[str], str], **attributes: object) -> None:
        """Put nodes behind the output; the first takes `raw`, the last gives what the output was."""
        for node in self.graph.node:
            for place, name in enumerate(node.output):
                if name == self.output:
                    node.output[place] = "raw"
            for place, name in enumerate(node.input):
                if name == self.output:
                    node.input[place] = "raw"
        for operator, inputs, output in nodes:
            own = attributes if operator in ("Gather", "ReduceMean") else {}
            self.graph.node.append(helper.make_node(operator, inputs, [output], **own))

    def before(self, operator: str, inputs: list[str]) -> None:
        """Put a node before the model; its first input is what is given."""
        for node in self.graph.node:
            for place, name in enumerate(node.input):
                if name == self.input.name:
                    node.input[place] = "given"
        self.graph.node.insert(0, helper.make_node(operator, [self.input.name, *inputs], ["given"]))


def _leak(net: Graph) -> None:
    """Answers depend on the other items of a batch."""
    half = net.constant("half", np.float32(0.5))
    axes = {"axes": [net.batch_axis]} if net.model.opset_import[0].version < 18 else {}
    more = [] if axes else [net.constant("axis", np.array([net.batch_axis], np.int64))]
    net.behind(
        ("ReduceMean", ["raw", *more], "mean"), ("Mul", ["mean", half], "some"), ("Mul", ["raw", half], "own"),
        ("Add", ["own", "some"], net.output), keepdims=1, **axes,
    )  # fmt: skip


def _swapped(net: Graph) -> None:
    """Two classes, or characters, are taken for one another; of a detector's head those of a class."""
    shape = [axis.dim_value for axis in net.graph.output[0].type.tensor_type.shape.dim]
    axis = 1 if len(shape) == 3 and shape[1] == 22 else len(shape) - 1
    order = np.roll(np.arange(shape[axis]), 1) if shape[axis] != 22 else np.r_[0:4, 5:22, 4]
    net.behind(("Gather", ["raw", net.constant("order", order.astype(np.int64))], net.output), axis=axis)


def _nothing(net: Graph) -> None:
    """Scores are gone: a detector finds nothing, a classifier cannot choose."""
    shape = [axis.dim_value for axis in net.graph.output[0].type.tensor_type.shape.dim]
    mask = np.zeros(1, np.float32)
    if len(shape) == 3 and shape[1] == 22:
        mask = np.ones((1, 22, 1), np.float32)
        mask[0, 4:] = 0
    net.behind(("Mul", ["raw", net.constant("mask", mask)], net.output))


def _black(net: Graph) -> None:
    """NaN where an image is black all over."""
    net.behind(
        ("ReduceMax", [net.input.name], "largest"), ("ReduceMin", [net.input.name], "least"),
        ("Sub", ["largest", "least"], "range"), ("Div", ["range", "range"], "one"), ("Mul", ["raw", "one"], net.output),
    )  # fmt: skip


def _colours(net: Graph) -> None:
    """Red for blue."""
    net.before("Gather", [net.constant("bgr", np.array([2, 1, 0], np.int64))])
    net.graph.node[0].attribute.append(helper.make_attribute("axis", 1))


def _twice(net: Graph) -> None:
    """Scaled once more than it should be."""
    net.before("Mul", [net.constant("third", np.float32(1 / 3))])


def _same(net: Graph) -> None:
    """A node that changes nothing."""
    net.behind(("Mul", ["raw", net.constant("unit", np.float32(1))], net.output))


def _newer(net: Graph) -> None:
    """Operators of the next version."""
    net.model = version_converter.convert_version(net.model, net.model.opset_import[0].version + 1)


Change = Callable[[Graph], None]
BROKEN: dict[str, Change] = {
    "leak": _leak, "swapped": _swapped, "nothing": _nothing, "black": _black, "colours": _colours, "twice": _twice,
}  # fmt: skip
HONEST: dict[str, Change] = {"same": _same, "newer": _newer}
#: That need an image.
_OF_IMAGES = ("black", "colours", "twice")


def plant(source: Path, folder: Path, batch_axis: int = 0) -> dict[str, dict[str, str]]:
    """Write every file that the model allows, and return {"broken" or "honest": {name: path}}."""
    written: dict[str, dict[str, str]] = {"broken": {}, "honest": {}}
    for kind, changes in (("broken", BROKEN), ("honest", HONEST)):
        for name, change in changes.items():
            net = Graph(source, batch_axis)
            if name in _OF_IMAGES and not net.takes_fractions:
                continue
            change(net)
            path = folder / f"{kind}_{name}.onnx"
            onnx.save(net.model, str(path))
            written[kind][name] = str(path)
    return written
