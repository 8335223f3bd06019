"""The summary of a run."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import headrace as hr
from headrace.base.records import DELIVERED, BatchFormed, Counters, Job, Outcome, OutcomeKind
from headrace.base.reservoir import Reservoir
from headrace.pipeline.item import Item, StageTiming
from headrace.pipeline.summary import MOST_NOTES, RESERVOIR_SIZE, SCHEMA, SLICE_SIZE, Summary
from headrace.pipeline.work_notes import WorkNote
from headrace.testing.clock import FakeClock

SECOND = 10**9


@dataclass(frozen=True)
class Passage:
    """One passage of one item through a stage."""

    stage: str
    arrived: int
    started: int
    ended: int
    put: int
    outcome: str = "ok"
    batch_id: int | None = None
    batch_size: int | None = None

    def note(self) -> WorkNote:
        """Return it as a worker would note it."""
        timing = StageTiming(0, self.started, self.ended, 0, 0, None, self.outcome, self.batch_id, self.batch_size)
        arrivals = [(Item(Job("1", b""), b"", ()), self.arrived, 0)]
        return WorkNote([hr.stage(self.stage, str)], "t", 1, self.started, arrivals, [[timing]], [self.put])


def tell(summary: Summary, passages: Iterable[Passage]) -> None:
    """Tell a summary of passages."""
    summary.read_notes([passage.note() for passage in passages])


def passage(number: int = 0, **changes: Any) -> Passage:
    """Return a passage of one second of waiting, two of service and three of being blocked, from second `number` on."""
    at = number * SECOND
    times = {"arrived": at, "started": at + SECOND, "ended": at + 3 * SECOND, "put": at + 6 * SECOND}
    return Passage(**({"stage": "fetch"} | times | changes))


def batch(number: int, size: int, **changes: Any) -> list[Passage]:
    """Return the passages of one batch."""
    return [passage(number, stage="process", batch_id=number, batch_size=size, **changes) for _ in range(size)]


def only_stage(summary: Summary) -> dict[str, Any]:
    """Return the one stage of a summary."""
    [stage] = summary.as_dict()["stages"]
    return stage  # type: ignore[no-any-return]


def test_counts_are_exact_beyond_the_sample() -> None:
    """Items, failures and busy time count every passage, also those that the sample leaves out."""
    summary = Summary()
    num_items = RESERVOIR_SIZE + 1000
    spans = [passage(0)] * (num_items - 1) + [passage(0, outcome="failed")]
    tell(summary, spans)
    stage = only_stage(summary)
    assert (stage["items"], stage["failed"], stage["busy_seconds"]) == (num_items, 1, 2.0 * num_items)
    assert stage["service_seconds"]["num_samples"] == RESERVOIR_SIZE


def test_percentiles_are_those_of_the_samples() -> None:
    """Percentiles agree with NumPy's over the raw values, and waiting is apart from service."""
    summary = Summary()
    service = np.arange(1, 1001)
    tell(summary, [passage(0, ended=SECOND + int(value) * 10**6) for value in service])
    stage = only_stage(summary)
    for percent in (50, 90, 99):
        expected = float(np.percentile(service, percent)) / 1000
        assert stage["service_seconds"][f"p{percent}"] == pytest.approx(expected)
    assert stage["service_seconds"]["mean"] == pytest.approx(0.5005)
    assert stage["queue_wait_seconds"]["p50"] == 1.0


def test_percentile_of_too_small_a_sample_is_withheld() -> None:
    """With 100 samples p50 and p90 are quoted, and p99 is null with the number needed."""
    summary = Summary()
    tell(summary, [passage(number) for number in range(100)])
    service = only_stage(summary)["service_seconds"]
    assert (service["p50"], service["p90"], service["p99"]) == (2.0, 2.0, None)
    assert service["num_needed"] == {"p50": 11, "p90": 64, "p99": 662}


def test_percentile_of_too_small_a_sample_is_a_dash_with_the_number_needed() -> None:
    """In the text a percentile that may not be quoted is a dash, and a line below says how many samples it needs."""
    summary = Summary()
    tell(summary, [passage(number) for number in range(100)])
    lines = summary.as_text().splitlines()
    times = [line.split() for line in lines if line.startswith("fetch")][1]
    assert times == ["fetch", "2.00", "s", "2.00", "s", "-", "2.00", "s", "1.00", "s", "1.00", "s"]
    assert "p99 needs 662" in lines[-1]


def test_busy_time_of_a_batch_counts_once() -> None:
    """Four spans of one batch of two seconds are two busy seconds, and utilization follows from them."""
    summary = Summary({"process": 1})
    tell(summary, batch(0, 4))
    tell(summary, batch(6, 4))
    stage = only_stage(summary)
    assert (stage["items"], stage["busy_seconds"]) == (8, 4.0)
    assert stage["utilization_ratio"] == pytest.approx(4 / 12)
    assert stage["blocked_ratio"] == pytest.approx(6 / 12)


