"""How much room there must be before a receiver is called to fill it.

How this works: a receiver that comes for each single job that leaves would be woken, and would call the source, for one job
at a time. So it is called when a part of the places that the workers do not need is free: they still have work in their
queues. Where so much is not free in time, because most of what is inside does not move, the receiver takes what there is,
and less is waited for from then on.
"""

from __future__ import annotations

#: The part of the places beyond those that the workers have in hand.
_PART = 4
#: How long a receiver waits for enough room.
_PATIENCE_SECONDS = 0.05


class Refill:
    """Decides for the receivers of one run; the lock of `Admission` is held.

    Args:
        receive_batch: The most that one call of the source brings.
        in_hand: Items that all workers together have in hand at most.

    Attributes:
        patience_seconds: How long a receiver waits for enough room before it takes what there is.
    """

    def __init__(self, receive_batch: int, in_hand: int) -> None:
        self._in_hand = in_hand
        self._receive_batch = self._enough = receive_batch
        self.patience_seconds = _PATIENCE_SECONDS

    def least(self, most_inside: int) -> int:
        """Return how many places must be free, >= 1.

        Args:
            most_inside: Jobs that may be inside now.
        """
        return max(1, min(self._enough, (most_inside - self._in_hand) // _PART))

    def note(self, *, is_late: bool) -> None:
        """Note whether there was enough room in time."""
        self._enough = max(1, self._enough // 2) if is_late else min(self._receive_batch, self._enough + 1)
