"""What a recorded span costs on this machine, measured before a run, and how many a second may be recorded for that.

How this works: reading a thread's CPU clock takes 0.3 to 0.9 us, by the machine: on many virtual ones it is a real system call.
So a fixed number of spans a second would cost twice as much of a core here as there. The least of some rounds is taken, because
others may use the cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.base.metering import ThreadMeter
from headrace.base.records import Span
from headrace.pipeline.span_limit import SPAN_LIMIT_PER_SECOND
from headrace.runs.formats.profiling import SpanCost
from headrace.runs.span_files import SLICE_SPANS, spans_to_batch

#: CPU seconds a second that spans may cost.
_BUDGET = 0.01
#: Spans a second that are recorded whatever they cost: of fewer a short run tells too little.
_LEAST_PER_SECOND = 300.0
#: Readings of the clocks for each span: it begins with one and ends with one, unless its stage is fused with another.
_READINGS = 2
_ROUNDS, _READINGS_AT_ONCE = 5, 100


def measure_span_cost() -> SpanCost:
    """Return what a span costs, in this thread; takes about 5 ms."""
    meter = ThreadMeter(time.monotonic_ns)
    meter.read_run_delay()
    try:
        return SpanCost(
            reading_seconds=_least(meter.read, _READINGS_AT_ONCE),
            run_delay_seconds=_least(meter.read_run_delay, _READINGS_AT_ONCE),
            writing_seconds=_least(_write_slice, 1) / SLICE_SPANS,
        )
    finally:
        meter.close()


def affordable_spans(cost: SpanCost) -> float:
    """Return how many spans a second may be recorded: as many as a hundredth of a core allows, at most 3,000."""
    seconds = _READINGS * cost.reading_seconds + cost.run_delay_seconds + cost.writing_seconds
    return max(_LEAST_PER_SECOND, min(SPAN_LIMIT_PER_SECOND, _BUDGET / seconds))


def _write_slice() -> None:
    spans_to_batch(
        [
            Span(
                "item", str(number), None, "stage", "plan", "host", 1, "worker", 0, 1, "ok",
                number, number, number, number, number, number, number,
                None, None, None, 0, number, number, None,
            )
            for number in range(SLICE_SPANS)
        ]
    )  # fmt: skip


def _least(function: Callable[[], object], calls: int) -> float:
    """Return the CPU seconds of one call, the least of some rounds."""
    rounds = []
    for _ in range(_ROUNDS):
        began = time.thread_time()
        for _ in range(calls):
            function()
        rounds.append(time.thread_time() - began)
    return min(rounds) / calls