def test_a_worker_is_not_blocked_while_it_works_on() -> None:
    """Of items taken together and put together, a worker is blocked only after the last is done."""
    summary = Summary({"fetch": 1})
    put = 10 * SECOND
    first = passage(0, arrived=0, started=0, ended=4 * SECOND, put=put)
    second = passage(0, arrived=0, started=4 * SECOND, ended=7 * SECOND, put=put)
    tell(summary, [first, second])
    assert only_stage(summary)["blocked_ratio"] == pytest.approx(3 / 10)


def test_utilization_needs_the_number_of_workers() -> None:
    """Without the number of workers the share of their time is not made up."""
    summary = Summary()
    tell(summary, [passage(0)])
    stage = only_stage(summary)
    assert (stage["workers"], stage["utilization_ratio"], stage["blocked_ratio"]) == (None, None, None)


def test_utilization_is_of_all_workers() -> None:
    """Two busy seconds in six of two workers are a sixth."""
    summary = Summary({"fetch": 2})
    tell(summary, [passage(0)])
    assert only_stage(summary)["utilization_ratio"] == pytest.approx(2 / 12)


def test_the_window_of_efficiency_leaves_out_the_last_batch() -> None:
    """Three batches of four that start every two seconds are 2 items/s: the last has not been paid for yet."""
    summary = Summary()
    for number in (4, 0, 2):  # notes may come out of order
        tell(summary, batch(number, 4))
    window = summary.as_dict() and summary.efficiency_window("process")
    assert window is not None
    assert (window.items, window.seconds, window.throughput) == (8, 4.0, 2.0)
    assert summary.efficiency("process", 2.5) == pytest.approx(0.8)


def test_no_window_from_a_single_start() -> None:
    """One batch gives no rate, and neither does a stage that never worked."""
    summary = Summary()
    tell(summary, batch(0, 4))
    assert summary.efficiency_window("process") is None
    assert summary.efficiency_window("nothing") is None
    assert summary.efficiency("process", 1.0) is None


def test_batches_are_counted_with_their_reasons() -> None:
    """Number, mean size and reasons of release come from the batches as formed."""
    summary = Summary()
    tell(summary, batch(0, 4))
    for number, (size, reason) in enumerate([(4, "full"), (4, "full"), (1, "idle")]):
        summary.batch_formed(BatchFormed("process", number, size, reason, 0.0))
    assert only_stage(summary)["batches"] == {"count": 3, "mean_size": 3.0, "release_reasons": {"full": 2, "idle": 1}}
    assert "process: 3 batches of 3.0 on average; released: 2 full, 1 idle" in summary.as_text()


def test_outcomes_latency_and_throughput_of_jobs() -> None:
    """Jobs are counted by outcome; latency is of those delivered; the rate is of all the time."""
    clock = FakeClock()
    summary = Summary(clock=clock)
    jobs = [Job(str(number), b"") for number in range(14)]
    summary.job_received(jobs)
    for number, job in enumerate(jobs):
        clock.advance(2.0)
        kind = {0: OutcomeKind.REJECTED, 1: OutcomeKind.RETRY}.get(number, OutcomeKind.DELIVERED)
        summary.job_settled(job, DELIVERED if kind is OutcomeKind.DELIVERED else Outcome(kind, "x"))
    document = summary.as_dict()
    counters = document["counters"]
    assert (counters["received"], counters["delivered"], counters["rejected"], counters["retried"]) == (14, 12, 1, 1)
    assert document["latency_seconds"]["num_samples"] == 12
    assert document["latency_seconds"]["p50"] == pytest.approx(17.0)
    assert document["throughput_per_second"] == pytest.approx(12 / 28)
    assert document["elapsed_seconds"] == pytest.approx(28.0)


@pytest.mark.parametrize("apart", [0.0, 0.001])
def test_results_that_are_settled_together_are_no_rate(apart: float) -> None:
    """Ten jobs that took two seconds and are settled in a burst, as a Parquet file's are, are five a second, in each view."""
    clock = FakeClock()
    summary = Summary(clock=clock)
    jobs = [Job(str(number), b"") for number in range(10)]
    summary.job_received(jobs)
    clock.advance(2.0 - 10 * apart)
    for job in jobs:
        clock.advance(apart)
        summary.job_settled(job, DELIVERED)
    assert summary.as_dict()["throughput_per_second"] == pytest.approx(5.0)
    assert summary.progress().throughput == pytest.approx(5.0)


def test_one_delivered_job_has_no_rate() -> None:
    """A rate of a single event is null."""
    clock = FakeClock()
    summary = Summary(clock=clock)
    summary.job_received([Job("a", b"")])
    clock.advance(2.0)
    summary.job_settled(Job("a", b""), DELIVERED)
    assert summary.as_dict()["throughput_per_second"] is None


