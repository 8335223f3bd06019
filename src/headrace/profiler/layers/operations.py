"""Counts the operations and the least memory traffic of one operator from the shapes of its tensors.

How this works: one table gives each operator's count as a function of its tensors; another names those that only move or
convert data, which is truly zero operations. An operator in neither is unknown (None), which is not the same as zero.

Conventions, so that counts compare with the literature's: a multiply-add counts as two; biases and activations that an
engine has fused into a convolution or product are not counted; an activation that stands alone counts one per element,
whichever function it is; conversions between types (cast, quantize, dequantize) count none. Integer operations count like
floating-point ones. Traffic is inputs, weights and outputs once each, as if everything else stayed in cache: a lower
limit. Views (reshape and its kin) move nothing; a gather or slice moves what it takes and not the whole table.

References:
    Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model, CACM 2009.
    ONNX operator specification, https://onnx.ai/onnx/operators; ONNX Runtime's docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Bits of one element; names as NumPy writes them.
_BITS = {
    "bool": 8, "int4": 4, "uint4": 4, "int8": 8, "uint8": 8, "float8": 8, "int16": 16, "uint16": 16, "float16": 16,
    "bfloat16": 16, "int32": 32, "uint32": 32, "float32": 32, "int64": 64, "uint64": 64, "float64": 64,
    "complex64": 64, "complex128": 128,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """Type and shape of an operator's input or output."""

    dtype: str
    """As NumPy names it, e.g. `float32`."""
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Product of the axis lengths; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> float | None:
        """Bytes of the data; None for types without a fixed size (strings, sequences)."""
        bits = _BITS.get(self.dtype)
        return None if bits is None else self.num_elements * bits / 8


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of an operator takes at least."""

    flops: float | None
    """Operations, a multiply-add counted as two; None where the operator is not in the table."""
    num_bytes: float | None
    """Inputs, weights and outputs once each; None where a size is not known."""

    def __add__(self, other: Work) -> Work:
        """Return the sum; what one of the two does not know, the sum does not know."""
        return Work(_sum([self.flops, other.flops]), _sum([self.num_bytes, other.num_bytes]))


Tensors = Sequence[Tensor]
Attributes = Mapping[str, Any]
_Count = Callable[[Tensors, Tensors, Attributes], float | None]


def count(operator: str, inputs: Tensors, outputs: Tensors, attributes: Attributes | None = None) -> Work:
    """Return operations and traffic of one call.

    Args:
        operator: ONNX's name, or that of ONNX Runtime's fused and quantized operators.
        inputs: Tensors that are there, in the operator's order; optional ones that are absent may be left out.
        outputs: Tensors it gives.
        attributes: The node's, where known; only poolings, resizes and einsums need them.
    """
    return Work(_flops(operator, inputs, outputs, attributes or {}), _bytes(operator, inputs, outputs))


def _flops(operator: str, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> float | None:
    if operator in MOVES:
        return 0.0
    rule = _RULES.get(operator)
    if rule is None or not outputs:
        return None
    try:
        return rule(inputs, outputs, attributes)
    except (IndexError, ZeroDivisionError):  # fewer tensors or axes than the specification says: nothing can be counted
        return None


def _bytes(operator: str, inputs: Tensors, outputs: Tensors) -> float | None:
    if operator in _VIEWS:
        return 0.0
    sizes = [tensor.num_bytes for tensor in outputs]
    if operator in _PARTIAL:
        return _sum([*sizes, *sizes])
    return _sum([*sizes, *(tensor.num_bytes for tensor in inputs)])


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(sum(known)) if len(known) == len(values) else None


def _convolution(weight: int) -> _Count:
    """Return the rule of a convolution whose weights, (out, in / groups, *kernel), are the input of this number.

    Each output element takes one product per weight of its channel, whatever the groups, strides and dilations.
    """
    return lambda inputs, outputs, _: 2.0 * outputs[0].num_elements * math.prod(inputs[weight].shape[1:])


def _transposed_convolution(inputs: Tensors, _outputs: Tensors, _attributes: Attributes) -> float:
    # weights (in, out / groups, *kernel): each input element goes into that many outputs
    return 2.0 * inputs[0].num_elements * math.prod(inputs[1].shape[1:])


def _gemm(inputs: Tensors, outputs: Tensors, _attributes: Attributes) -> float:
    # from the first matrix, transposed or not: ONNX Runtime keeps a packed second one out of its profile
    inner = inputs[0].num_elements / outputs[0].shape[0]
    return 2.0 * outputs[0].num_elements * inner


def _matrix_product(inputs: Tensors, outputs: Tensors, _attributes: Attributes) -> float:
    left, out = inputs[0].shape, outputs[0].shape
    # FusedMatMul may take the left matrix transposed
    transposed = len(left) > 1 and len(out) > 1 and out[-2] != left[-2] and out[-2] == left[-1]
    return 2.0 * outputs[0].num_elements * left[-2 if transposed else -1]


def _einsum(inputs: Tensors, _outputs: Tensors, attributes: Attributes) -> float | None:
    terms = str(attributes.get("equation", "...")).replace(" ", "").split("->")[0].split(",")
    if any("." in term for term in terms) or len(terms) != len(inputs):
        return None
    lengths = {axis: n for term, tensor in zip(terms, inputs, strict=True) for axis, n in zip(term, tensor.shape)}  # noqa: B905 - a malformed equation cannot have run
    return float(math.prod(lengths.values()) * max(1, 2 * (len(terms) - 1)))


def _attention(inputs: Tensors, _outputs: Tensors, _attributes: Attributes) -> float:
    """Count ONNX Runtime's Attention: projection of (batch, sequence, hidden) to Q, K and V, then two products of them."""
    batch, sequence, hidden = inputs[0].shape
    projected = inputs[1].shape[1]
    return 2.0 * batch * sequence * hidden * projected + 4.0 * batch * sequence * sequence * projected / 3


