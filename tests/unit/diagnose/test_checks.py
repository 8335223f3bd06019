"""Each check is shown to pass on whole data and to fail on data broken on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.base.records import Counters
from headrace.diagnose import profile_document
from headrace.runs.formats.profile import Check, ProfileDocument
from headrace.runs.formats.profiling import OverheadBlock, SamplingChange
from headrace.runs.hardware import Hardware
from headrace.runs.reader import read_run

AT = np.arange(1000) * 0.01


def check(document: ProfileDocument, name: str) -> Check:
    """Return one check."""
    [found] = [check for check in document.checks if check.name == name]
    return found


def chain(builder: Any, stages: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A thousand items through fetch, work and deliver, without a queue in between."""
    for number, name in enumerate(("fetch", "work", "deliver")):
        begun = AT + number * 0.003
        builder.stage(name, **(stages or {}).get(name, {}))
        builder.spans(name, arrived=begun, ended=begun + 0.003, **changes)
    return builder


def test_whole_data_passes_every_check_that_can_be_made(busy_run: Any) -> None:
    """An M/M/1 queue with gauges sampled from what really happened is trusted."""
    document = profile_document(busy_run.finish())
    found = {check.name: check.status for check in document.checks}
    assert document.trusted, document.distrust
    for name in ("littles_law", "utilization_law", "flow_balance", "forced_flow", "clock_order", "span_identity"):
        assert found[name] == "ok", name
    assert found["exact_counters"] == found["sample_counts"] == found["lost_spans"] == found["run_folder"] == "ok"
    assert found["explained_cpu"] == found["overhead"] == "not_measured"


def test_a_run_whose_laws_were_not_checked_is_not_trusted(builder: Any) -> None:
    """Nothing was sampled beside the spans: no check failed, and what was not measured is not taken as passed."""
    document = profile_document(chain(builder).finish())
    assert not document.distrust
    assert not document.trusted
    assert {one.partition(":")[0] for one in document.unchecked} == {"littles_law", "utilization_law"}


def test_a_run_without_counters_is_not_trusted(busy_run: Any) -> None:
    """Killed before it wrote its exact counters: the balance of what came and went is not known."""
    document = profile_document(busy_run.finish("running", summary=False))
    assert not document.trusted
    assert "flow_balance" in {one.partition(":")[0] for one in document.unchecked}


@pytest.mark.parametrize(
    ("exact", "says"),
    [
        ({"items": 900}, "spans stand for 3,000 passages and 2,900 were counted"),
        ({"failed": 200}, "0 spans of work failed, and 200"),
        ({"busy_seconds": 9.0}, "work served 3 s by its spans, and 9 s were counted"),
        ({"workers": 4}, "work had 4 workers by the counters, 1 by its settings"),
    ],
)
def test_spans_that_contradict_the_exact_counters_are_not_trusted(
    builder: Any, exact: dict[str, Any], says: str
) -> None:
    """Rows written twice, failures made up, service divided, workers multiplied: run.json counted otherwise."""
    found = check(profile_document(chain(builder).finish(summary_changes={"work": exact})), "exact_counters")
    assert found.status == "failed"
    assert says in found.says


def test_weights_that_stand_for_more_than_there_was_are_not_trusted(builder: Any) -> None:
    """A sample stands for as many passages as were counted, but for chance; twice as many are no chance."""
    exact = {name: {"items": 1000} for name in ("fetch", "work", "deliver")}
    found = check(profile_document(chain(builder, weight=2).finish(summary_changes=exact)), "exact_counters")
    assert found.status == "failed"


def test_threads_beyond_the_workers_are_not_trusted(builder: Any) -> None:
    """Two threads served a stage that had one worker."""
    chain(builder, thread=["a", "b"] * 500)
    assert "2 workers of fetch, which had at most 1" in check(profile_document(builder.finish()), "exact_counters").says


@pytest.mark.parametrize(
    ("stage", "status"),
    [
        ({"most_workers": 2}, "ok"),
        ({"work": "deliver"}, "ok"),  # not noted: as many again may have been added
        ({"work": "deliver", "most_workers": 1}, "failed"),
        ({"work": "deliver", "executor": "inline"}, "failed"),
    ],
)
def test_workers_in_the_places_of_those_that_wait_are_trusted(builder: Any, stage: dict[str, Any], status: str) -> None:
    """A second thread served the delivery: it is allowed where one may be added for one that waits, and no more."""
    at = np.arange(400) * 0.01
    builder.stage("fetch").spans("fetch", arrived=at, ended=at + 0.001)
    builder.stage("deliver", **stage).spans(
        "deliver", arrived=at + 0.001, ended=at + 0.002, thread=["deliver-0", "deliver-1"] * 200
    )
    assert check(profile_document(builder.finish()), "exact_counters").status == status


