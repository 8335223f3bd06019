"""When a worker counts as stalled: it has worked on the same items for longer than the limit."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

#: Longest time between two looks that counts, in seconds. After a longer one the process was stopped, or the machine asleep,
#: and so were the workers.
LONGEST_LOOK_SECONDS = 5.0

_Worker = TypeVar("_Worker", bound=Hashable)


class StallPolicy:
    """Adds up for how long each worker has had its present hand. Not thread-safe.

    Args:
        limit_seconds: Longest time; 0: no limit.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._looked: float | None = None
        self._since: dict[Hashable, tuple[object, float]] = {}

    def find_stalled(self, now: float, hands: Mapping[_Worker, object]) -> list[_Worker]:
        """Return the workers that are over the limit, each once for a hand.

        Args:
            now: Seconds, by any clock that does not go back.
            hands: {worker: what tells its present hand from the one before}; idle workers are left out.
        """
        passed = 0.0 if self._looked is None else min(now - self._looked, LONGEST_LOOK_SECONDS)
        self._looked = now
        since: dict[Hashable, tuple[object, float]] = {}
        over = []
        for worker, hand in hands.items():
            known, seconds = self._since.get(worker, (None, 0.0))
            before = seconds if known == hand else 0.0
            after = before + passed if known == hand else 0.0
            since[worker] = (hand, after)
            if 0 < self._limit <= after and before < self._limit:
                over.append(worker)
        self._since = since
        return over
