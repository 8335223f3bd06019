"""Which layer breaks under autocast: makes NaN, overflows, or is far from float32. Runs in a child process.

How this works: the same batch is computed in float32 and under autocast, without dropout. A layer that is given finite numbers
and gives others breaks by itself; so does one whose output is far from float32 although its input is not (a square that
overflows inside of a normalisation gives plain zeros). Layers behind it only pass on what they get.
"""

from __future__ import annotations

from typing import Any

from headrace.runs.formats.train_check import LayerFinding
from headrace.train.search.layer_values import LayerValues, record_layers, relative_error
from headrace.train.search.recipe import Recipe
from headrace.train.search.without_chance import no_dropout

#: An output that is this far from float32, and whose input is ten times closer, is the layer's own doing. Rounding of bfloat16
#: is 0.4 % of a number.
FAR = 0.2
#: Share of a parameter's gradient that became 0 and was not: above it, updates are lost.
UNDERFLOW = 0.05


def check_precision(recipe: Recipe, *, dtype: str, batch_size: int) -> dict[str, Any]:
    """Return the fields of a `PrecisionCheck`.

    Args:
        recipe: What trains.
        dtype: `bfloat16` or `float16`.
        batch_size: Samples that are computed.
    """
    import torch

    model, batch = recipe.model, recipe.make_batch(range(batch_size))
    model.train()
    with no_dropout():
        exact_loss, exact = record_layers(model, lambda: recipe.loss(model, batch))
        exact_gradients = _take(model)

        def compute() -> Any:
            with torch.autocast(recipe.device.type, dtype=getattr(torch, dtype)):
                return recipe.loss(model, batch)

        base = {"dtype": dtype, "device": recipe.device.type, "exact_loss": exact_loss, "num_layers": len(exact)}
        try:
            loss, calls = record_layers(model, compute)
        except (RuntimeError, TypeError, ValueError) as error:
            return {**base, "problem": f"{type(error).__name__}: {error}".split("\n")[0], "findings": []}
    findings = [*_forward(exact, calls), *_backward(calls)]
    if not findings:
        findings = _underflow(exact_gradients, _take(model))
    half = sum(call.dtype == dtype for call in calls)
    return {**base, "loss": loss, "problem": "", "num_lower": half, "findings": findings}


def _take(model: Any) -> dict[str, Any]:
    taken = {
        name: parameter.grad.detach().float().cpu()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return taken


def _forward(exact: list[LayerValues], calls: list[LayerValues]) -> list[LayerFinding]:
    """Return the first layer that breaks on the way to the loss."""
    for reference, call in zip(exact, calls, strict=False):
        if call.output is None or reference.output is None or not bool(reference.output.isfinite().all()):
            continue
        if call.takes_finite and not bool(call.output.isfinite().all()):
            return [_broken(call, reference)]
        error, before = relative_error(call.output, reference.output), relative_error(call.inputs, reference.inputs)
        if error is not None and error > FAR and (before or 0.0) < FAR / 10:
            what = f"its output is {error:.0%} away from float32, its input {before or 0.0:.1%}"
            return [_finding(call, "far from float32", what)]
    return []


def _broken(call: LayerValues, reference: LayerValues) -> LayerFinding:
    largest = float(reference.output.abs().max())
    if bool(call.output.isnan().any()):
        what = f"it is given finite numbers and gives NaN; float32 gives at most {largest:.3g}"
        return _finding(call, "NaN", what)
    return _finding(call, "overflow", f"it gives infinity; float32 gives at most {largest:.3g}")


def _finding(call: LayerValues, kind: str, what: str) -> LayerFinding:
    return LayerFinding(
        layer=call.name,
        layer_class=call.kind,
        kind=kind,
        what=what,
        advice=f"compute {call.kind} in float32: `torch.autocast(device_type, enabled=False)` and `.float()` on its input",
    )


def _backward(calls: list[LayerValues]) -> list[LayerFinding]:
    """Return the first layer that breaks on the way back: it gets finite gradients and gives others."""
    for call in reversed(calls):
        if call.gradient_taken_is_finite and call.gradient_given_is_finite is False and not _has_inner(call, calls):
            what = "in the backward pass it is given finite gradients and gives others"
            return [_finding(call, "NaN in backward", what)]
    return []


def _has_inner(call: LayerValues, calls: list[LayerValues]) -> bool:
    """Return whether a module within this one breaks by itself."""
    prefix = "" if call.name == "(the model)" else f"{call.name}."
    return any(
        other is not call
        and other.name.startswith(prefix)
        and other.gradient_taken_is_finite
        and other.gradient_given_is_finite is False
        for other in calls
    )


def _underflow(exact: dict[str, Any], found: dict[str, Any]) -> list[LayerFinding]:
    """Return the parameter whose gradient lost the largest share of its numbers to 0."""
    shares = {
        name: float(((found[name] == 0) & (gradient != 0)).float().mean())
        for name, gradient in exact.items()
        if name in found and gradient.numel()
    }
    if not shares:
        return []
    name = max(shares, key=lambda name: shares[name])
    if shares[name] <= UNDERFLOW:
        return []
    return [
        LayerFinding(
            layer=name,
            layer_class="gradient",
            kind="underflow",
            what=f"{shares[name]:.0%} of its gradient is 0 and is not in float32",
            advice="scale the loss with torch.amp.GradScaler, or use bfloat16",
        )
    ]
