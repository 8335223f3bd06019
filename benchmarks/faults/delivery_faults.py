"""Faults of where results go."""

from __future__ import annotations

from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault

_CALLBACK_SECONDS = 0.0025


def _slow_callback(case: Case, dose: float) -> Case:
    return case.with_server(callback_seconds=_CALLBACK_SECONDS * dose).with_settings("deliver.workers=1")


FAULTS = (
    Fault(
        id="F22",
        title="the callback is slow to answer, and one worker waits for it",
        dose=f"its latency, from {_CALLBACK_SECONDS * 1000:g} ms",
        applies_to=("download_heavy",),
        inject=_slow_callback,
        fix=lambda case: case.with_settings("deliver.workers=16"),
    ),
)
