"""How much faster the model may become, and what keeping the order of batches costs, by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from headrace.diagnose.training.head_of_line import find_head_of_line
from headrace.diagnose.training.headroom import find_headroom
from headrace.diagnose.training.steps import Array, BatchPassage, LoadedBatches, RankSteps, Stretches, Times
from headrace.runs.training_phases import Kind, LoaderWork, Phase, Stretch


def _times(count: int, wall: float, cpu: float = 0.0, delay: float = 0.0) -> Times:
    return Times(wall=np.full(count, wall), cpu=np.full(count, cpu), run_delay=np.full(count, delay))


def _stretches(phases: dict[Phase, Times], count: int) -> Stretches:
    zeros = np.zeros(count)
    return Stretches(
        unit=Stretch.STEP,
        number=np.arange(count),
        started=zeros,
        wall=zeros,
        samples=np.ones(count, np.int64),
        kinds=(Kind.EPOCH_START,) * min(count, 1) + (Kind.PLAIN,) * (count - 1),
        is_failed=np.zeros(count, bool),
        microbatches=np.ones(count, np.int64),
        phases=phases,
    )


def _rank(model: Times, work: dict[LoaderWork, Times], *, wait: float = 0.0, batches_per_step: int = 1) -> RankSteps:
    count = len(model.wall)
    nothing = _stretches({}, 0)
    step = np.repeat(np.arange(count), batches_per_step)
    return RankSteps(
        rank=0,
        host="here",
        process=1,
        steps=_stretches({Phase.WAIT: _times(count, wait), Phase.FORWARD: model}, count),
        validation=nothing,
        between=nothing,
        batches=LoadedBatches(step=step, process=np.full(len(step), 2), work=work),
    )


def test_workers_that_only_wait_limit_by_their_number() -> None:
    """A model of 100 ms and 2 workers of 60 ms for a batch: 100 / (60 / 2), whatever the wait was."""
    rank = _rank(_times(5, 0.1), {LoaderWork.ITEMS: _times(5, 0.05), LoaderWork.COLLATE: _times(5, 0.01)}, wait=0.7)
    found = find_headroom(rank, num_workers=2, num_cores=2)
    assert found is not None
    assert found.ratio == pytest.approx(100 / 30)
    assert found.ratio_by_cores == math.inf
    assert (found.model_seconds, found.batch_seconds) == (pytest.approx(0.1), pytest.approx(0.06))


def test_shared_cores_limit_where_all_compute() -> None:
    """Two cores, a model of 100 ms on one of them, 50 ms of computing for a batch: (2 x 100 - 100) / 50, not 4 x 100 / 50."""
    rank = _rank(_times(5, 0.1, cpu=0.1), {LoaderWork.ITEMS: _times(5, 0.05, cpu=0.05)})
    found = find_headroom(rank, num_workers=4, num_cores=2)
    assert found is not None
    assert (found.ratio_by_workers, found.ratio) == (pytest.approx(8), pytest.approx(2))


def test_waiting_for_a_core_is_no_cost_of_a_batch_or_of_the_model() -> None:
    """The same, measured on a busy machine: every duration is longer by the time without a core."""
    quiet = _rank(_times(5, 0.1, cpu=0.1), {LoaderWork.ITEMS: _times(5, 0.05, cpu=0.05)})
    busy = _rank(_times(5, 0.13, cpu=0.1, delay=0.03), {LoaderWork.ITEMS: _times(5, 0.12, cpu=0.05, delay=0.07)})
    one, other = (find_headroom(rank, num_workers=1, num_cores=2) for rank in (quiet, busy))
    assert one is not None
    assert other is not None
    assert one.ratio == pytest.approx(other.ratio)


@pytest.mark.parametrize(("computed", "ratio"), [(0.04, 2.0), (0.03, 2.5), (0.0, 2.5)])
def test_sending_costs_its_cpu_time(computed: float, ratio: float) -> None:
    """What a batch waited until it was taken is no cost; what other threads computed while the worker did, too, is."""
    items = _times(5, 0.04, cpu=computed)
    rank = _rank(_times(5, 0.1), {LoaderWork.ITEMS: items, LoaderWork.SEND: _times(5, 3.0, cpu=0.01)})
    found = find_headroom(rank, num_workers=1, num_cores=8)
    assert found is not None
    assert found.ratio == pytest.approx(ratio)


def test_a_step_of_several_batches_leaves_each_its_share() -> None:
    """Accumulation of 2: the model has 50 ms for a batch."""
    rank = _rank(_times(5, 0.1), {LoaderWork.ITEMS: _times(10, 0.05)}, batches_per_step=2)
    found = find_headroom(rank, num_workers=1, num_cores=1)
    assert found is not None
    assert found.ratio == pytest.approx(1)


def test_without_workers_or_records_there_is_no_headroom() -> None:
    """Loading and the model then never overlap, or nothing is known; a number of cores must be one."""
    work = {LoaderWork.ITEMS: _times(5, 0.05)}
    assert find_headroom(_rank(_times(5, 0.1), work), num_workers=0, num_cores=2) is None
    assert find_headroom(_rank(_times(1, 0.1), {LoaderWork.ITEMS: _times(1, 1)}), num_workers=1, num_cores=2) is None
    with pytest.raises(ValueError, match="num_cores = 0"):
        find_headroom(_rank(_times(5, 0.1), work), num_workers=1, num_cores=0)


def _passage(ready: list[float], asked: list[float], taken: list[float], workers: list[int]) -> LoadedBatches:
    def column(values: list[Any]) -> Array:
        return np.array(values, float)

    count = len(ready)
    integers = np.zeros(count, np.int64)
    passage = BatchPassage(
        worker=np.array(workers, np.int64),
        number=integers,
        begun=np.zeros(count),
        ready=column(ready),
        asked=column(asked),
        taken=column(taken),
        num_items=integers,
        num_bytes=integers,
        is_failed=np.zeros(count, bool),
    )
    return LoadedBatches(step=np.arange(count), process=np.array(workers), work={}, passage=passage)


def test_a_slow_batch_holds_up_those_that_are_ready() -> None:
    """The second batch comes at 9 s, asked for at 2 s; the third was ready at 3 s: 6 s were lost to the order."""
    batches = _passage([1, 9, 3, 9.5], [0, 2, 9, 9.1], [1, 9, 9, 9.5], [0, 1, 0, 0])
    found = find_head_of_line(batches)
    assert found is not None
    assert (found.num_waits, found.num_overtaken) == (3, 1)
    assert found.held_up_seconds == pytest.approx(6)
    assert found.waited_seconds == pytest.approx(1 + 7 + 0.4)


def test_a_loop_that_never_waits_lost_nothing_to_the_order() -> None:
    """Batches that were ready when they were asked for hold up nobody, in whatever order they were made."""
    found = find_head_of_line(_passage([1, 3, 2], [4, 5, 6], [4, 5, 6], [0, 1, 0]))
    assert found is not None
    assert (found.num_waits, found.held_up_seconds) == (0, 0)


def test_the_order_is_not_judged_without_workers() -> None:
    """The training thread makes one batch after the other; and records without passage say nothing."""
    alone = _passage([1, 2], [0, 1], [1, 2], [-1, -1])
    assert find_head_of_line(alone) is None
    assert find_head_of_line(dataclasses.replace(alone, passage=None)) is None
