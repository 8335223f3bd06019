"""Measures beside other programs as if there were none, where that is allowed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def before_others(priority: int = 10) -> Iterator[None]:
    """Let this thread, and the threads and processes that it starts, have cores before all ordinary programs."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)
