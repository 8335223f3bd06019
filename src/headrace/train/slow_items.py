"""The items that took longest to load, for `details["slow_items"]` of `training/HOST-PID.json`."""

from __future__ import annotations

from typing import Any

from headrace.train.loader_record import BatchRecord

NUM_KEPT = 10


class SlowItems:
    """The slowest item of each batch, and of those the ten slowest; an item counts once, with its longest time."""

    def __init__(self) -> None:
        self._longest: dict[tuple[str, int], int] = {}
        self._least = 0

    def see(self, dataset: str, record: BatchRecord) -> None:
        """Take a batch.

        Args:
            dataset: Class of the data set.
            record: What the batch cost.
        """
        if record.slowest <= self._least or record.slowest_item < 0:
            return
        key = dataset, record.slowest_item
        self._longest[key] = max(record.slowest, self._longest.get(key, 0))
        if len(self._longest) > NUM_KEPT:
            del self._longest[min(self._longest, key=self._longest.__getitem__)]
        if len(self._longest) == NUM_KEPT:
            self._least = min(self._longest.values())

    def describe(self) -> list[dict[str, Any]]:
        """Return them, the slowest first: data set, index and seconds."""
        by_time = sorted(self._longest.items(), key=lambda one: -one[1])
        return [{"dataset": dataset, "item": item, "seconds": longest / 1e9} for (dataset, item), longest in by_time]
