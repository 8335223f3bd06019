"""Items at a rate: none before its time, the same times for each block, and the first one alone."""

from __future__ import annotations

import time

import numpy as np

from headrace.base.plan import SourcePlan
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.compare.blocks import SameItems
from headrace.tune.paced_items import PacedItems
from tests.unit.tune.tuning_fakes import Numbers


def read(items: PacedItems, num_items: int) -> tuple[list[Job], list[float]]:
    """Return all jobs of a block, and when each was given out, on the monotonic clock."""
    items.num_items = num_items
    items.open(SourcePlan())
    jobs: list[Job] = []
    given: list[float] = []
    while (found := items.receive(10, 1.0)) is not None:
        jobs += found
        given += [time.monotonic()] * len(found)
        for job in found:
            job.settle(Outcome(OutcomeKind.DELIVERED))
    items.close()
    return jobs, given


def test_no_job_comes_before_its_time() -> None:
    """Each is given out once it is due, in order, and all of them are."""
    items = PacedItems(SameItems(Numbers()), 500.0)
    jobs, given = read(items, 60)
    assert [job.id for job in jobs] == [*map(str, range(40)), *(f"{number}#2" for number in range(20))]
    assert set(items.due) == {job.id for job in jobs[1:]}
    assert all(when >= items.due[job.id] for job, when in zip(jobs[1:], given[1:], strict=True))
    assert list(items.due.values()) == sorted(items.due.values())


def test_the_rate_is_that_of_each_block() -> None:
    """59 gaps take 59 / rate whatever was drawn, and blocks have the same gaps; another seed has others."""
    items = PacedItems(SameItems(Numbers()), 1000.0)
    gaps = []
    for _ in range(2):
        read(items, 60)
        gaps.append(np.diff(list(items.due.values())))
    first = next(iter(items.due.values()))
    other = PacedItems(SameItems(Numbers()), 1000.0, seed=1)
    read(other, 60)
    np.testing.assert_allclose(*gaps, atol=1e-9)
    assert 0 < list(items.due.values())[-1] - first < 0.059
    assert not np.allclose(gaps[0], np.diff(list(other.due.values())), atol=1e-9)


def test_a_pipeline_that_is_late_gets_all_that_came_meanwhile() -> None:
    """Arrivals do not wait for it."""
    items = PacedItems(SameItems(Numbers()), 10_000.0)
    items.num_items = 9
    items.open(SourcePlan())
    (first,) = items.receive(10, 1.0) or ()
    first.settle(Outcome(OutcomeKind.DELIVERED))
    items.receive(1, 1.0)
    latest = max(items.due.values()) + 1.0
    while time.monotonic() < latest:
        time.sleep(max(0.0, latest - time.monotonic()))
    found = items.receive(10, 1.0)
    assert found is not None
    assert len(found) == 7
