"""Python's cyclic collector, timed."""

from __future__ import annotations

import gc
import threading

import pytest

from headrace.profiler.collector_clock import CollectorClock


@pytest.fixture
def clock() -> CollectorClock:
    """Return a clock; the collector runs only when it is called for."""
    return CollectorClock()


def test_explicit_collections_count(clock: CollectorClock) -> None:
    """Each collection counts, a full one also as such, and takes time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        clock.start()
        gc.collect()
        gc.collect(0)
        clock.stop()
        gc.collect()  # nobody listens any more
    finally:
        if was_on:
            gc.enable()
    assert clock.gauges() == {"gc_seconds": clock.seconds, "gc_collections": 2, "gc_full_collections": 1}
    assert clock.seconds > 0
    assert clock.thread_seconds == {threading.get_native_id(): pytest.approx(clock.seconds)}


def test_nothing_is_left_behind(clock: CollectorClock) -> None:
    """After the end, however often it is asked for, Python has the callbacks that it had before."""
    before = list(gc.callbacks)
    clock.stop()
    clock.start()
    clock.stop()
    clock.stop()
    assert gc.callbacks == before


def test_a_collection_that_began_before_does_not_count(clock: CollectorClock) -> None:
    """An end without a beginning has no length."""
    clock._note_phase("stop", {"generation": 2})
    assert clock.gauges() == {"gc_seconds": 0.0, "gc_collections": 0, "gc_full_collections": 0}
