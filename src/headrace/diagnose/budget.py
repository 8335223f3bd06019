"""How much computing an analysis may do: what it leaves out when that is used up is noted, never dropped in silence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

#: Seconds of a core that a diagnosis may simulate for, unless asked otherwise. Most need one or two.
USUAL_SECONDS = 10.0


class Budget:
    """Seconds of a core, counted from the beginning, and what had to be left out.

    CPU time rather than wall time: a busy machine makes an answer late, and not another one.

    Attributes:
        seconds: All there are; infinite: no limit.
        left_out: What was not simulated, in the order in which it was given up: the most important first.
    """

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.thread_time) -> None:
        self.seconds = seconds
        self.left_out: list[str] = []
        self._clock = clock
        self._began = clock()

    def has_left(self, share: float = 1.0) -> bool:
        """Return whether less than this share of it is used up."""
        return self._clock() - self._began < share * self.seconds

    def leave_out(self, what: str) -> None:
        """Note what is not simulated."""
        self.left_out.append(what)
