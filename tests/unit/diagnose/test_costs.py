"""The account of CPU time, and what profiling cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headrace.diagnose import profile_document
from headrace.diagnose.estimates import bootstrap_mean
from headrace.diagnose.overhead import log_ratios, overhead_estimate
from headrace.runs.formats.profiling import OverheadBlock, ProfilingInfo, SpanCost
from headrace.runs.hardware import Hardware
from headrace.runs.reader import read_run

AT = np.arange(1000) * 0.01


def lines(builder: Any) -> tuple[dict[str, float], Any]:
    """Return {line: seconds} and the account."""
    account = profile_document(builder.finish(hardware=Hardware(num_cores=4, cpu_quota=2.5))).cpu
    assert account is not None
    return {line.name: line.seconds for line in account.lines}, account


def test_every_second_has_its_line(builder: Any) -> None:
    """Stages, the rest of their workers, warm-up, headrace's own threads, native threads, and what is left."""
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=AT, ended=AT + 0.008, cpu=AT * 0 + 0.004)
    builder.spans("deliver", arrived=AT + 0.008, ended=AT + 0.009, cpu=AT * 0 + 0.0005)
    builder.profiling(
        process_cpu_seconds=10.0,
        elapsed_seconds=10.0,
        thread_cpu_seconds={"workers": 5.5, "heartbeats": 0.5},
        warm_up_cpu_seconds=0.25,
        native_cpu_seconds=3.0,
    )
    found, account = lines(builder)
    assert found == pytest.approx(
        {
            "work": 4.0,
            "deliver": 0.5,
            "warming up models": 0.25,
            "workers, outside stages": 0.75,
            "heartbeats": 0.5,
            "native threads": 3.0,
            "unattributed": 1.0,
        }
    )
    # Neither the workers' time outside stages nor what is left says what it was for.
    assert account.explained_share == pytest.approx(0.825)
    assert account.num_cores == 2.5
    assert sum(line.share for line in account.lines) == pytest.approx(1.0)


def test_stages_of_worker_processes_are_taken_from_those(builder: Any) -> None:
    """Each executor's stages are set against the clocks of where they ran, inline stages with their station."""
    builder.stage("decode", executor="process").stage("resize", executor="inline", station="decode").stage("deliver")
    for name, cpu in (("decode", 0.004), ("resize", 0.002), ("deliver", 0.001)):
        builder.spans(name, arrived=AT, ended=AT + 0.005, cpu=AT * 0 + cpu)
    builder.profiling(process_cpu_seconds=9.0, thread_cpu_seconds={"workers": 1.5, "worker processes": 7.0})
    found, _ = lines(builder)
    assert found["worker processes, outside stages"] == pytest.approx(1.0)
    assert found["workers, outside stages"] == pytest.approx(0.5)
    assert found["unattributed"] == pytest.approx(0.5)


def test_a_sampled_stage_is_multiplied_by_its_exact_items(builder: Any) -> None:
    """A thousand spans of two thousand items."""
    builder.stage("work").stage("deliver").spans("work", arrived=AT, ended=AT + 0.008, cpu=AT * 0 + 0.004, weight=2)
    builder.profiling(process_cpu_seconds=10.0)
    account = profile_document(builder.finish(summary_changes={"work": {"items": 2000}})).cpu
    assert account is not None
    assert account.lines[0].seconds == pytest.approx(8.0)


def test_rounding_is_not_shown_as_unattributed(builder: Any) -> None:
    """Sums of a few numbers miss by a rounding: what is left is nothing, not some 1e-16 seconds."""
    builder.stage("work").stage("deliver").spans("work", arrived=AT, ended=AT + 0.004, cpu=AT * 0 + 0.0001)
    builder.profiling(process_cpu_seconds=0.3, thread_cpu_seconds={"a": 0.1, "b": 0.1 - 1e-16})
    found, _ = lines(builder)
    assert found["unattributed"] == 0.0


