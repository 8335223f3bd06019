"""Keeps Ctrl-C, SIGTERM and SIGUSR2 from processes that leave these to their parent.

Ctrl-C goes to the whole foreground group, and what a service manager sends, to all processes of the service. A child that is
still in its imports has no handler yet: it is started with the signals blocked, and lets them through once it ignores them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

_OF_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


@contextmanager
def block_signals(*signals: signal.Signals) -> Iterator[None]:
    """Block signals to this thread and to processes started here, until the block ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_sheltered(process: BaseProcess) -> None:
    """Start a process that calls `ignore_signals` first of all; until then the signals wait."""
    shelter_tracker()  # first: Python lets two of the signals through again when it has to start that process
    with block_signals(*_OF_THE_PARENT):
        process.start()


def shelter_tracker() -> None:
    """Start Python's process that removes what is left in shared memory, unless it runs; it ignores the other two itself."""
    with block_signals(signal.SIGUSR2):  # the process inherits that for good
        resource_tracker.ensure_running()


def ignore_signals(*signals: signal.Signals) -> None:
    """Ignore these in this process, also those that came while it was starting; others are let through."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_PARENT)
