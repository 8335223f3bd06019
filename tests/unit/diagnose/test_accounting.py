"""Accounts of stages, against answers known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.base.records import Counters
from headrace.base.stream_tally import StreamTally
from headrace.diagnose import profile_document
from headrace.runs.formats.profile import StageAccount

STEP = np.arange(100) * 0.01


def account(run: Any, name: str) -> StageAccount:
    """Return one stage's account."""
    return next(stage for stage in profile_document(run).stages if stage.name == name)


def test_a_deterministic_stage_has_its_exact_account(builder: Any) -> None:
    """Waits, setup, service, CPU, run delay and what is left of it are the means that were put in."""
    builder.stage("work", workers=2, kind="cpu").stage("deliver")
    builder.spans(
        "work",
        arrived=STEP,
        dequeued=STEP + 0.002,
        started=STEP + 0.003,
        ended=STEP + 0.009,
        cpu=STEP * 0 + 0.004,
        run_delay=STEP * 0 + 0.0005,
        bytes_in=7,
        bytes_out=9,
        shape_key=["a"] * 60 + ["b"] * 40,
    )
    work = account(builder.finish(), "work")
    assert work.items == work.num_spans == 100
    assert work.queue_wait.mean == pytest.approx(0.002)
    assert work.setup == pytest.approx(0.001)
    assert work.service.mean == pytest.approx(0.006)
    assert (work.cpu, work.run_delay, work.blocked) == pytest.approx((0.004, 0.0005, 0.0015))
    assert work.cpu_demand == pytest.approx(0.004)
    assert work.busy_seconds == pytest.approx(0.6)
    assert work.utilization == pytest.approx(0.6 / (0.999 * 2), rel=1e-3)
    assert work.throughput == pytest.approx(100 / 0.999)
    assert (work.bytes_in, work.bytes_out) == (7, 9)
    assert work.shapes == {"a": 60, "b": 40}


def test_service_is_the_sum_of_its_parts_also_when_some_spans_have_no_clocks(builder: Any) -> None:
    """Spans of stretches with the profiler off are left out of an account that others suffice for."""
    cpu = np.where(np.arange(1000) % 4 == 0, np.nan, 0.004)
    at = np.arange(1000) * 0.01
    service = np.where(np.isnan(cpu), 0.009, 0.006)
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=at, started=at, ended=at + service, cpu=cpu, run_delay=cpu * 0.25)
    work = account(builder.finish(), "work")
    assert work.service.mean == pytest.approx(0.006)
    assert work.cpu + work.run_delay + work.blocked == pytest.approx(work.service.mean)


def test_without_clocks_there_is_no_split(builder: Any) -> None:
    """A run that was not profiled has services and waits, and None for what was not measured."""
    builder.stage("work").stage("deliver").spans("work", arrived=STEP, ended=STEP + 0.006)
    document = profile_document(builder.finish())
    work = document.stages[0]
    assert work.service.mean == pytest.approx(0.006)
    assert (work.cpu, work.run_delay, work.blocked, work.blocked_split, work.cpu_demand) == (None,) * 5
    assert "profile" in document.not_measured["CPU time of stages"]


def test_a_kernel_without_run_delay_leaves_blocked_open(builder: Any) -> None:
    """With CPU time alone, waiting for a core and being blocked cannot be told apart, and no number is given."""
    builder.stage("work").stage("deliver").spans("work", arrived=STEP, ended=STEP + 0.006, cpu=STEP * 0 + 0.004)
    document = profile_document(builder.finish())
    work = document.stages[0]
    assert work.cpu == pytest.approx(0.004)
    assert (work.run_delay, work.blocked, work.blocked_split) == (None, None, None)
    assert "schedstat" in document.not_measured["run-queue delay"]