def test_a_third_worker_in_the_place_of_one_is_not_trusted(builder: Any) -> None:
    """Three threads served a delivery of one worker, for which only one more may have been added."""
    at = np.arange(600) * 0.01
    builder.stage("fetch").spans("fetch", arrived=at, ended=at + 0.001)
    builder.stage("deliver", work="deliver").spans(
        "deliver", arrived=at + 0.001, ended=at + 0.002, thread=["deliver-0", "deliver-1", "deliver-2"] * 200
    )
    says = check(profile_document(builder.finish()), "exact_counters").says
    assert "3 workers of deliver, which had at most 2" in says


@pytest.mark.parametrize(("cpu", "status"), [(0.00066, "ok"), (0.00074, "failed")])
def test_a_throughput_that_needs_more_cores_than_there_are_is_not_trusted(
    builder: Any, cpu: float, status: str
) -> None:
    """A thousand a second of three stages: 0.66 ms each are 1.98 of 2 cores, 0.74 ms are 2.2 of them."""
    at = np.arange(2000) * 0.001
    for number, name in enumerate(("fetch", "work", "deliver")):
        begun = at + number * 0.001
        builder.stage(name).spans(name, arrived=begun, ended=begun + 0.001, cpu=at * 0 + cpu, run_delay=at * 0.0)
    builder.profiling(process_cpu_seconds=3.9, thread_cpu_seconds={"workers": 3.9})
    document = profile_document(builder.finish(hardware=Hardware(num_cores=2)))
    assert check(document, "cores_law").status == status


def test_processes_that_used_more_cores_than_there_are_are_not_trusted(builder: Any) -> None:
    """Forty seconds of CPU time in ten of one core."""
    chain(builder, cpu=AT * 0 + 0.002, run_delay=AT * 0.0)
    builder.profiling(process_cpu_seconds=40.0, thread_cpu_seconds={"workers": 40.0}, elapsed_seconds=10.0)
    found = check(profile_document(builder.finish(hardware=Hardware(num_cores=1))), "cores_law")
    assert (found.status, found.value) == ("failed", pytest.approx(4.0))


def test_what_a_run_used_before_its_first_sample_counts(builder: Any) -> None:
    """Four seconds, of which the first half second computes most."""
    chain(builder, cpu=AT * 0 + 1e-5, run_delay=AT * 0.0)
    ticks = np.arange(0.5, 4.5, 0.5)
    builder.gauge("processes", "cpu_cores", ticks, np.array([1.6, *[0.06] * 7]))
    builder.profiling(process_cpu_seconds=1.0, thread_cpu_seconds={"workers": 1.0}, elapsed_seconds=4.0)
    assert check(profile_document(builder.finish()), "samples").status == "ok"


@pytest.mark.parametrize(("used", "status"), [(0.02, "warning"), (0.2, "failed")])
def test_a_run_that_was_stopped_used_nothing_meanwhile(builder: Any, used: float, status: str) -> None:
    """Ctrl-Z for sixty seconds: the samples before and after it stand for no part of them."""
    chain(builder, cpu=AT * 0 + 1e-5, run_delay=AT * 0.0)
    ticks = np.concatenate([np.arange(0.5, 20, 0.5), np.arange(80.0, 90, 0.5)])
    cores = np.full(len(ticks), used)
    cores[ticks == 80.0] = 0.0001
    builder.gauge("processes", "cpu_cores", ticks, cores)
    builder.profiling(process_cpu_seconds=0.6, thread_cpu_seconds={"workers": 0.6}, elapsed_seconds=90.0)
    found = check(profile_document(builder.finish()), "samples")
    assert (found.status, "as seen from outside" in found.says) == (status, status == "failed")
    assert ("stood still for 60 s" in found.says) is (status == "warning")


@pytest.mark.parametrize(("waited", "status"), [(20.0, "ok"), (0.0, "failed")])
def test_a_run_may_be_profiled_while_nothing_comes(builder: Any, waited: float, status: str) -> None:
    """A source that gave no more, or a brake: the profile is longer than jobs came and went, and not than the run."""
    chain(builder).profiling(process_cpu_seconds=1.0, elapsed_seconds=28.0)
    run = builder.finish()
    ended = run.info.ended_monotonic_ns
    assert ended is not None
    builder.folder.update(ended_monotonic_ns=ended + round(waited * 1e9))
    found = check(profile_document(read_run(builder.folder.path)), "summary")
    assert (found.status, "profiling.json speaks of 28 s" in found.says) == (status, status == "failed")