def test_a_batchs_cpu_counts_once(builder: Any) -> None:
    """250 batches of four at 40 ms are ten seconds."""
    batch = np.repeat(np.arange(250), 4)
    builder.stage("infer", kind="device").stage("deliver")
    builder.spans(
        "infer", arrived=batch * 0.1, ended=batch * 0.1 + 0.05, cpu=batch * 0 + 0.04, batch_id=batch, batch_size=4
    )
    builder.profiling(process_cpu_seconds=12.0)
    found, _ = lines(builder)
    assert found["infer"] == pytest.approx(10.0)


def test_without_the_processes_clock_there_is_no_account(builder: Any) -> None:
    """None, and the reason."""
    document = profile_document(builder.stage("deliver").spans("deliver", arrived=AT, ended=AT).finish())
    assert document.cpu is None
    assert "profile" in document.not_measured["cpu"]


def pair(on: float, off: float, items: int = 100, **passages: int) -> list[OverheadBlock]:
    """Return a block with profiling on and one off, of so many CPU seconds."""
    return [
        OverheadBlock(on=is_on, seconds=0.5, items=items, cpu_seconds=cpu, passages=passages)
        for is_on, cpu in ((True, on), (False, off))
    ]


def test_pairs_are_taken_in_both_orders() -> None:
    """On, off, off, on: the second pair is turned around."""
    blocks = pair(1.1, 1.0) + pair(1.2, 1.0)[::-1]
    assert log_ratios(blocks, {}) == pytest.approx([math.log(1.1), math.log(1.2)])


def test_pairs_without_items_or_of_one_kind_are_left_out() -> None:
    """What cannot be compared is not compared."""
    assert log_ratios(pair(1.0, 1.0, items=0) + pair(1.0, 0.0) + [pair(1.0, 1.0)[0]] * 2 + pair(1.0, 1.0)[:1], {}) == []


def test_work_is_counted_by_passages_weighed_with_their_cost() -> None:
    """Twice the dear passages are twice the work, though as many jobs were settled."""
    [on, _], [_, off] = pair(2.0, 0.0, work=200, cheap=10), pair(0.0, 1.0, work=100, cheap=10)
    ratios = log_ratios([on, off], {"work": 0.01, "cheap": 0.0})
    assert ratios == pytest.approx([0.0])


def test_an_interval_needs_six_pairs() -> None:
    """Five give the reason and the number needed, and no figure."""
    info = ProfilingInfo(blocks=pair(1.01, 1.0) * 5, helper_cpu_seconds=0.1, elapsed_seconds=10.0)
    estimate = overhead_estimate(info, {})
    assert estimate is not None
    assert (estimate.low, estimate.mid, estimate.high, estimate.num_pairs) == (None, None, None, 5)
    assert "6 are needed" in estimate.says
    assert estimate.helper_core_share == pytest.approx(0.01)
    assert estimate.writer_core_share is None


def test_equal_pairs_have_an_interval_of_no_width() -> None:
    """Six pairs of exactly 1 %."""
    estimate = overhead_estimate(ProfilingInfo(blocks=pair(1.01, 1.0) * 6), {})
    assert estimate is not None
    assert (estimate.low, estimate.mid, estimate.high) == pytest.approx((1.01, 1.01, 1.01))


def test_what_blocks_do_not_see_is_in_the_figure() -> None:
    """Clocks of 1 %; of 10 s CPU 1 s is the writer's and the profiler's threads', and the helper used 0.9 s beside."""
    info = ProfilingInfo(
        blocks=pair(1.01, 1.0) * 6,
        process_cpu_seconds=10.0,
        thread_cpu_seconds={"writing spans": 0.9, "profiling": 0.1, "workers": 9.0},
        helper_cpu_seconds=0.9,
        elapsed_seconds=20.0,
    )
    estimate = overhead_estimate(info, {})
    assert estimate is not None
    assert estimate.clocks_ratio == pytest.approx((1.01, 1.01, 1.01))
    # Without: 9 s. With: what the blocks saw, 10 s and 1 %, and the helper.
    assert estimate.mid == pytest.approx((10 * 1.01 + 0.9) / 9)
    for part in (
        "clocks +1.1%",
        "writing spans +10.0%",
        "profiler's thread +1.1%",
        "sampler process with its start +10.0%",
    ):
        assert part in estimate.says
    assert (estimate.writer_core_share, estimate.thread_core_share) == pytest.approx((0.045, 0.005))


