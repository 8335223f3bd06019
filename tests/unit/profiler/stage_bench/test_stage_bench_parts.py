"""The small parts of the stage benchmark: measurements, values, replays, schedstat, emulated devices."""

from __future__ import annotations

import itertools
import math
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.base.plan import SourcePlan
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.engines.emulated import EmulatedOptions
from headrace.pipeline.item import Item
from headrace.profiler.stage_bench.background import Discard, Replay
from headrace.profiler.stage_bench.emulated_device import EmulatedDevice
from headrace.profiler.stage_bench.schedstat import TaskTimes, cpu_seconds_of, task_times, threads_of
from headrace.profiler.stage_bench.stage_run import Measurement
from headrace.profiler.stage_bench.values import copy_of, is_same
from headrace.stages.stage import Joined, stage


def item() -> Item:
    """Return an item that is well."""
    return Item(Job("a", b""), b"", ())


def count(measurement: Measurement, window: tuple[float, float] | None, *stamps: float) -> None:
    """Count calls of one item back to back, between these moments."""
    for began, ended in itertools.pairwise(stamps):
        measurement.add_call([item()], began, ended, window)


def test_a_call_across_an_edge_counts_in_part() -> None:
    """Of calls of 0.4 s from 9.8 on, half of the first and half of the last of four lie between 10 and 11.2."""
    found = Measurement()
    count(found, (10.0, 11.2), 9.8, 10.2, 10.6, 11.0, 11.4)
    assert found.throughput == pytest.approx(3.0 / 1.2)
    assert (found.num_items, found.num_calls, found.wall_seconds) == (4, 4, pytest.approx(1.6))


def test_calls_before_the_window_cost_and_are_no_throughput() -> None:
    """They count for what a call costs."""
    found = Measurement()
    count(found, None, 1.0, 2.0)
    count(found, (5.0, 6.0), 2.0, 3.0)
    assert (found.throughput, found.num_items, found.wall_seconds) == (0.0, 2, 2.0)


def test_one_long_call_has_a_rate() -> None:
    """A batch of two in a call of four seconds around a window of one: half an item a second."""
    found = Measurement()
    found.add_call([item(), item()], 10.0, 14.0, (11.0, 12.0))
    assert found.throughput == pytest.approx(0.5)


@pytest.mark.parametrize("start", [0.0, 0.013, 0.025, 0.04])
def test_workers_that_take_turns_do_not_seem_to_do_more(start: float) -> None:
    """Two workers at a lock of 40 ms do 25 calls a second, wherever the window begins."""
    total = Measurement()
    for first in (0.0, 0.04):
        mine = Measurement()
        count(mine, (1.0 + start, 1.32 + start), *(first + 0.08 * turn for turn in range(21)))
        total.add(mine)
    assert total.throughput == pytest.approx(25)


def test_failed_items_are_counted_apart() -> None:
    """They take time and are no throughput."""
    found, bad = Measurement(), item()
    bad.error = ValueError("broken")
    found.add_call([item(), bad], 0.0, 1.0, (0.0, 1.0))
    assert (found.num_items, found.num_failed, found.throughput) == (1, 1, 1.0)
    assert "broken" in found.error


def test_run_delay_of_several_is_known_if_it_is_of_all() -> None:
    """One worker of whom the kernel does not tell makes it None, never less."""
    total = Measurement()
    total.add(Measurement(cpu_seconds=1.0, run_delay_seconds=0.5))
    assert (total.cpu_seconds, total.run_delay_seconds) == (1.0, 0.5)
    total.add(Measurement(run_delay_seconds=None))
    total.add(Measurement(run_delay_seconds=0.5))
    assert total.run_delay_seconds is None


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3),
        [np.arange(3), {"a": (1, b"b", np.zeros(2))}],
        "text",
        Joined("keep", [np.ones(2)]),
        None,
        math.nan,
    ],
)
def test_a_copy_is_the_same(value: object) -> None:
    """Whatever is kept compares equal to what it was made from."""
    assert is_same(value, copy_of(value))


