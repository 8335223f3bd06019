"""What is printed of ranks that train together."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.cli.training_ranks_text import ranks_text
from headrace.runs.formats.training_ranks import (
    Finding,
    RanksDocument,
    RanksJudged,
    RankTime,
    Reason,
    Same,
    SameData,
    Straggler,
)
from headrace.runs.training_phases import Phase


def _judged(finding: Finding, **changes: Any) -> RanksJudged:
    rows = tuple(
        RankTime(rank=rank, own_seconds=0.08, wait_seconds=0.01, rest_seconds=0.002, share_last=0.5)
        for rank in range(2)
    )
    values: dict[str, Any] = {
        "finding": finding,
        "num_steps": 40,
        "step_seconds": 0.1,
        "wait_share": 0.1,
        "rest_share": 0.02,
        "uncertainty_seconds": 0.0,
        "rows": rows,
    }
    return RanksJudged(**{**values, **changes})


def _straggler() -> Straggler:
    return Straggler(
        rank=1,
        share_last=0.975,
        lead_seconds=0.02,
        lead_share=0.2,
        phase=Phase.BACKWARD,
        phase_seconds=0.021,
        reason=Reason.COMPUTES,
    )


@pytest.mark.parametrize(
    ("finding", "changes", "says"),
    [
        (Finding.STRAGGLER, {"straggler": _straggler()}, "rank 1, which comes last in 98% of 40 steps, by 20.0 ms"),
        (Finding.COMMUNICATION, {"rest_share": 0.4}, "the exchange itself takes 40% of the step"),
        (Finding.MOVING, {"moving_phase": Phase.WAIT}, "which changes from step to step, most in wait"),
        (Finding.MOVING, {"moves_with_cores": True}, "ranks are refused a core by turns"),
        (Finding.NOT_TOLD_APART, {"uncertainty_seconds": 0.003}, "clocks that disagree by 3.00 ms"),
        (Finding.NOT_TOLD_APART, {"uncertainty_seconds": 0.0}, "not told apart from chance: record more steps"),
        (Finding.BALANCED, {}, "Ranks are balanced: they wait 10% of the step"),
    ],
)
def test_each_finding_has_its_sentence(finding: Finding, changes: dict[str, Any], says: str) -> None:
    """The figures that it rests on are in it, and the table of ranks follows."""
    sentence, table = ranks_text(RanksDocument(judged=_judged(finding, **changes)))
    assert says in " ".join(" ".join(sentence).split())
    assert table[0].split() == ["rank", "own", "work", "+", "waits", "for", "others", "+", "exchange", "comes", "last"]
    assert len(table) == 3


def test_what_cannot_be_compared_says_why() -> None:
    """The reason stands in place of the table."""
    assert ranks_text(RanksDocument(judged=None, why_not="one rank was recorded")) == [
        ["Ranks are not compared: one rank was recorded"]
    ]


@pytest.mark.parametrize(
    ("same", "says"),
    [
        (Same.RANKS, "DUPLICATED_DATA: ranks 0, 1 were given the same batches"),
        (Same.EPOCHS, "call set_epoch before each epoch"),
    ],
)
def test_data_that_came_twice_is_printed_with_its_cure(same: Same, says: str) -> None:
    """Ranks by number; a distributed sampler needs its epoch."""
    found = SameData(what=same, loader=0, ranks=(0, 1), num_batches=8, sampler="DistributedSampler")
    (_, text) = ranks_text(RanksDocument(judged=None, why_not="x", same_data=(found,)))
    assert says in " ".join(text)


def test_what_is_the_same_of_every_loader_is_printed_once() -> None:
    """Keras makes a loader for each `fit`, other programs one for each epoch."""
    found = [SameData(what=Same.RANKS, loader=loader, ranks=(0, 1), num_batches=8, sampler="") for loader in range(3)]
    assert len(ranks_text(RanksDocument(judged=None, why_not="x", same_data=tuple(found)))) == 2
