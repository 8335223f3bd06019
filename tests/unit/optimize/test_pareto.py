"""What is worth choosing from, where nothing is known exactly."""

from __future__ import annotations

from dataclasses import replace

from headrace.optimize.pareto import Point, best, front, near_fastest
from headrace.runs.formats.optimization import TechniqueKind
from headrace.runs.formats.profile import Estimate


def point(
    name: str,
    speedup: float,
    drop: float = 0.0,
    num_bytes: int = 100,
    kind: TechniqueKind = "lossy",
    noise: float = 0.02,
) -> Point:
    """Return a variant known to so much."""
    return Point(
        name=name, kind=kind, speedup=Estimate(speedup * (1 - noise), speedup, speedup * (1 + noise)),
        drop=Estimate(drop - 0.001, drop, drop + 0.001), num_bytes=num_bytes,
    )  # fmt: skip


def names(points: list[Point]) -> list[str]:
    """Return their names."""
    return [one.name for one in points]


def test_who_is_beaten_everywhere_is_not_on_the_front() -> None:
    """Slower, less often right and no smaller."""
    points = [point("base", 1.0), point("fast", 3.0, 0.004), point("worse", 2.0, 0.01)]
    assert names(front(points)) == ["fast", "base"]


def test_overlapping_intervals_beat_nobody() -> None:
    """Nobody knows which of the two is faster."""
    assert len(front([point("a", 2.00), point("b", 2.03)])) == 2


def test_a_smaller_one_stays() -> None:
    """Size is an axis of its own."""
    assert names(front([point("a", 2.0, num_bytes=100), point("b", 1.5, num_bytes=25)])) == ["a", "b"]


def test_who_may_still_win_with_a_layout_of_its_own() -> None:
    """Up to 1.5 times slower, the fastest first, and no more than four."""
    points = [point("base", 1.0), point("a", 1.6), point("b", 2.2), point("c", 1.4)]
    assert names(near_fastest(points)) == ["b", "a"]
    assert names(near_fastest([point(name, 2.0 + 0.01 * number) for number, name in enumerate("abcdef")])) == list(
        "fedc"
    )


def test_of_equals_the_one_that_changes_less_is_used() -> None:
    """2.05 against 2.00 is no difference here."""
    equal = [point("int8", 2.05, kind="lossy"), point("bf16", 2.0, kind="numeric"), point("slow", 1.2, kind="lossless")]
    chosen = best(equal, "throughput")
    assert chosen is not None
    assert chosen.name == "bf16"


def test_what_was_trained_must_be_surely_faster_than_what_was_not() -> None:
    """Int8 that was trained for is used instead of int8 with groups back in float32 only where that has cost speed."""
    trained = point("qat", 2.05, kind="trained")
    as_fast, slower = (best([trained, point("int8-reverted", speed)], "throughput") for speed in (2.0, 1.5))
    assert as_fast is not None
    assert slower is not None
    assert (as_fast.name, slower.name) == ("int8-reverted", "qat")


def test_the_smallest_is_used_where_size_counts() -> None:
    """And of those the fastest."""
    points = [point("a", 3.0, num_bytes=100), point("b", 1.1, num_bytes=25), point("c", 1.4, num_bytes=25)]
    chosen = best(points, "size")
    assert chosen is not None
    assert chosen.name == "c"
    assert best([], "size") is None


def test_memory_is_an_axis_where_it_is_known() -> None:
    """Less by more than a tenth keeps a slower one on the front; less by a little does not, nor what nobody measured."""
    fast = replace(point("fast", 2.0), memory_bytes=100)
    assert names(front([fast, replace(point("lean", 1.5), memory_bytes=60)])) == ["fast", "lean"]
    assert names(front([fast, replace(point("alike", 1.5), memory_bytes=95)])) == ["fast"]
    assert names(front([fast, point("unknown", 1.5)])) == ["fast"]


def test_for_cost_the_one_that_needs_least_cpu_time_is_best() -> None:
    """Not the fastest; of those whose intervals overlap the one that changes least, and CPU time is an axis of the front."""
    fast, cheap = (
        replace(point(name, speed), cpu=Estimate(0.95 * cpu, cpu, 1.05 * cpu))
        for name, speed, cpu in (("fast", 4, 1.5), ("cheap", 2, 3))
    )
    alike = replace(cheap, name="alike", kind="numeric", cpu=Estimate(2.8, 2.9, 3.0))
    neither = replace(fast, name="neither", speedup=cheap.speedup, cpu=Estimate(1.3, 1.4, 1.41))
    assert best([fast, cheap, alike], "cost") == alike
    assert best([fast, cheap, alike], "throughput") == fast
    assert names(front([fast, cheap, neither])) == ["fast", "cheap"]
