"""The evidence beside the simulation: what was not measured speaks neither for nor against."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from headrace.diagnose.gil_holders import GilHolders
from headrace.diagnose.verdict import agreement


def test_a_queue_that_was_not_measured_is_not_empty(facts_of: Any, pipe: Any, made: Any) -> None:
    """A full queue before decode says nothing where that after it is not known; after the last stage there is none."""
    stages = [made(name="decode", work="decode", cpu=0.01), made(name="resize", work="resize", cpu=0.001)]
    facts = facts_of(pipe(stages=stages))
    decode, resize, deliver = facts.stages
    unknown = dataclasses.replace(resize, account=msgspec.structs.replace(resize.account, queue_depth_mean=None))
    without = dataclasses.replace(facts, stages=(decode, unknown, deliver))

    known, not_known = (agreement.lines(one, decode)[1] for one in (facts, without))
    assert known.supports is True
    assert (not_known.value, not_known.supports) == (None, None)
    assert "resize: not measured" in not_known.says
    assert "none comes after it" in agreement.lines(facts, deliver)[1].says


@pytest.mark.parametrize(("holder", "speaks"), [("parse", None), ("blur", False)])
def test_stations_that_wait_for_the_gil_say_nothing_against_who_holds_it(
    facts_of: Any, pipe: Any, made: Any, holder: str, speaks: bool | None
) -> None:
    """A full queue and long service after `parse` are its own doing where it has the GIL that `blur` waits for."""
    stages = [
        made(name="parse", cpu=0.009, releases_gil=False),
        made(name="blur", cpu=0.001, wait=0.02, state="gil", queue=64),
    ]
    facts = facts_of(pipe(stages=stages))
    facts.__dict__["gil_holders"] = GilHolders(100, {holder: 0.9, "deliver": 0.1})
    _, gradient, path = agreement.lines(facts, facts.stages[0])
    assert [gradient.supports, path.supports] == [speaks, speaks]
    assert all(("waits for the GIL" in one.says) == (speaks is None) for one in (gradient, path))
