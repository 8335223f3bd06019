"""Which answers of an hour are kept: some of each class and arm at random, the least certain, those a twin answers otherwise.

A plain policy: no clock, no threads, no files. Each answer comes with a key made by chance. Of each cell (class and arm) those
with the lowest keys are kept, which is a reservoir: any set of answers of the cell is as likely as any other of that size. The
kept ones with the lowest keys are in turn such a sample of a smaller size, so that a sample can be made smaller at any time,
and people review in the order of the keys. All answers of a cell are counted, kept or not: both numbers together are the
probability with which an answer was kept. The least certain ones and those of the largest disagreement are kept for what they
are; in estimates they are a population of their own, of which every member is known (`rounds`).
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from headrace.runs.formats.review import CellCount, ReviewSample, SampledAnswer, Why

#: Classes that are counted by their names in an hour; answers of others share a cell.
_MOST_NAMES = 200
OTHER = "(other)"
#: Items of a cell that stay however small a sample has to be.
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class Offer:
    """An answer that may be kept."""

    key: str
    name: str
    arm: str = ""
    certainty: float | None = None
    disagreement: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many answers of an hour are kept."""

    per_cell: int = 50
    least_certain: int = 20
    disagreement: int = 20


@dataclass(slots=True)
class _Top:
    """The answers with the largest of some number; equal ones by chance, but not by that which orders cells."""

    most: int
    heap: list[tuple[float, str, str]] = field(default_factory=list)

    def takes(self, amount: float, key: str) -> bool:
        if len(self.heap) < self.most:
            return True
        return self.most > 0 and amount >= self.heap[0][0] and (amount, key[16:]) > self.heap[0][:2]

    def add(self, amount: float, key: str) -> str | None:
        """Keep a key, and return the one that is dropped for it."""
        heapq.heappush(self.heap, (amount, key[16:], key))
        return heapq.heappop(self.heap)[2] if len(self.heap) > self.most else None


class HourSample:
    """The kept answers of one hour.

    Args:
        limits: How many.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._counts: dict[tuple[str, str], int] = {}
        self._names: set[str] = set()
        self._cells: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._tops: dict[Why, _Top] = {
            "least_certain": _Top(limits.least_certain),
            "disagreement": _Top(limits.disagreement),
        }
        self._why: dict[str, set[Why]] = {}
        self._items: dict[str, Any] = {}

    def cell_of(self, name: str, arm: str) -> tuple[str, str]:
        """Return the cell in which an answer counts."""
        if name not in self._names and len(self._names) >= _MOST_NAMES:
            return OTHER, arm
        return name, arm

    def reasons(self, offer: Offer) -> set[Why]:
        """Return why an answer would be kept now; empty: it would only be counted."""
        found: set[Why] = set()
        kept = self._cells.get(self.cell_of(offer.name, offer.arm), [])
        if len(kept) < self._limits.per_cell or (kept and -_place(offer.key) > kept[0][0]):
            found.add("random")
        for why, top in self._tops.items():
            if (amount := _amount(offer, why)) is not None and top.takes(amount, offer.key):
                found.add(why)
        return found

    def add(self, offer: Offer, item: Any) -> list[Any]:
        """Count an answer, keep it if it is to be kept, and return the items that are dropped for it, itself perhaps.

        Args:
            offer: The answer.
            item: What is kept of it.
        """
        cell = self.cell_of(offer.name, offer.arm)
        self._names.add(cell[0])
        why = self.reasons(offer)
        self._counts[cell] = self._counts.get(cell, 0) + 1
        return self._keep(offer, item, cell, why) if why else [item]

    def count(self, offer: Offer) -> None:
        """Count an answer that is not kept."""
        cell = self.cell_of(offer.name, offer.arm)
        self._names.add(cell[0])
        self._counts[cell] = self._counts.get(cell, 0) + 1

    def restore(self, offer: Offer, item: SampledAnswer) -> None:
        """Take in an item that was kept before, for the same reasons."""
        self._keep(offer, item, (item.name, item.arm), set(item.why))

    def _keep(self, offer: Offer, item: Any, cell: tuple[str, str], why: set[Why]) -> list[Any]:
        self._items[offer.key], self._why[offer.key] = item, set(why)
        dropped: list[Any] = []
        if "random" in why:
            heap = self._cells.setdefault(cell, [])
            heapq.heappush(heap, (-_place(offer.key), offer.key))
            if len(heap) > self._limits.per_cell:
                dropped += self._drop(heapq.heappop(heap)[1], "random")
        for kind, top in self._tops.items():
            if kind in why:
                out = top.add(_amount(offer, kind) or 0.0, offer.key)
                dropped += [] if out is None else self._drop(out, kind)
        return dropped

    def _drop(self, key: str, why: Why) -> list[Any]:
        self._why[key].discard(why)
        if self._why[key]:
            return []
        del self._why[key]
        return [self._items.pop(key)]

    def items(self) -> Iterator[tuple[Any, tuple[Why, ...]]]:
        """Give what is kept, and why."""
        for key, item in self._items.items():
            yield item, tuple(sorted(self._why[key]))

    def cells(self) -> tuple[CellCount, ...]:
        """Return how many answers there were of each cell."""
        return tuple(
            CellCount(name=name, arm=arm, num_answers=num) for (name, arm), num in sorted(self._counts.items())
        )

    def halve(self) -> list[Any]:
        """Keep about half, and return what is dropped; empty: it cannot be smaller."""
        per_cell = max(_FEWEST, max(map(len, self._cells.values()), default=0) // 2)
        self._limits = replace(self._limits, per_cell=per_cell)
        dropped: list[Any] = []
        for heap in self._cells.values():
            while len(heap) > per_cell:
                dropped += self._drop(heapq.heappop(heap)[1], "random")
        for why, top in self._tops.items():
            top.most = len(top.heap) // 2
            while len(top.heap) > top.most:
                dropped += self._drop(heapq.heappop(top.heap)[2], why)
        return dropped


def halve_sample(sample: ReviewSample) -> tuple[ReviewSample, list[SampledAnswer]]:
    """Return a sample of about half the size, and what is no more in it."""
    whole = HourSample(Limits(per_cell=sys.maxsize, least_certain=sys.maxsize, disagreement=sys.maxsize))
    for item in sample.items:
        offer = Offer(item.key, item.name, item.arm, item.certainty, item.disagreement)
        whole.restore(offer, item)
    dropped = whole.halve()
    items = tuple(msgspec.structs.replace(item, why=why) for item, why in whole.items())
    return msgspec.structs.replace(sample, items=items), dropped


def place_of(key: str) -> float:
    """Return where an item is in the random order of its cell, above 0 and below 1."""
    return (_place(key) + 0.5) / 2**64


def _place(key: str) -> int:
    return int(key[:16], 16)


def _amount(offer: Offer, why: Why) -> float | None:
    if why == "disagreement":
        return offer.disagreement or None
    return None if offer.certainty is None else -offer.certainty
