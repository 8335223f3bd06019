"""What a process trains: names and sizes, kept without the models and optimizers themselves, which the program may let go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headrace.runs.formats.training_memory import OwnedBytes
from headrace.runs.formats.training_ranks import GradientsInfo
from headrace.train.exchange import describe_gradients
from headrace.train.memory_owned import count_owned, find_made


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Fields are those of `TrainingProcess`, and what its details say of gradients and memory."""

    device: str
    modules: tuple[str, ...]
    num_parameters: int
    parameter_bytes: int
    optimizers: tuple[str, ...]
    gradients: GradientsInfo
    owned: OwnedBytes


def describe_trained(modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> Trained:
    """Return what is trained.

    Args:
        modules: The outermost ones.
        optimizers: Those that update their parameters.
    """
    parameters = find_made(one for module in modules for one in module.parameters())
    return Trained(
        device=str(next((one.device for one in parameters), "")),
        modules=tuple(type(module).__qualname__ for module in modules),
        num_parameters=sum(one.numel() for one in parameters),
        parameter_bytes=sum(one.numel() * one.element_size() for one in parameters),
        optimizers=tuple(type(one).__qualname__ for one in optimizers),
        gradients=describe_gradients(modules),
        owned=count_owned(modules, optimizers),
    )
