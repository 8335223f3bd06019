"""Copies of one recorded run, each changed in one way: none is trusted, and the run itself is."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tampering import KINDS, Recording, Tampering, judge

RECORDED = Path(__file__).parent / "recorded_run"


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Six seconds of two workers that decode photographs, a model in batches and a delivery, on two cores."""
    return Recording.read(RECORDED)


def test_the_recorded_run_is_trusted(recording: Recording) -> None:
    """Everything that was measured agrees."""
    assert judge(recording).doubts == ()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name).replace(" ", "-"))
def test_a_run_that_was_changed_is_not_trusted(recording: Recording, kind: Tampering) -> None:
    """One thing contradicts the rest, or is missing."""
    document = judge(recording, kind)
    assert not document.trusted
    assert document.doubts
