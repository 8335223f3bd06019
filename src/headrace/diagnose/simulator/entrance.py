"""Where jobs come in whose arrival is given: they are let in or turned away as the runtime would."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headrace.base.policies.expected_wait import Inside, LetIn, TurnedAway
from headrace.diagnose.simulator.station_states import StationState
from headrace.diagnose.simulator.system import System

#: How a job ended.
ANSWERED, REFUSED, LATE = 0, 1, 2


class Entrance:
    """The jobs of one simulation that have come and that no receiver has taken.

    Args:
        system: What is simulated.
        arrivals: When each job comes.
        stations: Where they wait then.

    Attributes:
        waiting: Jobs that were let in.
    """

    def __init__(self, system: System, arrivals: Sequence[float], stations: Sequence[StationState]) -> None:
        self.waiting: deque[int] = deque()
        self._admission = system.admission
        self._deadline = system.deadline_seconds
        self._arrivals = arrivals
        self._num_jobs = system.num_jobs
        self._num_come = 0
        self._stations = stations
        self._let_in: dict[int, LetIn] = {}

    @property
    def has_more(self) -> bool:
        """Whether more jobs will come."""
        return self._num_come < self._num_jobs

    @property
    def next_arrival(self) -> float:
        """When the next job comes."""
        return self._arrivals[self._num_come]

    def turn_away(self, now: float) -> list[int]:
        """Let in what has come by now, and return what is turned away instead."""
        away = []
        while self.has_more and self.next_arrival <= now:
            job = self._num_come
            self._num_come += 1
            if self._is_let_in(job, now):
                self.waiting.append(job)
            else:
                away.append(job)
        return away

    def leave(self, job: int, now: float) -> None:
        """Note that a job was answered, or given up."""
        if self._admission is not None:
            self._admission.note_end(now, self._let_in.pop(job), self._inside())

    def is_late(self, job: int, now: float) -> bool:
        """Return whether nobody wants a job any more."""
        return self._deadline is not None and now > self._arrivals[job] + self._deadline

    def _is_let_in(self, job: int, now: float) -> bool:
        if self._admission is None:
            return True
        deadline = None if self._deadline is None else self._arrivals[job] + self._deadline
        decision = self._admission.decide(now, deadline, self._inside())
        if isinstance(decision, TurnedAway):
            return False
        self._let_in[job] = decision
        return True

    def _inside(self) -> Inside:
        waiting = len(self.waiting) + sum([len(station.queue) for station in self._stations])
        return Inside(len(self._let_in), waiting)