def test_littles_law_fails_when_queues_are_longer_than_rate_times_wait(single_server: Any, builder: Any) -> None:
    """A queue of one on average, reported as two."""
    arrived = np.repeat(np.arange(500) * 0.04, 4)
    document = profile_document(
        single_server(builder, arrived, np.full(2000, 0.009), sample_seconds=0.0107, queue_scale=2.0).finish()
    )
    found = check(document, "littles_law")
    assert found.status == "failed"
    assert found.value is not None
    assert found.value > 0.4
    assert "items sampled" in found.says
    assert not document.trusted


def test_littles_law_holds_for_bursts(single_server: Any, builder: Any) -> None:
    """The same arrivals with true gauges; the mean depth is that of the closed form, 1.35."""
    arrived = np.repeat(np.arange(500) * 0.04, 4)
    document = profile_document(single_server(builder, arrived, np.full(2000, 0.009), sample_seconds=0.0107).finish())
    assert check(document, "littles_law").status == "ok"
    assert document.stages[0].queue_depth_mean == pytest.approx(6 * 0.009 / 0.04, rel=0.05)


def test_a_difference_that_a_sampler_can_make_is_a_warning(builder: Any, single_server: Any) -> None:
    """A tenth too many in a queue, seen by a thread that shares the interpreter lock, proves nothing."""
    arrived = np.repeat(np.arange(500) * 0.04, 10)
    single_server(builder, arrived, np.full(5000, 0.0036), sample_seconds=0)
    builder.gauge("stage:work", "queue_depth", np.arange(0.0, 20.0, 0.1), 45 * 0.0036 / 0.04 * 1.25)
    found = check(profile_document(builder.finish()), "littles_law")
    assert found.status == "warning"
    assert "profile longer" in found.says


@pytest.mark.parametrize(("waiting", "status"), [(4, "ok"), (0, "failed")])
def test_items_that_wait_for_the_lock_of_the_sampler_are_not_met(
    builder: Any, single_server: Any, waiting: int, status: str
) -> None:
    """Two items wait 10 ms each on average, and no sample meets one: so it is where four threads wait for the GIL."""
    arrived = np.repeat(np.arange(500) * 0.04, 8)
    single_server(builder, arrived, np.full(4000, 0.0029), sample_seconds=0)
    at = np.arange(0.0, 20.0, 0.1)
    builder.gauge("stage:work", "queue_depth", at, 0.0)
    for number in range(5):
        builder.states(at, f"work-{number}", "gil" if number < waiting else "running")
    found = check(profile_document(builder.finish()), "littles_law")
    assert found.status == status, found.says


@pytest.mark.parametrize(
    ("first", "step", "status"), [(0.0, 0.01, "ok"), (6.0, 0.01, "warning"), (0.0, 0.03, "failed")]
)
def test_looks_that_began_late_are_no_wrong_file(builder: Any, first: float, step: float, status: str) -> None:
    """A sampler that started after six of ten seconds is a warning; one that lost two looks in three is not of this run."""
    chain(builder)
    builder.states(np.arange(first, 10.0, step), "work-0", "running")
    builder.profiling(state_samples_per_second=100.0)
    found = check(profile_document(builder.finish()), "samples")
    assert found.status == status, found.says
    assert ("first 60% of the run" in found.says) == (status == "warning")


@pytest.mark.parametrize(("first", "status"), [(6.2, "not_measured"), (0.0, "failed")])
def test_looks_at_the_end_of_a_run_are_not_held_against_clocks_of_all_of_it(
    builder: Any, first: float, status: str
) -> None:
    """Its worker computes whenever it is looked at; only where that was all the time do clocks of 0.6 s contradict it."""
    chain(builder, cpu=AT * 0 + 0.0002, run_delay=AT * 0.0)
    builder.states(np.arange(first, 10.0, 0.05), "receiver-0", "running")
    builder.profiling(process_cpu_seconds=0.6, thread_cpu_seconds={"workers": 0.6})
    found = check(profile_document(builder.finish()), "thread_states")
    assert found.status == status, found.says


@pytest.mark.parametrize(("throttled", "status"), [(0.9, "ok"), (0.0, "failed")])
def test_a_sampler_that_a_quota_stops_with_the_run_sees_none_of_the_wait(
    builder: Any, throttled: float, status: str
) -> None:
    """By its clocks a stage computes or waits for its next period two thirds of the time; awake, it is seen so in a fifth."""
    chain(builder, cpu=0.0005, run_delay=0.0015)
    builder.states(AT + 0.0045, "work-0", ["running", *["network"] * 4] * 200)
    builder.gauge("machine", "throttled_ratio", np.arange(0.0, 10.0, 0.5), throttled)
    builder.profiling()
    found = check(profile_document(builder.finish()), "thread_states")
    assert found.status == status, found.says


