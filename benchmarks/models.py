"""A MobileNetV2-shaped ONNX model with seeded random weights, built without PyTorch.

Speed depends on the shapes, not on what was learned, as long as activations stay ordinary numbers: exploding ones meet
the clip at 6 everywhere and vanishing ones become denormals, which some processors compute slowly. So each convolution
is followed by a batch normalisation measured on synthetic images while the graph is built, layer after layer, and folded
into weights and bias, as an exporter would do. The classifier is centred the same way; without that a random network
gives every photograph the same label, and comparing the peers' labels would prove nothing.

Input ``image``: float32 (n, 3, 224, 224). Output ``logits``: float32 (n, 1000). 3.5 million parameters.

Run ``python -m benchmarks.models`` to build it and time it.

References:
    Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018, table 2.
"""

import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.paths import CACHE, digest, kept

# expansion, output channels, repeats, stride of the first
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
SIDE = 224
NUM_CLASSES = 1000
OPSET = 18
NUM_CALIBRATION_IMAGES = 8
RECIPE_VERSION = 1  # part of the cache key: raise it when the same seed would give another model


def build(seed: int = 0) -> Path:
    """Return the model's file, built at most once per seed and recipe."""
    path = CACHE / f"mobilenetv2-{digest([RECIPE_VERSION, seed, BLOCKS, OPSET])}.onnx"
    return kept(path, lambda partial: onnx.save(_mobilenet_v2(seed), str(partial)))


class _Graph:
    """Collects nodes and weights, and carries the calibration images' activations along as it grows."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.values = {"image": _synthetic_images(self.rng)}

    def convolution(self, name: str, source: str, channels: int, size: int, stride: int = 1, groups: int = 1) -> str:
        """Add a convolution whose output has mean 0 and variance 1 in each channel of the calibration images."""
        fan_in = self.values[source].shape[1] // groups
        weight = self.rng.standard_normal((channels, fan_in, size, size), np.float32) / np.sqrt(fan_in * size * size)
        raw = self._compute(self._convolution_node(name, source, size, stride, groups), weight, np.zeros(channels))
        scale = 1 / np.maximum(raw.std(axis=(0, 2, 3)), 1e-3)
        bias = -raw.mean(axis=(0, 2, 3)) * scale
        return self._add(
            self._convolution_node(name, source, size, stride, groups), weight * scale[:, None, None, None], bias
        )

    def clip(self, source: str) -> str:
        """Add a ReLU6."""
        return self._add(helper.make_node("Clip", [source, "zero", "six"], [f"{source}_relu6"]))

    def add(self, left: str, right: str) -> str:
        """Add a residual connection."""
        return self._add(helper.make_node("Add", [left, right], [f"{right}_sum"]))

    def classifier(self, source: str) -> None:
        """Add pooling and a linear layer with logits of mean 0 and variance 1 over the calibration images."""
        pooled = self._add(helper.make_node("GlobalAveragePool", [source], ["pooled"]))
        flat = self._add(helper.make_node("Flatten", [pooled], ["features"]))
        features = self.values[flat]
        weight = self.rng.standard_normal((NUM_CLASSES, features.shape[1]), np.float32)
        weight /= np.maximum((features @ weight.T).std(axis=0), 1e-3)[:, None]
        bias = -(features @ weight.T).mean(axis=0)
        self._add(
            helper.make_node("Gemm", [flat, "classifier_weight", "classifier_bias"], ["logits"], transB=1), weight, bias
        )

    def _convolution_node(self, name: str, source: str, size: int, stride: int, groups: int) -> onnx.NodeProto:
        pad = size // 2
        return helper.make_node(
            "Conv",
            [source, f"{name}_weight", f"{name}_bias"],
            [name],
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[pad] * 4,
            group=groups,
        )

    def _add(self, node: onnx.NodeProto, *weights: np.ndarray) -> str:
        self.nodes.append(node)
        self.weights.extend(_tensors(node, weights))
        self.values[node.output[0]] = self._compute(node, *weights)
        return node.output[0]

    def _compute(self, node: onnx.NodeProto, *weights: np.ndarray) -> np.ndarray:
        """Return one node's output on the calibration images, by running a graph of that node alone."""
        inputs = {name: self.values[name] for name in node.input if name in self.values}
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in inputs.items()],
            [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)],
            [*_constants(), *_tensors(node, weights)],
        )
        return _session(_model(graph).SerializeToString()).run(None, inputs)[0]


def _mobilenet_v2(seed: int) -> onnx.ModelProto:
    graph = _Graph(seed)
    x = graph.clip(graph.convolution("stem", "image", 32, 3, stride=2))
    for stage, (expansion, channels, repeats, first_stride) in enumerate(BLOCKS):
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            x = _inverted_residual(graph, f"block{stage}_{repeat}", x, expansion, channels, stride)
    graph.classifier(graph.clip(graph.convolution("head", x, 1280, 1)))
    return _model(
        helper.make_graph(
            graph.nodes,
            "mobilenetv2",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", NUM_CLASSES])],
            [*_constants(), *graph.weights],
        )
    )


def _inverted_residual(graph: _Graph, name: str, source: str, expansion: int, channels: int, stride: int) -> str:
    width = graph.values[source].shape[1]
    x = source
    if expansion != 1:
        x = graph.clip(graph.convolution(f"{name}_expand", x, width * expansion, 1))
    x = graph.clip(graph.convolution(f"{name}_depthwise", x, width * expansion, 3, stride, groups=width * expansion))
    x = graph.convolution(f"{name}_project", x, channels, 1)
    return graph.add(source, x) if stride == 1 and width == channels else x


def _synthetic_images(rng: np.random.Generator) -> np.ndarray:
    """Return smooth noise at several scales, float32 (images, 3, 224, 224), about the range of normalised photographs."""
    images = np.zeros((NUM_CALIBRATION_IMAGES, 3, SIDE, SIDE), np.float32)
    for cells in (2, 4, 7, 14, 28, 56, 112):
        noise = rng.standard_normal((NUM_CALIBRATION_IMAGES, 3, cells, cells), np.float32)
        images += noise.repeat(SIDE // cells, axis=2).repeat(SIDE // cells, axis=3) / np.sqrt(cells)
    return images


def _constants() -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.float32(value), name) for name, value in (("zero", 0), ("six", 6))]


def _tensors(node: onnx.NodeProto, weights: tuple[np.ndarray, ...]) -> list[onnx.TensorProto]:
    names = node.input[1 : 1 + len(weights)]
    return [numpy_helper.from_array(w.astype(np.float32), n) for n, w in zip(names, weights, strict=True)]


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def _session(model: str | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # a graph of one node leaves one of the two constants unused, and says so
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def main() -> None:
    path = build()
    num_parameters = sum(int(np.prod(w.dims)) for w in onnx.load(str(path)).graph.initializer)
    print(f"{path.name}: {num_parameters / 1e6:.2f} M parameters, {path.stat().st_size / 1e6:.1f} MB")
    session = _session(str(path))
    for batch in (1, 2, 4, 8, 16, 32):
        images = np.random.default_rng(1).standard_normal((batch, 3, SIDE, SIDE), np.float32)
        samples = []
        for _ in range(2 + max(5, 60 // batch)):
            started = time.perf_counter()
            session.run(None, {"image": images})
            samples.append((time.perf_counter() - started) / batch * 1e3)
        print(f"batch {batch:2d}, one thread: {np.median(samples[2:]):.2f} ms per image")


if __name__ == "__main__":
    main()
