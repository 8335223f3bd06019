"""What the models of a run share, such as a device that takes one call at a time: a Plan's `[resources]`.

A call of a model has what its `uses` says for itself while it runs; who finds too little left waits, first come, first served.
A station that takes batches waits before it takes one, so that batches grow while others have the device.

    [resources]
    gpu = 1

    [models.faces]
    uses = { gpu = 1 }

    [models.plates]
    uses = { gpu = 1 }
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

Amounts = Mapping[str, int]


class Resources:
    """How much of each is left. Thread-safe; threads of one process share it.

    Args:
        amounts: {name: how much there is}.
    """

    def __init__(self, amounts: Amounts) -> None:
        self._left = dict(amounts)
        self._lock = threading.Lock()
        self._waiting: list[tuple[Amounts, threading.Lock]] = []
        """Who waits, in order, each with a lock that is let go when it may go on."""

    def take(self, uses: Amounts) -> None:
        """Wait until there is as much as `uses` says, and have it; each no more than there is in all."""
        turn = threading.Lock()
        turn.acquire()
        with self._lock:
            self._waiting.append((uses, turn))
            self._let_go_on()
        turn.acquire()

    def give(self, uses: Amounts) -> None:
        """Give back what was taken."""
        with self._lock:
            for name, amount in uses.items():
                self._left[name] += amount
            self._let_go_on()

    def _let_go_on(self) -> None:
        """Let those go on for whom there is enough; nobody overtakes one who waits for the same."""
        still, wanted = [], set[str]()
        for uses, turn in self._waiting:
            if wanted.isdisjoint(uses) and all(amount <= self._left[name] for name, amount in uses.items()):
                for name, amount in uses.items():
                    self._left[name] -= amount
                turn.release()
            else:
                wanted.update(uses)
                still.append((uses, turn))
        self._waiting = still


class Claim:
    """What one worker has of the resources while its stages run.

    Args:
        resources: Of the run.
        uses: What a call of the worker's model has for itself.
    """

    def __init__(self, resources: Resources, uses: Amounts) -> None:
        self._resources = resources
        self._uses = uses
        self._has = False

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.give()

    @property
    def is_held(self) -> bool:
        """Whether the worker may call the model."""
        return self._has

    def take(self) -> None:
        """Wait for them, unless the worker has them."""
        if not self._has:
            self._resources.take(self._uses)
            self._has = True

    def give(self) -> None:
        """Give them back, if the worker has them."""
        if self._has:
            self._has = False
            self._resources.give(self._uses)
