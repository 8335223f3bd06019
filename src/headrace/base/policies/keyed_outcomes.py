"""Evidence where not jobs but keys (a user, a camera) are drawn: whole epochs of a key are what counts.

The jobs of one camera share its fog and its cables, so that failures come in clumps of which a whole clump falls to one arm.
A test that counts jobs then rolls back every third identical canary. What was drawn is the key, for one epoch; so a key's epoch
is one event, which counts by how many of its jobs failed, as a part of what a key with failures had in earlier epochs. That is
fewer events, so that a bad canary is found later: use it only where a key must not see two models at once.
"""

from __future__ import annotations

from headrace.base.policies.evidence import Counts


class KeyedOutcomes:
    """Collects the ends of jobs by key, and gives the counts of each epoch when it is over. Not thread-safe.

    The evidence that it gives is for `bet_events` and `bet_split`; rates of failures, for `bet_within`, are in it as parts too.
    """

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._keys: dict[str, tuple[bool, list[int]]] = {}
        self._scale = 1.0

    def note(self, key: str, epoch: int, *, canary: bool, failed: int, num: int) -> Counts | None:
        """Note jobs of a key, `failed` of `num`; return the counts of the epoch before, if this one is another."""
        ended = self._close() if self._epoch is not None and epoch != self._epoch else None
        self._epoch = epoch
        counted = self._keys.setdefault(key, (canary, [0, 0]))[1]
        counted[0] += failed
        counted[1] += num
        return ended

    def _close(self) -> Counts:
        counts = Counts()
        for canary, (failed, _) in self._keys.values():
            part = min(1.0, failed / self._scale)  # the scale is of earlier epochs: it knows nothing of these draws
            if canary:
                counts.canary += 1
                counts.bad_canary += part
            else:
                counts.stable += 1
                counts.bad_stable += part
        failing = [failed for _, (failed, _) in self._keys.values() if failed]
        if failing:
            mean = sum(failing) / len(failing)
            self._scale = max(1.0, mean if self._scale == 1.0 else 0.8 * self._scale + 0.2 * mean)
        self._keys = {}
        return counts
