"""How long a received message stays ours, and how much may be received at once.

A message is lent for its visibility timeout. The heartbeat extends the loan of everything that is still in a buffer or in
work, once half of the loan is used; `prefetch_limit` keeps the buffers so small that most items need no extension.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityPolicy:
    """Decides for one loan."""

    timeout_seconds: float
    """The visibility timeout asked for at receipt and at each extension."""

    def extend_at(self, lent_at: float) -> float:
        """Return when the loan is to be extended, on the clock of lent_at (seconds): at half of its length."""
        return lent_at + self.timeout_seconds / 2

    def is_lost(self, now: float, lent_at: float) -> bool:
        """Return whether the loan has run out, so that another worker may have the message."""
        return now >= lent_at + self.timeout_seconds


def prefetch_limit(
    visibility_seconds: float, throughput: float | None, num_queues: int = 1, at_least: int = 1
) -> int | None:
    """Return how many messages may be in flight so that each can be finished within its visibility timeout.

    Args:
        visibility_seconds: Visibility timeout.
        throughput: Items per second as measured in this run; None while unknown.
        num_queues: Queues that this worker reads.
        at_least: Never fewer: what keeps the workers busy; the heartbeat covers the rest.

    Returns:
        Messages, or None while the throughput is unknown.

    References:
        Prefetch <= visibility timeout x throughput / number of queues; GumGum Engineering, "Simple Ways to Save Big in
        Computer Vision Inference".
    """
    if throughput is None:
        return None
    return max(at_least, int(visibility_seconds * throughput / num_queues))
