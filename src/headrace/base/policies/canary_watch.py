"""What one worker sees of a canary: counts the ends of jobs by arm, each job once, and looks for what rolls it back at once."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict

from headrace.base.policies.arms import Draw
from headrace.base.policies.canary import Seen
from headrace.base.policies.evidence import Counts
from headrace.base.policies.tripwires import FailureRow

#: Failed jobs that are remembered.
_NUM_REMEMBERED = 10_000


class CanaryWatch:
    """Counts; thread-safe.

    Only the first delivery of a job counts, and only one failure of an id: one job that fails again and again, or that somebody
    sends again and again, would count many times in the arm to which its id belongs.
    """

    def __init__(self) -> None:
        self._seen = Seen()
        self._row = FailureRow()
        self._has_broken_stable = False
        self._failed: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def seen(self) -> Seen:
        """Return a copy of all that was seen."""
        with self._lock:
            return copy.deepcopy(self._seen)

    def note_drawn(self, share: float, *, canary: bool, num: int = 1, draw: Draw | None = None) -> None:
        """Note to which arm jobs fell; `draw` matters only where keys are drawn (`KeyedWatch`)."""
        with self._lock:
            counts = self._seen.drawn.setdefault(share, Counts())
            if canary:
                counts.canary += num
            else:
                counts.stable += num

    def note_good(self, share: float, *, canary: bool, num: int = 1, draw: Draw | None = None) -> None:
        """Note jobs that ended well, at first delivery, while the canary had this share."""
        with self._lock:
            counts = self._counts(share)
            if canary:
                counts.canary += num
                self._row.note_canary(failed=False)
            else:
                counts.stable += num
                self._row.note_stable(failed=False, num=num)

    def note_failed(self, share: float, job_id: str, *, canary: bool, why: str, draw: Draw | None = None) -> None:
        """Note a job that failed at first delivery, or came too late; `why` is said where that rolls the canary back."""
        with self._lock:
            if self._is_known(job_id):
                return
            counts = self._counts(share)
            if not canary:
                counts.stable += 1
                counts.bad_stable += 1
                self._row.note_stable(failed=True)
                return
            counts.canary += 1
            counts.bad_canary += 1
            if says := self._row.note_canary(failed=True):
                self._trip(f"failures: {says}; the last one: {why}")

    def note_feedback(self, share: float, *, canary: bool, bad: bool, draw: Draw | None = None) -> None:
        """Note what a user said of a job's answer."""
        with self._lock:
            counts = self._seen.feedback.setdefault(share, Counts())
            if canary:
                counts.canary += 1
                counts.bad_canary += bad
            else:
                counts.stable += 1
                counts.bad_stable += bad

    def note_twin(self, *, num_items: int, num_changed: float, slower: bool) -> None:
        """Note one batch that both models answered.

        Args:
            num_items: Items of the batch.
            num_changed: Those that the canary answered otherwise.
            slower: Whether its call took longer, by more than is acceptable.
        """
        with self._lock:
            self._seen.num_compared += num_items
            self._seen.num_changed += num_changed
            self._seen.num_pairs += 1
            self._seen.num_slower += slower

    def note_broken(self, *, canary: bool) -> None:
        """Note answers that hold a NaN or an infinity: enough to roll back, unless the other arm has them too."""
        with self._lock:
            if not canary:
                self._has_broken_stable = True
            elif not self._has_broken_stable:
                self._trip("broken: the canary answered with a NaN or an infinity, and the other arm never did")

    def trip(self, reason: str) -> None:
        """Roll it back at once, for this reason."""
        with self._lock:
            self._trip(reason)

    @property
    def has_tripped(self) -> bool:
        """Whether it is to be rolled back at once; without the lock."""
        return bool(self._seen.trips)

    def _trip(self, reason: str) -> None:
        if not self._seen.trips:
            self._seen.trips.append(reason)

    def _counts(self, share: float) -> Counts:
        return self._seen.jobs.setdefault(share, Counts())

    def _is_known(self, job_id: str) -> bool:
        if job_id in self._failed:
            return True
        self._failed[job_id] = None
        if len(self._failed) > _NUM_REMEMBERED:
            self._failed.popitem(last=False)
        return False