def _multi_head_attention(inputs: Tensors, outputs: Tensors, _attributes: Attributes) -> float | None:
    if len(inputs) < 3 or len(inputs[1].shape) != 3:  # packed forms
        return None
    return 4.0 * outputs[0].num_elements * inputs[1].shape[1]


def _recurrent(inputs: Tensors, _outputs: Tensors, _attributes: Attributes) -> float:
    """Count LSTM, GRU and RNN: at each of (sequence, batch) steps a product with every weight of W and R."""
    steps = inputs[0].shape[0] * inputs[0].shape[1]
    return 2.0 * steps * (inputs[1].num_elements + inputs[2].num_elements)


def _pool(_inputs: Tensors, outputs: Tensors, attributes: Attributes) -> float | None:
    kernel = attributes.get("kernel_shape")
    return None if kernel is None else float(outputs[0].num_elements * math.prod(kernel))


def _resize(_inputs: Tensors, outputs: Tensors, attributes: Attributes) -> float | None:
    """Count interpolations in two dimensions: nearest none, linear 3 blends of 3 operations, cubic 5 of 7."""
    per_element = {"nearest": 0, "linear": 9, "cubic": 35}.get(str(attributes.get("mode", "")))
    return None if per_element is None else float(outputs[0].num_elements * per_element)


def _count_per_output(operations: float) -> _Count:
    return lambda _inputs, outputs, _: operations * outputs[0].num_elements


def _count_per_input(operations: float) -> _Count:
    return lambda inputs, _outputs, _: operations * inputs[0].num_elements


def _combination(inputs: Tensors, outputs: Tensors, _attributes: Attributes) -> float:
    # a sum of n tensors takes n - 1 additions per element
    return float((len(inputs) - 1) * outputs[0].num_elements)


_CONVOLUTIONS = {
    **dict.fromkeys(("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv", "ConvInteger"), _convolution(1)),
    "QLinearConv": _convolution(3),
    "ConvTranspose": _transposed_convolution,
}
_PRODUCTS = {
    **dict.fromkeys(("Gemm", "FusedGemm", "QGemm"), _gemm),
    **dict.fromkeys(
        (
            "MatMul", "FusedMatMul", "FusedMatMulActivation", "MatMulInteger", "QLinearMatMul", "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul", "MatMulNBits",
        ),
        _matrix_product,
    ),
    "Einsum": _einsum,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}  # fmt: skip
_POOLS = {
    **dict.fromkeys(("MaxPool", "NhwcMaxPool", "AveragePool", "LpPool", "QLinearAveragePool"), _pool),
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "QLinearGlobalAveragePool"), _count_per_input(1)
    ),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
}
_ONE_PER_OUTPUT = (
    # arithmetic and comparison
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And",
    "Or", "Xor", "BitwiseAnd", "BitwiseOr", "QLinearAdd", "QLinearMul", "Where", "QLinearWhere",
    # one argument
    "Abs", "Acos", "Asin", "Atan", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish",
    "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign",
    "Sin", "Sinh", "Cosh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Gelu", "FastGelu",
    "QuickGelu", "QLinearSigmoid", "QLinearLeakyRelu",
)  # fmt: skip
_ELEMENTWISE = {
    **dict.fromkeys(_ONE_PER_OUTPUT, _count_per_output(1)),
    **dict.fromkeys(("BiasGelu", "BatchNormalization"), _count_per_output(2)),  # a sum or product, then one more
    **dict.fromkeys(("Max", "Min", "Mean", "Sum"), _combination),
    # the largest, a difference, an exponential, the sum, a quotient
    **dict.fromkeys(("Softmax", "LogSoftmax", "QLinearSoftmax"), _count_per_output(5)),
    # the mean, a difference, a square, its mean, a quotient, scale and shift
    **dict.fromkeys(
        ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "GroupNorm"), _count_per_output(7)
    ),
    **dict.fromkeys(("SkipLayerNormalization", "EmbedLayerNormalization"), _count_per_output(8)),
    # a square, its mean, a quotient, scale
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization", "LpNormalization"), _count_per_output(4)),
    "SkipSimplifiedLayerNormalization": _count_per_output(5),
}
_REDUCTIONS = dict.fromkeys(
    (
        "ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum", "ReduceProd", "ReduceL1", "ArgMax", "ArgMin", "CumSum",
        "QLinearReduceMean",
    ),
    _count_per_input(1),
) | dict.fromkeys(("ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"), _count_per_input(2))  # fmt: skip

_RULES: Mapping[str, _Count] = {**_CONVOLUTIONS, **_PRODUCTS, **_POOLS, **_ELEMENTWISE, **_REDUCTIONS}

_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "Size", "Constant"})
_PARTIAL = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split", "Compress"})
#: Operators that move or convert data and compute nothing.
MOVES = (
    _VIEWS
    | _PARTIAL
    | {
        "Cast", "CastLike", "Concat", "ConstantOfShape", "DepthToSpace", "DequantizeLinear", "DynamicQuantizeLinear",
        "Expand", "EyeLike", "MemcpyFromHost", "MemcpyToHost", "OneHot", "Pad", "QLinearConcat", "QuantizeLinear",
        "Range", "ReorderInput", "ReorderOutput", "ScatterElements", "ScatterND", "SpaceToDepth", "Tile", "Transpose",
        "Trilu",
    }
)  # fmt: skip