def test_a_job_that_comes_again_has_its_own_latency() -> None:
    """A redelivered job's latency begins with its redelivery, and nothing is kept of jobs that are settled."""
    clock = FakeClock()
    summary = Summary(clock=clock)
    first, again = Job("a", b""), Job("a", b"", attempt=2)
    summary.job_received([first])
    clock.advance(5.0)
    summary.job_settled(first, Outcome(OutcomeKind.RETRY, "later"))
    summary.job_received([again])
    clock.advance(1.0)
    summary.job_settled(again, DELIVERED)
    assert summary.as_dict()["latency_seconds"]["mean"] == pytest.approx(1.0)
    assert not summary._arrivals


def test_a_call_of_digest_is_bounded() -> None:
    """With no budget one slice of notes is done, and the rest waits."""
    summary = Summary()
    for _ in range(3 * SLICE_SIZE):
        summary.job_settled(Job("a", b""), DELIVERED)
    sizes = []
    while before := summary.backlog():
        summary.digest(budget_seconds=0.0)
        sizes.append(before - summary.backlog())
    assert sizes == [SLICE_SIZE] * 3


def test_progress_says_where_the_run_stands() -> None:
    """Progress counts what is digested, and time goes on with the clock."""
    clock = FakeClock()
    summary = Summary(clock=clock)
    assert summary.progress().elapsed_seconds == 0.0
    jobs = [Job("a", b""), Job("b", b"")]
    summary.job_received(jobs)
    summary.job_settled(jobs[0], Outcome(OutcomeKind.DEAD_LETTERED, "x"))
    summary.digest()
    clock.advance(4.0)
    progress = summary.progress()
    assert (progress.received, progress.finished, progress.dead_lettered) == (2, 1, 1)
    assert progress.elapsed_seconds == pytest.approx(4.0)


def test_the_pipelines_counters_are_shown_where_given() -> None:
    """Lost deliveries and notes of stages come from the pipeline's own counters, copied."""
    counters = Counters(received=9, lost=2, notes={"decode.pillow": 3})
    document = Summary(counters=counters).as_dict()
    counters.notes["decode.pillow"] = 4
    assert (document["counters"]["lost"], document["counters"]["notes"]) == (2, {"decode.pillow": 3})


def test_stages_are_in_the_order_of_their_work() -> None:
    """Stages are listed as work went through them, whatever order their notes came in."""
    summary = Summary()
    tell(summary, [passage(2, stage="a"), passage(1, stage="z")])
    assert [stage["name"] for stage in summary.as_dict()["stages"]] == ["z", "a"]


def test_the_document_is_json_with_its_schema() -> None:
    """An empty summary is a complete document that JSON can carry."""
    document = json.loads(json.dumps(Summary().as_dict(), allow_nan=False))
    assert document["schema"] == SCHEMA
    assert document["complete"] is True
    assert document["stages"] == []


def test_text_fits_a_narrow_terminal() -> None:
    """No line of the table is wider than 80 columns with ordinary numbers."""
    summary = Summary({"preprocess": 8})
    tell(summary, [passage(number % 7, stage="preprocess") for number in range(12345)])
    assert max(map(len, summary.as_text().splitlines())) <= 80


def test_table_and_text_say_the_same() -> None:
    """What a rich console prints is the plain text."""
    summary = Summary({"fetch": 2})
    tell(summary, [passage(number) for number in range(20)])
    console = Console(file=io.StringIO(), width=100)
    console.print(summary.as_table())
    assert isinstance(console.file, io.StringIO)
    printed = [line.rstrip() for line in console.file.getvalue().rstrip().splitlines()]
    assert printed == summary.as_text().rstrip().splitlines()


def test_reservoir_is_a_uniform_sample() -> None:
    """Early and late values are kept alike: the mean of the sample is that of the stream, within its error."""
    reservoir = Reservoir(1000, seed=7)
    for start in range(0, 100_000, 300):
        reservoir.extend(list(range(start, min(start + 300, 100_000))))
    sample = reservoir.sample()
    assert len(sample) == 1000
    assert len(np.unique(sample)) == 1000
    # Standard error of the mean of 1000 uniform values: 100,000 / sqrt(12 * 1000) = 913.
    assert abs(float(sample.mean()) - 50_000) < 4 * 913
    assert reservoir.mean() == pytest.approx(49_999.5)


def test_reservoir_of_the_same_seed_is_the_same() -> None:
    """A sample can be drawn again, however the stream was cut."""
    whole, cut = Reservoir(50, seed=3), Reservoir(50, seed=3)
    values = list(range(5000))
    whole.extend(values)
    for start in range(0, 5000, 7):
        cut.extend(values[start : start + 7])
    assert whole.sample().tolist() == cut.sample().tolist()


def test_what_waits_is_bounded() -> None:
    """However little time a digest has, it does not leave more behind than it is allowed to: notes are memory."""
    summary = Summary()
    for number in range(2 * MOST_NOTES):
        job = Job(str(number), None)
        summary.job_received([job])
        summary.job_settled(job, DELIVERED)
    summary.digest(budget_seconds=0.0)
    assert 0 < summary.backlog() <= MOST_NOTES
