"""The Pareto front: variants that none other beats on speed, accuracy, size, memory and CPU time together.

Each is known by an interval. One is better on an axis only where the intervals do not touch; where they do, the two are equal
there as far as anybody knows, and of equals the one that changes less is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.runs.formats.optimization import TechniqueKind
from headrace.runs.formats.profile import Estimate

#: From the one that changes nothing to the one that changes most.
KINDS: tuple[TechniqueKind, ...] = ("lossless", "numeric", "lossy", "trained")
#: Sizes closer than this are the same.
_SAME_SIZE = 0.02
#: Peaks of memory closer than this are the same: allocators and the scheduler move them by several percent.
_SAME_MEMORY = 0.1
#: What its own concurrency may gain one variant more than another: with ResNet-18 and MobileNetV2 batches gained 1.5 times
#: where the kernel was fast and nothing in float32, and two workers 1.4 times and nothing.
_CATCH_UP = 1.5
#: Variants whose own concurrency is searched.
_MOST_NEAR = 4
_UNKNOWN = Estimate(0.0, 0.0, 0.0)
#: Of what is in use: nothing is lost, and it is as fast as itself.
NO_DROP, SAME_SPEED = Estimate(0.0, 0.0, 0.0), Estimate(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A variant on the picture."""

    name: str
    kind: TechniqueKind
    speedup: Estimate
    """Over the baseline."""
    drop: Estimate
    """Of the share of right answers."""
    num_bytes: int
    memory_bytes: int | None = None
    """None: not measured, and no axis."""
    cpu: Estimate | None = None
    """CPU time of an item of the baseline over that of this one; above 1 it needs less; None: not known."""


def front(points: Sequence[Point]) -> list[Point]:
    """Return those that none other dominates, the fastest first."""
    kept = [point for point in points if not any(_dominates(other, point) for other in points if other is not point)]
    return sorted(kept, key=lambda point: -point.speedup.mid)


def best(points: Sequence[Point], objective: str) -> Point | None:
    """Return the one to use: the fastest, smallest or cheapest, as is asked for; of equals the one that changes least.

    Args:
        points: All of them acceptable.
        objective: `throughput`, `latency`, `size`, or `cost`, for which it is the one that needs least CPU time.
    """
    if not points:
        return None
    if objective == "size":
        smallest = min(point.num_bytes for point in points)
        equals = [point for point in points if point.num_bytes <= smallest * (1 + _SAME_SIZE)]
        return max(equals, key=lambda point: point.speedup.mid)
    return min(find_tied(points, objective), key=lambda point: KINDS.index(point.kind))


def find_tied(points: Sequence[Point], objective: str) -> list[Point]:
    """Return those that may be the best for speed or CPU time, as far as their intervals tell, the best first.

    Args:
        points: All of them acceptable; at least one.
        objective: `throughput`, `latency` or `cost`.
    """
    ranked = sorted(points, key=lambda point: -merit(point, objective).mid)
    return [point for point in ranked if _overlap(merit(point, objective), merit(ranked[0], objective))]


def merit(point: Point, objective: str) -> Estimate:
    """Return what is to be made better, over the baseline: speed, or for `cost` CPU time."""
    return (point.cpu or _UNKNOWN) if objective == "cost" else point.speedup


def near_fastest(points: Sequence[Point]) -> list[Point]:
    """Return those that may be the fastest when each has its own concurrency, the fastest as they are first; at most four."""
    fastest = max((point.speedup.low for point in points), default=0.0)
    near = [point for point in points if point.speedup.high * _CATCH_UP >= fastest]
    return sorted(near, key=lambda point: -point.speedup.mid)[:_MOST_NEAR]


def is_smaller(a: Point, b: Point) -> bool:
    """Return whether A's file is smaller than B's by more than nothing."""
    return a.num_bytes * (1 + _SAME_SIZE) < b.num_bytes


def needs_less(a: Point, b: Point) -> bool:
    """Return whether A surely needs less memory than B; no where it was not measured."""
    return (
        a.memory_bytes is not None
        and b.memory_bytes is not None
        and a.memory_bytes * (1 + _SAME_MEMORY) < b.memory_bytes
    )


def _overlap(a: Estimate, b: Estimate) -> bool:
    return a.low <= b.high and b.low <= a.high


def _dominates(a: Point, b: Point) -> bool:
    """Return whether A is surely better than B on one axis and surely worse on none."""
    faster, slower = a.speedup.low > b.speedup.high, a.speedup.high < b.speedup.low
    righter, wronger = a.drop.high < b.drop.low, a.drop.low > b.drop.high
    smaller, larger = is_smaller(a, b), is_smaller(b, a)
    leaner, heavier = needs_less(a, b), needs_less(b, a)
    cheaper = a.cpu is not None and b.cpu is not None and a.cpu.low > b.cpu.high
    dearer = a.cpu is not None and b.cpu is not None and a.cpu.high < b.cpu.low
    better, worse = faster or righter or smaller or leaner, slower or wronger or larger or heavier
    return (better or cheaper) and not (worse or dearer)
