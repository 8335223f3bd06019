"""Faults of downloads: latency, bandwidth, a slow tail, a new connection for each image, a limited rate."""

from __future__ import annotations

import functools

from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from benchmarks.faults.server import make_certificate

_SHAPES = ("download_heavy",)
_LATENCY_SECONDS = 0.005
#: What a healthy pipeline of this shape needs at most on two cores.
_ITEMS_PER_SECOND = 400.0
_SLOW_SHARE = 0.02
_SLOW_SECONDS = 1.0
_SETUP_SECONDS = 0.02


def _latency(case: Case, dose: float) -> Case:
    return case.with_server(latency_seconds=_LATENCY_SECONDS * dose).with_settings("fetch.workers=2")


def _bandwidth(case: Case, dose: float) -> Case:
    images = case.payloads()
    mean_bytes = sum(map(len, images)) / len(images)
    return case.with_server(bytes_per_second=_ITEMS_PER_SECOND * mean_bytes / dose)


def _tail(case: Case, dose: float) -> Case:
    return case.with_server(slow_share=_SLOW_SHARE, slow_seconds=_SLOW_SECONDS * dose)


def _limited_rate(case: Case, dose: float) -> Case:
    return case.with_server(requests_per_second=_ITEMS_PER_SECOND / dose)


@functools.cache
def _certificate() -> str | None:
    return make_certificate()


def _new_connections(case: Case, dose: float) -> Case:
    # Without openssl on this machine the connections are plain: the round trips of setting them up remain.
    return case.with_server(keep_alive=False, setup_seconds=_SETUP_SECONDS * dose, certificate=_certificate())


FAULTS = (
    Fault(
        id="F4",
        title="the image server is slow to answer, and two workers wait for it",
        dose=f"latency, from {_LATENCY_SECONDS * 1000:g} ms",
        applies_to=_SHAPES,
        inject=_latency,
        fix=lambda case: case.with_settings("fetch.workers=32"),
    ),
    Fault(
        id="F5",
        title="all images come through one narrow link",
        dose=f"how many times narrower than {_ITEMS_PER_SECOND:g} images a second need",
        applies_to=_SHAPES,
        inject=_bandwidth,
        fix=lambda case: case.with_server(bytes_per_second=None),
    ),
    Fault(
        id="F6",
        title=f"{_SLOW_SHARE:.0%} of the downloads are very slow",
        dose=f"how slow, from {_SLOW_SECONDS:g} s",
        applies_to=_SHAPES,
        inject=_tail,
        fix=lambda case: case.with_settings("stages.fetch.options.timeout_seconds=0.5"),
    ),
    Fault(
        id="F7",
        title="the image server closes each connection after one image, and a new one takes TLS and round trips",
        dose=f"round trips of setting up a connection, from {_SETUP_SECONDS * 1000:g} ms",
        applies_to=_SHAPES,
        inject=_new_connections,
        fix=lambda case: case.with_server(keep_alive=True),
    ),
    Fault(
        id="F44",
        title="the image server answers only so many requests a second, however many are under way",
        dose=f"how many times fewer than {_ITEMS_PER_SECOND:g} a second",
        applies_to=_SHAPES,
        inject=_limited_rate,
        fix=lambda case: case.with_server(requests_per_second=None),
    ),
)
