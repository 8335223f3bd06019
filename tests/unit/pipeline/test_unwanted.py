"""What nobody wants any more: it reaches no device, takes no place in a batch, and is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.base.records import Job, OutcomeKind
from headrace.delivery.collect import Collect
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Result
from headrace.pipeline.execute import run as execute
from headrace.pipeline.watching import RunInProgress
from headrace.testing import ListSource

NUM, _BATCH = 65, 8


class Device:
    """Calls back in its first batch, once all that is not in it waits, and keeps all batches."""

    def __init__(self, while_it_works: Callable[[], object]) -> None:
        self.batches: list[list[int]] = []
        self._while_it_works = while_it_works
        self._run: RunInProgress | None = None

    @contextmanager
    def watch(self, run: RunInProgress) -> Iterator[None]:
        """Know the run."""
        self._run = run
        yield

    def __call__(self, batch: Sequence[int]) -> list[int]:
        """Return the batch."""
        self.batches.append(list(batch))
        if len(self.batches) == 1:
            assert self._run is not None
            give_up_at = time.monotonic() + 60
            while self._run.statistics()[0].depth < NUM - len(batch):
                assert time.monotonic() < give_up_at, "waited in vain"
                time.sleep(0.001)
            self._while_it_works()
        return list(batch)


def run(source: ListSource, device: Device) -> Result:
    """Run numbers through a device."""
    stages = [hr.stage("device", device, kind="device")]
    plan = {"stages": {"device": {"batch": _BATCH, "queue_items": 100}}, "run": {"warm_up": False}}
    return execute(Pipeline(source, stages=stages, delivery=Collect()), Plan.from_table(plan), watch=device.watch)


def cancel(job: Job) -> None:
    """Let its client go away."""
    job.cancelled = True


def make_late(job: Job) -> None:
    """Let its deadline pass."""
    job.deadline_ns = 1


@pytest.mark.parametrize(("change", "code"), [(cancel, "client.gone"), (make_late, "deadline.passed")])
def test_the_others_take_its_place_in_the_batch(change: Callable[[Job], None], code: str) -> None:
    """Three of four that wait are not wanted: the device sees none of them, and its batches are full."""
    source = ListSource(range(NUM))

    def leave_every_fourth() -> None:
        for job in source.in_flight:
            if int(job.id) % 4 and int(job.id) not in device.batches[0]:
                change(job)

    device = Device(leave_every_fourth)
    result = run(source, device)
    first, *others = device.batches
    seen = [number for batch in others for number in batch]
    assert seen == [number for number in range(len(first), NUM) if number % 4 == 0]
    assert [len(batch) for batch in others[:-1]] == [_BATCH] * (len(seen) // _BATCH)
    assert result.counters.notes[code] == NUM - len(first) - len(seen)
    assert result.counters.rejected >= result.counters.notes[code]
    assert source.final(OutcomeKind.RETRY) == set()


def test_where_nobody_waits_any_more_the_device_rests() -> None:
    """All that waits is dropped, and the run ends; a client that goes away is not the fault of what comes after."""
    source = ListSource(range(NUM))
    device = Device(lambda: [cancel(job) for job in source.in_flight])
    result = run(source, device)
    assert len(device.batches) == 1
    assert result.counters.rejected == NUM
    assert "run.nothing_succeeded" not in result.counters.notes


def test_an_outcome_says_that_the_client_went_away() -> None:
    """The reason begins with the code."""
    source = ListSource(range(NUM))
    device = Device(lambda: [cancel(job) for job in source.in_flight])
    run(source, device)
    reasons: list[Any] = [outcomes[-1].reason for outcomes in source.outcomes.values()]
    assert {reason.partition(": ")[2].partition(": ")[2].partition(": ")[0] for reason in reasons} == {"client.gone"}
