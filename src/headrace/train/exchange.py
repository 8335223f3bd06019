"""Tells a recorder when ranks exchange gradients and buffers: where DistributedDataParallel makes a process wait for others.

How this works: the return of `backward()` is the same on all ranks, because the slowest one keeps the others in the exchange.
What differs is when the own gradients are complete, and a public hook knows that. A second place is the start of a forward
pass, where buffers (the statistics of batch normalization) are copied from one rank to all: it lasts from the call of the
module to the call of the module inside. Both are stored as `Phase.EXCHANGE`.

Left out: several groups, modules that shard parameters, and devices that work while the host goes on. There the host's clock
says nothing of the exchange, and `not_measured` gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from headrace.runs.formats.training_ranks import GradientsInfo
from headrace.runs.training_phases import Phase
from headrace.train.memory_owned import find_made
from headrace.train.recorder import Recorder

_HAS_DEVICE = "gradients are on a device that works while the host goes on: the host's clock does not see the exchange"

_IS_COMPILED = (
    "the module that exchanges them is compiled, and a clock cannot be part of a graph: they are in `forward`"
)


#: Gradients whose sizes are written down one by one.
_MOST_SIZES = 10_000


class ExchangeHooks:
    """Watches the modules that exchange gradients, from `watch` until `detach`.

    Attributes:
        not_measured: {"exchange" or "exchange of buffers": why}; empty if nothing was left out.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Watch nothing yet.

        Args:
            recorder: Is told of each exchange.
        """
        self.not_measured: dict[str, str] = {}
        self._recorder = recorder
        self._known: list[DistributedDataParallel] = []
        self._removable: list[Any] = []

    def watch(self, module: torch.nn.Module) -> None:
        """Watch what exchanges gradients in a module; of a module that trains alone nothing is watched."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        self._recorder.rank = torch.distributed.get_rank()  # a program may give itself a rank after recording began
        compiled = _find_compiled(module)
        for one in module.modules():
            if isinstance(one, DistributedDataParallel) and all(one is not known for known in self._known):
                self._known.append(one)
                self._watch(one, is_compiled=one in compiled or one.module in compiled)

    def detach(self) -> None:
        """Remove every hook."""
        for hook in self._removable:
            hook.remove()
        self._removable.clear()
        self._known.clear()

    def _watch(self, module: DistributedDataParallel, *, is_compiled: bool) -> None:
        if torch.distributed.get_world_size(module.process_group) < 2:
            return
        parameters = [one for one in module.parameters() if one.requires_grad]
        if any(one.device.type != "cpu" for one in parameters):
            self.not_measured["exchange"] = _HAS_DEVICE
            return

        def complete(_: Any) -> None:
            # Under no_sync() nothing is exchanged: all of backward() is work.
            if module.require_backward_grad_sync:
                self._recorder.gradients_complete()

        self._removable.append(torch.autograd.graph.register_multi_grad_hook(parameters, complete, mode="all"))
        if not is_compiled:
            self._watch_buffers(module)
        elif module.will_sync_module_buffers():
            self.not_measured["exchange of buffers"] = _IS_COMPILED

    def _watch_buffers(self, module: DistributedDataParallel) -> None:
        entered: list[Phase] = []

        def forward_begins(*_: Any) -> None:
            if module.will_sync_module_buffers():
                entered.append(self._recorder.enter(Phase.EXCHANGE))

        def inner_begins(*_: Any) -> None:
            if entered:
                self._recorder.leave(entered.pop())

        self._removable += [
            module.register_forward_pre_hook(forward_begins),
            module.module.register_forward_pre_hook(inner_begins, prepend=True),
        ]


def describe_gradients(modules: Iterable[torch.nn.Module]) -> GradientsInfo:
    """Return what a process exchanges with others, or would if there were some.

    Args:
        modules: The outermost ones.
    """
    modules = list(modules)
    learning = find_made(one for module in modules for one in module.parameters() if one.requires_grad)
    sizes = [one.numel() * one.element_size() for one in learning]
    wrapped = next(
        (one for module in modules for one in module.modules() if isinstance(one, DistributedDataParallel)), None
    )
    cap = getattr(wrapped, "bucket_bytes_cap", None)
    is_usual = getattr(wrapped, "bucket_bytes_cap_default", False)
    return GradientsInfo(
        sizes=tuple(sizes) if len(sizes) <= _MOST_SIZES else (sum(sizes),),
        bucket_bytes=cap,
        first_bucket_bytes=None if is_usual else cap,
    )


def _find_compiled(module: torch.nn.Module) -> set[torch.nn.Module]:
    """Return the modules whose calls, hooks included, are part of a graph of `torch.compile`."""
    found: set[torch.nn.Module] = set()
    for one in module.modules():
        if getattr(one, "_compiled_call_impl", None) is not None:  # module.compile()
            found.update(one.modules())
        elif hasattr(one, "_orig_mod"):  # torch.compile(module); hooks of the module that it returns are outside
            found.update(part for part in one.modules() if part is not one)
    return found
