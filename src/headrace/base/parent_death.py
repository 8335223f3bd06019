"""Lets a process die with the one that started it, also where that is killed and cannot end anything. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, how: signal.Signals = signal.SIGKILL) -> bool:
    """Ask the kernel to end this process once its parent has died; return whether the parent still lives.

    If it died before the kernel was asked, nothing will come: the caller ends itself then. The kernel takes the thread that
    started this process for its parent; start it from one that lives on.

    Args:
        parent: Process id of who started this process.
        how: The signal that ends it.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, how)
    return os.getppid() == parent
