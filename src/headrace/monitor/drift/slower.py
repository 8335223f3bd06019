"""Joins drift with latency: how the CPU time of a stage grows with the size of its items, and what that says of a change.

A worker notes for the same items their size, the CPU time of a stage, and the product of both (all logarithms), so that sums
are enough for a regression: CPU time = constant x size ^ power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.monitor.drift.statistics import SECONDS
from headrace.runs.formats.drift import DriftWindow, SlowerWith, Sums

#: With which the time of a stage may grow.
SIZES = ("pixels", "bytes")


def product_of(seconds: str, size: str) -> str:
    """Return the name of the sums of products of a stage's CPU time and a size."""
    return f"{seconds}*{size}"


def learn_slower(windows: Sequence[DriftWindow], strata: Sequence[str]) -> tuple[SlowerWith, ...]:
    """Return the powers by which stages slow down, over all items of these strata."""
    sums: dict[str, Sums] = {}
    for window in windows:
        for name in strata:
            for statistic, more in window.strata[name].means.items() if name in window.strata else ():
                old = sums.get(statistic, Sums(0, 0.0, 0.0))
                sums[statistic] = Sums(old.n + more.n, old.total + more.total, old.squares + more.squares)
    found = []
    for seconds in sorted(name for name in sums if name.startswith(SECONDS) and "*" not in name):
        for size in SIZES:
            product = sums.get(product_of(seconds, size))
            if product is None or size not in sums or product.n < 100:
                continue
            n, x, y = product.n, sums[size], sums[seconds]
            variance = x.squares / x.n - (x.total / x.n) ** 2
            if variance > 1e-4:
                power = (product.total / n - x.total / x.n * y.total / y.n) / variance
                found.append(SlowerWith(stage=seconds.removeprefix(SECONDS), statistic=size, power=power))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Slower:
    """A stage that takes longer, or less, with the size that explains it best."""

    stage: str
    size: str
    says: str


def explain_slower(
    slower: Sequence[SlowerWith], changes: dict[str, float], whose: str, since: str, least: float = 0.08
) -> list[Slower]:
    """Return each stage that takes longer, or less, with what changed.

    Args:
        slower: From the baseline.
        changes: {statistic: change of its logarithm}, of sizes and `seconds.STAGE`.
        whose: `images`, or `images from camera 7`.
        since: A time, for people.
        least: Changes of a logarithm below this are none.
    """
    found = []
    for stage in dict.fromkeys(one.stage for one in slower):
        change = changes.get(SECONDS + stage, 0.0)
        causes = [
            (one.power * changes.get(one.statistic, 0.0), one) for one in slower if one.stage == stage and one.power > 0
        ]
        explained, cause = max(causes, key=lambda pair: _likeness(pair[0], change), default=(0.0, None))
        if cause is None or abs(change) < least or abs(changes.get(cause.statistic, 0.0)) < least:
            continue
        size = {"pixels": "as many pixels", "bytes": "as many bytes"}[cause.statistic]
        says = (
            f"{whose} have {10 ** changes[cause.statistic]:.2g}x {size} since {since}; {stage} takes {10**change:.2g}x the "
            f"CPU time (by their size alone {10**explained:.2g}x)"
        )
        found.append(Slower(stage, cause.statistic, says))
    return found


def _likeness(explained: float, change: float) -> float:
    return -abs(change - explained)
