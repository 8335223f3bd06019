"""What an item says where it enters: of its file, or of its text and numbers, and whether it could be decoded."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.base.errors import ItemError
from headrace.base.records import Job
from headrace.monitor.drift.inputs import FILE_STATISTICS, measure_file, measure_value
from headrace.monitor.drift.slower import SIZES, product_of
from headrace.monitor.drift.statistics import SECONDS

#: Files' heads are read of so many times more items than are looked at closely.
_HEADS_PER_LOOK = 4


def number_of(job: Job) -> int:
    """Return the number that decides whether a job is looked at: a hash of its id."""
    return zlib.crc32(job.id.encode("utf-8", "replace"))


class Entry(NamedTuple):
    """What is counted and measured of one item."""

    counts: Sequence[str]
    names: Sequence[str]
    values: Sequence[float]
    is_looked_at: bool


def measure_entry(
    number: int, step: int, value: Any, stage: str, result: Any, error: BaseException | None, cpu_ns: int
) -> Entry:
    """Return what is counted of an item.

    Args:
        number: See `number_of`.
        step: One item of so many is looked at closely.
        value: What came in; as the rest, an argument of `Collector.enter`.
        stage: The stage's name.
        result: What came out.
        error: What was raised instead.
        cpu_ns: CPU time of the stage.
    """
    is_looked_at = number % step == 0
    counts = ["items"]
    names: Sequence[str] = ()
    values: Sequence[float] = ()
    if error is not None:
        counts += ["refused", error.code if isinstance(error, ItemError) else "decode.error"]
    head = None
    if isinstance(value, bytes) and number % max(1, step // _HEADS_PER_LOOK) == 0:
        head = measure_file(value)
    if head is not None:
        counts += head[1]
        if error is None and cpu_ns > 0:
            seconds, (pixels, num_bytes, *_) = math.log10(cpu_ns * 1e-9), head[0]
            names = _names_of_file(stage)
            values = (*head[0], seconds, seconds * pixels, seconds * num_bytes)
    elif is_looked_at and error is None and not (isinstance(result, np.ndarray) and result.ndim == 3):
        found = measure_value(result if isinstance(result, np.ndarray) else value)
        names, values = tuple(found), tuple(found.values())
    return Entry(counts, names, values, is_looked_at)


@functools.cache
def _names_of_file(stage: str) -> tuple[str, ...]:
    """Return the statistics of a file and of the CPU time that it took."""
    return (*FILE_STATISTICS, SECONDS + stage, *(product_of(SECONDS + stage, size) for size in SIZES))
