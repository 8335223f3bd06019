"""Faults of where jobs come from: too few arrivals, a broker far away, a visibility timeout that is too short."""

from __future__ import annotations

import functools
from dataclasses import replace

from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from benchmarks.faults.measuring import throughput
from benchmarks.faults.shapes import SHAPES

_EVERY = tuple(SHAPES)
_CAPACITY_SECONDS = 2.0
#: A pipeline that takes two or three receives to fill is hardly slowed by 8 ms each.
_ROUND_TRIP_SECONDS = 0.008
#: A little more than jobs take to pass these pipelines when their queues are full.
_VISIBILITY_SECONDS = 0.24


@functools.cache
def measure_capacity(shape: str) -> float:
    """Return how many jobs per second a healthy pipeline of this shape does here; measured once."""
    return throughput(replace(SHAPES[shape](), seconds=_CAPACITY_SECONDS))


def _few_arrivals(case: Case, dose: float) -> Case:
    return case.with_broker(rate_per_second=measure_capacity(case.shape) / (1 + dose))


def _far_broker(case: Case, dose: float) -> Case:
    far = case.with_broker(round_trip_seconds=_ROUND_TRIP_SECONDS * dose, most_messages=1)
    return far.with_settings("source.receivers=2")


def _short_visibility(case: Case, dose: float) -> Case:
    return case.with_broker(visibility_seconds=_VISIBILITY_SECONDS / dose, extends=False, max_receives=100)


FAULTS = (
    Fault(
        id="F1",
        title="jobs arrive more slowly than the pipeline could do them",
        dose="d: arrivals are 1/(1 + d) of the capacity, which is measured first",
        applies_to=_EVERY,
        inject=_few_arrivals,
    ),
    Fault(
        id="F2",
        title="the broker gives one message per receive, after a round trip",
        dose=f"round trip, from {_ROUND_TRIP_SECONDS * 1000:g} ms; two receivers",
        applies_to=_EVERY,
        inject=_far_broker,
        fix=lambda case: case.with_broker(most_messages=10),
    ),
    Fault(
        id="F3",
        title="the visibility timeout is shorter than jobs take, and the worker may not extend it",
        dose=f"how many times the visibility timeout is shorter than {_VISIBILITY_SECONDS:g} s",
        applies_to=("decode_heavy", "download_heavy"),
        inject=_short_visibility,
        fix=lambda case: case.with_broker(extends=True, visibility_seconds=30.0),
    ),
)
