"""When a device takes a batch, and why.

An idle device launches at once with what is there, and a batch keeps growing until the device takes it; so there is no tax
on a lonely item. `max_wait` is opt-in: it lets an idle device wait for company.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReleaseReason(StrEnum):
    """Why a batch was released."""

    FULL = "full"
    """The largest batch size was reached."""
    IDLE = "idle"
    """The device was free and took what was there."""
    MAX_WAIT = "max_wait"
    """The oldest item had waited for company as long as the Plan allows."""
    SHAPE = "shape"
    """The next item has another shape and cannot join."""
    DRAIN = "drain"
    """No more items can come."""
    SPLIT = "split"
    """Part of a batch that failed, tried again to find the culprit."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits in front of the device."""

    count: int
    """Items that could join one batch: of one shape, in order, >= 1."""
    oldest_arrived_ns: int
    shape_closed: bool
    """The item after those has another shape."""
    draining: bool
    """No more items can come."""


@dataclass(frozen=True, slots=True)
class Release:
    """Launch with this many items."""

    size: int
    reason: ReleaseReason


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again when an item comes, or at this time."""

    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingPolicy:
    """Decides for an idle device."""

    max_size: int = 1
    max_wait_ns: int = 0

    def decide(self, now_ns: int, waiting: Waiting) -> Release | Wait:
        """Return the batch to launch now, or until when to wait for more items."""
        if waiting.count >= self.max_size:
            return Release(self.max_size, ReleaseReason.FULL)
        if waiting.shape_closed:
            return Release(waiting.count, ReleaseReason.SHAPE)
        if waiting.draining:
            return Release(waiting.count, ReleaseReason.DRAIN)
        if self.max_wait_ns == 0:
            return Release(waiting.count, ReleaseReason.IDLE)
        until = waiting.oldest_arrived_ns + self.max_wait_ns
        if now_ns >= until:
            return Release(waiting.count, ReleaseReason.MAX_WAIT)
        return Wait(until)


def warm_up_sizes(max_size: int) -> list[int]:
    """Return the batch sizes to warm up: the powers of two below the largest, and the largest."""
    sizes = [1]
    while sizes[-1] * 2 < max_size:
        sizes.append(sizes[-1] * 2)
    return sizes if max_size == 1 else [*sizes, max_size]
