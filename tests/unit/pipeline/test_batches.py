"""Batches: how they form, what a bad item does to them, and whose memory results are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.base.clock import SystemClock
from headrace.base.policies.batching import BatchingPolicy, ReleaseReason
from headrace.base.records import Job, OutcomeKind
from headrace.pipeline.batch_buffer import BatchBuffer
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.group import Group
from headrace.pipeline.item import Item
from headrace.stages.images import slot
from headrace.testing import FakeClock, FaultyStage

Run = Callable[..., Any]


def items_of(*values: Any) -> list[Item]:
    """Return items that carry values."""
    return [Item(Job(str(index), value), value, ()) for index, value in enumerate(values)]


def _run(group: Group, items: list[Item]) -> None:
    finish = group.run(items, ReleaseReason.FULL)
    if finish is not None:
        finish()


def device_group(function: Callable[[Any], Any], max_batch: int = 64) -> Group:
    """Return a group of one device stage."""
    return Group((hr.stage("device", function, kind="device"),), [function], SystemClock(), max_batch)


def taken(queue: BoundedQueue, size: int, *, draining: bool = False, max_wait_ns: int = 0) -> tuple[int, str]:
    """Return size and reason of the next batch."""
    batch, reason, _ = queue.take_batch(BatchingPolicy(max_size=size, max_wait_ns=max_wait_ns), lambda: draining)
    return len(batch), reason.value


def filled(*values: Any) -> BoundedQueue:
    """Return a queue with items."""
    queue = BoundedQueue(100, 10**9, SystemClock())
    queue.put(items_of(*values))
    return queue


def test_release_full() -> None:
    """A batch that has reached the largest size is released as full."""
    assert taken(filled(1, 2, 3), 2) == (2, "full")


def test_release_idle() -> None:
    """An idle device takes what is there."""
    assert taken(filled(1, 2), 8) == (2, "idle")


def test_release_at_another_shape() -> None:
    """A batch ends where the next item has another shape or type, and order is kept."""
    queue = filled(np.zeros(3), np.zeros(3), np.zeros(4), np.zeros(4, np.float32))
    assert [taken(queue, 8), taken(queue, 8), taken(queue, 8)] == [(2, "shape"), (1, "shape"), (1, "idle")]


def test_release_when_draining() -> None:
    """A device that may wait does not when nothing more can come."""
    assert taken(filled(1), 8, draining=True, max_wait_ns=10**12) == (1, "drain")


def test_release_after_max_wait() -> None:
    """A device that waits for company gives up after max_wait."""
    assert taken(filled(1), 8, max_wait_ns=10**6) == (1, "max_wait")


def test_waiting_device_takes_company() -> None:
    """A device that waits for company leaves as soon as the batch is full."""
    queue = filled(1)
    found: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: found.append(taken(queue, 2, max_wait_ns=60 * 10**9)))
    thread.start()
    queue.put(items_of(2))
    thread.join(60)
    assert found == [(2, "full")]


def test_max_wait_through_a_pipeline(run: Run) -> None:
    """With max_wait, slow arrivals share batches, and the rest leaves after the wait."""
    ran = run(
        [hr.emulated("slow", seconds=0.005), hr.stage("device", list, kind="device")],
        range(10),
        {
            "stages": {"slow": {"workers": 1}, "device": {"batch": 4, "max_wait_seconds": 0.3}},
            "run": {"warm_up": False},
        },
    )
    assert [(batch.size, batch.reason) for batch in ran.recorder.batches] == [(4, "full"), (4, "full"), (2, "max_wait")]


class SlowToCopy(np.ndarray):
    """An array that takes a second to be put into a batch."""

    clock: FakeClock

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Where it lies, which is asked for once, before it is copied."""
        self.clock.advance(1.0)
        return super().__array_interface__  # type: ignore[misc,no-any-return]


def test_the_time_of_a_batch_is_with_the_copying() -> None:
    """What stacking took is the stage's: no other span shows what its worker did then, and it bounds the pipeline as well."""
    clock = SlowToCopy.clock = FakeClock()

    def process(batch: np.ndarray) -> np.ndarray:
        clock.advance(10.0)
        return batch.sum(axis=1)

    group = Group((hr.stage("device", process, kind="device"),), [process], clock, 2)
    items = items_of(*(np.ones(3).view(SlowToCopy) for _ in range(2)))
    _run(group, items)
    assert [item.value for item in items] == [3.0, 3.0]
    assert [round((one.ended - one.started) / 1e9) for item in items for one in item.timings] == [12, 12]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 32, 64])
@pytest.mark.parametrize("culprit", [0, 1, -1])
def test_poison_stands_alone(size: int, culprit: int) -> None:
    """Splitting fails the culprit alone, with at most two extra calls per halving."""
    calls = 0
    bad = culprit % size

    def process(batch: list[Any]) -> list[Any]:
        nonlocal calls
        calls += 1
        if bad in batch:
            raise ValueError("poison")
        return [value * 2 for value in batch]

    items = items_of(*range(size))
    _run(device_group(process), items)
    assert [item.id for item in items if item.error] == [str(bad)]
    assert [item.value for item in items if not item.error] == [2 * n for n in range(size) if n != bad]
    assert calls <= 1 + 2 * (size - 1).bit_length()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=33))
