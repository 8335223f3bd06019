"""Gradients of a model as vectors: taken, compared, and written as a weighted sum of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: A gradient smaller than this share of the whole is compared with this share: it may be 0 but for rounding.
_FLOOR = 1e-4


def take_gradients(model: Any, compute: Callable[[], object], seed: int) -> dict[str, Any]:
    """Return {parameter: gradient} after a computation that calls `backward()`; a parameter that got none has zeros.

    Buffers, such as running means, are afterwards what they were, and random numbers those of the seed.
    """
    import torch

    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    compute()
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().to_dense().clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def largest_difference(found: dict[str, Any], expected: dict[str, Any]) -> tuple[float, str]:
    """Return the largest relative difference of one parameter's gradient, and the parameter."""
    whole = sum(float(gradient.norm()) ** 2 for gradient in expected.values()) ** 0.5
    floor = _FLOOR * whole
    differences = {
        name: float((found[name] - gradient).norm()) / (max(float(gradient.norm()), floor) or 1.0)
        for name, gradient in expected.items()
    }
    name = max(differences, key=lambda name: differences[name])
    return differences[name], name


def fit_weights(target: dict[str, Any], parts: Sequence[dict[str, Any]]) -> tuple[tuple[float, ...], float]:
    """Return the weights with which the parts add up to the target, and what is left over as a share of the target.

    By least squares in float64. Parts that depend on each other (fewer parameters than parts) share their weight.
    """
    import torch

    matrix = torch.stack([_flat(part) for part in parts], dim=1)
    wanted = _flat(target)
    scale = float(matrix.norm()) or 1.0
    weights = torch.linalg.pinv(matrix / scale, rtol=1e-9) @ wanted / scale
    left = float((matrix @ weights - wanted).norm()) / (float(wanted.norm()) or 1.0)
    return tuple(float(weight) for weight in weights), left


def _flat(gradients: dict[str, Any]) -> Any:
    import torch

    return torch.cat([gradient.double().cpu().reshape(-1) for gradient in gradients.values()])
