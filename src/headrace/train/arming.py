"""In a program that `headrace train` started: finds out whether this process trains, and records it from then on.

How this works: `arm` is called once PyTorch is imported. Three light triggers wait for the first sign of training: a
`DataLoader` is iterated over, a module with parameters is called with gradients, `backward` is called. Then they are removed
and a `Session` is made, so that loader workers, helpers and parents that only launch others write nothing and import nothing
of ours. From then on each `DataLoader` of this process is watched while it is iterated over; which of them trains is decided
by what follows its batches. A forked child begins again with triggers: it may be the one that trains.

The session is closed by whatever ends the process: its regular end (`atexit`), the end of a child of `multiprocessing`, or
`os._exit`. A signal that kills it costs what was not rotated yet, about two seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from headrace.base.parent_death import die_with_parent
from headrace.train.current import read_asked, set_armed

if TYPE_CHECKING:
    from headrace.train.session import Session

#: The run folder, as an absolute path: set by `headrace train`, inherited by every process of the program.
FOLDER = "HEADRACE_TRAIN"
#: What runs, for `training/HOST-PID.json`.
SCRIPT = "HEADRACE_TRAIN_SCRIPT"

#: The process ends after so many steps, as a script that is done does: set by commands that try a training for a short while.
STEPS = "HEADRACE_TRAIN_STEPS"
#: Process id of the command that tries it: what it started dies with it.
PARENT = "HEADRACE_TRAIN_PARENT"

#: Seconds between the last step of a short training and the end of its process: other ranks still read what it has sent.
_LEAVE_SECONDS = 0.5
#: Seconds that `os._exit` waits for what was recorded to be written: it must never hang.
_EXIT_SECONDS = 5.0

_lock = threading.Lock()
_inside = threading.local()


class _State:
    """What this process has in place.

    Attributes:
        session: Once it trains.
        is_over: It was closed, or cannot be made: nothing more is recorded.
        forked_from: The process that trained already when this one was forked from it; None: none did.
        disarm: Remove the triggers.
    """

    session: Session | None = None
    is_over = False
    forked_from: int | None = None
    disarm: ClassVar[list[Callable[[], None]]] = []


def arm() -> None:
    """Wait for this process to train; called once PyTorch is imported."""
    parent = read_asked(PARENT)
    if parent == str(os.getppid()) and not die_with_parent(int(parent)):
        os._exit(1)
    _watch_loaders()
    _watch_exit()
    _set_triggers()
    os.register_at_fork(after_in_child=_begin_again)
    atexit.register(close)
    set_armed(_start)


def close(*, failed: bool | None = None) -> None:
    """Write what was recorded, and record nothing more in this process.

    Args:
        failed: An exception ended the program; None: as the interpreter says.
    """
    session, _State.session = _State.session, None
    _remove_triggers()
    if session is not None:
        _State.is_over = True
        session.close(failed=getattr(sys, "last_value", None) is not None if failed is None else failed)


def _start() -> Session | None:
    """Return the session, made by the first call; None in a loader's worker, and after the end."""
    if _State.session is not None:
        return _State.session
    if _State.is_over or torch.utils.data.get_worker_info() is not None:
        return None
    with _lock:
        if _State.session is None and not _State.is_over:
            _remove_triggers()
            _State.session = _make_session()
            _State.is_over = _State.session is None
    return _State.session


def _make_session() -> Session | None:
    try:
        from headrace.train.session import Session

        session = Session(Path(read_asked(FOLDER)), script=read_asked(SCRIPT), forked_from=_State.forked_from)
    except Exception as error:  # The program goes on, whatever it is.
        print(
            f"headrace train: process {os.getpid()} cannot be recorded: {type(error).__name__}: {error}; "
            "the program goes on",
            file=sys.stderr,
        )
        return None
    steps = read_asked(STEPS)
    if steps.isdecimal():
        session.recorder.last_step, session.recorder.enough = int(steps), _leave
    # A child of multiprocessing ends without atexit; this registry is its own.
    Finalize(None, close, exitpriority=100)
    return session


def _leave() -> None:
    """End the process between two steps. All ranks are here after the same one, so none waits for another for ever."""
    time.sleep(_LEAVE_SECONDS)
    for child in multiprocessing.active_children():  # loader workers: nobody will ask them for a batch
        child.terminate()
    with contextlib.suppress(Exception):  # closed, None (as some have it on all ranks but the first), a full disk
        sys.stdout.flush()
    os._exit(0)


# Triggers.


def _set_triggers() -> None:
    hook = register_module_forward_pre_hook(_module_called)
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        _start()
        return (torch.autograd.backward if torch.autograd.backward is not backward else original)(*args, **kwargs)

    def restore() -> None:
        hook.remove()
        if torch.autograd.backward is backward:
            torch.autograd.backward = original

    torch.autograd.backward = backward
    _State.disarm = [restore]


def _remove_triggers() -> None:
    for disarm in _State.disarm:
        disarm()
    _State.disarm = []


def _module_called(module: torch.nn.Module, _: Any) -> None:
    if not (torch.is_grad_enabled() and module.training and _is_trainable(module)):
        return
    session = _start()
    if session is not None:
        session.hooks.found(module)  # this very call: the session's own hooks begin with the next one


def _is_trainable(module: torch.nn.Module) -> bool:
    return any(one.requires_grad for one in module.parameters())


def _watch_loaders() -> None:
    original = torch.utils.data.DataLoader.__iter__

    @functools.wraps(original)
    def iterate(loader: Any) -> Iterator[Any]:
        session = None if getattr(_inside, "loader", False) else _start()
        if session is None:
            return original(loader)  # type: ignore[no-any-return]
        _inside.loader = True  # the watched loader asks this one for its iterator
        try:
            return iter(session.watch(loader))
        finally:
            _inside.loader = False

    torch.utils.data.DataLoader.__iter__ = iterate


# The end of the process.


def _watch_exit() -> None:
    leave = os._exit

    @functools.wraps(leave)
    def exit_recorded(status: int) -> Any:
        if _State.session is not None:
            # As after `sys.exit`: a status that is not 0 is no exception within the step in progress.
            closing = threading.Thread(target=close, kwargs={"failed": False}, daemon=True)
            closing.start()
            closing.join(_EXIT_SECONDS)
        leave(status)

    os._exit = exit_recorded


def _begin_again() -> None:
    """In a forked child: the parent's session is the parent's."""
    global _lock
    _lock = threading.Lock()
    session, _State.session = _State.session, None
    if session is not None:
        _State.forked_from = session.process
        session.hooks.detach()
        _set_triggers()
