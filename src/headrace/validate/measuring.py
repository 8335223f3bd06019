"""What variants are measured with, and for how long: one record for validation and optimization, whoever calls them.

Users get the defaults. A test of what is made of figures puts in its own for a block of code:

    with measuring.using(census_seconds=0.05, measure_speed=known_speeds):
        ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from headrace.compare.interrupts import noticing
from headrace.runs.cpu_features import cpu_flags
from headrace.validate.items import Feed
from headrace.validate.memory import measure_memory
from headrace.validate.model_speed import TIMING, Speed, Timing, measure_speed
from headrace.validate.variant_spec import VariantSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """Functions and limits of time."""

    timing: Timing = TIMING
    """Of blocks of calls."""
    measure_speed: Callable[..., Speed | None] = measure_speed
    """As `model_speed.measure_speed`."""
    measure_memory: Callable[[VariantSpec, Feed], int | None] = measure_memory
    cpu_flags: Callable[[], frozenset[str]] = cpu_flags
    """Of the processor that variants run on."""
    census_seconds: float = 0.5
    """How long it is counted which layers run in int8."""
    max_draws: int = 2000
    """Bootstrap draws of a metric of whole sets."""
    slice_seconds: float = 30.0
    """For the draws of all slices together."""
    noticing: Callable[[], AbstractContextManager[Callable[[], bool]]] = noticing
    """Gives what says whether the user has interrupted."""


_DEFAULT = Measuring()
_CURRENT: ContextVar[Measuring] = ContextVar("measuring")


def current() -> Measuring:
    """Return what is measured with now."""
    return _CURRENT.get(_DEFAULT)


@contextlib.contextmanager
def using(**changes: Any) -> Iterator[Measuring]:
    """Measure with other functions or limits until the block ends.

    Args:
        changes: Fields of `Measuring`.
    """
    token = _CURRENT.set(replace(current(), **changes))
    try:
        yield current()
    finally:
        _CURRENT.reset(token)
