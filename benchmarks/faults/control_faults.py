"""Controls: nothing wrong, two things equally wrong, and a remedy for what is no bottleneck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.faults import work
from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from benchmarks.faults.shapes import CALLS, CROPS, SHAPES
from headrace.stages.decode import decode

_EQUAL_SECONDS = 0.006


class Exactly:
    """Replaces a decode by one that takes a stated CPU time, whatever it is given.

    Args:
        seconds: CPU time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the other decode."""
        image = decode(work.photographs(1, 0.3)[0])

        def take(value: Any) -> Any:
            work.burn(self._seconds)
            return image

        return take


def _equal(case: Case, dose: float) -> Case:
    seconds = _EQUAL_SECONDS * dose
    # The device costs the same per crop whatever the batch, or it would catch up by larger ones.
    return case.around("decode", Exactly(seconds)).with_settings(
        "decode.workers=1", "model.options.launch_seconds=0", f"model.options.item_seconds={seconds / CROPS / CALLS}"
    )


def _half_of_no_bottleneck(case: Case) -> Case:
    if case.server is not None:
        return case.with_server(latency_seconds=case.server.latency_seconds / 2)
    return case.with_settings("decode.scale=auto")


FAULTS = (
    Fault(
        id="F39",
        title="nothing",
        dose="nothing",
        applies_to=tuple(SHAPES),
        inject=lambda case, dose: case,
    ),
    Fault(
        id="F41",
        title="decode, with one worker, and the device take equally long",
        dose=f"how long each takes per item, from {_EQUAL_SECONDS * 1000:g} ms",
        applies_to=("device_heavy",),
        inject=_equal,
    ),
    Fault(
        id="F42",
        title="nothing; the remedy speeds up what is no bottleneck",
        dose="nothing",
        applies_to=("download_heavy", "device_heavy"),
        inject=lambda case, dose: case if case.server is not None else case.with_settings("decode.scale=full"),
        fix=_half_of_no_bottleneck,
    ),
)
