"""Tells a recorder of what PyTorch does: forward passes, backward passes, updates, checkpoints.

How this works: only public hooks, and functions that have none, which are wrapped for as long as the hooks are attached:
`torch.autograd.backward`, which `Tensor.backward` calls, `torch.autograd.grad`, `torch.save` and what frameworks have for it,
and `GradScaler.step`, which may leave the update out. A search with hooks of all modules finds the outermost ones; each of
them then has two hooks of its own, so that the modules inside cost nothing. The search goes on until an update, and begins
again with each epoch, and where a backward pass comes without a forward pass. A module without parameters (a loss, a
transform) is no model.
Nothing is computed, moved or drawn here: results stay the same bit by bit. Models and optimizers are not kept alive: a program
that trains many, one after the other, has memory for one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from headrace.runs.training_phases import Kind, Phase
from headrace.train.exchange import ExchangeHooks
from headrace.train.recorder import Recorder
from headrace.train.saves import find_saves
from headrace.train.trained import Trained, describe_trained

logger = logging.getLogger("headrace")
_is_compiling = torch.compiler.is_compiling
_T = TypeVar("_T")


class OwnHook(functools.partial):  # type: ignore[type-arg]
    """A hook of one module that is left behind where the module is copied or saved: only the program's own module is recorded.

    A copy gets a function of the standard library that does nothing, so that a file with it can be read where headrace is not.
    Made of `partial`, which calls without a frame of Python.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Depth(threading.local):
    """How deep this thread is in calls of modules, and of `backward`."""

    forward = 0
    backward = 0