def test_a_sampler_may_lose_a_moment(builder: Any) -> None:
    """Two looks where 25 were due, in the last quarter second of a run: others had the core."""
    chain(builder)
    builder.states(np.array([9.75, 9.95]), "work-0", "running")
    builder.profiling(state_samples_per_second=100.0)
    found = check(profile_document(builder.finish()), "samples")
    assert found.status == "warning", found.says


def test_workers_that_are_seldom_busy_may_never_be_met(single_server: Any, builder: Any) -> None:
    """A hundred samples that all missed a worker that is busy 3 % of the time agree with it; ones that say 60 % do not."""
    single_server(builder, AT, np.full(1000, 0.0003), sample_seconds=0)
    builder.gauge("stage:work", "busy_workers", np.arange(0.0, 9.9, 0.1), 0.0)
    assert check(profile_document(builder.finish()), "utilization_law").status == "ok"
    builder.samples = []
    builder.gauge("stage:work", "busy_workers", np.arange(0.0, 9.9, 0.1), 0.6)
    assert check(profile_document(builder.finish()), "utilization_law").status == "failed"


def test_few_samples_check_no_law(single_server: Any, builder: Any) -> None:
    """Ten samples of a queue are held against nothing."""
    single_server(builder, AT, np.full(1000, 0.004), sample_seconds=1.0)
    document = profile_document(builder.finish())
    assert check(document, "littles_law").status == "not_measured"
    assert check(document, "utilization_law").status == "not_measured"


def test_the_utilization_law_fails_when_workers_are_busier_than_their_spans(single_server: Any, builder: Any) -> None:
    """Workers found busy twice as often as spans say."""
    arguments = (AT, np.full(1000, 0.0041))
    document = profile_document(single_server(builder, *arguments, sample_seconds=0.0073, busy_scale=2.0).finish())
    found = check(document, "utilization_law")
    assert found.status == "failed"
    assert "workers of work" in found.says


def test_processes_may_be_busier_than_their_spans_and_not_less(builder: Any) -> None:
    """Handing items to a process is in no span; spans that no worker was busy for are wrong there too."""
    at = np.arange(1000) * 0.01
    samples = np.arange(0.0, 10.0, 0.05)
    for scale, status in ((0.9, "ok"), (0.1, "failed")):
        other = type(builder)(builder.folder.path.parent / f"run-{scale}")
        other.stage("work", executor="process").stage("deliver").spans("work", arrived=at, ended=at + 0.005)
        other.spans("deliver", arrived=at + 0.005, ended=at + 0.005)
        other.gauge("stage:work", "busy_workers", samples, scale)
        assert check(profile_document(other.finish()), "utilization_law").status == status


def test_the_utilization_law_is_not_checked_on_a_sample_of_spans(single_server: Any, builder: Any) -> None:
    """Where only some jobs were recorded, a worker's busy time is not known from spans."""
    single_server(builder, AT, np.full(1000, 0.004))
    two = pa.array([2] * 1000, pa.int32())
    builder.tables = [
        table.set_column(table.column_names.index("weight"), table.schema.field("weight"), two)
        for table in builder.tables
    ]
    found = check(profile_document(builder.finish()), "utilization_law")
    assert found.status == "not_measured"
    assert "only some jobs" in found.says


def test_flow_balance_fails_when_a_job_has_no_outcome(builder: Any) -> None:
    """What came in and neither went out nor came back is missed."""
    counters = Counters(received=1000, delivered=990, retried=8)
    found = check(profile_document(chain(builder).finish(counters=counters)), "flow_balance")
    assert (found.status, found.value) == ("failed", 2)
    assert "2 have no outcome" in found.says


def test_flow_balance_counts_every_outcome(builder: Any) -> None:
    """Each way for a delivery to end balances."""
    counters = Counters(received=1000, delivered=990, rejected=1, dead_lettered=2, retried=3, returned=3, lost=1)
    assert check(profile_document(chain(builder).finish(counters=counters)), "flow_balance").status == "ok"


@pytest.mark.parametrize(("items", "word"), [(1001, "too many"), (990, "missing")])
def test_forced_flow_fails_when_a_stage_has_other_items_than_the_one_before(
    builder: Any, items: int, word: str
) -> None:
    """Exact counts of neighbouring stages that contradict one another."""
    found = check(profile_document(chain(builder).finish(summary_changes={"work": {"items": items}})), "forced_flow")
    assert found.status == "failed"
    assert word in found.says