def test_a_batch_counts_once_where_work_is_summed(builder: Any) -> None:
    """An item's service is its batch's; busy time and CPU demand divide it."""
    batch = np.repeat(np.arange(25), 4)
    begun = batch * 0.1
    builder.stage("infer", kind="device").stage("deliver")
    builder.spans(
        "infer",
        arrived=begun,
        started=begun,
        ended=begun + 0.08,
        cpu=batch * 0 + 0.04,
        run_delay=batch * 0.0,
        batch_id=batch,
        batch_size=4,
        release_reason="full",
    )
    infer = account(builder.finish(cost_curves={"infer": {4: [0.08, 0.1, 0.07]}}), "infer")
    assert infer.service.mean == pytest.approx(0.08)
    assert infer.cpu == pytest.approx(0.04)
    assert infer.cpu_demand == pytest.approx(0.01)
    assert infer.busy_seconds == pytest.approx(25 * 0.08)
    assert infer.utilization == pytest.approx(25 * 0.08 / (24 * 0.1 + 0.08))
    assert infer.throughput == pytest.approx(100 / 2.48)
    assert infer.batches is not None
    assert (infer.batches.num_batches, infer.batches.mean_size, infer.batches.sizes) == (25, 4, {4: 25})
    assert infer.batches.cost_curve == {4: 0.08}


def test_batch_sizes_and_reasons_are_counted_from_spans_where_nobody_else_counted(builder: Any) -> None:
    """A killed run has no exact counts, and its spans tell sizes and reasons."""
    sizes = [4, 4, 4, 4, 2, 2, 1]
    ids = [1, 1, 1, 1, 2, 2, 3]
    at = np.array(ids, float)
    reasons = ["full"] * 4 + ["idle"] * 2 + ["drain"]
    builder.stage("infer", kind="device").stage("deliver")
    builder.spans("infer", arrived=at, ended=at + 0.5, batch_id=ids, batch_size=sizes, release_reason=reasons)
    batches = account(builder.finish("running", summary=False), "infer").batches
    assert batches is not None
    assert batches.sizes == {1: 1, 2: 1, 4: 1}
    assert batches.release_reasons == {"full": 1, "idle": 1, "drain": 1}
    assert (batches.num_batches, batches.mean_size) == (3, pytest.approx(7 / 3))


def test_a_workers_blocked_time_is_not_added_up_over_the_items_it_took_together(builder: Any) -> None:
    """Four items taken at once and put when the last is done: the worker was blocked once, after the last."""
    first = np.repeat(np.arange(50) * 0.1, 4)
    ended = first + np.tile([0.01, 0.02, 0.03, 0.04], 50)
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=first, started=ended - 0.01, ended=ended, put=first + 0.06)
    assert account(builder.finish(), "work").blocked_put == pytest.approx(0.02 / 4)


def test_workers_are_blocked_each_for_itself(builder: Any) -> None:
    """The next item of another worker does not end a worker's being blocked."""
    at = np.arange(100) * 0.01
    builder.stage("work", workers=2).stage("deliver")
    builder.spans(
        "work", arrived=at, started=at, ended=at + 0.005, put=at + 0.015, thread=[f"work-{i % 2}" for i in range(100)]
    )
    assert account(builder.finish(), "work").blocked_put == pytest.approx(0.01)


def test_sampled_spans_weigh_what_they_stand_for(builder: Any) -> None:
    """Means are weighted; counts and sums come from the exact counters; no rate is made of a sample."""
    builder.stage("work").stage("deliver")
    weight = np.where(np.arange(100) < 50, 1, 4)
    service = np.where(np.arange(100) < 50, 0.010, 0.005)
    builder.spans("work", arrived=STEP, started=STEP, ended=STEP + service, weight=weight)
    exact = {"items": 250, "busy_seconds": 1.5, "utilization_ratio": 0.7}
    work = account(builder.finish(summary_changes={"work": exact}), "work")
    assert work.items == 250
    assert work.num_spans == 100
    assert work.service.mean == pytest.approx((50 * 0.010 + 200 * 0.005) / 250)
    assert work.service.percentiles[0].value == pytest.approx(0.005)
    assert (work.busy_seconds, work.utilization) == (1.5, 0.7)
    assert work.throughput == pytest.approx(250 / 0.995)


def test_a_queue_that_nobody_sampled_has_its_exact_mean_depth(builder: Any) -> None:
    """Time waited over time passed: 2 s of waiting in each 10 s is a mean depth of 0.2."""
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=STEP * 10, started=STEP * 10 + 0.02, dequeued=STEP * 10 + 0.02, ended=STEP * 10 + 0.1)
    builder.spans("deliver", arrived=STEP * 10 + 0.1, ended=STEP * 10 + 0.1)
    work = account(builder.finish(), "work")
    assert work.queue_depth_mean == pytest.approx(0.2, rel=0.02)


