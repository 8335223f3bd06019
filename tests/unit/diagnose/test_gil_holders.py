"""Who held the GIL, from who was at work while others waited for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headrace.diagnose.evidence import collect
from headrace.diagnose.gil_holders import GilHolders, SeenWithGil, count_seen, find_gil_holders
from headrace.runs.formats.profile import Window

WINDOW = Window(from_seconds=0.0, to_seconds=20.0, warm_up_seconds=0.0, is_steady=None, says="")


def found(builder: Any) -> GilHolders | None:
    """Return what the samples of a run tell."""
    evidence = collect(builder.finish())
    return find_gil_holders(evidence.spans, evidence.states, WINDOW)


@pytest.fixture
def three(builder: Any) -> Any:
    """Three stages with a worker each, at work for twenty seconds."""
    for name in ("dot", "parse", "resize"):
        builder.stage(name, workers=1)
        builder.spans(name, arrived=[0.0], ended=[20.0], thread=f"{name}-0", unit_id=[name])
    return builder


def test_who_is_always_at_work_then_holds_it(three: Any) -> None:
    """While resize waits, parse is at work, and dot half of the time, as it is when nobody waits: parse holds the GIL."""
    at = np.arange(1, 41) * 0.2
    three.states(at, "resize-0", "gil").states(at, "parse-0", "running").states(at[::2], "dot-0", "running")
    three.states(at + 10.0, "resize-0", "running").states((at + 10.0)[::2], "dot-0", "running")
    holders = found(three)
    assert holders is not None
    assert holders.most is not None
    assert holders.num_moments == 40
    assert holders.most[0] == "parse"
    assert holders.most[1] > 0.95


def test_nobody_is_named_where_two_are_as_likely(three: Any) -> None:
    """Both are at work in every such moment: no stage held it in more than half of them."""
    at = np.arange(1, 41) * 0.2
    three.states(at, "resize-0", "gil").states(at, "parse-0", "running").states(at, "dot-0", "running")
    holders = found(three)
    assert holders is not None
    assert holders.shares["parse"] == pytest.approx(holders.shares["dot"])
    assert holders.most is None


@pytest.mark.parametrize(
    ("moments", "alike"),
    [(139, ("rank", "pack", "model", "other")), (2000, ("rank",))],
    ids=["too few to tell", "enough"],
)
def test_stages_that_so_many_moments_cannot_tell_apart(moments: int, alike: tuple[str, ...]) -> None:
    """Of 24, 20, 20, 15 and 1 % of the moments: within two standard errors of the largest, sqrt((p + q - (p - q)^2) / n)."""
    holders = GilHolders(moments, {"none": 0.01, "pack": 0.20, "rank": 0.24, "model": 0.196, "other": 0.15})
    assert holders.most is None
    assert holders.alike == alike
    assert GilHolders(100, {"parse": 0.6, "rank": 0.3}).alike == ("parse",)


def test_who_uses_much_more_cpu_time_than_it_holds_the_gil_lets_go_of_it() -> None:
    """Seen with it as often as half the CPU time of another: it does not keep it, as code that copies arrays does not."""
    holders = GilHolders(138, {"copy": 0.28, "match": 0.35, "write": 0.06})
    assert holders.find_keepers({"copy": 2.56, "match": 1.33}) == ("match",)
    assert holders.find_keepers({"copy": 1.5, "match": 1.33}) == ("copy", "match")
    assert holders.find_keepers({"copy": 0.0, "match": 0.0}) == ("copy", "match")
    assert holders.find_keepers({}) == ()


@pytest.mark.parametrize(("moments", "surely"), [(30, ("sort",)), (10, ())])
def test_who_was_hardly_seen_with_the_gil_surely_lets_go_of_it(moments: int, surely: tuple[str, ...]) -> None:
    """A stage of as much CPU time as the keeper was seen once; `ask`, of little, may have been missed; in few moments all."""
    holders = GilHolders(moments, {"sort": 0.04, "ask": 0.0, "split": 0.65})
    assert holders.find_letting_go({"sort": 2.0, "ask": 0.25, "split": 1.6}) == surely
    assert holders.find_letting_go({}) == ()


def test_few_moments_say_nothing(three: Any) -> None:
    """Twenty moments are too few."""
    at = np.arange(1, 21) * 0.2
    three.states(at, "resize-0", "gil").states(at, "parse-0", "running")
    assert found(three) is None


def test_who_was_seen_with_the_gil_holds_it_for_its_cpu_time(three: Any) -> None:
    """Both are at work all the time; parse was always seen with the GIL, dot once in twenty: the CPU time is shared out so."""
    at = np.arange(1, 41) * 0.2
    three.states(at, "parse-0", "running", has_gil=True)
    three.states(at + 0.01, "dot-0", "running", has_gil=[number % 20 == 0 for number in range(40)])
    evidence = collect(three.finish())
    holders = find_gil_holders(evidence.spans, evidence.states, WINDOW, {"parse": 0.4, "dot": 0.9})
    assert holders is not None
    assert holders.shares == pytest.approx({"parse": 0.4, "dot": 0.045})
    assert holders.most == ("parse", pytest.approx(0.4))
    assert holders.alike == ("parse",)


@pytest.mark.parametrize(("second", "times"), [(0.10, None), (0.25, 1.28), (0.30, math.inf)])
def test_how_many_more_looks_tell_two_apart(second: float, times: float | None) -> None:
    """Errors shrink with the root of the looks: those of 4 % for a difference of 10 % need (2 x 5.66 % / 10 %) squared."""
    errors = {"match": 0.02, "copy": 0.02}
    found = GilHolders(100, {"match": 0.30, "copy": second}, errors).times_to_tell
    if times is None or found is None:
        assert found is times
    else:
        assert found == pytest.approx(times, rel=0.01) or found > 1e6
    assert GilHolders(100, {"match": 0.30, "copy": second}).times_to_tell is None


def test_stages_that_keep_the_gil_are_told_apart_by_their_cpu_time() -> None:
    """Few samples say that both keep it; their clocks say which of them has it longer. A coin's share is uncertain."""
    always, half = SeenWithGil(25, 25), SeenWithGil(24, 12)
    assert always.share == 1.0
    assert always.error < 0.03
    assert half.error == pytest.approx(0.1)
    shares = {"match": 0.35 * always.share, "copy": 0.28 * always.share}
    errors = {"match": 0.35 * always.error, "copy": 0.28 * always.error}
    assert GilHolders(25, shares, errors).alike == ("match",)


def test_a_stage_seldom_seen_at_work_says_nothing(three: Any) -> None:
    """Nine samples are too few; without anybody who was seen with the GIL, nobody looked."""
    at = np.arange(1, 10) * 0.2
    three.states(at, "parse-0", "running", has_gil=True)
    evidence = collect(three.finish())
    assert count_seen(evidence.spans, evidence.states, WINDOW) == {}
