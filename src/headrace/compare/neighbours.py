"""What other programs and the hypervisor took of the cores while a block ran, and whether they took the same of all in a round.

Blocks of a round are compared with one another. A neighbour that came or went between them is a difference that is not of what
is compared; one that was there in all of them is none. Which rounds those are is told without looking at what their blocks
measured, and alike for all alternatives, so that leaving one out favours none of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

#: Of the cores: a change by more than this between blocks of a round moves throughput by as much, and is no small effect.
_MOST_CHANGE = 0.1
#: Shorter blocks tell nothing: the kernel counts in hundredths of a second.
_LEAST_SECONDS = 0.2
_TICKS = 4


class NeighbourWatch:
    """What others took of the cores since it was made.

    Args:
        own_seconds: Returns CPU seconds of those that do not count as others, so far.
    """

    def __init__(self, own_seconds: Callable[[], float]) -> None:
        self._own_seconds = own_seconds
        self._before = self._read()

    def taken_cores(self) -> float | None:
        """Return how many cores other programs and the hypervisor had on average; None where the kernel does not tell."""
        before, after = self._before, self._read()
        if before is None or after is None or after[0] - before[0] < _LEAST_SECONDS:
            return None
        elapsed, busy, own = (now - then for now, then in zip(after, before, strict=True))
        return max(0.0, (busy - own) / elapsed)

    def _read(self) -> tuple[float, float, float] | None:
        """Return seconds of the clock, of cores that were not idle, and of our own."""
        try:
            with open("/proc/stat") as file:
                numbers = [int(text) for text in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return None
        idle = numbers[3] + numbers[4]
        return time.monotonic(), (sum(numbers) - idle) / os.sysconf("SC_CLK_TCK"), self._own_seconds()


def have_changed(taken_cores: Collection[float | None], seconds: float) -> bool:
    """Return whether others took more of the cores in one block of a round than in another.

    Args:
        taken_cores: Of each block, as `NeighbourWatch` tells it; with one that is not known nothing can be told.
        seconds: Of the shortest block.
    """
    known = [one for one in taken_cores if one is not None]
    if len(known) < len(taken_cores) or len(known) < 2:
        return False
    ticks = _TICKS / os.sysconf("SC_CLK_TCK") / max(seconds, _LEAST_SECONDS)
    return max(known) - min(known) > _MOST_CHANGE * len(os.sched_getaffinity(0)) + ticks
