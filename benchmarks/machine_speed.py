"""How fast the cores are right now: on a shared machine the same work takes a fifth longer in some minutes than in others.

That is the hypervisor's or a neighbour's doing (clock rate, simultaneous threads), and no counter of this machine shows it.
Where two measurements are compared of which only one depends on the cores, they have to be taken at the same speed.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_BUFFER = bytes(1 << 20)
_HASHES, _TRIES = 12, 5
#: As near as two probes of an undisturbed machine are.
NEAR = 0.05
#: How long to wait for the machine to be as fast as it was, seconds; each time.
_PATIENCE, _EVERY = 15.0, 1.0


def core_speed() -> float:
    """Return hashes per second of all cores at work together, median of some tries; takes about a tenth of a second."""
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        rates = []
        for _ in range(_TRIES):
            began = time.perf_counter()
            list(pool.map(_hash, range(cores)))
            rates.append(cores * _HASHES / (time.perf_counter() - began))
    return statistics.median(rates)


def wait_for(speed: float, stop: Callable[[], object]) -> float:
    """Wait until the cores are about as fast as `speed`, for a while, and return how fast they are compared with it.

    Args:
        speed: What `core_speed` was.
        stop: Called each time; raises if the user wants no more.
    """
    ends = time.monotonic() + _PATIENCE
    while True:
        ratio = core_speed() / speed
        if abs(ratio - 1) <= NEAR or time.monotonic() > ends:
            return ratio
        stop()
        time.sleep(_EVERY)


def _hash(_: int) -> None:
    for _ in range(_HASHES):
        hashlib.sha256(_BUFFER)
