"""The small parts of isolation runs: tallies, values, replays, schedstat, twins."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.base.records import DELIVERED, Job
from headrace.pipeline.item import Item
from headrace.profiler.isolation.crew import Tally
from headrace.profiler.isolation.replay import Discard, Entry, Replay
from headrace.profiler.isolation.schedstat import TaskTimes, cpu_seconds_of, task_times, threads_of
from headrace.profiler.isolation.twin import EmulatedTwin
from headrace.profiler.isolation.values import kept, num_bytes, same
from headrace.stages.stage import Fan, Joined, stage


def item() -> Item:
    """Return an item that is well."""
    return Item(Job("a", b""), b"", ())


def test_a_call_across_an_edge_counts_in_part() -> None:
    """Of calls of 0.4 s from 9.8 on, half of the first and half of the last of four lie between 10 and 11.2."""
    window = (10.0, 11.2)
    tally = Tally(9.8)
    for now in (10.2, 10.6, 11.0, 11.4):
        assert not tally.is_past(window)
        tally.add([item()], now, window)
    assert tally.is_past(window)
    share = tally.share(0.5, None)
    assert share.num_in_window == pytest.approx(3.0)
    assert (share.num_items, share.wall_seconds) == (4, pytest.approx(1.6))


def test_calls_before_the_window_cost_and_are_no_throughput() -> None:
    """They count for what a call costs."""
    tally = Tally(1.0)
    tally.add([item()], 2.0, None)
    tally.add([item()], 3.0, (5.0, 6.0))
    share = tally.share(0.0, 0.0)
    assert (share.num_in_window, share.num_items, share.wall_seconds) == (0.0, 2, 2.0)


def test_one_long_call_has_a_rate() -> None:
    """A batch of two in a call of four seconds around a window of one: half an item a second."""
    tally = Tally(10.0)
    tally.add([item(), item()], 14.0, (11.0, 12.0))
    assert tally.share(0.0, 0.0).num_in_window == pytest.approx(0.5)


@pytest.mark.parametrize("start", [0.0, 0.013, 0.025, 0.04])
def test_workers_that_take_turns_do_not_seem_to_do_more(start: float) -> None:
    """Two workers at a lock of 40 ms do 25 calls a second, wherever the window begins."""
    window = (1.0 + start, 1.0 + start + 0.32)
    tallies = [Tally(0.0), Tally(0.04)]
    for turn in range(40):
        tallies[turn % 2].add([item()], 0.08 + 0.04 * turn, window)
    assert sum(tally.share(0.0, 0.0).num_in_window for tally in tallies) == pytest.approx(0.32 * 25)


def test_failed_items_are_counted_apart() -> None:
    """They take time and are no throughput."""
    tally = Tally(0.0)
    bad = item()
    bad.error = ValueError("broken")
    tally.add([item(), bad], 1.0, (0.0, 1.0))
    share = tally.share(0.0, 0.0)
    assert (share.num_items, share.num_failed, share.num_in_window) == (1, 1, 1.0)
    assert "broken" in share.error


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
    assert same(value, kept(value))


def test_a_change_in_place_is_seen_and_does_not_reach_the_copy() -> None:
    """Also deep within a value."""
    value = {"boxes": [np.zeros(3)]}
    copied = kept(value)
    value["boxes"][0][1] = 7
    assert not same(value, copied)
    assert copied["boxes"][0].tolist() == [0, 0, 0]


def test_a_copy_keeps_the_order_of_axes() -> None:
    """A transposed image stays transposed in memory, because stages' speed depends on it."""
    turned = np.zeros((4, 5, 3), np.uint8).transpose(2, 0, 1)
    assert kept(turned).strides == turned.strides


def test_what_cannot_be_copied_is_passed_on() -> None:
    """A lock is given as it is."""
    lock = threading.Lock()
    assert kept(lock) is lock


def test_bytes_are_counted_within_values() -> None:
    """Arrays count exactly, wherever they are."""
    assert num_bytes([np.zeros(100), (np.zeros(50, np.uint8),)]) == 850
    assert num_bytes(Joined(None, [np.zeros(10)])) - num_bytes(None) == 80
    assert num_bytes(Fan([np.zeros(10)])) - num_bytes(None) == 80


def test_replay_goes_round_with_unique_ids() -> None:
    """The same payloads again and again; ids carry the round."""
    source = Replay([Entry("a", b"1"), Entry("b", b"2", task="t")])
    jobs = source.receive(5, 0.0)
    assert [job.id for job in jobs] == ["a#0", "b#0", "a#1", "b#1", "a#2"]
    assert [job.payload for job in jobs] == [b"1", b"2", b"1", b"2", b"1"]
    assert jobs[1].task == "t"


def test_the_end_of_a_replay_drops_what_is_queued() -> None:
    """Jobs that are out are marked as lost, settled ones and what comes later do not matter."""
    source = Replay([Entry("a", b"1")])
    done, queued = source.receive(2, 0.0)
    done.settle(DELIVERED)
    source.end()
    assert (done.lost, queued.lost) == (False, True)
    assert source.receive(1, 0.0) is None
    assert source.is_exhausted


def test_a_replay_gives_copies_where_stages_change_them() -> None:
    """Each job gets an array of its own."""
    source = Replay([Entry("a", np.zeros(3))], copies=True)
    first, second = source.receive(2, 0.0)
    first.payload[0] = 5
    assert second.payload[0] == 0


def test_attributes_belong_to_one_job() -> None:
    """A stage may add to them."""
    first, second = Replay([Entry("a", b"", attributes={"x": 1})]).receive(2, 0.0)
    first.attributes["y"] = 2
    assert second.attributes == {"x": 1}


def test_a_replay_of_nothing_is_refused() -> None:
    """There would be no end of asking."""
    with pytest.raises(ValueError, match="empty"):
        Replay([])


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


def test_a_twin_answers_with_results_of_the_real_device() -> None:
    """As many as inputs, in turn, each a copy."""
    real = stage("process", len, kind="device")
    twin = EmulatedTwin(real, 0.0, 0.0, 0.25, [{"label": "cat"}, {"label": "dog"}])
    take_time = twin.open(None)
    first = take_time([1, 2, 3])
    first[0]["label"] = "changed"
    assert [result["label"] for result in take_time([1, 2])] == ["dog", "cat"]
    assert (twin.name, twin.kind) == ("process", "device")
    assert "up to 25% off" in twin.in_words()
