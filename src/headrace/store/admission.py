"""What a full cache does with one more item: keep what it has, or let go of what was used longest ago.

Where all items come round in turn, as in epochs, what was used longest ago is what comes next: letting go of it hits next to
nothing, and keeping hits the share that fits. Where some are asked for again and again, it is the other way round. So both are
tried in small: on a fixed share of the keys, with the same share of the room, without their content. Whichever hit more of late
is in force. (Sampling by key: Waldspurger and others, SHARDS, FAST 2015.)

A plain object without a clock; whoever shares one holds a lock.
"""

from __future__ import annotations

from collections import OrderedDict

#: Keys that are followed at most; above it half of them are dropped.
_MOST_FOLLOWED = 8_192
#: Lookups of followed keys after which older ones count half.
_WINDOW = 4_096
#: By how many hits the other policy must lead, so that chance does not decide.
_LEAD = 64


class Admission:
    """Follows lookups, and says which policy hits more.

    Args:
        limit_bytes: Of the cache.

    Attributes:
        evicts: Whether what was used longest ago makes room.
        kept_hits, recent_hits: What each policy would have hit of late, of the keys that are followed.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.evicts = False
        self.kept_hits = self.recent_hits = 0
        self._room = limit_bytes
        self._threshold = 1 << 32
        self._kept: dict[int, int] = {}
        self._kept_bytes = 0
        self._recent: OrderedDict[int, int] = OrderedDict()
        self._recent_bytes = 0
        self._num_seen = 0

    def follow(self, key: bytes, num_bytes: int) -> None:
        """Note that a key was looked up; `num_bytes` is the size of what is kept under it."""
        mark = int.from_bytes(key[:4], "big")
        if mark >= self._threshold:
            return
        mark = int.from_bytes(key[:8], "big")
        self._keep(mark, num_bytes)
        self._use(mark, num_bytes)
        if len(self._kept) + len(self._recent) > _MOST_FOLLOWED:
            self._follow_half()
        self._num_seen += 1
        if self._num_seen >= _WINDOW:
            self._num_seen //= 2
            self.kept_hits //= 2
            self.recent_hits //= 2
        lead = self.recent_hits - self.kept_hits
        if abs(lead) >= _LEAD:
            self.evicts = lead > 0

    def _keep(self, mark: int, num_bytes: int) -> None:
        if mark in self._kept:
            self.kept_hits += 1
        elif self._kept_bytes + num_bytes <= self._room:
            self._kept[mark] = num_bytes
            self._kept_bytes += num_bytes

    def _use(self, mark: int, num_bytes: int) -> None:
        if mark in self._recent:
            self.recent_hits += 1
            self._recent.move_to_end(mark)
            return
        if num_bytes > self._room:
            return
        self._recent[mark] = num_bytes
        self._recent_bytes += num_bytes
        while self._recent_bytes > self._room:
            self._recent_bytes -= self._recent.popitem(last=False)[1]

    def _follow_half(self) -> None:
        self._threshold //= 2
        self._room //= 2
        self._kept = {mark: size for mark, size in self._kept.items() if mark >> 32 < self._threshold}
        self._recent = OrderedDict((mark, size) for mark, size in self._recent.items() if mark >> 32 < self._threshold)
        self._kept_bytes, self._recent_bytes = sum(self._kept.values()), sum(self._recent.values())
