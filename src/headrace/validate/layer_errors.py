"""Where two variants begin to differ: every tensor that both have, in the order of computation.

How this works: what lies between layers is made an output of each model, by its name, and both compute the same items. A
quantized file keeps the names of the tensors it was made from, so a float32 model and its int8 twin can be held against each
other layer by layer. With all these outputs an engine fuses less than it does otherwise: this shows what a file's arithmetic
does, to the precision that the engine is asked for, and is no measurement of time.

References:
    SQNR: 10 log10 of the energy of the signal over that of the error, in decibels; 8 bits well used give about 40.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError
from headrace.base.protocols import ShowsTensors
from headrace.engines import engine
from headrace.runs.formats.variants import LayerError
from headrace.validate.items import Items, batch_of, find_fixed_batch
from headrace.validate.parity import BANDS
from headrace.validate.variant_spec import VariantSpec

#: Items that are computed; tensors between layers are large.
ITEMS = 4

Call = Callable[[Items], Mapping[str, np.ndarray]]


def layer_errors(a: VariantSpec, b: VariantSpec, items: Items) -> tuple[LayerError, ...]:
    """Return how far B is from A at each tensor that both have, in A's order of computation.

    Args:
        a: The incumbent.
        b: The candidate.
        items: As both take them; the first few are computed.

    Raises:
        EngineError: If one is no ONNX file, its engine cannot show what is between its layers, or they take images of
            different sizes.
    """
    if a.model.input_side != b.model.input_side:
        raise EngineError(
            "the two take images of different sizes: no tensor between their layers has its like in the other"
        )
    operators = operators_of(a)
    shared = [name for name in operators if name in set(operators_of(b))]
    if not shared:
        raise EngineError("the two have no tensor of the same name: nothing between their layers can be compared")
    first, second = open_with_outputs(a, shared), open_with_outputs(b, shared)
    off, size = dict.fromkeys(shared, 0.0), dict.fromkeys(shared, 0.0)
    for place in range(min(ITEMS, len(items))):
        before, after = (call(items[place : place + 1]) for call in (first, second))
        for name in shared:
            one, other = before.get(name), after.get(name)
            if one is None or other is None or one.shape != other.shape or one.dtype.kind != "f":
                off.pop(name, None)
            elif name in off:
                wanted = one.astype(np.float64)
                off[name] += float(np.square(other.astype(np.float64) - wanted).sum())
                size[name] += float(np.square(wanted).sum())
    return tuple(_error(name, operators[name], off[name], size[name]) for name in shared if name in off)


def first_beyond(errors: tuple[LayerError, ...], precision: str) -> LayerError | None:
    """Return the first tensor that is further off than a precision explains; None if none is."""
    return next((one for one in errors if one.relative_l2 is None or one.relative_l2 > BANDS[precision]), None)


def _error(name: str, operator: str, off: float, size: float) -> LayerError:
    relative = math.sqrt(off / size) if size > 0 else (0.0 if off == 0 else math.inf)
    known = math.isfinite(relative)
    return LayerError(
        name=name,
        operator=operator,
        relative_l2=relative if known else None,
        sqnr_db=-20 * math.log10(relative) if known and relative > 0 else None,
    )


def operators_of(spec: VariantSpec, *, casts: bool = False) -> dict[str, str]:
    """Return {tensor: operator that makes it} in the order of computation.

    Args:
        spec: An ONNX file.
        casts: Whether numbers in another precision are tensors of their own.
    """
    model = load_model(spec)
    skipped = ("QuantizeLinear", "DequantizeLinear", "Constant", "Shape", *(() if casts else ("Cast",)))
    return {
        name: node.op_type for node in model.graph.node if node.op_type not in skipped for name in node.output if name
    }


def load_model(spec: VariantSpec) -> Any:
    """Return a variant's ONNX model.

    Raises:
        EngineError: If it is no ONNX file, or cannot be read.
    """
    import onnx

    path = Path(spec.model.artifact or "")
    if path.suffix != ".onnx":
        raise EngineError(f"{spec.text} is no ONNX file: nothing is known of what lies between its layers")
    try:
        return onnx.load(str(path))
    except Exception as error:  # protobuf raises its own types
        raise EngineError(f"model file {path} is no ONNX file that can be read: {error}") from error


def open_with_outputs(spec: VariantSpec, names: list[str]) -> Call:
    """Return what computes the tensors of these names for one item, on the variant's engine.

    Raises:
        EngineError: If the engine does not show what lies between its layers.
    """
    opener = engine(spec.model.engine)
    if not isinstance(opener, ShowsTensors):
        raise EngineError(f"{spec.text}: engine {spec.model.engine} does not show what lies between its layers")
    artifact, threads = Path(spec.model.artifact or ""), spec.model.threads or 1
    model = opener.open_showing(artifact, names, threads=threads, options=spec.model.options)
    size = find_fixed_batch(model.inputs) or 1

    def call(item: Items) -> Mapping[str, np.ndarray]:
        found = model(batch_of(item, size))
        return found if isinstance(found, Mapping) else {model.outputs[0].name: found}

    return call
