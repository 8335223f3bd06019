"""A model without random numbers and without statistics of the batch, for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

#: Functions of PyTorch that drop values, by name; each returns its first argument instead.
_DROPPING = frozenset(
    (
        "dropout",
        "dropout_",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "alpha_dropout_",
        "feature_dropout",
        "feature_dropout_",
        "feature_alpha_dropout",
        "native_dropout",
    )
)
#: Functions that drop values among other things: where `dropout_p` stands.
_DROPPING_TOO = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
#: ... and those whose only float is the share that is dropped.
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))


@contextlib.contextmanager
def no_dropout() -> Iterator[None]:
    """Let every dropout return its input, also one that is no module."""
    from torch.overrides import TorchFunctionMode

    class NoDropout(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            given, name = dict(kwargs or {}), getattr(function, "__name__", "")
            if name in _DROPPING:
                return args[0] if args else given["input"]
            if (at := _DROPPING_TOO.get(name)) is not None:
                if "dropout_p" in given:
                    given["dropout_p"] = 0.0
                args = (*args[:at], 0.0, *args[at + 1 :]) if len(args) > at else args
            elif name in _RECURRENT:
                args = tuple(0.0 if isinstance(one, float) else one for one in args)
            return function(*args, **given)

    with NoDropout():
        yield


def batch_norms(model: Any) -> dict[str, Any]:
    """Return {name: module} of those that use the statistics of the batch in training."""
    from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and isinstance(module, _NormBase) and module.training
    }


@contextlib.contextmanager
def fixed_statistics(model: Any) -> Iterator[None]:
    """Let batch normalisation use 0 and 1, or what its buffers hold, in place of the batch's mean and variance."""
    found = list(batch_norms(model).values())
    without = [module for module in found if module.running_mean is None]
    for module in found:
        module.eval()
    for module in without:  # it has no buffers, and would use the batch also now
        module.running_mean = _like(module, 0.0)
        module.running_var = _like(module, 1.0)
    try:
        yield
    finally:
        for module in found:
            module.train()
        for module in without:
            module.running_mean = module.running_var = None


def _like(module: Any, value: float) -> Any:
    import torch

    weight = module.weight
    options = {} if weight is None else {"dtype": weight.dtype, "device": weight.device}
    return torch.full((module.num_features,), value, **options)


def dropouts(model: Any) -> list[str]:
    """Return the names of modules that drop values in training."""
    from torch.nn.modules.dropout import _DropoutNd

    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, _DropoutNd) and module.training and module.p > 0
    ]
