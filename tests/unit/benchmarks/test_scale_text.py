"""The result of the benchmark of scale says what was measured, and of the rest nothing."""

from __future__ import annotations

from typing import Any

from benchmarks.scale_text import describe


def document(**ray: Any) -> dict[str, Any]:
    """Return what `benchmarks.scale` finds."""
    unknown = {"share_of_supervise": None, "ratio_ray_data": None, "kills": None, "lost": None, "repeated": None}
    return {
        "ray": unknown | ray, "shards": None, "fleet": None, "prediction": {"max_error": None},
        "autoscaling": {"over_oracle": None},
    }  # fmt: skip


def test_what_was_measured_is_said_with_its_goal() -> None:
    """Each turn, the medians and the ratios."""
    turns = [{"on_ray": 80.0, "ray_data_fused": 60.0, "ray_data_operators": 40.0}] * 2
    model = {"turns": turns, "rates": turns[0], "ratio_fused": 4 / 3, "ratio_operators": 2.0}
    text = describe(document(model=model, kills=7, raylets=1, lost=0, repeated=2), ["--only", "model"])
    assert "`python -m benchmarks.scale --only model`" in text
    assert "| a folder, `--on ray --workers 2`, decoded at scale | 80 | 80 | 80 |" in text
    assert "as in its documentation: 2.00 (goal: 2)." in text
    assert "7 kills of workers and 1 of nodes on Ray: 0 items lost (0), 2 repeated (0)." in text


def test_what_was_not_measured_is_left_out() -> None:
    """Neither a table nor a line."""
    text = describe(document(), [])
    assert "|" not in text
    assert "lost" not in text
