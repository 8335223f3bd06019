"""The name look-ups that the calls of one carrier wait for.

How this works: a host is looked up once at a time, whatever number of calls wait for it. The thread of a look-up leaves its
answer in `_answers` and rings the carrier's bell; all else is done by the carrier's thread. A look-up that hangs stays in
`_waiting` when nobody waits for it any more: a further call for that host joins it instead of taking another thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.base.address_ranges import Address
from headrace.base.calls import LookUp
from headrace.base.look_ups import Answer, Unresolved, addresses_of, begin_look_up, too_many_hang, too_slow

W = TypeVar("W")

#: While as many look-ups hang as may, how often to look whether one has ended.
_RETRY_SECONDS = 0.05
_Host = tuple[str, int]


@dataclass(slots=True)
class _Waiter(Generic[W]):
    who: W
    until: float
    seconds: float


class NamesAwaited(Generic[W]):
    """Look-ups under way.

    Args:
        ring: Called by another thread when there is an answer.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._waiting: dict[_Host, list[_Waiter[W]]] = {}
        self._not_begun: dict[_Host, None] = {}
        self._answers: deque[tuple[_Host, Answer]] = deque()

    @property
    def has_any(self) -> bool:
        """Whether a look-up is under way, or has an answer."""
        return bool(self._waiting)

    @property
    def has_answers(self) -> bool:
        """Whether a look-up has ended that `take` has not seen."""
        return bool(self._answers)

    def add(self, who: W, wait: LookUp, now: float) -> None:
        """Note that somebody waits; `now` is seconds of any clock that does not jump."""
        host = (wait.host, wait.port)
        waiters = self._waiting.get(host)
        if waiters is None:
            waiters = self._waiting[host] = []
            self._not_begun[host] = None
        waiters.append(_Waiter(who, now + wait.seconds, wait.seconds))
        self._begin()

    def forget(self, who: W) -> None:
        """Note that somebody waits no longer."""
        for waiters in self._waiting.values():
            waiters[:] = [waiter for waiter in waiters if waiter.who is not who]

    def due_at(self, now: float) -> float:
        """Return when `take` has something to do if no answer comes; infinite if nobody waits."""
        until = min((waiter.until for waiters in self._waiting.values() for waiter in waiters), default=math.inf)
        return min(until, now + _RETRY_SECONDS) if self._not_begun else until

    def take(self, now: float) -> list[tuple[W, tuple[Address, ...] | Unresolved]]:
        """Return who waits no longer, with what was found or why nothing was."""
        taken: list[tuple[W, tuple[Address, ...] | Unresolved]] = []
        while self._answers:
            host, answer = self._answers.popleft()
            taken += [(waiter.who, _result(answer)) for waiter in self._waiting.pop(host)]
        self._begin()
        for host, waiters in list(self._waiting.items()):
            begun = host not in self._not_begun
            late = [waiter for waiter in waiters if waiter.until <= now]
            taken += [(waiter.who, too_slow(waiter.seconds) if begun else too_many_hang()) for waiter in late]
            self._waiting[host] = [waiter for waiter in waiters if waiter.until > now]
            if not begun and not self._waiting[host]:
                del self._waiting[host], self._not_begun[host]
        return taken

    def _begin(self) -> None:
        """Begin the look-ups for which there is room."""
        for host in list(self._not_begun):

            def tell(answer: Answer, host: _Host = host) -> None:
                self._answers.append((host, answer))
                self._ring()

            try:
                if not begin_look_up(*host, tell):
                    return
            except Unresolved as error:
                self._answers.append((host, error))
            del self._not_begun[host]


def _result(answer: Answer) -> tuple[Address, ...] | Unresolved:
    try:
        if isinstance(answer, Unresolved):
            raise Unresolved(*answer.args) from answer
        return addresses_of(answer)
    except Unresolved as error:
        return error
