"""Urgent items go first, in every queue and every batch, and the others still go on."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.clock import SystemClock
from headrace.base.policies.batching import BatchingPolicy
from headrace.base.records import Job
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.item import Item
from headrace.pipeline.laned_queue import LanedQueue
from headrace.pipeline.two_lines import IN_A_ROW, TwoLines
from headrace.testing import ListSource
from tests.unit.pipeline.test_unwanted import NUM, Device, run


def item_of(number: int, priority: int, lane: str = "") -> Item:
    """Return an item."""
    job = Job(str(number), lane)
    job.priority = priority
    return Item(job, number, ())


def numbers(items: list[Item]) -> list[int]:
    """Return what items carry."""
    return [item.value for item in items]


@given(st.lists(st.one_of(st.booleans(), st.none()), max_size=80))
def test_each_line_keeps_its_order_and_no_line_starves(events: list[bool | None]) -> None:
    """Whatever comes (urgent or not) and is taken (None): nothing is lost, and of eight taken one at least is not urgent."""
    lines: TwoLines[tuple[bool, int]] = TwoLines([], lambda entry: entry[0])
    taken: list[tuple[bool, int]] = []
    waited: list[bool] = []
    for number, is_urgent in enumerate(events):
        if is_urgent is not None:
            lines.append((is_urgent, number))
        elif lines:
            first, waits = lines[0], any(not entry[0] for entry in lines)
            taken.append(lines.popleft())
            waited.append(waits)
            assert taken[-1] == first
    expected = list(lines)
    assert [lines.popleft() for _ in expected] == expected
    for kind in (True, False):
        assert [entry for entry in taken + expected if entry[0] is kind] == [
            (kind, number) for number, is_urgent in enumerate(events) if is_urgent is kind
        ]
    overtaken = [entry[0] and waits for entry, waits in zip(taken, waited, strict=True)]
    assert all(len(list(run)) <= IN_A_ROW for urgent, run in groupby(overtaken) if urgent)


def test_a_batch_has_the_urgent_ones_first() -> None:
    """And is filled with others; those that came first go first among their like."""
    queue = BoundedQueue(100, 10**9, SystemClock())
    queue.put([item_of(number, 1) for number in range(6)])
    queue.put([item_of(10, 0), item_of(6, 1), item_of(11, 0)])
    batches = [queue.take_batch(BatchingPolicy(max_size=4), lambda: False)[0] for _ in range(3)]
    assert [numbers(batch) for batch in batches] == [[10, 11, 0, 1], [2, 3, 4, 5], [6]]


def test_workers_take_the_urgent_ones_first() -> None:
    """Where there are no batches, too, and where the newest go back to the source these go last."""
    queue = BoundedQueue(100, 10**9, SystemClock())
    queue.put([item_of(0, 1), item_of(1, 1), item_of(2, 0), item_of(3, 0)])
    assert numbers(queue.remove_newest(1, lambda item: True)) == [1]
    assert numbers(queue.take(2)) == [2, 3]
    assert numbers(queue.take(2)) == [0]
    assert queue.num_bytes == 0


def test_of_many_urgent_ones_an_eighth_are_others() -> None:
    """A device that is kept busy with priority 0 goes on with priority 1."""
    queue = BoundedQueue(1_000, 10**9, SystemClock())
    queue.put([item_of(number, 1) for number in range(10)])
    queue.put([item_of(number, 0) for number in range(100, 170)])
    taken = numbers([queue.take(1)[0] for _ in range(80)])
    assert taken[7::8] == list(range(10))


def test_an_urgent_item_has_its_lane_taken_next() -> None:
    """Of many servers the one that it goes to has its turn, and within the lane it overtakes the others."""
    queue = LanedQueue(
        100,
        10**9,
        SystemClock(),
        8,
        goes_to=lambda item: (item.job.payload, item.job.payload),
        turn_away=lambda item, seconds: None,
        may_turn_away=lambda item: False,
    )
    queue.put([item_of(number, 1, f"host {number % 4}") for number in range(8)])
    queue.put([item_of(100, 0, "host 3")])
    assert numbers([queue.take_for(1, None)[0][0] for _ in range(3)]) == [100, 0, 1]


class Prioritized(ListSource):
    """The last eight jobs are urgent."""

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return jobs."""
        jobs = super().receive(limit, wait_seconds)
        for job in jobs or ():
            job.priority = int(int(job.id) < NUM - 8)
        return jobs


def test_who_comes_last_is_done_first() -> None:
    """While the device works on its first batch all others come; those of priority 0 are in the next two."""
    device = Device(lambda: None)
    run(Prioritized(range(NUM)), device)
    urgent = list(range(NUM - 8, NUM))
    seen = [number for batch in device.batches for number in batch]
    assert [number for number in seen if number in urgent] == urgent
    assert [number for number in seen if number not in urgent] == list(range(NUM - 8))
    assert set(urgent) <= {number for batch in device.batches[:3] for number in batch}
