"""The pictures of a story."""

from types import SimpleNamespace
from typing import Any, cast

from headrace.demo.pictures import Outcome, draw_outcomes, draw_waterfall
from headrace.runs.formats.profile import Estimate


def outcome(name: str, ratio: Estimate | None) -> Outcome:
    """Return a proposal that was only asked."""
    return Outcome(name, cast("Any", SimpleNamespace(throughput=SimpleNamespace(ratio=ratio))), None)


def test_a_bar_begins_where_the_one_before_ends() -> None:
    """A waterfall: the longest bar is the slowest stage, and a stage that takes no time has a mark."""
    fetch, decode, none = draw_waterfall([("fetch", 0.03), ("decode", 0.01), ("deliver", 0.0)])
    assert fetch.count("#") == 3 * decode.count("#")
    assert decode.index("#") == fetch.rindex("#") + 1
    assert none.endswith("|")


def test_a_proposal_is_drawn_as_a_factor_of_what_was() -> None:
    """Twice the throughput is twice the bar; what could not be predicted has no line."""
    told = [outcome("twice", Estimate(1.8, 2.0, 2.2)), outcome("unknown", None)]
    _, before, twice = draw_outcomes(told)
    assert twice.count("#") == 2 * before.count("#")
    assert "1.80 to 2.20" in twice
