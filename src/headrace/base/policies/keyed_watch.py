"""What one worker sees of a canary that is drawn by a key (a user, a camera): each key counts once in an epoch.

The jobs of a key share their fate, so neither their number says anything nor how many of them fail in a row: `KeyedOutcomes`
makes one event of them, and a row is one of different keys. Of what users say of answers, the first word of a key counts.
"""

from __future__ import annotations

from headrace.base.policies.arms import Draw
from headrace.base.policies.canary_watch import CanaryWatch
from headrace.base.policies.keyed_outcomes import KeyedOutcomes

#: Keys of one epoch that are told apart; what comes beyond is no evidence.
_MOST_KEYS = 100_000


class KeyedWatch(CanaryWatch):
    """Counts keys; thread-safe. It must see all jobs of a key, so the run has one process."""

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0
        self._keys: set[str] = set()
        self._spoken: set[str] = set()
        self._row_keys: set[str] = set()
        self._outcomes: dict[float, KeyedOutcomes] = {}

    def note_drawn(self, share: float, *, canary: bool, num: int = 1, draw: Draw | None = None) -> None:
        """Note to which arm a key fell, the first time in an epoch."""
        with self._lock:
            is_new = draw is not None and self._is_present(draw) and draw.key not in self._keys
            if draw is None or not is_new or len(self._keys) >= _MOST_KEYS:
                return
            self._keys.add(draw.key)
        super().note_drawn(share, canary=canary)

    def note_good(self, share: float, *, canary: bool, num: int = 1, draw: Draw | None = None) -> None:
        """Note a job that ended well."""
        with self._lock:
            if canary:
                self._row_keys.clear()
                self._row.note_canary(failed=False)
            else:
                self._row.note_stable(failed=False)
            self._note_end(share, draw, canary=canary, failed=0)

    def note_failed(self, share: float, job_id: str, *, canary: bool, why: str, draw: Draw | None = None) -> None:
        """Note a job that failed; see `CanaryWatch`."""
        with self._lock:
            if self._is_known(job_id):
                return
            self._note_end(share, draw, canary=canary, failed=1)
            key = job_id if draw is None else draw.key
            if not canary:
                self._row.note_stable(failed=True)
            elif key not in self._row_keys:
                self._row_keys.add(key)
                if says := self._row.note_canary(failed=True):
                    self._trip(f"failures: {says}; the last one: {why}")

    def note_feedback(self, share: float, *, canary: bool, bad: bool, draw: Draw | None = None) -> None:
        """Note what a user said of an answer, if it is the first word of that key in an epoch."""
        with self._lock:
            if draw is None or not self._is_present(draw) or draw.key in self._spoken:
                return
            self._spoken.add(draw.key)
        super().note_feedback(share, canary=canary, bad=bad)

    def _note_end(self, share: float, draw: Draw | None, *, canary: bool, failed: int) -> None:
        """Count an end for its key; what was drawn in an epoch that is over, or came beyond the most keys, counts for none."""
        if draw is None or not self._is_present(draw) or draw.key not in self._keys:
            return
        outcomes = self._outcomes.setdefault(share, KeyedOutcomes())
        ended = outcomes.note(draw.key, draw.epoch, canary=canary, failed=failed, num=1)
        if ended is not None:
            self._seen.jobs[share] = self._counts(share).plus(ended)

    def _is_present(self, draw: Draw) -> bool:
        """Return whether a draw is of the present epoch; a later one begins with it."""
        if draw.epoch > self._epoch:
            self._epoch = draw.epoch
            self._keys.clear()
            self._spoken.clear()
        return draw.epoch == self._epoch
