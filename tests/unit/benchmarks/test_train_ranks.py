"""The benchmark of late ranks counts what it is given."""

from __future__ import annotations

import pytest

from benchmarks.train.ranks import _mix, _outcome, as_text
from headrace.runs.formats.training_ranks import Finding, RanksJudged, Reason, Straggler
from headrace.runs.training_phases import Phase


def _judged(straggler: Straggler | None) -> RanksJudged:
    return RanksJudged(
        finding=Finding.BALANCED if straggler is None else Finding.STRAGGLER,
        num_steps=20,
        step_seconds=0.1,
        wait_share=0.0,
        rest_share=0.0,
        uncertainty_seconds=0.0,
        rows=(),
        straggler=straggler,
    )


def _straggler(rank: int, phase: Phase) -> Straggler:
    return Straggler(
        rank=rank,
        share_last=1.0,
        lead_seconds=0.01,
        lead_share=0.1,
        phase=phase,
        phase_seconds=0.01,
        reason=Reason.BLOCKED,
    )


@pytest.mark.parametrize(
    ("straggler", "outcome"),
    [
        (_straggler(1, Phase.WAIT), "right"),
        (_straggler(1, Phase.LOSS), "wrong phase"),
        (_straggler(0, Phase.WAIT), "wrong rank"),
        (None, "silent"),
    ],
)
def test_a_run_is_right_if_rank_and_phase_are_named(straggler: Straggler | None, outcome: str) -> None:
    """The delay is in the last rank's loading."""
    assert _outcome(_judged(straggler), "wait") == outcome


def test_balanced_runs_are_spread_over_the_others() -> None:
    """Whatever else the machine does meets both kinds."""
    delays, balanced = (
        [(f"late-{n}", "", "", 0.1) for n in range(6)],
        [(f"balanced-{n}", "", "", 0.0) for n in range(3)],
    )
    names = [name.split("-")[0] for name, *_ in _mix(delays, balanced)]
    assert names == ["late", "balanced", "late"] * 3


def test_the_table_has_a_row_for_each_delay_and_counts_what_is_wrong() -> None:
    """Outcomes that did not occur are 0."""
    text = as_text(
        {
            "outcomes": {"wait-sleep-0.1": {"right": 3, "wrong rank": 1}},
            "right": 3,
            "runs": 4,
            "accused": 0,
            "balanced": 5,
            "balanced_wait_share": 0.02,
            "settings": {"ranks": 2, "steps": 24, "step_seconds": 0.05, "doses": (0.1,)},
        }
    )
    assert "Named right: 3 of 4; wrong: 1." in text
    assert "| wait, sleep, 0.1 | 3 | 0 | 0 | 1 |" in text