def test_an_inline_stage_has_no_queue(builder: Any) -> None:
    """What shares another stage's worker has neither depth nor capacity of its own."""
    builder.stage("decode").stage("resize", executor="inline", station="decode").stage("deliver")
    builder.spans("decode", arrived=STEP, ended=STEP + 0.002)
    builder.spans("resize", arrived=STEP + 0.002, ended=STEP + 0.004, thread="decode-0")
    resize = account(builder.finish(), "resize")
    assert resize.station == "decode"
    assert (resize.queue_depth_mean, resize.queue_depth_max, resize.queue_capacity) == (None, None, None)


def test_the_warm_up_is_not_part_of_an_account(single_server: Any, builder: Any) -> None:
    """The first tenth is ten times slower; the account is of the rest."""
    service = np.where(np.arange(1000) < 50, 0.05, 0.005)
    arrived = np.concatenate([[0.0], np.cumsum(np.maximum(service, 0.01))[:-1]])
    document = profile_document(single_server(builder, arrived, service).finish())
    assert document.window.warm_up_seconds == pytest.approx(2.5, abs=0.3)
    assert document.stages[0].service.mean == pytest.approx(0.005)
    assert document.stages[0].items == 1000


def test_the_mean_depth_of_a_queue_is_exact_where_every_item_has_a_span(builder: Any) -> None:
    """Half an item on average by the items' waits, and twice that by a sampler that comes when others let it."""
    at = np.arange(1000) * 0.01
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=at, dequeued=at + 0.005, started=at + 0.005, ended=at + 0.008)
    builder.gauge("stage:work", "queue_depth", np.arange(0, 10, 0.1), 1.0)
    [work, _] = profile_document(builder.finish()).stages
    assert work.queue_depth_mean == pytest.approx(0.5, rel=0.01)


def test_a_cache_has_its_counts_and_times(builder: Any) -> None:
    """Found items took what looking up took in the first stage; the others the work of both stages."""
    hits = np.arange(100) % 4 > 0
    marks = np.where(hits, "hit", "miss").tolist()
    builder.stage("fetch").stage("work").stage("deliver")
    builder.spans("fetch", arrived=STEP, ended=STEP + np.where(hits, 0.0001, 0.002), cached=["hit"] * 100)
    builder.spans("work", arrived=STEP, ended=STEP + np.where(hits, 0.0, 0.003), cached=marks)
    notes = {"work.cache_hits": 75, "work.cache_misses": 25, "work.cache_kept": 20, "work.cache_full": 5}
    run = builder.finish(counters=Counters(received=100, delivered=100, notes=notes))
    cache = account(run, "work").cache
    assert cache is not None
    assert (cache.hits, cache.misses, cache.kept, cache.full, cache.hit_ratio) == (75, 25, 20, 5, 0.75)
    assert (cache.hit_seconds, cache.miss_seconds) == pytest.approx((0.0001, 0.005))
    assert "75 of 100 items found (75%)" in cache.says
    assert "5 not kept for want of room" in cache.says
    assert account(run, "fetch").cache is None
    assert profile_document(run).keepable == ()


def test_frames_of_cameras_are_not_kept(builder: Any) -> None:
    """They never come again."""
    builder.stage("decode").stage("deliver")
    builder.spans("decode", arrived=STEP, ended=STEP + 0.004, cpu=0.004, bytes_out=10_000)
    gate = StreamTally("gate", 0.0).record(1.0)
    run = builder.finish(counters=Counters(received=100, delivered=100), streams=[gate])
    assert profile_document(run).keepable == ()


def test_stages_worth_keeping_are_ordered_by_time_saved_a_byte(builder: Any) -> None:
    """A small result that took long comes first; a model and what is behind it, and what costs nothing, are no candidates."""
    builder.stage("fetch").stage("decode").stage("model", kind="device").stage("deliver")
    for name, seconds, size in (("fetch", 0.004, 10_000), ("decode", 0.004, 1_000_000), ("model", 0.01, 8)):
        builder.spans(name, arrived=STEP, ended=STEP + seconds, cpu=seconds, bytes_out=size)
    run = builder.finish(counters=Counters(received=100, delivered=100))
    first, second = profile_document(run).keepable
    assert (first.stage, second.stage) == ("fetch", "decode")
    assert (first.saved_seconds, second.saved_seconds) == pytest.approx((0.004, 0.008), rel=0.02)
    assert second.total_bytes == pytest.approx(100e6, rel=0.01)
    assert first.seconds_per_gigabyte > 40 * second.seconds_per_gigabyte
