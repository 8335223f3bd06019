"""What it costs on this machine to hand something to a thread that sleeps, measured once per process.

How this works: two threads, on two cores where there are two, wake each other in turn through a lock that each keeps. That
is what a queue between two stages costs where the worker behind it has nothing to do: the waker's system call, the way of the
other thread onto its core, the GIL that goes from one to the other, and its way back to sleep. On one core of a quiet machine
it is a few microseconds of CPU time, on many virtual machines fifty, and no table of processors tells which.

The threads are bound to their cores: left to the scheduler they share a core in some tries and not in others, and the price
would be one figure or twice that, by chance. CPU time is taken, since what else runs on the machine changes it least.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from dataclasses import dataclass

#: Times that two threads wake each other in one try, and tries, of which the cheapest counts, since whatever else runs on the
#: machine only adds to it; together 7 ms where wake-ups are cheap.
_ROUNDS, _TRIES = 20, 7
#: What a try may take before no other is made, and how long one thread waits for the other before both give up.
_SLOW_SECONDS, _PATIENCE_SECONDS = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class HandoffCost:
    """The price of one hand-off to a thread that sleeps; seconds."""

    cpu_seconds: float
    """CPU time of both threads together."""
    wall_seconds: float
    """From the waker's call until the other thread runs Python code."""


@functools.cache
def handoff_cost() -> HandoffCost:
    """Return the price of a hand-off on this machine; the first call measures it, for 7 to 30 ms.

    Thread-safe. Where no thread can be started, the price is 0: nothing is known, and nothing is decided by it.
    """
    tries: list[HandoffCost] = []
    for _ in range(_TRIES):
        one = _measure()
        if one is not None:
            tries.append(one)
        if one is None or 2 * _ROUNDS * one.wall_seconds > _SLOW_SECONDS:
            break
    if not tries:
        return HandoffCost(0.0, 0.0)
    return HandoffCost(min(one.cpu_seconds for one in tries), min(one.wall_seconds for one in tries))


def _measure() -> HandoffCost | None:
    """Return what one hand-off cost in a try of some; None where the threads did not meet."""
    here, there = threading.Lock(), threading.Lock()
    here.acquire()
    there.acquire()
    cores = _list_cores()
    spent = [0, 0]
    took = 0

    def answer() -> None:
        _bind(cores[-1:])
        began = time.thread_time_ns()
        for _ in range(_ROUNDS):
            if not there.acquire(timeout=_PATIENCE_SECONDS):
                return
            here.release()
        spent[1] = time.thread_time_ns() - began

    def ask() -> None:
        nonlocal took
        _bind(cores[:1])
        began, wall = time.thread_time_ns(), time.monotonic_ns()
        for _ in range(_ROUNDS):
            there.release()
            if not here.acquire(timeout=_PATIENCE_SECONDS):
                return
        took = time.monotonic_ns() - wall
        spent[0] = time.thread_time_ns() - began

    threads = [threading.Thread(target=body, name="headrace-handoff", daemon=True) for body in (answer, ask)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # no more threads; one that has begun gives up by itself
        return None
    for thread in threads:
        thread.join()
    return None if not took else HandoffCost(sum(spent) / (2e9 * _ROUNDS), took / (2e9 * _ROUNDS))


def _list_cores() -> list[int]:
    """Return two of the cores that this process may use; one where there is one, none where the system does not tell."""
    with contextlib.suppress(OSError, AttributeError):
        return sorted(os.sched_getaffinity(0))[:2]
    return []


def _bind(cores: list[int]) -> None:
    """Let the thread that calls this run on these cores alone, where the system allows it."""
    with contextlib.suppress(OSError, AttributeError):
        if cores:
            os.sched_setaffinity(0, cores)
