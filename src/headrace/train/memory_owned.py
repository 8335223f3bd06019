"""Counts the bytes that models and optimizers hold in memory, from their tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import torch
from torch.nn.parameter import is_lazy

from headrace.runs.formats.training_memory import MemoryRecord, OwnedBytes
from headrace.train.memory_sampler import MemorySampler


def describe_memory(sampler: MemorySampler, owned: OwnedBytes) -> MemoryRecord | None:
    """Return what was sampled, with the bytes that model and optimizer hold; None where nothing was sampled."""
    record = sampler.describe()
    if record is None:
        return None
    on_device = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
    return msgspec.structs.replace(record, owned=owned, device_peak_bytes=on_device)


def count_owned(modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> OwnedBytes:
    """Return what they hold; a tensor that several of them share counts once.

    Args:
        modules: The outermost ones.
        optimizers: Those that update their parameters.
    """
    modules = list(modules)
    parameters = find_made(one for module in modules for one in module.parameters())
    # An optimizer of another library (Keras) keeps its state elsewhere: it counts 0.
    kept = (getattr(optimizer, "state", None) for optimizer in optimizers)
    states = (state for one in kept if isinstance(one, dict) for state in list(one.values()))
    return OwnedBytes(
        parameters=_bytes(parameters),
        gradients=_bytes(one for one in parameters if one.requires_grad),
        buffers=_bytes(find_made(one for module in modules for one in module.buffers())),
        optimizer=_bytes(find_made(one for state in states for one in _tensors(state))),
    )


def find_made(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return each tensor once, without those that have no size yet: of a lazy layer that was never called."""
    return [one for one in {id(one): one for one in tensors}.values() if not is_lazy(one)]


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an optimizer's state, also those in lists (LBFGS keeps its history so)."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for one in list(state.values()):
            yield from _tensors(one)
    elif isinstance(state, list | tuple):
        for one in state:
            yield from _tensors(one)
