"""Which memory each part of a model keeps for the backward pass, and how long its forward takes. Runs in a child process.

`torch.autograd.graph.saved_tensors_hooks` sees every tensor that is kept. Counted are storages, each once: two layers that keep
views of one storage keep it once. Parameters, buffers and the batch are left out: they are there anyway.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.train.search.own_time import read_clocks
from headrace.train.search.recipe import Recipe

#: Parts of a model that are looked at, at most.
MOST_UNITS = 24
#: Forward passes that are timed, after one that is not.
TIMED_PASSES = 5


@dataclass(slots=True)
class UnitMemory:
    """One part of the model."""

    name: str
    kind: str
    saved: set[int] = field(default_factory=set)
    """Storages that it keeps for its backward pass."""
    taken: set[int] = field(default_factory=set)
    """Storages that it is given: what a checkpoint keeps in place of `saved`."""
    forward_seconds: float = 0.0


def list_units(model: Any) -> dict[str, Any]:
    """Return {name: module} of the parts between which checkpoints can stand, in order.

    Lists of blocks are opened; a block is not: a checkpoint of one layer keeps its input and frees next to nothing. A model
    model that is one part is opened too.
    """
    units: dict[str, Any] = dict(model.named_children())
    while True:
        name = next((name for name, module in units.items() if _is_opened(module, len(units))), None)
        if name is None:
            return units
        children = {f"{name}.{child}": one for child, one in units[name].named_children()}
        units = {
            key: value
            for known, one in units.items()
            for key, value in (children.items() if known == name else [(known, one)])
        }


def _is_opened(module: Any, num_units: int) -> bool:
    from torch.nn import ModuleList, Sequential

    children = list(module.children())
    if not children or num_units - 1 + len(children) > MOST_UNITS:
        return False
    holds_blocks = any(list(child.children()) for child in children)
    return num_units == 1 or isinstance(module, ModuleList) or (isinstance(module, Sequential) and holds_blocks)


def measure_units(recipe: Recipe, batch_size: int) -> tuple[list[UnitMemory], set[int], dict[int, int]]:
    """Run forward passes and return the parts, the storages that are kept outside of them, and {storage: bytes}."""
    import torch

    model, batch = recipe.model, recipe.make_batch(range(batch_size))
    model.train()
    apart = {_storage(tensor)[0] for tensor in (*model.parameters(), *model.buffers(), *_tensors(batch))}
    units = {name: UnitMemory(name, type(module).__name__) for name, module in list_units(model).items()}
    rest, sizes, alive, stack = set[int](), dict[int, int](), list[Any](), list[UnitMemory]()

    def pack(tensor: Any) -> Any:
        key, size = _storage(tensor)
        if key not in apart:
            sizes[key] = size
            (stack[-1].saved if stack else rest).add(key)
        return tensor

    def enter(unit: UnitMemory) -> Callable[..., None]:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            stack.append(unit)
            for tensor in _tensors((args, kwargs)):
                alive.append(tensor)  # so that no other storage gets its place while this is measured
                key, size = _storage(tensor)
                if key not in apart:
                    sizes[key] = size
                    unit.taken.add(key)

        return hook

    modules = list_units(model)
    handles = [modules[name].register_forward_pre_hook(enter(unit), with_kwargs=True) for name, unit in units.items()]
    handles += [modules[name].register_forward_hook(lambda *_: [stack.pop(), None][1]) for name in units]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = recipe.loss(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    del loss
    _time_units(recipe, batch, units, modules)
    return list(units.values()), rest, sizes


def _time_units(recipe: Recipe, batch: Any, units: dict[str, UnitMemory], modules: dict[str, Any]) -> None:
    """Set the median forward time of each part."""
    times: dict[str, list[float]] = {name: [] for name in units}
    begun: dict[str, tuple[float, float]] = {}

    def leave(name: str) -> None:
        now, waited = read_clocks()
        times[name].append(max(0.0, (now - begun[name][0]) - (waited - begun[name][1])))

    handles = [
        modules[name].register_forward_pre_hook(lambda *_, name=name: begun.__setitem__(name, read_clocks()))
        for name in units
    ]
    handles += [modules[name].register_forward_hook(lambda *_, name=name: leave(name)) for name in units]
    try:
        for _ in range(TIMED_PASSES + 1):
            # With gradients: a pass without them keeps nothing, and would take memory that is in the cache already.
            recipe.loss(recipe.model, batch)
    finally:
        for handle in handles:
            handle.remove()
    for name, unit in units.items():
        calls = len(times[name]) // (TIMED_PASSES + 1)
        unit.forward_seconds = calls * statistics.median(times[name][calls:]) if calls else 0.0


def _storage(tensor: Any) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def checkpoint_units(model: Any, names: list[str]) -> None:
    """Let these parts keep only what they are given, and compute the rest again in the backward pass."""
    import functools

    from torch.utils.checkpoint import checkpoint

    for name in names:
        module = model.get_submodule(name)
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
