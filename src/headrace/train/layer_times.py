"""Times the parts of a model, forward and backward, in a few steps of a training that is recorded (`headrace train --layers`).

How this works: once the training is warm, the outermost modules are divided into parts: the part with most parameters into the
modules it is made of, again and again, as long as there are not too many. For a few steps each part has hooks: around its call,
of the gradient of what it returned, with which its backward pass begins, and of the gradients of its own parameters, the last
of which ends it. Hooks of tensors change neither results nor the graph. What is in no part (activations, what a parent does
itself) is the rest. These steps are set apart; parts that work side by side may count some time twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from headrace.runs.training_phases import Kind, Phase
from headrace.train.recorder import Recorder
from headrace.train.torch_hooks import OwnHook, count_graphs

#: Steps before, and steps that are timed.
WARM_UP, STEPS = 10, 8
#: Parts at most.
MOST_PARTS = 24


class _Part:
    """One part of the model, and its clocks: ns."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name, self.module = name, module
        self.forward: list[int] = []
        self.backward: list[int] = []
        self._began = self._forward = self._backward = 0
        #: Of the backward pass in progress.
        self._from = self._to = 0

    def call_begins(self) -> None:
        self._began = time.perf_counter_ns()

    def call_ended(self) -> None:
        if self._began:
            self._forward += time.perf_counter_ns() - self._began
        self._began = 0

    def backward_begins(self) -> None:
        """Its output has a gradient; it may have been called several times."""
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
        self.backward.append(self._backward)
        self._forward = self._backward = 0

    def _close_backward(self) -> None:
        self._backward += max(0, self._to - self._from)
        self._from = self._to = 0


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
        self._num_steps = 0

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
        self._num_steps += 1
        for part in self._parts:
            part.end_step()
        if self._num_steps == STEPS:
            self.close()
        else:
            self._recorder.set_kind(Kind.PROFILED)

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.is_over = True

    def describe(self) -> list[list[Any]]:
        """Return [name, class, parameters, seconds of its forward, of its backward pass] of each part: of the middle step."""
        return [
            [
                part.name, type(part.module).__qualname__, sum(one.numel() for one in part.module.parameters()),
                _middle(part.forward), _middle(part.backward),
            ]
            for part in self._parts
            if part.forward
        ]  # fmt: skip

    def _begin(self) -> None:
        modules = self._modules()
        self.why_not = _why_not(modules)
        if self.why_not:
            self.is_over = True
            return
        self._parts = [_Part(name, module) for name, module in divide(modules, MOST_PARTS)]
        for part in self._parts:
            self._hooks += self._attach(part)
        self._recorder.set_kind(Kind.PROFILED)

    def _attach(self, part: _Part) -> Iterator[Any]:
        def begins(module: torch.nn.Module, _: Any) -> None:
            if (
                torch.is_grad_enabled() and self._recorder.phase is Phase.FORWARD
            ):  # else validation, or forward once more
                part.call_begins()

        def ended(module: torch.nn.Module, _: Any, output: Any) -> None:
            part.call_ended()
            if (tensor := next(_with_gradient(output), None)) is not None:
                tensor.register_hook(lambda _: part.backward_begins())

        yield part.module.register_forward_pre_hook(OwnHook(begins), prepend=True)
        yield part.module.register_forward_hook(OwnHook(ended))
        for parameter in part.module.parameters():
            if parameter.requires_grad:
                yield parameter.register_hook(lambda _: part.gradient_came())


def divide(modules: Sequence[torch.nn.Module], most: int) -> list[tuple[str, torch.nn.Module]]:
    """Return the parts of modules with their names, in the order in which they were registered.

    Args:
        modules: The outermost ones.
        most: Parts at most, but one for each of the modules.
    """
    parts = [("", module) for module in modules]
    whole: set[int] = set()
    while left := [at for at, (_, module) in enumerate(parts) if id(module) not in whole]:
        at = max(left, key=lambda at: sum(one.numel() for one in parts[at][1].parameters()))
        name, module = parts[at]
        inside = _inside(name, module, {id(one) for _, one in parts})
        if not inside or len(parts) - 1 + len(inside) > most:
            whole.add(id(module))
        else:
            parts[at : at + 1] = inside
    return [(name or type(module).__name__, module) for name, module in parts]


def _inside(name: str, module: torch.nn.Module, known: set[int]) -> list[tuple[str, torch.nn.Module]]:
    """Return the modules with parameters that one is made of; none where one of them stands elsewhere too."""
    inside = [(child, part) for child, part in module.named_children() if next(part.parameters(), None) is not None]
    if any(id(part) in known for _, part in inside):
        return []
    return [(f"{name}.{child}" if name else child, part) for child, part in inside]


def _why_not(modules: Sequence[torch.nn.Module]) -> str:
    if not modules:
        return "no module was called"
    if count_graphs() or any(type(module).__name__ == "OptimizedModule" for module in modules):
        return "the model is compiled, and hooks of its parts would compile it again; --torch-profiler sees its kernels"
    if any(isinstance(part, torch.jit.ScriptModule) for module in modules for part in module.modules()):
        return "the model is TorchScript, which has no hooks; --torch-profiler sees its operators"
    if any(one.device.type != "cpu" for module in modules for one in module.parameters()):
        return "the model is on a device, whose work the host's clock does not see; --torch-profiler sees its kernels"
    return ""


def _with_gradient(output: Any) -> Iterator[torch.Tensor]:
    """Return the tensors in what a module returned that will have a gradient."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            yield output
    elif isinstance(output, dict):
        for part in output.values():
            yield from _with_gradient(part)
    elif isinstance(output, list | tuple):
        for part in output:
            yield from _with_gradient(part)


def _middle(values: Sequence[int]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] / 1e9