def test_forced_flow_allows_for_tries_and_failures(builder: Any) -> None:
    """Passages that failed and were tried again, and jobs that were given up, are no contradiction."""
    changes = {
        "fetch": {"items": 1007, "failed": 7},
        "work": {"items": 1012, "failed": 15},
        "deliver": {"items": 997, "failed": 0},
    }
    counters = Counters(received=1000, delivered=997, dead_lettered=3)
    document = profile_document(chain(builder).finish(summary_changes=changes, counters=counters))
    assert check(document, "forced_flow").status == "ok"


def fan(builder: Any, children: int, joined: int) -> Any:
    """A hundred jobs cut into `children` in all, of which `joined` come together again."""
    for name, role in (("cut", "fan_out"), ("part", "map"), ("mend", "join")):
        builder.stage(name, role=role)
    builder.stage("deliver")
    exact = {"cut": 100, "part": children, "mend": joined, "deliver": joined}
    changes = {name: {"items": count, "failed": 0} for name, count in exact.items()}
    return builder.finish(summary_changes=changes, counters=Counters(received=100, delivered=100))


def test_forced_flow_respects_fan_outs(builder: Any) -> None:
    """Children may be as many as they like; the join gets each parent once."""
    assert check(profile_document(fan(builder, 370, 100)), "forced_flow").status == "ok"


def test_forced_flow_fails_when_a_join_lacks_parents(builder: Any) -> None:
    """Parents that were cut and never mended."""
    found = check(profile_document(fan(builder, 370, 98)), "forced_flow")
    assert (found.status, found.value) == ("failed", 2)
    assert "cut let 100 items through, mend has 98" in found.says


def tasks(builder: Any, delivered: int) -> Any:
    """Two tasks that share fetch and deliver: 60 faces and 40 scenes."""
    for name in ("fetch", "find", "decode", "name", "deliver"):
        builder.stage(name, task={"find": "faces", "decode": "scenes", "name": "scenes"}.get(name, ""))
    exact = {"fetch": 100, "find": 60, "decode": 40, "name": 40, "deliver": delivered}
    changes = {name: {"items": count, "failed": 0} for name, count in exact.items()}
    return builder.finish(summary_changes=changes, counters=Counters(received=100, delivered=100))


def test_forced_flow_adds_up_tasks(builder: Any) -> None:
    """What all tasks let through is what is delivered."""
    assert check(profile_document(tasks(builder, 100)), "forced_flow").status == "ok"


@pytest.mark.parametrize(("recognized", "status"), [(1000, "ok"), (900, "failed")])
def test_forced_flow_follows_jobs_through_the_tasks_of_chained_modules(
    builder: Any, recognized: int, status: str
) -> None:
    """Where jobs go through both tasks, what the first let through is what the second gets, and not half of what comes out."""
    for number, name in enumerate(("det", "rec", "deliver")):
        begun = AT + number * 0.003
        builder.stage(name, task={"deliver": ""}.get(name, name)).spans(name, arrived=begun, ended=begun + 0.003)
    run = builder.finish(summary_changes={"rec": {"items": recognized, "failed": 0}})
    assert check(profile_document(run), "forced_flow").status == status


def test_dots_in_names_are_no_tasks(builder: Any) -> None:
    """A pipeline without tasks is one route, however its stages are called."""
    for name in ("a.read", "b.work", "deliver"):
        builder.stage(name)
    exact = {"a.read": 100, "b.work": 90, "deliver": 90}
    changes = {name: {"items": count, "failed": 0} for name, count in exact.items()}
    run = builder.finish(summary_changes=changes, counters=Counters(received=100, delivered=100))
    assert check(profile_document(run), "forced_flow").status == "failed"


def test_forced_flow_fails_when_a_task_loses_items(builder: Any) -> None:
    """A hundred let through by two tasks and ninety delivered."""
    assert check(profile_document(tasks(builder, 90)), "forced_flow").status == "failed"


def test_clock_order_fails_for_a_process_whose_clock_is_behind(builder: Any) -> None:
    """A child process that stamps an hour too early is named."""
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=AT, dequeued=AT, started=AT - 3600, ended=AT - 3599.99, put=AT + 0.01, process=9)
    found = check(profile_document(builder.finish()), "clock_order")
    assert found.status == "failed"
    assert "process 9" in found.says
    assert "job-0 in work" in found.says


@pytest.mark.parametrize(("stage", "column", "status"), [(0, "put", "failed"), (1, "arrived", "warning")])
def test_a_single_span_out_of_order(builder: Any, stage: int, column: str, status: str) -> None:
    """One of three thousand changes no mean; but the times within a span are of one clock, which never runs backwards."""
    chain(builder)
    table = builder.tables[stage]
    at = table.column_names.index(column)
    values = table[column].to_pylist()
    values[5] -= 10_000_000
    builder.tables[stage] = table.set_column(at, table.schema.field(column), [values])
    found = check(profile_document(builder.finish()), "clock_order")
    assert (found.status, found.value) == (status, pytest.approx(1 / 3000))


