"""What each module of a model takes and gives in one forward and backward pass. Needs PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class LayerValues:
    """One call of a module."""

    name: str
    kind: str
    takes_finite: bool
    """Whether every number that it was given is finite."""
    output: Any
    """float32, on the CPU; None if it gives no tensor of floating point."""
    inputs: Any
    """The first tensor that it was given, likewise."""
    dtype: str
    """Of its output."""
    gradient_taken_is_finite: bool | None = None
    """Of the gradient of its output, in the backward pass; None: there was none."""
    gradient_given_is_finite: bool | None = None
    """Of the gradient of what it was given."""


def record_layers(model: Any, compute: Callable[[], Any]) -> tuple[float, list[LayerValues]]:
    """Compute a loss and its gradients; return the loss and each module's call, in the order in which they ended.

    Inner modules end before those that hold them, so the first that breaks is the one that breaks by itself.
    """
    calls: list[LayerValues] = []
    handles = [
        module.register_forward_hook(_hook(name or "(the model)", calls), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        loss = compute()
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    return float(loss.detach()), calls


def _hook(name: str, calls: list[LayerValues]) -> Callable[..., None]:
    def after(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        taken, given = list(_floats((args, kwargs))), list(_floats(output))
        call = LayerValues(
            name=name,
            kind=type(module).__name__,
            takes_finite=all(map(_is_finite, taken)),
            output=given[0].detach().float().cpu() if given else None,
            inputs=taken[0].detach().float().cpu() if taken else None,
            dtype=str(given[0].dtype).removeprefix("torch.") if given else "",
        )
        calls.append(call)
        _watch(taken, lambda is_finite: _note(call, "gradient_given_is_finite", is_finite))
        _watch(given, lambda is_finite: _note(call, "gradient_taken_is_finite", is_finite))

    return after


def _note(call: LayerValues, what: str, is_finite: bool) -> None:
    before = getattr(call, what)
    setattr(call, what, is_finite if before is None else before and is_finite)


def _watch(tensors: list[Any], tell: Callable[[bool], None]) -> None:
    for tensor in tensors:
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: tell(_is_finite(gradient)))


def _floats(value: Any) -> Iterator[Any]:
    """Yield the tensors of floating point within tuples, lists and dicts."""
    if hasattr(value, "is_floating_point"):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _floats(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _floats(one)


def _is_finite(tensor: Any) -> bool:
    return bool(tensor.isfinite().all())


def relative_error(found: Any, expected: Any) -> float | None:
    """Return the norm of the difference over that of what is expected; None if it cannot be said: shapes differ, NaN."""
    if found is None or expected is None or found.shape != expected.shape:
        return None
    whole = float(expected.norm())
    error = float((found - expected).norm()) / whole if whole else float((found - expected).norm())
    return error if math.isfinite(error) else None
