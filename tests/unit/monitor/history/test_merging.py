"""One line of a history of the lines of a run's processes."""

from __future__ import annotations

import msgspec
import pytest

from headrace.monitor.history.merging import merge_lines
from headrace.runs.formats.history import HistoryLine


@pytest.mark.parametrize(
    ("times", "rate"),
    [
        ([(0.0, 10.0), (0.0, 10.0)], 200.0),
        ([(0.0, 10.0), (10.0, 20.0)], 100.0),
        ([(0.0, 10.0), (5.0, 15.0)], 133.3),
        ([(0.0, 10.0), (0.0, None)], 200.0),
    ],
    ids=["side by side", "one after the other", "half together", "one goes on"],
)
def test_rates_add_up_while_processes_are_at_work_together(
    times: list[tuple[float, float | None]], rate: float
) -> None:
    """Each does 100 jobs a second."""
    kinds = {"str": "", "float": 0.0, "int": 0}
    required = {
        field.name: kinds.get(getattr(field.type, "__name__", "str"), "")
        for field in msgspec.structs.fields(HistoryLine)
        if field.required
    }
    lines = [
        HistoryLine(**(required | {"began_unix_seconds": began, "ended_unix_seconds": end, "throughput": 100.0}))
        for began, end in times
    ]
    assert merge_lines(lines).throughput == pytest.approx(rate, rel=0.001)
