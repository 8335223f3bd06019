"""A queue of which single calls fail, for tests of what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.errors import QueueRefused
from headrace.base.protocols import Queue
from headrace.base.records import Burial, Postponed


class FaultyQueue:
    """Hands everything on to a queue but what it was told to fail. Thread-safe as far as the queue is.

    Attributes:
        refuses: Names of methods that raise QueueRefused.
        fails: What each receipt of a batch call is answered with, by the name of the method; the queue is not called.
        breaks_on: A dead letter with this body raises a ValueError, and none of its batch is written; empty: none does.
        before: Called before a method is carried out, by its name.
        calls: Number of calls by method, in the order of the first ones.
    """

    def __init__(self, queue: Queue) -> None:
        self.refuses: set[str] = set()
        self.fails: dict[str, str] = {}
        self.breaks_on = b""
        self.before: dict[str, Callable[[], object]] = {}
        self.calls: dict[str, int] = {}
        self._queue = queue

    def ack(self, receipts: Sequence[str]) -> dict[str, str]:
        """Remove messages for good, or fail."""
        return self._carry_out("ack", receipts, self._queue.ack, receipts)

    def nack(self, receipts: Sequence[str], *, delay_seconds: float = 0.0) -> dict[str, str]:
        """Offer messages again, or fail."""
        return self._carry_out("nack", receipts, self._queue.nack, receipts, delay_seconds=delay_seconds)

    def extend(self, receipts: Sequence[str], seconds: float) -> dict[str, str]:
        """Extend loans, or fail."""
        return self._carry_out("extend", receipts, self._queue.extend, receipts, seconds)

    def postpone(self, postponed: Sequence[Postponed]) -> dict[str, str]:
        """Offer messages again as if they were new, or fail."""
        receipts = [one.message.receipt for one in postponed]
        return self._carry_out("postpone", receipts, self._queue.postpone, postponed)

    def dead_letter(self, burials: Sequence[Burial]) -> dict[str, str]:
        """Move messages to the dead letters, or fail."""
        if self.breaks_on and any(one.message.body == self.breaks_on for one in burials):
            raise ValueError("this letter cannot be written, says the test")
        receipts = [one.message.receipt for one in burials]
        return self._carry_out("dead_letter", receipts, self._queue.dead_letter, burials)

    def receive(self, max_messages: int, *, wait_seconds: float = 0.0) -> Any:
        """Return messages, or fail."""
        self._begin("receive")
        return self._queue.receive(max_messages, wait_seconds=wait_seconds)

    def _carry_out(
        self, method: str, receipts: Sequence[str], call: Callable[..., dict[str, str]], *arguments: Any, **named: Any
    ) -> dict[str, str]:
        self._begin(method)
        if method in self.fails:
            return dict.fromkeys(receipts, self.fails[method])
        return call(*arguments, **named)

    def _begin(self, method: str) -> None:
        self.calls[method] = self.calls.get(method, 0) + 1
        if method in self.before:
            self.before[method]()
        if method in self.refuses:
            raise QueueRefused(f"{self._queue.name}: {method}: refused by the test")

    def __getattr__(self, name: str) -> Any:
        """Hand on whatever does not fail here."""
        return getattr(self._queue, name)
