"""Samples of thread states laid over spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.diagnose import profile_document
from headrace.runs.formats.profile import BlockedSplit

AT = np.arange(100) * 0.1


def work(builder: Any, **changes: Any) -> Any:
    """A hundred services of 80 ms, 20 ms of each on the CPU; between them 20 ms of idling."""
    values = {"cpu": AT * 0 + 0.02, "run_delay": AT * 0.0} | changes
    return builder.stage("work").stage("deliver").spans("work", arrived=AT, started=AT, ended=AT + 0.08, **values)


def split(builder: Any, stage: int = 0) -> BlockedSplit | None:
    """Return a stage's split."""
    return profile_document(builder.finish()).stages[stage].blocked_split


def test_shares_of_samples_are_shares_of_the_blocked_time(builder: Any) -> None:
    """Three in four blocked samples found the GIL: three quarters of the blocked time waited for it."""
    work(builder).states(AT + 0.01, "work-0", "gil").states(AT + 0.03, "work-0", "gil")
    found = split(builder.states(AT + 0.05, "work-0", "gil").states(AT + 0.07, "work-0", "network"))
    assert found is not None
    assert (found.gil, found.network, found.unknown) == pytest.approx((0.045, 0.015, 0.0))
    assert found.num_samples == 400


def test_a_running_sample_is_not_blocked(builder: Any) -> None:
    """Samples that found the thread running say nothing of what it waited for."""
    work(builder).states(AT + 0.01, "work-0", "running").states(AT + 0.03, "work-0", "sleep")
    found = split(builder)
    assert found is not None
    assert (found.sleep, found.num_samples) == (pytest.approx(0.06), 100)


def test_samples_between_services_and_of_others_do_not_count(builder: Any) -> None:
    """What a worker waits for when it has no item, and other threads and processes, is not this stage's."""
    work(builder).states(AT + 0.09, "work-0", "lock").states(AT + 0.01, "other-0", "disk")
    found = split(builder.states(AT + 0.01, "work-0", "disk", process=2))
    assert found == BlockedSplit(unknown=pytest.approx(0.06))


def carry(builder: Any, executor: str = "events") -> Any:
    """A hundred times four services of 80 ms side by side, 1 ms of each on the CPU; of five looks one finds the GIL."""
    at = np.repeat(AT, 4)
    threads = [f"work-{number % 4}" for number in range(400)]
    builder.stage("work", kind="io", executor=executor).stage("deliver")
    builder.spans("work", arrived=at, ended=at + 0.08, cpu=at * 0 + 0.001, run_delay=at * 0.0, thread=threads)
    builder.states(AT + 0.01, "work-0", "gil").states(AT + 0.02, "work-0", "running")
    for after in range(3, 6):
        builder.states(AT + after / 100, "work-0", "network")
    return builder


def test_what_holds_up_one_thread_is_no_share_of_each_call_that_it_carries(builder: Any) -> None:
    """The thread waits for the GIL as long as it computes, 1 ms per call, and three fifths of the time for the network."""
    found = split(carry(builder))
    assert found is not None
    assert (found.gil, found.network) == pytest.approx((0.001 / 0.6, 0.079 - 0.001 / 0.6))


def test_a_thread_that_never_waits_for_the_network_holds_up_every_call(builder: Any) -> None:
    """All calls wait for the thread, and it for the GIL."""
    at = np.repeat(AT, 4)
    builder.stage("work", kind="io", executor="events").stage("deliver")
    builder.spans("work", arrived=at, ended=at + 0.08, cpu=at * 0 + 0.01, run_delay=at * 0.0)
    found = split(builder.states(AT + 0.01, "work-0", "gil"))
    assert found is not None
    assert found.gil == pytest.approx(0.07)


def test_calls_in_threads_of_their_own_have_the_samples_of_each(builder: Any) -> None:
    """Where a stage could not be carried, each worker is a thread that was sampled."""
    found = split(carry(builder).states(AT + 0.01, "work-1", "gil"))
    assert found is not None
    assert found.gil == pytest.approx(0.079 * 2 / 5)


def test_without_samples_all_is_unknown(builder: Any) -> None:
    """Nothing is guessed, whatever the stage's kind."""
    assert split(work(builder)) == BlockedSplit(unknown=pytest.approx(0.06))


@pytest.mark.parametrize(("count", "is_told"), [(9, False), (10, True)])
def test_a_few_samples_give_no_shares(builder: Any, count: int, is_told: bool) -> None:
    """Nine samples that agree are no hundred per cent."""
    found = split(work(builder).states(AT[:count] + 0.05, "work-0", "gil"))
    assert found is not None
    assert found.num_samples == count
    assert (found.gil > 0, found.unknown > 0) == (is_told, not is_told)


def test_stages_that_share_a_worker_get_their_own_samples(builder: Any) -> None:
    """A sample belongs to the stage that was served at that moment."""
    costs = {"cpu": AT * 0.0, "run_delay": AT * 0.0}
    builder.stage("a").stage("b", executor="inline", station="a").stage("deliver")
    builder.spans("a", arrived=AT, ended=AT + 0.04, **costs)
    builder.spans("b", arrived=AT + 0.04, ended=AT + 0.08, thread="a-0", **costs)
    builder.states(AT + 0.02, "a-0", "disk").states(AT + 0.06, "a-0", "lock")
    stages = profile_document(builder.finish()).stages
    assert stages[0].blocked_split == BlockedSplit(disk=pytest.approx(0.04), num_samples=100)
    assert stages[1].blocked_split == BlockedSplit(lock=pytest.approx(0.04), num_samples=100)


def test_the_members_of_a_batch_share_its_samples(builder: Any) -> None:
    """A sample within a batch counts once, though each member has a row."""
    batch = np.repeat(np.arange(100), 4)
    at = batch * 0.1
    builder.stage("infer", kind="device").stage("deliver")
    builder.spans(
        "infer",
        arrived=at,
        ended=at + 0.08,
        cpu=at * 0.0,
        run_delay=at * 0.0,
        batch_id=batch,
        batch_size=4,
    )
    found = split(builder.states(AT + 0.05, "infer-0", "lock"))
    assert found is not None
    assert (found.lock, found.num_samples) == (pytest.approx(0.08), 100)


def test_a_state_of_a_newer_headrace_is_other(builder: Any) -> None:
    """What is not known by name still was blocked time."""
    work(builder).states(AT + 0.01, "work-0", "tape")
    found = split(builder)
    assert found is not None
    assert found.other == pytest.approx(0.06)
