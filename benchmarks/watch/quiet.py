"""Measures beside other programs as if there were none, where that is allowed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_PRIORITY = 10


@contextlib.contextmanager
def before_others() -> Iterator[None]:
    """Let this thread, and the threads and processes that it starts, have cores before all ordinary programs."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)
