"""Lines that a process logged, as incidents tell them."""

from __future__ import annotations

from headrace.monitor.recorder.log_lines import join_repeated


def test_a_line_that_came_often_stands_once() -> None:
    """With its count, where it came last; what was said once stays as it is."""
    assert join_repeated(["a", "b", "a", "c", "a"]) == ["b", "c", "a (3 times)"]
    assert join_repeated([]) == []
