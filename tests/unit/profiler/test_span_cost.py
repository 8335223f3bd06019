"""What a span costs here, and how many are recorded for that."""

from __future__ import annotations

import pytest

from headrace.profiler.span_cost import affordable_spans, measure_span_cost
from headrace.runs.formats.profiling import SpanCost


@pytest.mark.parametrize(
    ("reading", "spans"),
    [(0.2e-6, 3000.0), (1.5e-6, 2000.0), (6.5e-6, 10_000 / 15), (1e-3, 300.0)],
    ids=["cheap", "as on many virtual machines", "dear", "absurd"],
)
def test_dear_clocks_allow_fewer_spans(reading: float, spans: float) -> None:
    """Two readings of the clocks, one of the delay and the writing take a hundredth of a core, between 300 and 3,000 spans."""
    cost = SpanCost(reading_seconds=reading, run_delay_seconds=1e-6, writing_seconds=1e-6)
    assert affordable_spans(cost) == pytest.approx(spans)


def test_costs_are_those_of_this_machine() -> None:
    """Each part is measured, and is some nanoseconds at least."""
    cost = measure_span_cost()
    assert min(cost.reading_seconds, cost.run_delay_seconds, cost.writing_seconds) > 10e-9
    assert 300 <= affordable_spans(cost) <= 3000
