"""The network of this story in three files: as it was exported, in narrow numbers, and repaired.

All take images as they were read, uint16 (batch, 3, 224, 224): of 8 bits, or of 16 where a camera has them. The first nodes
bring the brightest value to 1, and then do what the scenes network wants.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, compose, helper, numpy_helper

from headrace.samples.catalogue import SCENES_MODEL_PATH

CONSTANTS = {"one": [1.0], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def write(folder: Path) -> None:
    """Write float64.onnx, eight_bits.onnx and float32.onnx."""
    _write(folder / "float64.onnx", read_as=TensorProto.DOUBLE, computed_in=TensorProto.DOUBLE)
    _write(folder / "eight_bits.onnx", read_as=TensorProto.UINT8, computed_in=TensorProto.FLOAT)
    _write(folder / "float32.onnx", read_as=TensorProto.FLOAT, computed_in=TensorProto.FLOAT)


def _write(output: Path, *, read_as: int, computed_in: int) -> None:
    scenes = onnx.load(SCENES_MODEL_PATH)
    dtype = helper.tensor_dtype_to_np_dtype(computed_in)
    nodes = [
        helper.make_node("Cast", ["images"], ["read"], to=read_as),
        helper.make_node("Cast", ["read"], ["values"], to=computed_in),
        helper.make_node("ReduceMax", ["values"], ["largest"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Max", ["largest", "one"], ["brightest"]),
        helper.make_node("Div", ["values", "brightest"], ["shares"]),
        helper.make_node("Sub", ["shares", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "std"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["normal"], to=TensorProto.FLOAT),
    ]
    constants = [
        numpy_helper.from_array(np.array(value, dtype).reshape(1, -1, 1, 1), name) for name, value in CONSTANTS.items()
    ]
    shape = ["batch", 3, 224, 224]
    read = helper.make_tensor_value_info("images", TensorProto.UINT16, shape)
    normal = helper.make_tensor_value_info("normal", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "first", [read], [normal], constants)
    first = helper.make_model(graph, ir_version=scenes.ir_version, opset_imports=scenes.opset_import)
    joined = compose.merge_models(first, compose.add_prefix(scenes, "scenes/"), io_map=[("normal", "scenes/image")])
    helper.set_model_props(joined, {one.key: one.value for one in scenes.metadata_props})
    onnx.save(joined, output)