def test_a_change_in_place_is_seen_and_does_not_reach_the_copy() -> None:
    """Also deep within a value."""
    value = {"boxes": [np.zeros(3)]}
    copied = copy_of(value)
    value["boxes"][0][1] = 7
    assert not is_same(value, copied)
    assert copied["boxes"][0].tolist() == [0, 0, 0]


def test_a_copy_keeps_the_order_of_axes() -> None:
    """A transposed image stays transposed in memory, because stages' speed depends on it."""
    turned = np.zeros((4, 5, 3), np.uint8).transpose(2, 0, 1)
    assert copy_of(turned).strides == turned.strides


def test_what_cannot_be_copied_is_passed_on() -> None:
    """A lock is given as it is."""
    lock = threading.Lock()
    assert copy_of(lock) is lock


def replayed(*jobs: Job, copies: bool = False) -> Replay:
    """Return an open source of jobs like these."""
    source = Replay(jobs, copies=copies)
    source.open(SourcePlan())
    return source


def test_a_replay_goes_round_with_unique_ids() -> None:
    """The same payloads and tasks again and again; ids carry a number."""
    jobs = replayed(Job("a", b"1"), Job("b", b"2", task="t")).receive(5, 0.0)
    assert [job.id for job in jobs] == ["a#0", "b#1", "a#2", "b#3", "a#4"]
    assert [job.payload for job in jobs] == [b"1", b"2", b"1", b"2", b"1"]
    assert [job.task for job in jobs] == ["", "t", "", "t", ""]


def test_a_job_that_fails_is_not_tried_again() -> None:
    """What comes next is the next one."""
    source = replayed(Job("a", b"1"))
    (job,) = source.receive(1, 0.0)
    job.settle(Outcome(OutcomeKind.RETRY, "broken"))
    assert [job.id for job in source.receive(1, 0.0)] == ["a#1"]


def test_a_replay_gives_copies_where_stages_change_them() -> None:
    """Each job gets an array of its own."""
    first, second = replayed(Job("a", np.zeros(3)), copies=True).receive(2, 0.0)
    first.payload[0] = 5
    assert second.payload[0] == 0


def test_attributes_belong_to_one_job() -> None:
    """A stage may add to them."""
    first, second = replayed(Job("a", b"", attributes={"x": 1})).receive(2, 0.0)
    first.attributes["y"] = 2
    assert second.attributes == {"x": 1}


def test_discard_is_durable_at_once() -> None:
    """The runtime need not wait for a flush."""
    assert Discard(3).deliver(Job("a", b""), {}) is True
    assert Discard(3).default_workers == 3


def test_schedstat_is_read(tmp_path: Path) -> None:
    """First field on a core, second runnable without one; what is gone or unreadable is None."""
    task = tmp_path / "7" / "task" / "9"
    task.mkdir(parents=True)
    (task / "schedstat").write_text("2500000000 40 12\n")
    assert task_times(7, 9, tmp_path) == TaskTimes(2_500_000_000, 40)
    assert threads_of(7, tmp_path) == {9}
    (task / "schedstat").write_text("0 0 0\n")  # a kernel that does not count
    assert task_times(7, 9, tmp_path) is None
    (task / "schedstat").write_text("")
    assert task_times(7, 9, tmp_path) is None
    assert task_times(7, 10, tmp_path) is None
    assert threads_of(8, tmp_path) == set()


def test_threads_that_ended_are_left_out() -> None:
    """CPU seconds are of those that live."""
    assert cpu_seconds_of([(0, 0)]) == {}


def test_a_device_answers_with_results_of_the_real_device() -> None:
    """As many as inputs, in turn, each a copy."""
    real = stage("process", len, kind="device")
    device = EmulatedDevice(real, EmulatedOptions(), 0.25, [{"label": "cat"}, {"label": "dog"}])
    take_time = device.open(None)
    first = take_time([1, 2, 3])
    first[0]["label"] = "changed"
    assert [result["label"] for result in take_time([1, 2])] == ["dog", "cat"]
    assert (device.name, device.kind) == ("process", "device")
    assert "up to 25% off" in device.describe()
