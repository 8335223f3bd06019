"""Notices Ctrl-C and SIGTERM whoever handles them.

A pipeline takes both signals over while it runs, and one that comes while it is closing ends nothing any more: there is nothing
left to stop. A comparison runs dozens of short pipelines, so such signals are not rare, and for it there is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

_SIGNALS = {int(signal.SIGINT), int(signal.SIGTERM)}


@contextlib.contextmanager
def noticing() -> Iterator[Callable[[], bool]]:
    """Return a function that says whether either signal came since; always False outside the main thread.

    How this works: Python writes the number of each signal that it handles to the wakeup file, before any handler runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came: set[int] = set()
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def has_come() -> bool:
        with contextlib.suppress(BlockingIOError):
            came.update(os.read(reading, 1024))
        return not came.isdisjoint(_SIGNALS)

    try:
        yield has_come
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
