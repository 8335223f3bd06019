"""Faults of batches and of the device's fixed cost."""

from __future__ import annotations

from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault

_SHAPES = ("device_heavy",)
_IN_FLIGHT = 3.6
_WAIT_SECONDS = 0.02
_WINDOW_SECONDS = 0.1
_ARRIVALS_PER_SECOND = 15.0
_LAUNCH_SECONDS = 0.0015


def _underfill(case: Case, dose: float) -> Case:
    return case.with_settings(
        f"source.max_in_flight={max(1, round(_IN_FLIGHT / dose))}", f"process.max_wait_seconds={_WAIT_SECONDS * dose}"
    )


def _window(case: Case, dose: float) -> Case:
    slow = case.with_broker(rate_per_second=_ARRIVALS_PER_SECOND)
    return slow.with_settings("process.batch=64", f"process.max_wait_seconds={_WINDOW_SECONDS * dose}")


def _launch(case: Case, dose: float) -> Case:
    return case.with_settings(
        "process.batch=1",
        f"model.options.launch_seconds={_LAUNCH_SECONDS * dose}",
        "model.options.item_seconds=0.0002",
    )


FAULTS = (
    Fault(
        id="F15",
        title="too few jobs in flight to fill the device's batches, which wait for more in vain",
        dose=f"how many times fewer in flight than {_IN_FLIGHT:g}, and the wait, from {_WAIT_SECONDS * 1000:g} ms",
        applies_to=_SHAPES,
        inject=_underfill,
        fix=lambda case: case.with_settings("source.max_in_flight=64", "process.max_wait_seconds=0"),
    ),
    Fault(
        id="F16",
        title="at low load, batches wait for company that does not come",
        dose=f"the wait, from {_WINDOW_SECONDS * 1000:g} ms; it costs latency, not throughput",
        applies_to=_SHAPES,
        inject=_window,
        fix=lambda case: case.with_settings("process.max_wait_seconds=0"),
    ),
    Fault(
        id="F17",
        title="batches of one on a device whose calls have a high fixed cost",
        dose=f"that cost, from {_LAUNCH_SECONDS * 1000:g} ms; an item adds 0.2 ms",
        applies_to=_SHAPES,
        inject=_launch,
        fix=lambda case: case.with_settings("process.batch=16"),
    ),
)
