"""Writes `grid.onnx`: the network that names a photograph, asked about each part of an image instead of the whole."""

import onnx
from onnx import helper, numpy_helper

from headrace.samples.catalogue import SCENES_MODEL_PATH

network = onnx.load(SCENES_MODEL_PATH)
graph = network.graph
weights = next(one for one in graph.initializer if one.name == "fc.weight")
weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights)[:, :, None, None].copy(), "fc.weight"))
del graph.node[-3:]  # the mean over the image, and the classifier behind it
graph.node.append(
    helper.make_node("AveragePool", ["relu14"], ["around"], kernel_shape=[5, 5], pads=[2] * 4, count_include_pad=0)
)
graph.node.append(helper.make_node("Conv", ["around", "fc.weight", "fc.bias"], ["logits"]))
for value, sides in ((graph.input[0], (544, 544)), (graph.output[0], (34, 34))):
    dims = value.type.tensor_type.shape.dim
    names = [dims[0].dim_param or "batch", dims[1].dim_value or 11]
    value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, [*names, *sides]))
del graph.value_info[:]
onnx.checker.check_model(network)
onnx.save(network, "grid.onnx")
