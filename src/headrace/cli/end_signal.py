"""SIGTERM as Ctrl-C: for commands that measure for minutes and keep what they have when they are interrupted."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM, too, as `timeout` sends it; outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
