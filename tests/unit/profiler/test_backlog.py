"""What waits in the queue, asked of the source while a profile goes on."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.base.errors import QueueUnavailable
from headrace.base.records import QueueStatistics
from headrace.profiler.backlog import BacklogGauge
from headrace.profiler.profile import ProfileSettings, profile
from headrace.runs.resource_files import NAMES, ResourceWriter, read_resources
from headrace.sources.jobs import encode_job
from headrace.sources.queue_source import QueueSource
from headrace.testing import ListSource, MemoryQueue

QUIET = ProfileSettings(measure_overhead=False)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return what is known of the source."""
    return [row for row in read_resources(folder)[0].to_pylist() if row["scope"] == "source"]


def queue_of(count: int) -> MemoryQueue:
    """Return a queue that holds so many jobs."""
    queue = MemoryQueue(visibility_seconds=30.0)
    queue.send([encode_job(b"x", id=str(number)) for number in range(count)])
    return queue


class Asked(QueueSource):
    """Says when it has been asked."""

    def __init__(self, queue: MemoryQueue, error: Exception | None = None) -> None:
        super().__init__(queue, drain=True)
        self.asked = threading.Event()
        self.error = error

    def backlog(self) -> QueueStatistics:
        """Tell, or refuse."""
        try:
            if self.error is not None:
                raise self.error
            return super().backlog()
        finally:
            self.asked.set()


def pipeline_of(source: Asked) -> hr.Pipeline:
    """Return a pipeline whose items wait until the source was asked."""

    def work(value: Any) -> Any:
        assert source.asked.wait(60)
        return value

    return hr.Pipeline(source, stages=[hr.stage("work", work)])


def test_a_queue_tells_what_waits_in_it(tmp_path: Path) -> None:
    """The gauges hold what could be received, what is in flight, and the age of the oldest."""
    plan = hr.Plan.from_table({"source": {"max_in_flight": 4}})
    profile(pipeline_of(Asked(queue_of(50))), plan, output=tmp_path / "run", settings=QUIET)
    first = {row["name"]: row["value"] for row in reversed(rows_of(tmp_path / "run"))}
    assert set(first) == {"visible", "source_in_flight", "oldest_age_seconds"} <= set(NAMES)
    assert first["visible"] + first["source_in_flight"] == 50
    assert first["visible"] >= 40
    assert 0 <= first["oldest_age_seconds"] < 600


def test_a_queue_that_does_not_answer_is_noted(tmp_path: Path) -> None:
    """Trouble with the service is no trouble of the run; why nothing was measured is written."""
    source = Asked(queue_of(5), QueueUnavailable("the service is away"))
    result = profile(pipeline_of(source), output=tmp_path / "run", settings=QUIET)
    assert result.counters.delivered == 5
    assert rows_of(tmp_path / "run") == []
    info = json.loads((tmp_path / "run" / "profiling.json").read_text())
    assert "the service is away" in info["not_measured"]["backlog"]


def test_a_source_that_cannot_tell_is_not_asked(tmp_path: Path) -> None:
    """A list has no backlog to tell of, and no thread is started for it."""
    before = threading.active_count()
    gauge = BacklogGauge(ListSource([]), ResourceWriter(tmp_path, "source"), threading.Event())
    gauge.start()
    assert threading.active_count() == before
    gauge.stop()
    gauge.stop()


def test_a_run_that_never_begins_ends_all_the_same(tmp_path: Path) -> None:
    """Without a first job the source is never asked."""
    source = Asked(queue_of(0))
    gauge = BacklogGauge(source, ResourceWriter(tmp_path, "source"), threading.Event())
    gauge.start()
    gauge.stop()
    assert not source.asked.is_set()
    assert gauge.problem == ""
