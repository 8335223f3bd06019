"""Metrics beside runs in this process: what is counted, and that trouble with counting stays beside the run."""

import logging
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import QueueUnavailable
from headrace.base.records import OutcomeKind, QueueStatistics
from headrace.monitor.metrics import watch as watching
from headrace.monitor.metrics.alone import count_and_serve
from headrace.monitor.metrics.counts import Counts
from headrace.monitor.metrics.gather import Gatherer, Histogram, Values
from headrace.monitor.metrics.jobs import JobCounts
from headrace.monitor.metrics.page import Page
from headrace.monitor.metrics.server import listen
from headrace.monitor.metrics.watch import MetricsWatch
from headrace.monitor.published import publish, published
from headrace.sources.items import Items


def _run(pipeline: hr.Pipeline) -> Mapping[str, Values]:
    """Run with metrics and return the values at the end; gauges too, as if it still lived."""
    page = Page()
    counts = Counts(page)
    hr.run(pipeline, watch=MetricsWatch(counts))
    assert not page.is_alive
    page.beat()
    return Gatherer([page]).gather()


def _half(number: int) -> float:
    if number == 3:
        raise hr.ItemRejected("user.three: no")
    return number / 2


def _pipeline(source: Any = None) -> hr.Pipeline:
    stages = [hr.stage("half", _half), hr.stage("all", lambda batch: batch, kind="device")]
    return hr.Pipeline(source or hr.items(range(1, 11)), stages=stages, delivery=hr.collect())


def test_a_run_is_counted_exactly() -> None:
    """Everything that was received, passed a stage, was batched and ended."""
    found = _run(_pipeline())
    assert found["headrace_jobs_received_total"] == {(): 10.0}
    assert found["headrace_jobs_total"]["", "delivered"] == 9.0
    assert found["headrace_jobs_total"]["", "rejected"] == 1.0
    assert found["headrace_job_failures_total"] == {("user.three", "rejected"): 1.0}
    assert found["headrace_stage_items_total"]["half", "ok"] == 9.0
    assert found["headrace_stage_items_total"]["half", "failed"] == 1.0
    assert found["headrace_stage_items_total"]["all", "ok"] == 9.0
    for name, labels, number in (
        ("headrace_stage_service_seconds", ("half",), 10),
        ("headrace_stage_queue_wait_seconds", ("all",), 9),
        ("headrace_job_latency_seconds", ("",), 9),
    ):
        histogram = found[name][labels]
        assert isinstance(histogram, Histogram)
        assert sum(histogram.counts) == number, name
    sizes = found["headrace_batch_size_items"]["all",]
    assert isinstance(sizes, Histogram)
    assert sizes.total == 9
    assert sum(sizes.counts) == sum(v for v in found["headrace_batches_total"].values() if isinstance(v, float))
    assert found["headrace_jobs_in_flight"] == {(): 0.0}
    assert set(found["headrace_metrics_dropped_total"].values()) == {0.0}


@pytest.mark.parametrize(
    ("tasks", "expected"), [([""], {""}), (["faces", "scenes"], {"faces", "other"})], ids=["one", "several"]
)
def test_no_sender_writes_a_label(tasks: list[str], expected: set[str]) -> None:
    """A pipeline of one module takes jobs of any task; what a job names is no label unless the pipeline has it."""
    page = Page()
    jobs = JobCounts(Counts(page), tasks)
    for task in ("faces", "card 4711"):
        jobs.take_ended([(0, "job", 1, OutcomeKind.DELIVERED, None, task, False)], [1000])
    jobs.take_ended([(0, "job", 1, OutcomeKind.REJECTED, None, "card 4712", False)], [None])
    page.begin()
    found = Gatherer([page]).gather()
    assert {labels[0] for labels in found["headrace_jobs_total"]} == expected
    assert {labels[0] for labels in found["headrace_job_latency_seconds"]} == expected


def test_trouble_is_said_once_and_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be read is missing, the rest is there, and the run has all its results."""

    def broken(self: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(watching.Looker, "_look_at_process", broken)
    monkeypatch.setattr(watching, "_PROCESS_LOOKS", 1)
    with caplog.at_level(logging.WARNING, "headrace"):
        found = _run(_pipeline())
    assert found["headrace_jobs_total"]["", "delivered"] == 9.0
    assert "headrace_process_resident_memory_bytes" not in found
    dropped = found["headrace_metrics_dropped_total"]["error",]
    assert isinstance(dropped, float)
    assert dropped >= 2
    assert sum("the run goes on" in record.message for record in caplog.records) == 1


def test_times_that_cannot_be_counted_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from within the run's own counting."""

    def broken(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(Counts, "observe_many", broken)
    assert _run(_pipeline())["headrace_stage_items_total"]["half", "ok"] == 9.0


class _Silent(Items):
    """A source that does not say what waits."""

    def backlog(self) -> QueueStatistics:
        raise QueueUnavailable("no answer")


def test_a_source_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    """Its own log says so; metrics are without what it would say."""
    found = _run(_pipeline(_Silent(range(1, 11))))
    assert found["headrace_jobs_total"]["", "delivered"] == 9.0
    assert "headrace_source_jobs" not in found


def test_what_parts_publish_ends_with_the_run() -> None:
    """A later run of the process begins without."""
    publish("headrace_drift_score", 0.4, "luma")
    assert _run(_pipeline())["headrace_drift_score"] == {("luma",): 0.4}
    assert not published()


def test_a_run_from_python_answers_scrapes() -> None:
    """As long as it lasts."""
    with listen("0") as free:
        port = free.getsockname()[1]
    url, texts = f"http://127.0.0.1:{port}/metrics", []

    def scrape(number: int) -> int:
        with urllib.request.urlopen(url, timeout=10) as answer:
            texts.append(answer.read())
        return number

    stages = [hr.stage("scrape", scrape)]
    hr.run(hr.Pipeline(hr.items([1]), stages=stages, delivery=hr.collect()), **count_and_serve(str(port)))
    assert b"headrace_workers_alive 1.0" in texts[0]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=10)
