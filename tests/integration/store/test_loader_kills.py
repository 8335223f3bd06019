"""A program that reads by `hr.loader`, killed: the benchmark's program, with few kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.feed.loader_kills import kill


@pytest.mark.full
def test_kills_lose_and_double_no_sample(tmp_path: Path) -> None:
    """Four kills at random moments, each start with other threads and batches: the sequence of a run without kills."""
    found = kill(tmp_path, 4)
    assert found["kills"] == 4
    assert {name: found[name] for name in ("other_order", "lost", "doubled", "wrong")} == {
        "other_order": 0, "lost": 0, "doubled": 0, "wrong": 0,
    }  # fmt: skip
