"""What a worker reads of its thread's clocks for each passage: which have CPU time and run delay, and which not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import headrace as hr
from headrace.base.clock import SystemClock
from headrace.base.metering import Metering
from headrace.base.records import Job
from headrace.pipeline.group import Group
from headrace.pipeline.item import Item


def same(value: Any) -> Any:
    """Do nothing."""
    return value


def refuse(value: Any) -> Any:
    """Fail."""
    raise ValueError("no")


def refuse_bad(values: Sequence[Any]) -> list[Any]:
    """Fail for a batch that holds a bad value."""
    if b"bad" in list(values):
        raise ValueError("bad")
    return list(values)


def group_of(metering: Metering | None, *calls: tuple[str, Callable[..., Any]]) -> Group:
    """Return a group of stages of these kinds."""
    stages = [hr.stage(f"stage{number}", same, kind=kind) for number, (kind, _) in enumerate(calls)]
    return Group(stages, [call for _, call in calls], SystemClock(), 4, metering)


def item_of(weight: int = 1, value: bytes = b"x") -> Item:
    """Return an item of this weight."""
    return Item(Job("a", value), value, (), weight=weight)


def run(group: Group, items: list[Item]) -> None:
    """Run them and unpack what is left to unpack."""
    unpack = group.run(items, None)
    if unpack is not None:
        unpack()


@pytest.mark.parametrize("metering", [None, Metering(), Metering(on=False)])
def test_without_metering_only_wall_times_are_read(metering: Metering | None) -> None:
    """CPU time that was not read is None, not 0."""
    item = item_of()
    run(group_of(metering, ("cpu", same), ("device", same)), [item])
    assert [(timing.cpu, timing.run_delay) for timing in item.timings] == [(None, None)] * 2


def test_fused_stages_share_the_reading_between_them() -> None:
    """Nothing lies between the end of one and the beginning of the next, and no clock runs backwards."""
    item = item_of()
    run(group_of(Metering(on=True), ("cpu", same), ("cpu", same), ("cpu", same)), [item])
    assert [timing.started for timing in item.timings[1:]] == [timing.ended for timing in item.timings[:-1]]
    assert all(timing.cpu is not None and timing.cpu >= 0 for timing in item.timings)
    assert all(timing.run_delay is None or timing.run_delay >= 0 for timing in item.timings)


def test_a_failed_passage_has_cpu_time() -> None:
    """What a stage used before it failed counts as well."""
    item = item_of()
    run(group_of(Metering(on=True), ("cpu", refuse)), [item])
    (timing,) = item.timings
    assert timing.outcome == "failed"
    assert timing.cpu is not None


def test_what_is_not_recorded_is_not_metered() -> None:
    """Of jobs that were left out no span is written: their clocks need not be read."""
    items = [item_of(0), item_of(8)]
    run(group_of(Metering(on=True, every=8), ("cpu", same)), items)
    assert items[0].timings[0].cpu is None
    assert items[1].timings[0].cpu is not None


@pytest.mark.parametrize(("weights", "is_metered"), [((0, 0), False), ((0, 8), True)])
def test_a_batch_is_metered_if_one_of_it_is_recorded(weights: tuple[int, ...], is_metered: bool) -> None:
    """Every item of a batch has the batch's time; where none is recorded the clocks need not be read."""
    items = [item_of(weight) for weight in weights]
    run(group_of(Metering(on=True, every=8), ("device", same)), items)
    assert [timing.cpu is not None for item in items for timing in item.timings] == [is_metered] * 2
    assert items[0].timings[0].cpu == items[1].timings[0].cpu


def test_the_parts_of_a_batch_that_failed_are_metered_each() -> None:
    """A batch that is split for one bad item leaves one metered passage for every call that an item was in."""
    items = [item_of(), item_of(), item_of(value=b"bad")]
    run(group_of(Metering(on=True), ("device", refuse_bad)), items)
    assert all(timing.cpu is not None for item in items for timing in item.timings)
    assert [timing.outcome for timing in items[0].timings] == ["failed", "ok"]
    assert {timing.outcome for timing in items[2].timings} == {"failed"}
