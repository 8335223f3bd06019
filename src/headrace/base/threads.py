"""Starts threads, and says what to do where the system gives none."""

from __future__ import annotations

import resource
import threading

from headrace.base.errors import HeadraceError


def start_thread(thread: threading.Thread, way_out: str) -> None:
    """Start a thread.

    Raises:
        HeadraceError: If the system gives none; names the thread, the limits, and the way out.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise HeadraceError(
            f"thread {thread.name} cannot be started ({error}). Here {threading.active_count()} threads of Python's run; the "
            f"limits are {_limit(resource.RLIMIT_NPROC)} processes and threads (ulimit -u), {_limit(resource.RLIMIT_AS)} bytes "
            f"of address space (ulimit -v), and a container's own (pids.max). Raise the one that is reached, or {way_out}"
        ) from error


def _limit(which: int) -> str:
    soft, _ = resource.getrlimit(which)
    return "any number of" if soft == resource.RLIM_INFINITY else f"{soft:,}"