def test_a_worker_does_one_thing_at_a_time(builder: Any) -> None:
    """Two passages of a stage of one worker at the same time: one of them was another's, or the clock is wrong."""
    at = np.arange(100) * 0.01
    builder.stage("work", workers=2, most_workers=2).spans("work", arrived=at, ended=at + 0.015)
    builder.stage("deliver").spans("deliver", arrived=at + 0.015, ended=at + 0.016)
    assert "99 spans run backwards or overlap" in check(profile_document(builder.finish()), "clock_order").says


def test_clock_order_fails_between_stages_of_other_hosts(builder: Any) -> None:
    """Work that another host did before it was fetched: its clock offset is wrong by ten seconds."""
    builder.stage("fetch").stage("work").stage("deliver")
    builder.spans("fetch", arrived=AT, ended=AT + 0.003)
    builder.spans("work", arrived=AT + 0.003, ended=AT + 0.006, host="far")
    right = {"h": 0, "far": 0}
    assert check(profile_document(builder.finish(clock_offsets_ns=right)), "clock_order").status == "ok"
    wrong = {"h": 0, "far": -10_000_000_000}
    builder.folder.update(clock_offsets_ns=wrong)
    found = check(profile_document(builder.finish(clock_offsets_ns=wrong)), "clock_order")
    assert found.status == "failed"
    assert "1,000 begin before the stage before them ended" in found.says


def test_offsets_bring_hosts_onto_one_clock(builder: Any) -> None:
    """Spans of a host whose clock started elsewhere are in order once its offset is added."""
    builder.stage("fetch").stage("work").stage("deliver")
    builder.spans("fetch", arrived=AT, ended=AT + 0.003)
    builder.spans("work", arrived=AT + 1000.003, ended=AT + 1000.006, host="far")
    builder.spans("deliver", arrived=AT + 0.006, ended=AT + 0.007)
    document = profile_document(builder.finish(clock_offsets_ns={"h": 0, "far": -1_000_000_000_000}))
    assert check(document, "clock_order").status == "ok"
    assert document.latency.mean == pytest.approx(0.007)


def test_an_unknown_host_is_not_taken_for_ours(builder: Any) -> None:
    """Without its clock offset the times of another host mean nothing here."""
    chain(builder, host="stranger")
    found = check(profile_document(builder.finish()), "clock_order")
    assert found.status == "failed"
    assert "stranger" in found.says


@pytest.mark.parametrize(("cpu", "status"), [(0.0025, "ok"), (0.00255, "ok"), (0.0032, "failed")])
def test_span_identity_fails_when_parts_exceed_the_whole(builder: Any, cpu: float, status: str) -> None:
    """CPU time and run delay may fill the wall time of 3 ms, and not 1.2 times it."""
    document = profile_document(chain(builder, cpu=AT * 0 + cpu, run_delay=AT * 0 + 0.0005).finish())
    found = check(document, "span_identity")
    assert found.status == status
    assert all(stage.blocked is not None and stage.blocked >= 0 for stage in document.stages)


def test_few_latencies_quote_no_p99(builder: Any) -> None:
    """A hundred latencies give p50 and p90, and a warning that p99 needs 662."""
    at = AT[:100]
    builder.stage("deliver").spans("deliver", arrived=at, ended=at + 0.001)
    document = profile_document(builder.finish())
    found = check(document, "sample_counts")
    assert found.status == "warning"
    assert "p99 needs 662" in found.says
    values = {one.percent: one.value for one in document.latency.percentiles}
    assert values[50] is not None
    assert values[90] is not None
    assert values[99] is None


@pytest.mark.parametrize(("lost", "status"), [(0, "ok"), (20, "warning"), (40, "failed")])
def test_lost_spans_fail_above_one_percent(builder: Any, lost: int, status: str) -> None:
    """Of 3,000 spans 30 may be lost."""
    found = check(profile_document(chain(builder).finish(lost_spans=lost)), "lost_spans")
    assert found.status == status


def test_spans_that_nobody_counted_as_lost_are_missed(builder: Any) -> None:
    """A file that was removed shows against the exact counters."""
    chain(builder)
    builder.tables = builder.tables[:2]
    changes = {"deliver": {"items": 1000, "failed": 0}}
    found = check(profile_document(builder.finish(summary_changes=changes)), "lost_spans")
    assert (found.status, found.value) == ("failed", pytest.approx(1 / 3))


