"""Pending calls to a queue, one lane for each kind of call, so that failures of one kind do not delay the others.

A lane belongs to the thread that tends the loans. New outcomes are ready at once, in order; one that failed is tried again
after a pause that grows with its tries. If a call fails as a whole, the lane pauses.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Generic, Literal, Protocol, TypeVar

Action = Literal["ack", "nack", "postpone", "dead_letter"]

#: Pauses after failures; longer for dead letters, because only a person can help.
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, LAST_LETTER_PAUSE_SECONDS = 0.1, 5.0, 30.0
#: How often a lasting failure is logged again.
SAID_EVERY_SECONDS = 60.0


def pause_seconds(num_failures: int, longest: float = LAST_PAUSE_SECONDS) -> float:
    """Return how long to wait after this number of failures in a row (>= 1)."""
    return min(longest, FIRST_PAUSE_SECONDS * 2.0 ** min(num_failures - 1, 20))


class Pauses:
    """When a failed call may be repeated, and when its failure is logged."""

    __slots__ = ("_longest", "_say_at", "num_failures", "resume_at")

    def __init__(self, longest: float = LAST_PAUSE_SECONDS) -> None:
        self._longest = longest
        self.num_failures = 0
        self.resume_at = 0.0
        self._say_at = 0.0

    def note_failure(self, now: float) -> None:
        """Note a failure."""
        self.num_failures += 1
        self.resume_at = now + pause_seconds(self.num_failures, self._longest)

    def note_success(self) -> bool:
        """Note a success and return whether it ends a series of failures."""
        had_failed = self.num_failures > 0
        self.num_failures = 0
        self.resume_at = self._say_at = 0.0
        return had_failed

    def is_to_be_said(self, now: float) -> bool:
        """Return whether to log a failure now: the first, and then one per minute."""
        if now < self._say_at:
            return False
        self._say_at = now + SAID_EVERY_SECONDS
        return True


class Sendable(Protocol):
    """An outcome, as a lane sees it."""

    num_tries: int
    """How often sending it has failed."""

    @property
    def delay_seconds(self) -> float:
        """After which the queue offers the message again; one call takes outcomes of one delay."""
        ...


AnOutcome = TypeVar("AnOutcome", bound=Sendable)


class Lane(Generic[AnOutcome]):
    """The pending outcomes of one kind.

    Args:
        action: The kind of call.
        company: Outcomes that are sent at once.
        patience_seconds: How long fewer outcomes wait for more.
    """

    def __init__(self, action: Action, company: int, patience_seconds: float) -> None:
        self.action = action
        self._longest_pause = LAST_LETTER_PAUSE_SECONDS if action == "dead_letter" else LAST_PAUSE_SECONDS
        self.pauses = Pauses(self._longest_pause)
        self.served = 0
        """When the lane was last served, as a growing number."""
        self._company = company
        self._patience_seconds = patience_seconds
        self._ready: deque[AnOutcome] = deque()
        self._later: list[tuple[float, int, AnOutcome]] = []
        self._number = 0
        self._flush_at = 0.0

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    @property
    def num_stuck(self) -> int:
        """Number of outcomes that failed, or that wait behind a failing call."""
        return len(self) if self.pauses.num_failures else len(self._later)

    def add(self, loan: AnOutcome, now: float) -> None:
        """Add an outcome."""
        if not self._ready:
            self._flush_at = now + self._patience_seconds
        self._ready.append(loan)

    def put_back(self, loans: Iterable[AnOutcome]) -> None:
        """Take back outcomes that were taken and not sent."""
        self._ready.extendleft(reversed(list(loans)))

    def put_off(self, loan: AnOutcome, now: float) -> None:
        """Take back an outcome that failed by itself."""
        loan.num_tries += 1
        self._number += 1  # makes equal times comparable
        heapq.heappush(self._later, (now + pause_seconds(loan.num_tries, self._longest_pause), self._number, loan))

    def is_due(self, now: float) -> bool:
        """Return whether to send now."""
        if now < self.pauses.resume_at:
            return False
        while self._later and self._later[0][0] <= now:
            self.add(heapq.heappop(self._later)[2], now)
        return bool(self._ready) and (len(self._ready) >= self._company or now >= self._flush_at)

    def hurry(self) -> None:
        """Make all waiting outcomes due."""
        self._ready.extend(loan for _, _, loan in self._later)
        self._later.clear()
        self._flush_at = self.pauses.resume_at = 0.0

    def take(self, most: int) -> list[AnOutcome]:
        """Return up to `most` outcomes that one call can settle: those with the same delay as the first."""
        taken: list[AnOutcome] = []
        others: list[AnOutcome] = []
        while self._ready and len(taken) < most:
            loan = self._ready.popleft()
            (taken if not taken or loan.delay_seconds == taken[0].delay_seconds else others).append(loan)
        self.put_back(others)
        return taken

    def take_stuck(self, most_left: int) -> list[AnOutcome]:
        """Return the stuck outcomes above the limit, those that were tried first."""
        taken: list[AnOutcome] = []
        while self.num_stuck > most_left:
            taken.append(heapq.heappop(self._later)[2] if self._later else self._ready.popleft())
        return taken

    def num_hopeless(self, tries: int) -> int:
        """Return how many failed this often, or wait behind a call that did."""
        if self.pauses.num_failures >= tries:
            return len(self)
        return sum(loan.num_tries >= tries for _, _, loan in self._later)
