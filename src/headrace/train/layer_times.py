"""Times the parts of a model, forward and backward, in a few steps of a training that is recorded (`headrace train --layers`).

How this works: once the training is warm, the outermost modules are divided into parts: the part with most parameters into the
modules it is made of, again and again, as long as there are not too many. For a few steps each part has hooks: around its call,
of the gradient of what it returned, with which its backward pass begins, and of the gradients of its own parameters, the last
of which ends it. Hooks of tensors change neither results nor the graph. What is in no part (activations, what a parent does
itself) is the rest. A module with parameters of its own, or of which a part is not called, stays whole. Of a part that is
called several times before its backward pass, or shares its parameters, only the forward pass is known. These steps are apart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.hooks import unserializable_hook

from headrace.runs.training_phases import Kind, Phase
from headrace.train.memory_owned import find_made
from headrace.train.recorder import Recorder
from headrace.train.torch_hooks import OwnHook, count_graphs

#: Steps before, and steps that are timed.
WARM_UP, STEPS = 10, 8
#: Parts at most.
MOST_PARTS = 24


class _Part:
    """One part of the model, and its clocks: ns."""

    def __init__(self, name: str, module: torch.nn.Module, parent: torch.nn.Module | None) -> None:
        self.name, self.kind = name, type(module).__qualname__
        self.num_parameters = _count_parameters(module)
        #: `id` of the module that it is a part of; None: it is the whole. The modules themselves are not kept alive.
        self.parent = None if parent is None else id(parent)
        self.forward: list[int] = []
        #: None: it is not known of this step.
        self.backward: list[int | None] = []
        self.was_called = False
        self._began = self._forward = self._backward = self._calls = 0
        #: Of the backward pass in progress.
        self._from = self._to = 0
        self._is_known = False

    def call_begins(self) -> None:
        self.was_called = True
        self._began = time.perf_counter_ns()

    def call_ended(self) -> bool:
        """Return whether it was a call that counts."""
        counts = self._began > 0
        if counts:
            self._forward += time.perf_counter_ns() - self._began
        self._began = 0
        return counts

    def has_gradient(self) -> None:
        """What it returned will have one."""
        self._calls += 1

    def backward_begins(self) -> None:
        """Its output has a gradient."""
        if self._to:
            self._close_backward()
        if not self._from:
            self._from = time.perf_counter_ns()

    def gradient_came(self) -> None:
        """A parameter of its own has one."""
        if self._from:
            self._to = time.perf_counter_ns()

    def end_step(self) -> None:
        self._close_backward()
        self.forward.append(self._forward)
        self.backward.append(self._backward if self._is_known else None)
        self._forward = self._backward = self._calls = 0
        self._is_known = False

    def _close_backward(self) -> None:
        """One backward pass is over. Of a part that was called several times it spans what came between: not known."""
        if self._to and self._calls == 1:
            self._backward += self._to - self._from
            self._is_known = True
        self._from = self._to = self._calls = 0


class LayerTimes:
    """Times a model's parts once, from the step after the warm-up on.

    Attributes:
        is_over: Nothing is timed any more.
        why_not: Why no part was timed; empty: nothing kept it from that.
    """

    def __init__(self, recorder: Recorder, modules: Callable[[], Sequence[torch.nn.Module]]) -> None:
        """Wait for the training to be warm.

        Args:
            recorder: Whose steps these are.
            modules: Returns the outermost modules that were called.
        """
        self.is_over, self.why_not = False, "the training was over before it was warm"
        self._recorder, self._modules = recorder, modules
        self._parts: list[_Part] = []
        self._hooks: list[Any] = []
        self._num_steps, self._num_graphs = 0, count_graphs()
        #: Modules that are not divided: a part of theirs was not called.
        self._whole: set[int] = set()

    def step(self) -> None:
        """A step ended, and the next one has begun; called in the training thread."""
        if self.is_over:
            return
        try:
            self._step()
        except Exception as error:  # The training goes on, whatever becomes of this.
            self.why_not = f"timing the parts failed: {type(error).__name__}: {error}"
            self.close()

    def _step(self) -> None:
        if not self._parts:
            if self._recorder.steps >= WARM_UP:
                self._begin()
            return
        if not self._num_steps and (parents := _not_called(self._parts)):
            self._whole |= parents
            self._remove_hooks()
            self._begin()
            return
        self._num_steps += 1
        for part in self._parts:
            part.end_step()
        if self._num_steps == STEPS:
            self.close()
        else:
            self._recorder.set_kind(Kind.PROFILED)

    def close(self) -> None:
        """Take the hooks away."""
        self._remove_hooks()
        self.is_over = True

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def describe(self) -> list[list[Any]]:
        """Return [name, class, parameters, seconds of its forward, of its backward pass] of each part: of the middle step."""
        return [
            [
                part.name, part.kind, part.num_parameters, _middle(part.forward),
                _middle(part.backward),
            ]
            for part in self._parts
            if part.forward
        ]  # fmt: skip

    def _begin(self) -> None:
        modules = self._modules()
        self.why_not = _why_not(modules, has_compiled=count_graphs() != self._num_graphs)
        if self.why_not:
            self.is_over = True
            return
        found = divide(modules, MOST_PARTS, self._whole)
        self._parts = [_Part(*one) for one in found]
        owners = Counter(id(one) for _, module, _ in found for one in module.parameters())
        for part, (_, module, _) in zip(self._parts, found, strict=True):
            made = find_made(module.parameters())
            own = [one for one in made if one.requires_grad and owners[id(one)] == 1]
            self._attach(part, module, own)
        self._recorder.set_kind(Kind.PROFILED)

    def _attach(self, part: _Part, module: torch.nn.Module, own: Sequence[torch.nn.Parameter]) -> None:
        """Watch a part: its calls, and in the backward pass its output and the parameters that are in no other part."""

        def begins(_: torch.nn.Module, __: Any) -> None:
            if (
                torch.is_grad_enabled() and self._recorder.phase is Phase.FORWARD
            ):  # else validation, or forward once more
                part.call_begins()

        def ended(_: torch.nn.Module, __: Any, output: Any) -> None:
            is_forward = part.call_ended()
            tensor = next(_with_gradient(output), None) if is_forward else None
            if tensor is not None:
                part.has_gradient()
                self._hooks.append(tensor.register_hook(unserializable_hook(lambda _: part.backward_begins())))

        self._hooks.append(module.register_forward_pre_hook(OwnHook(begins), prepend=True))
        self._hooks.append(module.register_forward_hook(OwnHook(ended)))
        for parameter in own:
            self._hooks.append(parameter.register_hook(unserializable_hook(lambda _: part.gradient_came())))


def _count_parameters(module: torch.nn.Module) -> int:
    return sum(one.numel() for one in find_made(module.parameters()))


def _not_called(parts: Sequence[_Part]) -> set[int]:
    """Return the `id` of modules of which a part was not called."""
    return {part.parent for part in parts if not part.was_called and part.parent is not None}


def divide(
    modules: Sequence[torch.nn.Module], most: int, whole: Iterable[int] = ()
) -> list[tuple[str, torch.nn.Module, torch.nn.Module | None]]:
    """Return (name, module, the one that it was a part of) of the parts, in the order in which they were registered.

    Args:
        modules: The outermost ones.
        most: Parts at most, but one for each of the modules.
        whole: `id` of modules that are not to be divided.
    """
    parts: list[tuple[str, torch.nn.Module, torch.nn.Module | None]] = [("", module, None) for module in modules]
    done = set(whole)
    while left := [at for at, (_, module, _) in enumerate(parts) if id(module) not in done]:
        at = max(left, key=lambda at: _count_parameters(parts[at][1]))
        name, module, _ = parts[at]
        inside = _inside(name, module, {id(one) for _, one, _ in parts})
        if not inside or len(parts) - 1 + len(inside) > most:
            done.add(id(module))
        else:
            parts[at : at + 1] = inside
    return [(name or type(module).__name__, module, parent) for name, module, parent in parts]


def _inside(
    name: str, module: torch.nn.Module, known: set[int]
) -> list[tuple[str, torch.nn.Module, torch.nn.Module | None]]:
    """Return the modules with parameters that one is made of; none where it has parameters itself, or shares one of them."""
    inside = [(child, part) for child, part in module.named_children() if next(part.parameters(), None) is not None]
    has_own = next(module.parameters(recurse=False), None) is not None
    if has_own or any(id(part) in known for _, part in inside):
        return []
    return [(f"{name}.{child}" if name else child, part, module) for child, part in inside]


def _why_not(modules: Sequence[torch.nn.Module], *, has_compiled: bool) -> str:
    if not modules:
        return "no module was called"
    if has_compiled or any(type(module).__name__ == "OptimizedModule" for module in modules):
        return "the model is compiled, and hooks of its parts would compile it again; --torch-profiler sees its kernels"
    if any(isinstance(part, torch.jit.ScriptModule) for module in modules for part in module.modules()):
        return "the model is TorchScript, which has no hooks; --torch-profiler sees its operators"
    if any(one.device.type != "cpu" for module in modules for one in module.parameters()):
        return "the model is on a device, whose work the host's clock does not see; --torch-profiler sees its kernels"
    return ""


def _with_gradient(output: Any) -> Iterator[torch.Tensor]:
    """Return the tensors in what a module returned that will have a gradient, and are no parameters."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad and not output.is_leaf:
            yield output
    elif isinstance(output, dict):
        for part in output.values():
            yield from _with_gradient(part)
    elif isinstance(output, list | tuple):
        for part in output:
            yield from _with_gradient(part)


def _middle(values: Sequence[int | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] / 1e9 if len(known) > len(values) / 2 else None
