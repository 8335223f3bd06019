"""What a queue is still to be told, in one lane for each kind of call: what fails in one holds up no other.

A lane belongs to the thread that tends the loans. What waits for its first try is ready, in order; what failed comes again
after a pause that grows with its tries. Where the call as a whole fails, the lane pauses.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headrace.sources.loans import Loan

Action = Literal["ack", "nack", "postpone", "dead_letter"]

#: Pauses after failures; of letters longer ones, because only a person helps.
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, LAST_LETTER_PAUSE_SECONDS = 0.1, 5.0, 30.0
#: How often a failure that lasts is said again.
SAID_EVERY_SECONDS = 60.0


def pause_seconds(num_failures: int, longest: float = LAST_PAUSE_SECONDS) -> float:
    """Return how long to wait after so many failures in a row (>= 1)."""
    return min(longest, FIRST_PAUSE_SECONDS * 2.0 ** min(num_failures - 1, 20))


class Pauses:
    """When a call that failed may be made again, and when its failure is to be said."""

    __slots__ = ("_longest", "_say_at", "num_failures", "resume_at")

    def __init__(self, longest: float = LAST_PAUSE_SECONDS) -> None:
        self._longest = longest
        self.num_failures = 0
        self.resume_at = 0.0
        self._say_at = 0.0

    def failed(self, now: float) -> None:
        """Note a failure."""
        self.num_failures += 1
        self.resume_at = now + pause_seconds(self.num_failures, self._longest)

    def answered(self) -> bool:
        """Note a success and return whether it ends a row of failures."""
        had_failed = self.num_failures > 0
        self.num_failures = 0
        self.resume_at = self._say_at = 0.0
        return had_failed

    def is_to_be_said(self, now: float) -> bool:
        """Return whether a failure is to be said now: the first, and then one in a minute."""
        if now < self._say_at:
            return False
        self._say_at = now + SAID_EVERY_SECONDS
        return True


class Lane:
    """The outcomes of one kind.

    Args:
        action: Of what kind.
        company: So many are sent at once.
        patience_seconds: How long fewer wait for company.
    """

    def __init__(self, action: Action, company: int, patience_seconds: float) -> None:
        self.action = action
        self._longest_pause = LAST_LETTER_PAUSE_SECONDS if action == "dead_letter" else LAST_PAUSE_SECONDS
        self.pauses = Pauses(self._longest_pause)
        self.served = 0
        """When it was last served, as a number that grows."""
        self._company = company
        self._patience_seconds = patience_seconds
        self._ready: deque[Loan] = deque()
        self._later: list[tuple[float, int, Loan]] = []
        self._number = 0
        self._flush_at = 0.0

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    @property
    def num_stuck(self) -> int:
        """Outcomes that failed, or wait behind a call that fails."""
        return len(self) if self.pauses.num_failures else len(self._later)

    def add(self, loan: Loan, now: float) -> None:
        """Take in an outcome."""
        if not self._ready:
            self._flush_at = now + self._patience_seconds
        self._ready.append(loan)

    def put_back(self, loans: Iterable[Loan]) -> None:
        """Take back what was taken and not sent."""
        self._ready.extendleft(reversed(list(loans)))

    def put_off(self, loan: Loan, now: float) -> None:
        """Take back an outcome that failed by itself."""
        loan.num_tries += 1
        self._number += 1  # makes equal times comparable
        heapq.heappush(self._later, (now + pause_seconds(loan.num_tries, self._longest_pause), self._number, loan))

    def is_due(self, now: float) -> bool:
        """Return whether something is to be sent now."""
        if now < self.pauses.resume_at:
            return False
        while self._later and self._later[0][0] <= now:
            self.add(heapq.heappop(self._later)[2], now)
        return bool(self._ready) and (len(self._ready) >= self._company or now >= self._flush_at)

    def hurry(self) -> None:
        """Make all that waits due."""
        self._ready.extend(loan for _, _, loan in self._later)
        self._later.clear()
        self._flush_at = self.pauses.resume_at = 0.0

    def take(self, most: int) -> list[Loan]:
        """Return up to so many that one call can settle: those that share the delay of the first."""
        taken: list[Loan] = []
        others: list[Loan] = []
        while self._ready and len(taken) < most:
            loan = self._ready.popleft()
            (taken if not taken or loan.delay_seconds == taken[0].delay_seconds else others).append(loan)
        self.put_back(others)
        return taken

    def take_stuck(self, most_left: int) -> list[Loan]:
        """Return as many of the stuck ones as are too many, those that were tried first."""
        taken: list[Loan] = []
        while self.num_stuck > most_left:
            taken.append(heapq.heappop(self._later)[2] if self._later else self._ready.popleft())
        return taken

    def num_hopeless(self, tries: int) -> int:
        """Return how many failed so often, or wait behind a call that did."""
        if self.pauses.num_failures >= tries:
            return len(self)
        return sum(loan.num_tries >= tries for _, _, loan in self._later)
