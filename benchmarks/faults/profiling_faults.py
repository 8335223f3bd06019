"""A profiler that costs too much (F40)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

from benchmarks.faults import work
from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from headrace.base.metering import Reading, ThreadMeter

_READING_SECONDS = 0.0002
#: What profiling costs is told by six pairs of blocks with it on and off, and not by fewer.
_SECONDS = 20.0

_EVERY_SHAPE = ("download_heavy", "decode_heavy", "python_preprocess", "device_heavy")


@contextlib.contextmanager
def slow_clocks(seconds: float) -> Iterator[None]:
    """Make each reading of a worker's clocks cost CPU time, as where the kernel's clock source is a slow one.

    Args:
        seconds: CPU time of one reading.
    """
    read = ThreadMeter.read

    def read_slowly(meter: ThreadMeter) -> Reading:
        reading = read(meter)
        work.spin(seconds)
        return reading

    with mock.patch.object(ThreadMeter, "read", read_slowly):
        yield


def _heavy_profiling(case: Case, dose: float) -> Case:
    clocks = functools.partial(slow_clocks, _READING_SECONDS * dose)
    return replace(case, seconds=max(case.seconds, _SECONDS)).with_beside(clocks)


FAULTS = (
    Fault(
        id="F40",
        title="clocks that cost much to read, so that profiling is heavy",
        dose=f"CPU time of one reading, from {_READING_SECONDS * 1e6:g} us",
        applies_to=_EVERY_SHAPE,
        inject=_heavy_profiling,
    ),
)
