"""Inputs to measure a model with: the caller's where given, made up where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.base.errors import EngineError
from headrace.base.protocols import TensorSpec
from headrace.profiler.layers.protocol import Feed

#: Element types by the engines' names; NumPy's own names are understood as they are.
_DTYPES = {"f16": "float16", "f32": "float32", "f64": "float64"} | {
    f"{short}{bits}": f"{long}{bits}" for short, long in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)
}


def make_feed(
    specs: Sequence[TensorSpec], batch_size: int, inputs: np.ndarray | Mapping[str, np.ndarray] | None
) -> Feed:
    """Return {input: array} for one call with a batch of this size.

    Args:
        specs: The model's inputs.
        batch_size: Length of the first axis, >= 1. Given inputs are cut to it, or repeated up to it.
        inputs: An array for a model with one input, {name: array} for several; None: made up from a fixed seed, normal
            numbers where the model takes fractions, zeros where it takes whole numbers (which may be indices).

    Raises:
        EngineError: If the inputs do not fit the model, or cannot be made up because the length of an axis is free.
    """
    if inputs is None:
        return {spec.name: _make_up(spec, batch_size, specs[0]) for spec in specs}
    if not isinstance(inputs, Mapping):
        if len(specs) != 1:
            raise EngineError(
                f"the model has {len(specs)} inputs and was given one array; give {{name: array}} for {_names(specs)}"
            )
        inputs = {specs[0].name: inputs}
    if set(inputs) != {spec.name for spec in specs}:
        raise EngineError(f"the model's inputs are {_names(specs)}; given were {', '.join(sorted(inputs)) or 'none'}")
    return {spec.name: _fit_to_batch(spec, np.asarray(inputs[spec.name]), batch_size) for spec in specs}


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in specs)


def _dtype(spec: TensorSpec) -> np.dtype:
    try:
        return np.dtype(_DTYPES.get(spec.numpy_type, spec.numpy_type))
    except TypeError:
        raise EngineError(
            f"input {spec.name} has the type {spec.dtype}, which no NumPy array holds; its layers cannot be measured"
        ) from None


def _make_up(spec: TensorSpec, batch_size: int, first: TensorSpec) -> np.ndarray:
    batch_axis = first.shape[0] if first.shape else None
    lengths = []
    for number, axis in enumerate(spec.shape):
        if isinstance(axis, str) and number > 0 and axis != batch_axis:
            raise EngineError(
                f"input {spec.name} {list(spec.shape)} has a free axis {axis!r} besides the batch; give real inputs, whose "
                "shapes decide what the layers take"
            )
        lengths.append(batch_size if isinstance(axis, str) else axis)
    _check_batch(spec, batch_size, of_batch=spec is first)
    dtype = _dtype(spec)
    if dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(lengths, np.float32).astype(dtype)
    return np.zeros(lengths, dtype)


def _fit_to_batch(spec: TensorSpec, array: np.ndarray, batch_size: int) -> np.ndarray:
    """Return the array with as many rows as the batch, checked against what the model takes."""
    if array.dtype != _dtype(spec):
        raise EngineError(
            f"input {spec.name} takes {spec.dtype}, given was {array.dtype}; convert it as the module's preprocess does"
        )
    if array.ndim != len(spec.shape):
        raise EngineError(
            f"input {spec.name} takes {len(spec.shape)} axes {list(spec.shape)}, given were {array.ndim}: {list(array.shape)}"
        )
    if array.ndim == 0:
        return array
    if array.shape[0] == 0:
        raise EngineError(
            f"input {spec.name} was given no rows; give at least one, it is repeated up to the batch size"
        )
    if isinstance(spec.shape[0], str) or spec.shape[0] == batch_size:
        array = np.ascontiguousarray(array[np.arange(batch_size) % len(array)])
    wrong = [
        f"{have} for {want}"
        for have, want in zip(array.shape[1:], spec.shape[1:], strict=True)
        if isinstance(want, int) and have != want
    ]
    if wrong:
        raise EngineError(
            f"input {spec.name} takes {list(spec.shape)}, given was {list(array.shape)}: {', '.join(wrong)}"
        )
    _check_batch(spec, batch_size, of_batch=array.shape[0] != spec.shape[0])
    return array


def _check_batch(spec: TensorSpec, batch_size: int, *, of_batch: bool) -> None:
    fixed = spec.shape[0] if spec.shape else batch_size
    if of_batch and isinstance(fixed, int) and fixed != batch_size:
        raise EngineError(
            f"the model takes batches of {fixed} only (input {spec.name} {list(spec.shape)}), asked for was {batch_size}; "
            f"measure with a batch size of {fixed}, or export the model with a free first axis"
        )