def test_a_run_that_was_not_profiled_has_no_overhead() -> None:
    """None, not zero."""
    assert overhead_estimate(None, {}) is None


@pytest.mark.parametrize("count", [6, 12, 30])
def test_the_interval_holds_the_truth_as_often_as_it_says(count: int) -> None:
    """Of 300 normal samples at least nine in ten intervals cover the mean, and not every one."""
    random = np.random.default_rng(11)
    covered = 0
    for seed in range(300):
        estimate = bootstrap_mean(random.normal(0.02, 0.05, count), seed)
        covered += estimate.low <= 0.02 <= estimate.high
    assert 0.9 * 300 <= covered < 300


def test_the_same_blocks_give_the_same_interval() -> None:
    """Resampling is seeded."""
    values = np.random.default_rng(2).normal(0, 1, 10)
    assert bootstrap_mean(values) == bootstrap_mean(values)


def test_the_clocks_own_cost_is_not_counted_twice(builder: Any) -> None:
    """Of 100,000 passages of 1 us 1,000 were measured, with a clock that adds 1 us: 0.2 s, where there are 0.1 s."""
    builder.stage("work").stage("deliver").spans("work", arrived=AT, ended=AT + 0.004, cpu=AT * 0 + 2e-6, weight=100)
    builder.profiling(process_cpu_seconds=0.2 + 0.01, elapsed_seconds=10.0, thread_cpu_seconds={"heartbeats": 0.1})
    run = builder.finish(summary_changes={"work": {"items": 100_000, "failed": 0}})
    document = profile_document(run)
    assert document.cpu is not None
    assert document.cpu.uncertain_share == pytest.approx(99_000 * 2e-6 / 0.21, rel=1e-3)
    assert not [reason for reason in document.distrust if reason.startswith("explained_cpu")]


def with_clocks_off_and_on(builder: Any, *, work: float, reading: float, every: int = 1) -> None:
    """Fill in a thousand passages of a stage; the clocks were off in every second one, and one in `every` is recorded."""
    on = np.arange(len(AT)) % 2 == 0
    builder.stage("work").stage("deliver")
    builder.spans(
        "work",
        arrived=AT,
        ended=AT + work + np.where(on, reading, 0.0),
        cpu=np.where(on, work + reading, np.nan),
        weight=every,
    )


def test_reading_the_clocks_is_no_work_of_a_stage(builder: Any) -> None:
    """A stage of 1 us whose clocks take 9: one line for the stage, one for the 500 readings."""
    with_clocks_off_and_on(builder, work=1e-6, reading=9e-6, every=100)
    builder.profiling(process_cpu_seconds=2.0, thread_cpu_seconds={"workers": 1.5})
    run = builder.finish(summary_changes={"work": {"items": 100_000, "failed": 0}})
    account = profile_document(run).cpu
    assert account is not None
    found = {line.name: line.seconds for line in account.lines}
    assert found["work"] == pytest.approx(0.1)
    assert found["reading clocks"] == pytest.approx(500 * 9e-6)
    assert found["workers, outside stages"] == pytest.approx(1.5 - 0.1 - 0.0045)
    # What the stage's mean times its items says too much.
    assert account.unread_seconds == pytest.approx(99_500 * 9e-6)


def test_what_was_recorded_first_tells_what_a_stage_takes(builder: Any) -> None:
    """Half the spans: one passage each, 2 us with a reading of 1; the others: a hundred each, 7 us, of which 6 are clocks."""
    first = np.arange(len(AT)) < len(AT) // 2
    took = np.where(first, 2e-6, 7e-6)
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=AT, ended=AT + took, cpu=took, weight=np.where(first, 1, 100).tolist())
    cost = SpanCost(reading_seconds=1e-6, run_delay_seconds=1e-6, writing_seconds=1e-6)
    builder.profiling(process_cpu_seconds=0.5, thread_cpu_seconds={"workers": 0.4}, span_cost=cost)
    account = profile_document(builder.finish(summary_changes={"work": {"items": 50_500, "failed": 0}})).cpu
    assert account is not None
    mean = (500 * 2e-6 + 50_000 * 7e-6) / 50_500
    assert account.lines[0].seconds == pytest.approx(50_500 * (mean - 6e-6))