def test_exactly_the_culprits_fail(bad: list[bool]) -> None:
    """Whatever the set of bad items, exactly these fail, and each call is counted at most 2n - 1 times."""
    calls = 0

    def process(batch: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if (batch < 0).any():
            raise ValueError("negative")
        return batch + 1

    items = items_of(*(np.array([-1.0 if is_bad else index]) for index, is_bad in enumerate(bad)))
    _run(device_group(process), items)
    assert [item.error is not None for item in items] == bad
    assert all(item.value == index + 1 for index, item in enumerate(items) if not bad[index])
    assert calls <= 2 * len(bad) - 1


@pytest.mark.parametrize(("result", "got"), [([1], "returned 1"), ([1] * 4, "returned 4"), (None, "NoneType")])
def test_wrong_number_of_results(run: Run, result: Any, got: str) -> None:
    """Too few, too many or no results fail the batch with both lengths."""
    ran = run(
        [hr.stage("device", lambda batch: result if len(batch) != 1 else [[], []], kind="device")],
        range(3),
        {"stages": {"device": {"batch": 3, "max_wait_seconds": 30}}, "run": {"warm_up": False}},
    )
    assert ran.ids(OutcomeKind.DEAD_LETTERED) == {"0", "1", "2"}
    assert "given 1 inputs and returned 2 results" in ran.reason("0")
    items = items_of(1, 2, 3)
    group = device_group(lambda batch: result)
    _run(group, items)
    if result is None:
        assert got in str(items[0].error)


def test_arrays_of_one_shape_are_stacked() -> None:
    """Arrays of one shape and type become one array; anything else stays a list."""
    buffer = BatchBuffer(4)
    stacked = buffer.stack([np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)])
    assert (stacked.shape, stacked.dtype) == ((2, 2, 3), np.float32)
    for mixed in (
        [np.zeros(2), np.zeros(3)], [np.zeros(2), np.zeros(2, np.float32)], [np.zeros(2), 1], [1, 2], ["a"]
    ):  # fmt: skip
        assert isinstance(buffer.stack(mixed), list)


@pytest.mark.parametrize(
    "view",
    [
        lambda batch: batch,
        lambda batch: batch[:, :1],
        list,
        tuple,
        lambda batch: [{"whole": row, "part": [row[:1]]} for row in batch],
        lambda batch: [(row.reshape(1, -1), 3) for row in batch],
    ],
    ids=["array", "slice", "list", "tuple", "dict", "reshaped"],
)
def test_views_of_the_buffer_are_not_overwritten(view: Callable[[Any], Any]) -> None:
    """Results that are views of the batch keep their values when the next batch is there."""
    group = device_group(view, 2)
    first = items_of(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    finish = group.run(first, ReleaseReason.FULL)
    _run(group, items_of(np.array([-1.0, -1.0]), np.array([-1.0, -1.0])))
    if finish is not None:  # late, as the device's thread leaves it to another
        finish()
    assert "-1" not in repr([item.value for item in first])


def test_values_written_in_place_then_turned() -> None:
    """A value that starts at its place in the buffer and has other strides is copied, not taken as it lies."""
    buffer = BatchBuffer(2)
    buffer.stack([np.zeros((3, 3))] * 2)
    buffer.reserve(0)
    place = slot.take((3, 3), np.dtype(float))
    place[...] = np.arange(9).reshape(3, 3)
    wanted = place.T.copy()
    assert np.array_equal(buffer.stack([place.T, np.ones((3, 3))])[0], wanted)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["ok", "fail before", "own", "poison"]), min_size=1, max_size=8), min_size=1,
             max_size=5)
)  # fmt: skip
def test_places_in_the_buffer_never_mix_items(batches: list[list[str]]) -> None:
    """Whatever fails before or in the batch, each item gets the answer to its own input, written in place or not."""

    def preprocess(value: tuple[float, str]) -> np.ndarray:
        number, what = value
        place = slot.take((2,), np.dtype(float))
        if what == "fail before":
            place[...] = -7
            raise ValueError("before")
        if what == "own":
            return np.array([number, 0.0])
        place[...] = number, what == "poison"
        return place

    def process(batch: np.ndarray) -> np.ndarray:
        if batch[:, 1].any():
            raise ValueError("poison")
        return batch[:, 0]

    stages = (hr.stage("pre", preprocess), hr.stage("device", process, kind="device"))
    group = Group(stages, [preprocess, process], SystemClock(), 8)
    number = 0.0
    for batch in batches:
        values = []
        for what in batch:
            number += 1
            values.append((number, what))
        items = items_of(*values)
        _run(group, items)
        for item, (wanted, what) in zip(items, values, strict=True):
            if what in ("ok", "own"):
                assert item.value == wanted
            else:
                assert item.error is not None


def test_one_bad_item_of_a_stream_of_batches(run: Run) -> None:
    """In a running pipeline the bad items fail with their reasons, the rest is delivered, and batches say why they left."""
    payloads = ["!raise 1" if n == 13 else "!reject 2" if n == 40 else "x" for n in range(64)]
    ran = run([FaultyStage("device", kind="device")], payloads, {"stages": {"device": {"batch": 8}}})
    assert set(ran.results) == {str(n) for n in range(64)} - {"13", "40"}
    assert ran.ids(OutcomeKind.REJECTED) == {"40"}
    assert "ValueError" in ran.reason("13")
    assert {span.release_reason for span in ran.spans if span.unit_id in ("13", "40")} >= {"split"}


def test_batch_formed_tells_the_batch(run: Run) -> None:
    """Sizes told by batch_formed are those of the spans, also when items fail before the batch in the same worker."""
    ran = run(
        [FaultyStage("pre"), FaultyStage("device", kind="device")],
        ["x", "!raise", "y", "z"] * 4,
        {"stages": {"device": {"executor": "inline", "batch": 4}}},
    )
    sizes = {(s.process, s.batch_id): s.batch_size for s in ran.spans if s.stage == "device"}
    assert {b.batch_id: b.size for b in ran.recorder.batches} == {key[1]: size for key, size in sizes.items()}
    assert {batch.stage for batch in ran.recorder.batches} == {"device"}