def test_blocks_without_clocks_hide_no_lost_spans(builder: Any) -> None:
    """While the clocks are off spans are written all the same: a tenth that is missing is lost."""
    chain(builder).profiling(
        blocks=[OverheadBlock(on=on, seconds=1.0, items=1, cpu_seconds=1.0) for on in (True, False)]
    )
    builder.tables[1] = builder.tables[1].slice(300)
    changes = {"work": {"items": 1000, "failed": 0}}
    found = check(profile_document(builder.finish(summary_changes=changes)), "lost_spans")
    assert (found.status, found.value) == ("failed", pytest.approx(0.1))


def test_a_run_whose_spans_are_all_gone_is_not_trusted(builder: Any) -> None:
    """Passages were counted, and no span is there."""
    chain(builder)
    builder.tables = []
    changes = {name: {"items": 1000, "failed": 0} for name in ("fetch", "work", "deliver")}
    run = builder.finish(summary_changes=changes, counters=Counters(received=1000, delivered=1000))
    found = check(profile_document(run), "lost_spans")
    assert (found.status, found.value) == ("failed", 1.0)


@pytest.mark.parametrize(("kept", "status"), [(500, "ok"), (480, "ok"), (300, "failed")])
def test_a_sample_stands_for_all_but_for_chance(builder: Any, kept: int, status: str) -> None:
    """One job in two of a thousand: 480 recorded is chance, 300 is not."""
    for number, name in enumerate(("fetch", "work", "deliver")):
        begun = AT[:kept] + number * 0.003
        builder.stage(name).spans(name, arrived=begun, ended=begun + 0.003, weight=2)
    builder.profiling(sampling=[SamplingChange(at_ns=0, every=2)])
    changes = {name: {"items": 1000, "failed": 0} for name in ("fetch", "work", "deliver")}
    run = builder.finish(summary_changes=changes, counters=Counters(received=1000, delivered=1000))
    assert check(profile_document(run), "lost_spans").status == status


def test_spans_left_out_on_purpose_are_not_lost(builder: Any) -> None:
    """A sample is no loss, and the sentence says that it is one."""
    chain(builder, weight=2).profiling(sampling=[SamplingChange(at_ns=0, every=2)])
    changes = {name: {"items": 2000, "failed": 0} for name in ("fetch", "work", "deliver")}
    found = check(
        profile_document(builder.finish(summary_changes=changes, counters=Counters(received=2000, delivered=2000))),
        "lost_spans",
    )
    assert found.status == "ok"
    assert "left out on purpose" in found.says


def test_a_damaged_folder_is_a_warning(builder: Any) -> None:
    """Files that cannot be read are named."""
    run = chain(builder).finish()
    (run.path / "profiling.json").write_text("{")
    (run.path / "layers.json").write_text('{"schema": 1}')
    document = profile_document(run)
    assert check(document, "run_folder").status == "warning"
    assert [problem.split(" ")[0] for problem in document.problems] == ["profiling.json", "layers.json"]


def cpu_run(builder: Any, total: float, workers: float, **stages: dict[str, Any]) -> ProfileDocument:
    """A thousand items of 2 + 2 + 2 ms CPU, and clocks that say otherwise or the same."""
    chain(builder, stages, cpu=AT * 0 + 0.002, run_delay=AT * 0.0)
    builder.profiling(process_cpu_seconds=total, thread_cpu_seconds={"workers": workers, "heartbeats": 0.1})
    return profile_document(builder.finish())


@pytest.mark.parametrize(
    ("total", "workers", "status"),
    [(6.4, 6.2, "ok"), (9.0, 6.2, "warning"), (9.0, 8.9, "warning"), (5.0, 4.9, "failed")],
)
def test_explained_cpu(builder: Any, total: float, workers: float, status: str) -> None:
    """Enough explained; CPU that nobody has; CPU of workers outside stages; more explained than used."""
    assert check(cpu_run(builder, total, workers), "explained_cpu").status == status


def test_small_items_are_told_of_what_can_be_fused(builder: Any, tmp_path: Path) -> None:
    """Stages that compute in threads of their own fuse; those that one thread carries do not, and larger items help both."""
    carried = {"kind": "io", "executor": "events"}
    found = check(cpu_run(builder, 9.0, 8.9, fetch=carried, deliver=carried), "explained_cpu")
    assert found.says.endswith("handing them on costs; put more work into one item: several records or images in a job")
    found = check(cpu_run(type(builder)(tmp_path / "threads"), 9.0, 8.9, deliver=carried), "explained_cpu")
    assert "; fuse work with the stage before (executor `inline`), or put more work into one item" in found.says


def blocks(ratio: float, pairs: int, spread: float = 0.004) -> list[OverheadBlock]:
    """Pairs in the order A B B A, whose CPU per item has a known ratio."""
    noise = np.random.default_rng(5).normal(0, spread, 2 * pairs)
    found = []
    for index in range(2 * pairs):
        on = index % 4 in {0, 3}
        cpu = 0.5 * (ratio if on else 1.0) * float(np.exp(noise[index]))
        found.append(OverheadBlock(on=on, seconds=0.5, items=100, cpu_seconds=cpu))
    return found


