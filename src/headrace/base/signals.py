"""Keeps Ctrl-C and SIGTERM from processes that leave their end to their parent.

Ctrl-C goes to the whole foreground group, and a service manager's SIGTERM to all processes of the service. A child that is
still in its imports has no handler yet: it is started with both signals blocked, and lets them through once it ignores them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

_OF_THE_PARENT = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def block_signals(*signals: signal.Signals) -> Iterator[None]:
    """Block signals to this thread and to processes started here, until the block ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_sheltered(process: BaseProcess) -> None:
    """Start a process that calls `ignore_signals` first of all; until then Ctrl-C and SIGTERM wait."""
    resource_tracker.ensure_running()  # it lets both signals through again when it has to start its own process
    with block_signals(*_OF_THE_PARENT):
        process.start()


def ignore_signals(*signals: signal.Signals) -> None:
    """Ignore these in this process, also those that came while it was starting; the other one is let through."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_PARENT)
