"""Whether half precision holds a model's numbers, layer by layer: float16 ends at 65,504, and what is larger is infinite.

The answers do not tell. An infinity between two layers may be cut off by the next one, turn into NaN only for an item that
nobody has tried yet, or be hidden by an engine that computes in something else than it was asked for. So every tensor is
looked at: how large it gets in float32, before anything is made, and what became of it in the smaller precision.

References:
    IEEE 754-2019, binary16: largest number 65,504. bfloat16 has the exponent of float32, and overflows where that does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.errors import EngineError
from headrace.validate.golden import spread
from headrace.validate.items import Items, arrays_of
from headrace.validate.layer_errors import load_model, open_with_outputs, operators_of
from headrace.validate.variant_spec import VariantSpec

#: Largest finite number of each precision that is not float32's.
LARGEST = {"f16": 65504.0, "bf16": 3.3895e38}
#: Items that are computed, one after the other.
ITEMS = 16
_MOST_NAMED = 3
_ITEMS = "the items"
#: onnx.TensorProto's FLOAT16 and BFLOAT16.
_FLOAT16, _BFLOAT16 = 10, 16


@dataclass(frozen=True, slots=True)
class Reach:
    """How large a tensor gets."""

    name: str
    operator: str
    """That makes it; `input` or `weight` where none does."""
    largest: float
    """Largest absolute value; NaN if it holds one."""

    def is_beyond(self, limit: float) -> bool:
        """Return whether it holds a NaN, or more than a limit."""
        return not self.largest <= limit

    def __str__(self) -> str:
        """Return it in words."""
        reached = "holds a NaN" if math.isnan(self.largest) else f"reaches {self.largest:,.0f}"
        return f"{self.name} ({self.operator}) {'is infinite' if math.isinf(self.largest) else reached}"


def reaches(spec: VariantSpec, items: Items) -> tuple[Reach, ...]:
    """Return how large the items, the weights and each tensor between layers get, in the order of computation.

    Args:
        spec: An ONNX file on an engine that can show what is between its layers.
        items: As it takes them; some of them are computed.

    Raises:
        EngineError: If it is no ONNX file, or its engine cannot show that.
    """
    operators = operators_of(spec, casts=True)
    call = open_with_outputs(spec, list(operators))
    chosen = items[spread(len(items), ITEMS)]
    largest: dict[str, float] = {}
    for place in range(len(chosen)):
        for name, array in call(chosen[place : place + 1]).items():
            if array.dtype.kind == "f":
                largest[name] = _larger(largest.get(name, 0.0), _largest(array))
    between = [Reach(name, operator, largest[name]) for name, operator in operators.items() if name in largest]
    largest_item = max(map(_largest, arrays_of(chosen).values()), key=lambda one: (math.isnan(one), one))
    return (Reach(_ITEMS, "input", largest_item), *_check_weights(load_model(spec)), *between)


def find_beyond(spec: VariantSpec, items: Items, precision: str) -> tuple[Reach, ...]:
    """Return what a precision cannot hold of a float32 model, in the order of computation; see `reaches`.

    Args:
        spec: The model in float32.
        items: As it takes them.
        precision: `f16` or `bf16`.

    Raises:
        EngineError: If what is between its layers cannot be seen.
    """
    return tuple(one for one in reaches(spec, items) if one.is_beyond(LARGEST[precision]))


def find_broken(a: VariantSpec, b: VariantSpec, items: Items, b_items: Items | None = None) -> tuple[Reach, ...]:
    """Return the tensors that are NaN or infinite in B, where A's of the same name, or what was cast to half, is not.

    Args:
        a: The incumbent.
        b: The candidate.
        items: As A takes them.
        b_items: The same as B takes them; None: as A does.

    Raises:
        EngineError: If what is between the layers of one of them cannot be seen.
    """
    whole = {one.name for one in reaches(a, items) if math.isfinite(one.largest)}
    found = reaches(b, items if b_items is None else b_items)
    finite = {one.name for one in found if math.isfinite(one.largest)}
    whole |= {name for name, source in _cast_to_half(load_model(b)).items() if source in finite}
    return tuple(one for one in found if one.name in whole and one.name not in finite)


def format_reaches(found: tuple[Reach, ...]) -> str:
    """Return the first few in words."""
    more = len(found) - _MOST_NAMED
    return "; ".join(map(str, found[:_MOST_NAMED])) + (f"; and {more} more" if more > 0 else "")


def is_half(spec: VariantSpec) -> bool:
    """Return whether a model file holds its weights in float16; False where that cannot be seen."""
    try:
        tensors = load_model(spec).graph.initializer
    except (EngineError, ImportError):
        return False
    return any(tensor.data_type == _FLOAT16 for tensor in tensors)


def _cast_to_half(model: Any) -> dict[str, str]:
    """Return {tensor: what it is cast from}; for an input of the graph what stands for the items."""
    inputs = {one.name for one in model.graph.input}
    return {
        node.output[0]: _ITEMS if node.input[0] in inputs else node.input[0]
        for node in model.graph.node
        if node.op_type == "Cast" and any(one.name == "to" and one.i in (_FLOAT16, _BFLOAT16) for one in node.attribute)
    }


def _check_weights(model: Any) -> list[Reach]:
    import onnx

    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    return [
        Reach(tensor.name, "weight", _largest(onnx.numpy_helper.to_array(tensor)))
        for tensor in model.graph.initializer
        if tensor.data_type in kinds
    ]


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0.0))  # NaN if there is one


def _larger(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)
