"""Adds up what is seen of items, for each stratum; sums of several threads, processes and windows add up to one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping

from headrace.base.formatting import encodable
from headrace.runs.formats.drift import DriftWindow, StratumSums, Sums

#: Strata that are told apart; further ones count as `other`. So memory, files and evidence stay bounded.
MOST_STRATA = 200
#: Classes of answers, and codes of refusals, that are told apart in a stratum.
MOST_NAMES = 60
OTHER = "other"
#: Attributes that are named where jobs do not have the key, and characters of each.
_MOST_ATTRIBUTES, _MOST_CHARACTERS = 20, 80
#: Values from which squares and sums of them would be no numbers for long.
_TOO_LARGE = 1e100


class Adder:
    """Sums so far. Not thread-safe."""

    def __init__(self) -> None:
        self.items = self.sampled = self.lost = self.without_key = 0
        self._attributes: set[str] = set()
        self._means: dict[str, dict[str, list[float]]] = {}
        self._counts: dict[str, dict[str, int]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was seen: the answers of items that an earlier part counted may be all there is."""
        return not self._counts and not self.lost

    def stratum(self, name: str) -> str:
        """Return the name itself, or `other` if there are too many."""
        if name in self._counts:
            return name
        name = encodable(name)
        if name in self._counts:
            return name
        if len(self._counts) < MOST_STRATA:
            self._counts[name] = {}
            return name
        self._counts.setdefault(OTHER, {})
        return OTHER

    def count_without_key(self, attributes: Iterable[str]) -> None:
        """Count an item whose job does not have the key, but these attributes."""
        self.without_key += 1
        if len(self._attributes) < _MOST_ATTRIBUTES:
            self._attributes.update(
                encodable(name[:_MOST_CHARACTERS]) for name in itertools.islice(attributes, _MOST_ATTRIBUTES)
            )

    def count(self, stratum: str, *names: str) -> None:
        """Count one of each."""
        counts = self._counts.setdefault(stratum, {})
        for name in names:
            known = counts.get(name)
            if known is None:  # new, or as it is not written
                name = encodable(name)
                known = counts.get(name)
            if known is None and len(counts) >= MOST_NAMES:
                name = f"{name.partition('.')[0]}.{OTHER}" if "." in name else name
                known = counts.get(name)
            counts[name] = (known or 0) + 1

    def add(self, stratum: str, names: Collection[str], values: Iterable[float]) -> None:
        """Add a value of each statistic; one that is not finite, or beyond all measure, is left out."""
        if not names:
            return
        means = self._means.setdefault(stratum, {})
        for name, value in zip(names, values, strict=True):
            if not abs(value) < _TOO_LARGE:
                continue
            sums = means.get(name)
            if sums is None:
                name = encodable(name)
                sums = means.get(name)
            if sums is None:
                if len(means) >= 2 * MOST_NAMES:
                    continue
                means[name] = [1, value, value * value]
            else:
                sums[0] += 1
                sums[1] += value
                sums[2] += value * value

    def count_keys_of(self, window: DriftWindow) -> None:
        """Add the items of another, and how many have no key."""
        self.items += window.items
        self.without_key += window.without_key
        self._attributes.update(window.attributes)

    def merge(self, window: DriftWindow) -> None:
        """Add the sums of another."""
        self.count_keys_of(window)
        self.sampled += window.sampled
        self.lost += window.lost
        for given, sums in window.strata.items():
            name = self.stratum(given)
            means, counts = self._means.setdefault(name, {}), self._counts[name]
            for statistic, more in sums.means.items():
                ours = means.setdefault(statistic, [0, 0.0, 0.0])
                ours[0] += more.n
                ours[1] += more.total
                ours[2] += more.squares
            for what, number in sums.counts.items():
                counts[what] = counts.get(what, 0) + number

    def window(self, began: float, ended: float, *, key: str = "", hours: int = 0) -> DriftWindow:
        """Return the sums as a window; arguments as its fields."""
        return DriftWindow(
            began=began,
            ended=ended,
            items=self.items,
            sampled=self.sampled,
            lost=self.lost,
            key=encodable(key),
            hours=hours,
            without_key=self.without_key,
            attributes=tuple(sorted(self._attributes)[:_MOST_ATTRIBUTES]),
            strata={
                name: StratumSums(means=_sums_of(self._means.get(name, {})), counts=dict(counts))
                for name, counts in self._counts.items()
            },
        )


def merge_windows(windows: Iterable[DriftWindow]) -> DriftWindow | None:
    """Return one window of several; None of none."""
    every = list(windows)
    if not every:
        return None
    adder = Adder()
    for window in every:
        adder.merge(window)
    first = every[0]
    began, ended = min(one.began for one in every), max(one.ended for one in every)
    return adder.window(began, ended, key=first.key, hours=first.hours)


def _sums_of(means: Mapping[str, list[float]]) -> dict[str, Sums]:
    return {name: Sums(int(n), total, squares) for name, (n, total, squares) in means.items()}