def test_stages_take_no_more_than_their_threads(builder: Any) -> None:
    """One passage in a hundred was measured, at 10 us, none without clocks; threads used 4 us for each: 6 are the clocks'."""
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=AT, ended=AT + 1e-5, cpu=AT * 0 + 1e-5, weight=100)
    builder.profiling(process_cpu_seconds=0.5, thread_cpu_seconds={"workers": 0.4})
    account = profile_document(builder.finish(summary_changes={"work": {"items": 100_000, "failed": 0}})).cpu
    assert account is not None
    found = {line.name: line.seconds for line in account.lines}
    assert found["work"] == pytest.approx(0.4)
    assert account.unread_seconds == pytest.approx(99_000 * 6e-6)


def test_beside_real_work_a_reading_is_lost(builder: Any) -> None:
    """Of a stage that works for longer than readings matter nothing is taken off."""
    with_clocks_off_and_on(builder, work=0.004, reading=9e-6)
    builder.profiling(process_cpu_seconds=10.0, thread_cpu_seconds={"workers": 5.0})
    found, account = lines(builder)
    assert found["work"] == pytest.approx(4.009)
    assert "reading clocks" not in found
    assert account.unread_seconds == 0


def test_the_runtimes_own_cost_is_what_no_stage_used(builder: Any) -> None:
    """Handing on, receiving, spans and heartbeats; not the profiler, nor what warming up took, nor native threads."""
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=AT, ended=AT + 0.008, cpu=AT * 0 + 0.004)
    roles = {"workers": 5.5, "receiving": 0.5, "making spans": 1.0, "heartbeats": 0.25, "profiling": 0.125}
    builder.profiling(
        process_cpu_seconds=10.0,
        elapsed_seconds=10.0,
        thread_cpu_seconds=roles,
        warm_up_cpu_seconds=0.5,
        native_cpu_seconds=1.0,
        voluntary_switches=3000,
        involuntary_switches=500,
    )
    runtime = profile_document(builder.finish(hardware=Hardware(num_cores=2))).runtime
    assert runtime is not None
    assert runtime.seconds == pytest.approx(1.0 + 0.5 + 1.0 + 0.25)
    assert runtime.seconds_per_item == pytest.approx(2.75e-3)
    assert (runtime.share, runtime.core_share) == pytest.approx((0.275, 0.1375))
    assert next(iter(runtime.parts)) in ("workers, outside stages", "making spans")
    assert runtime.voluntary_switches_per_item == pytest.approx(3.0)
    assert runtime.involuntary_switches_per_item == pytest.approx(0.5)


def test_without_cpu_clocks_the_runtimes_cost_is_not_known(builder: Any) -> None:
    """A run that was not profiled has no figure; one of an older profile has no switches."""
    builder.stage("deliver").spans("deliver", arrived=AT, ended=AT + 0.004, cpu=AT * 0 + 0.004)
    builder.profiling(process_cpu_seconds=10.0, elapsed_seconds=10.0, thread_cpu_seconds={"workers": 5.0})
    run = builder.finish()
    runtime = profile_document(run).runtime
    assert runtime is not None
    assert runtime.voluntary_switches_per_item is None
    (run.path / "profiling.json").unlink()
    assert profile_document(read_run(run.path)).runtime is None


def test_hardly_any_cpu_time_is_not_shared_out(builder: Any) -> None:
    """Of a run of a moment the clocks missed most: no shares of 282 %, and the reason."""
    builder.stage("deliver").spans("deliver", arrived=AT[:1], ended=AT[:1] + 0.004, cpu=[0.004])
    builder.profiling(process_cpu_seconds=0.001, elapsed_seconds=0.002)
    document = profile_document(builder.finish())
    assert document.cpu is None
    assert "0.001 s of CPU time, too little" in document.not_measured["cpu"]
    [check] = [one for one in document.checks if one.name == "explained_cpu"]
    assert (check.status, check.says) == ("not_measured", document.not_measured["cpu"])
