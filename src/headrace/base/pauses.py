"""The pauses of one carrier's calls: who waits until when."""

from __future__ import annotations

import heapq
import itertools
import select
from typing import Generic, TypeVar

from headrace.base.alarm import Alarm

W = TypeVar("W")


class Pauses(Generic[W]):
    """Pauses under way; one that is over is an event of the epoll.

    Args:
        epoll: Of the carrier.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._alarm: Alarm | None = None
        self._waiting: list[tuple[int, int, W]] = []
        self._numbers = itertools.count()  # of two that end at once, the one that began first is first

    @property
    def has_any(self) -> bool:
        """Whether there ever was a pause, and with it an alarm to set."""
        return self._alarm is not None

    @property
    def descriptor(self) -> int:
        """The descriptor that has the events; -1 before the first pause."""
        return -1 if self._alarm is None else self._alarm.descriptor

    def add(self, who: W, until_ns: int) -> None:
        """Note that somebody waits until a time, ns of CLOCK_MONOTONIC.

        Raises:
            OSError: If the system gives no timer.
        """
        if self._alarm is None:
            self._alarm = Alarm(self._epoll)
        heapq.heappush(self._waiting, (until_ns, next(self._numbers), who))

    def forget(self, who: W) -> None:
        """Note that somebody waits no longer."""
        self._waiting = [entry for entry in self._waiting if entry[2] is not who]
        heapq.heapify(self._waiting)

    def take(self, now_ns: int) -> list[W]:
        """Return those whose pauses are over."""
        taken = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            taken.append(heapq.heappop(self._waiting)[2])
        return taken

    def set_alarm(self) -> None:
        """Have the epoll wake up when the next pause is over; to be called before it is waited on."""
        if self._alarm is not None:
            self._alarm.set(self._waiting[0][0] if self._waiting else None)

    def move(self, epoll: select.epoll) -> None:
        """Wake another epoll up."""
        self._epoll = epoll
        if self._alarm is not None:
            self._alarm.move(epoll)

    def close(self) -> None:
        """Give the timer back."""
        if self._alarm is not None:
            self._alarm.close()
