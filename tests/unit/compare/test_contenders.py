"""Several contenders over the same items: pilots, who may fail, and when rounds end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import HeadraceError
from headrace.base.plan import Plan
from headrace.compare.blocks import Contender, SameItems
from headrace.compare.contenders import Blocks, Measured, measure_contenders
from headrace.sources.finite import Entry, FiniteSource

QUICK = Blocks(pairs=2, items=24)


class Numbers(FiniteSource):
    """Forty items."""

    def entries(self) -> Iterator[Entry]:
        """Return them."""
        return (Entry(str(number), b"x") for number in range(40))


def sized(**stages: Any) -> dict[str, Contender]:
    """Return a contender for each function, one item at a time."""
    plan = Plan().with_settings(["work.workers=1"])
    pipelines = {name: hr.Pipeline(Numbers(), stages=[hr.stage("work", call)]) for name, call in stages.items()}
    return {name: Contender(name=name, pipeline=one, plan=plan) for name, one in pipelines.items()}


def refuse(value: object) -> object:
    """Fail."""
    raise ValueError("no such thing")


def measured(contenders: dict[str, Contender], blocks: Blocks = QUICK, **options: Any) -> tuple[Measured, list[str]]:
    """Measure, and return what was said too."""
    lines: list[str] = []
    return measure_contenders(contenders, SameItems(Numbers()), blocks, lines.append, **options), lines


def test_every_round_has_a_block_of_each() -> None:
    """Three contenders, two rounds, and the items that were asked for."""
    found, lines = measured(sized(a=len, b=bytes, c=str))
    assert [sorted(one) for one in found.turns.rounds] == [["a", "b", "c"]] * 2
    assert (found.num_items, found.num_whole_rounds, found.turns.interrupted) == (24, 2, False)
    assert [line.partition(":")[0] for line in lines if line.startswith("round")] == ["round 1", "round 2"]


def test_who_may_fail_is_left_out() -> None:
    """The reason is kept; who must not fail ends it."""
    contenders = sized(a=len, broken=refuse, b=len)
    found, _ = measured(contenders, may_fail={"broken"})
    assert "no such thing" in found.failures["broken"]
    assert [sorted(one) for one in found.turns.rounds] == [["a", "b"]] * 2
    with pytest.raises(HeadraceError, match="broken: 0 of 24 jobs gave a result"):
        measured(contenders)


def test_results_of_the_pilots_are_kept_when_asked_for() -> None:
    """Of the same items for all, so that they can be compared."""
    found, _ = measured(sized(a=len, b=bytes), keep_results=True)
    assert found.results["a"] == {str(number): 1 for number in range(24)}
    assert found.results["b"] == {str(number): b"x" for number in range(24)}
    assert measured(sized(a=len, b=len))[0].results == {}


def test_until_sure_goes_on_until_the_answer_is_there() -> None:
    """Looks come after 1, 2 and 4 pairs; the third has it."""
    blocks = Blocks(pairs=1, items=24, until_sure=True)
    found, lines = measured(sized(a=len, b=len), blocks, is_sure=lambda turns: len(turns.rounds) == 4)
    assert (len(found.turns.rounds), found.turns.alpha) == (4, pytest.approx(0.05 / 8))
    assert "not decided by 2 pairs; going on to 4" in lines


def test_no_round_begins_after_the_time() -> None:
    """A limit that is over at once leaves the pair that is always run."""
    blocks = Blocks(pairs=8, items=24, until_sure=True, time_limit_seconds=1e-9)
    found, lines = measured(sized(a=len, b=len), blocks)
    assert len(found.turns.rounds) == 1
    assert lines[-1] == "the time is over"