@pytest.mark.parametrize(("ratio", "status"), [(1.005, "ok"), (1.06, "warning"), (1.2, "failed")])
def test_overhead(builder: Any, ratio: float, status: str) -> None:
    """A profiler that costs little, a few per cent, and a fifth."""
    document = profile_document(chain(builder).profiling(blocks=blocks(ratio, 12), elapsed_seconds=10.0).finish())
    found = check(document, "overhead")
    assert found.status == status
    assert found.value == pytest.approx(ratio - 1, abs=0.006)
    assert bool(document.distrust) == (status == "failed")


def test_distrust_names_each_failed_check(builder: Any) -> None:
    """Two failures, two sentences."""
    counters = Counters(received=1000, delivered=990)
    document = profile_document(chain(builder, host="stranger").finish(counters=counters))
    assert not document.trusted
    assert [one.split(":")[0] for one in document.distrust] == ["flow_balance", "clock_order"]


def test_two_jobs_with_one_id_are_two_jobs(builder: Any) -> None:
    """Each id was delivered twice with one attempt number, the second while the first was under way: two latencies each."""
    ids = [f"job-{number // 2}" for number in range(1000)]
    for number, name in enumerate(("fetch", "work", "deliver")):
        begun = AT + number * 0.013
        threads = [f"{name}-{number % 2}" for number in range(1000)]
        builder.stage(name, workers=2).spans(name, unit_id=ids, thread=threads, arrived=begun, ended=begun + 0.013)
    document = profile_document(builder.finish())
    assert check(document, "clock_order").status == "ok"
    assert document.latency.num_samples > 900
    assert document.latency.maximum == pytest.approx(0.039)


def test_a_job_done_again_with_its_attempt_number_unchanged_is_two_deliveries(builder: Any) -> None:
    """Given back before its last stage and delivered again ten seconds later: the latency is that of the second delivery."""
    again = np.append(AT, AT[-1] + 10.0)
    ids = [*(f"job-{number}" for number in range(1000)), "job-999"]
    for number, name in enumerate(("fetch", "work")):
        begun = again + number * 0.003
        builder.stage(name).spans(name, unit_id=ids, arrived=begun, ended=begun + 0.003)
    begun = np.append(AT[:-1], again[-1]) + 0.006
    builder.stage("deliver").spans("deliver", arrived=begun, ended=begun + 0.003)
    document = profile_document(builder.finish(counters=Counters(received=1001, delivered=1000, returned=1)))
    assert check(document, "clock_order").status == "ok"
    assert document.latency.maximum == pytest.approx(0.009)


def test_the_parts_of_two_jobs_with_one_id_stay_with_their_job(builder: Any) -> None:
    """The children of a job that was delivered twice belong to the delivery that they were cut from."""
    ids, parts = ["a", "a"], ["a/0", "a/1", "a/0", "a/1"]
    builder.stage("cut", role="fan_out").stage("part", workers=2).stage("deliver")
    builder.spans("cut", unit_id=ids, arrived=np.array([0.0, 1.0]), ended=np.array([0.1, 1.1]))
    at = np.array([0.1, 0.1, 1.1, 1.1])
    threads = ["part-0", "part-1"] * 2
    builder.spans("part", unit_id=parts, parent_id=["a"] * 4, thread=threads, arrived=at, ended=at + 0.1)
    builder.spans("deliver", unit_id=ids, arrived=np.array([0.2, 1.2]), ended=np.array([0.3, 1.3]))
    run = builder.finish(counters=Counters(received=2, delivered=2))
    document = profile_document(run)
    assert check(document, "clock_order").status == "ok"
    assert document.latency.maximum == pytest.approx(0.3)


@pytest.mark.parametrize(("received", "status"), [(1100, "ok"), (1101, "failed")])
def test_forced_flow_counts_results_that_were_kept(builder: Any, received: int, status: str) -> None:
    """A hundred jobs went straight to the delivery with the results of a run before; one that got nowhere is still missed."""
    ids = [f"job-{number}" for number in range(1100)]
    for number, name in enumerate(("fetch", "work")):
        begun = AT + number * 0.003
        builder.stage(name).spans(name, arrived=begun, ended=begun + 0.003)
    begun = np.arange(1100) * 0.01 + 0.006
    builder.stage("deliver").spans("deliver", unit_id=ids, arrived=begun, ended=begun + 0.003)
    run = builder.finish(counters=Counters(received=received, delivered=1100))
    assert check(profile_document(run), "forced_flow").status == status
