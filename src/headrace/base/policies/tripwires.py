"""What rolls a canary back at once, beside all statistics: failures in a row that the other arm does not share.

Five failures in a row mean nothing while everything fails, be it the receiver's server or a camera that sends rubbish. So a row
counts only if it could hardly have come about by the draw of the arms: of all jobs since the canary's last success, so many
failed, and the probability that all of the canary's are among them is tiny.
"""

from __future__ import annotations

import math

#: The shortest row that counts.
LEAST_ROW = 5
#: Probability below which a row is the canary's own fault. Tiny, because each of thousands of failures may begin a row.
_LEAST_LIKELY = 1e-7
#: Beyond this many more of the other arm's jobs change nothing.
_MOST_OTHERS = 100_000


class FailureRow:
    """Counts failures in a row of the canary, and what became of other jobs meanwhile. Not thread-safe."""

    def __init__(self) -> None:
        self._num = 0
        self._good = 0
        self._bad = 0

    def note_stable(self, *, failed: bool, num: int = 1) -> None:
        """Note how jobs of the other arm ended."""
        if self._good + self._bad < _MOST_OTHERS:
            self._bad += num if failed else 0
            self._good += 0 if failed else num

    def note_canary(self, *, failed: bool) -> str:
        """Note how a job of the canary ended; return what it says in words if that is too much, else nothing."""
        if not failed:
            self._num = self._good = self._bad = 0
            return ""
        self._num += 1
        if self._num < LEAST_ROW or self._log_likelihood() > math.log(_LEAST_LIKELY):
            return ""
        others = f"{self._good:,} of {self._good + self._bad:,} others"
        return f"{self._num} jobs of the canary failed in a row, while {others} succeeded"

    def _log_likelihood(self) -> float:
        """Return the logarithm of the probability that the canary's jobs are all among those that failed."""
        num_bad, num_all = self._num + self._bad, self._num + self._good + self._bad
        return math.fsum(math.log((num_bad - one) / (num_all - one)) for one in range(self._num))