class TorchHooks:
    """Attached from its making until `detach`.

    Attributes:
        exchange: Watches modules that exchange gradients with other ranks.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._modules: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._trained: Trained | None = None
        self.exchange = ExchangeHooks(recorder)
        self._recorder = recorder
        self._depth = _Depth()
        self._is_model: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()
        self._last_optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
        #: Of these modules, those without hooks of their own.
        self._unwatched: list[weakref.ref[torch.nn.Module]] = []
        self._num_graphs = count_graphs()
        self._search: list[Any] = []
        self._has_seen = False
        self._removable: list[Any] = [
            register_optimizer_step_pre_hook(self._update_begins),
            register_optimizer_step_post_hook(self._update_ended),
        ]
        self._wrapped: list[tuple[Any, str, Any, Any]] = []
        self._wrap(torch.autograd, "backward", self._watch_backward)
        self._wrap(torch.autograd, "grad", _around(self._around_grad))
        for owner, function in ((torch, "save"), *find_saves()):
            self._wrap(owner, function, _around(self._around_save))
        self._wrap(torch.jit, "script", _around(self._without_hooks))
        self._wrap(torch.amp.GradScaler, "step", _around(self._around_scaled_step))
        # `torch.compile` warns that hooks of all modules are called twice, for it and for the module inside: ours count depth.
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        self.search()
        recorder.search = self.search

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The outermost modules that were called, those that live."""
        return _living(self._modules)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that made an update, and live."""
        return _living(self._optimizers)

    def note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take an optimizer whose update is seen elsewhere."""
        self._optimizers = [*map(weakref.ref, self.optimizers), weakref.ref(optimizer)]
        self._trained = None

    def describe(self) -> Trained:
        """Return what is trained; of models that are gone by now what was found when they were new."""
        known = self._trained
        if known is None or all(refer() is not None for refer in (*self._modules, *self._optimizers)):
            try:
                known = describe_trained(self.modules, self.optimizers)
            except Exception as error:  # a class of somebody else's; the training, within whose update this is, goes on
                logger.warning("what is trained cannot be described: %s: %s", type(error).__name__, error)
                known = describe_trained((), ())
            self._trained = known
        return known

    def search(self) -> None:
        """Find outermost modules until an update after at least one was called from now on."""
        self._has_seen = False
        if not self._search and self._removable:
            self._hook_all()

    def _hook_all(self) -> None:
        self._search = [
            register_module_forward_pre_hook(self._any_forward_begins),
            register_module_forward_hook(self._any_forward_ended, always_call=True),
        ]

    def _unhook_all(self) -> None:
        for hook in self._search:
            hook.remove()
        self._search = []

    def found(self, module: torch.nn.Module) -> None:
        """Take a call that is in progress, of a module that was found before these hooks were attached."""
        self._any_forward_begins(module, None)

    def left(self, module: torch.nn.Module, output: Any) -> None:
        """End a call that `found` began, of a module that is not called as PyTorch's are."""
        self._any_forward_ended(module, None, output)

    def detach(self) -> None:
        """Remove every hook; what somebody else wrapped in the meantime is left alone."""
        self._unhook_all()
        for hook in self._removable:
            hook.remove()
        self._removable.clear()
        for owner, name, original, ours in self._wrapped:
            if getattr(owner, name) is ours:
                setattr(owner, name, original)
        self._wrapped.clear()
        self.exchange.detach()

    def _wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put what is made of a function in its place."""
        original = getattr(owner, name)
        ours = functools.wraps(original)(make(original))
        # Also where it was defined, which is where pickle looks for it.
        home = sys.modules.get(getattr(original, "__module__", ""), owner)
        for place in {id(one): one for one in (owner, home)}.values():
            if getattr(place, name, None) is original:
                self._wrapped.append((place, name, original, ours))
                setattr(place, name, ours)

    def _watch_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        depth, recorder = self._depth, self._recorder

        def backward(*args: Any, **kwargs: Any) -> Any:
            if depth.backward:  # within another: activation checkpointing, a function of the user
                return original(*args, **kwargs)
            recorder.backward_begins()
            depth.backward = 1
            try:
                result = original(*args, **kwargs)
            except BaseException:
                depth.backward = 0
                recorder.backward_ended(failed=True)
                raise
            depth.backward = 0
            recorder.backward_ended()
            return result

        return backward

    def _around_grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._depth.backward:
            return original(*args, **kwargs)
        before = self._recorder.enter(Phase.BACKWARD)
        self._depth.backward += 1
        try:
            return original(*args, **kwargs)
        finally:
            self._depth.backward -= 1
            self._recorder.leave(before)

    def _around_save(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = self._recorder.enter(Phase.CHECKPOINT)
        try:
            return original(*args, **kwargs)
        finally:
            self._recorder.leave(before)

    def _around_scaled_step(
        self, original: Callable[..., Any], scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        """The step ends here also where the scaler found infinite gradients and leaves the update out."""
        self._recorder.update_begins(id(optimizer))
        result = original(scaler, optimizer, *args, **kwargs)
        self._recorder.update_ended()
        return result

    def _update_begins(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._recorder.update_begins(id(optimizer))

    def _update_ended(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._recorder.update_ended()
        if count_graphs() != self._num_graphs:
            self._note_compilation()
        if optimizer is not self._last_optimizer():
            self._last_optimizer = weakref.ref(optimizer)
            if all(optimizer is not one for one in self.optimizers):
                self.note_optimizer(optimizer)
                if not self.modules:  # gone; of a model that lives there may be a new one in each step
                    self.search()
        if self._search and self._has_seen:
            self._watch_found()
        if self._trained is None:
            self.describe()  # now: they may be gone before anybody asks

    def _note_compilation(self) -> None:
        self._num_graphs = count_graphs()
        self._recorder.set_kind(Kind.RECOMPILED)

    # The outermost modules. What `torch.compile` traces is left alone: a clock cannot be part of a graph.

    def _any_forward_begins(self, module: torch.nn.Module, _: Any) -> None:
        if _is_compiling() or not self._has_parameters(module):
            return
        self._depth.forward += 1
        if self._depth.forward == 1 and self._recorder.takes_forward:
            self._has_seen = True
            if all(module is not one for one in self.modules):
                self._modules = [*map(weakref.ref, self.modules), weakref.ref(module)]
                self._unwatched.append(weakref.ref(module))
                self._trained = None
                self.exchange.watch(module)
            self._recorder.forward_begins(training=torch.is_grad_enabled() and module.training)
        if type(module).__name__ == "OptimizedModule":
            self._pause_search(module)

    def _pause_search(self, module: torch.nn.Module) -> None:
        """Take the hooks of all modules away while a compiled one runs: it would be compiled again once they are gone."""
        if not self._search:
            return
        self._unhook_all()

        def resume(_: torch.nn.Module, __: Any, output: Any) -> None:
            handle.remove()
            if self._removable:
                self._hook_all()
            self._leave_forward(output)  # the hook that would have done this was taken away

        handle = module.register_forward_hook(resume, always_call=True)

    def _any_forward_ended(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        if not _is_compiling() and self._has_parameters(module):
            self._leave_forward(output)

    def _has_parameters(self, module: torch.nn.Module) -> bool:
        found = self._is_model.get(module)
        if found is None:
            found = self._is_model[module] = next(module.parameters(), None) is not None
        return found

    def _watch_found(self) -> None:
        """Go over from the hooks of all modules to hooks of the outermost ones, unless one of them takes none."""
        if any(isinstance(module, torch.jit.ScriptModule) for module in self.modules):
            return
        self._unhook_all()
        for module in _living(self._unwatched):
            # First, so that what others do at the start of the call is inside of it.
            self._removable.append(module.register_forward_pre_hook(OwnHook(self._forward_begins), prepend=True))
            self._removable.append(module.register_forward_hook(OwnHook(self._forward_ended), always_call=True))
        self._unwatched.clear()

    def _without_hooks(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Take the hooks of modules away for a while: what translates a module would translate them too."""
        watched = {id(part): part for module in self.modules for part in module.modules()}.values()
        names = ("_forward_pre_hooks", "_forward_hooks")  # that handles refer to; there is no other way to find them
        kept = [(hooks, hooks.copy()) for one in watched for hooks in (getattr(one, name) for name in names)]
        for hooks, _ in kept:
            for number, hook in list(hooks.items()):
                if isinstance(hook, OwnHook):
                    del hooks[number]
        try:
            return original(*args, **kwargs)
        finally:
            for hooks, before in kept:
                hooks.clear()
                hooks.update(before)

    def _forward_begins(self, module: torch.nn.Module, _: Any) -> None:
        if _is_compiling():
            return
        depth = self._depth
        depth.forward = level = depth.forward + 1
        if level == 1:
            self._recorder.forward_begins(training=torch.is_grad_enabled() and module.training)

    def _forward_ended(self, _: torch.nn.Module, __: Any, output: Any) -> None:
        if not _is_compiling():
            self._leave_forward(output)

    def _leave_forward(self, output: Any) -> None:
        depth = self._depth
        depth.forward = level = depth.forward - 1
        if level == 0:
            # A hook is called with None where the module raised.
            self._recorder.forward_ended(failed=output is None and sys.exc_info()[1] is not None)
            # What was compiled in a step is seen where that is updated.
            if (not self._optimizers or not torch.is_grad_enabled()) and count_graphs() != self._num_graphs:
                self._note_compilation()


def _living(refers: Iterable[weakref.ref[_T]]) -> list[_T]:
    """Return what is referred to and lives."""
    return [one for refer in refers if (one := refer()) is not None]


def _around(around: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what makes a function that calls `around` with the original one and its arguments."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def ours(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        return ours

    return make


def count_graphs() -> int:
    """Return how many graphs `torch.compile` has compiled in this process; 0 where nothing asked for it."""
    module = sys.modules.get("torch._dynamo.utils")
    return 0 if module is None else int(module.counters["stats"].get("unique_graphs", 0))
