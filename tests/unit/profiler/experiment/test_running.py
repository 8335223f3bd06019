"""Experiments on runs that end before there is an answer: the run is right, and the document says why."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.base.current_job import current_jobs
from headrace.base.errors import SettingsError
from headrace.base.plan import Plan, SourcePlan
from headrace.profiler.experiment.running import add_experiment, run_experiment
from headrace.runs.formats.experiment import FILE, ExperimentDocument
from headrace.sources.finite import Entry, FiniteSource
from headrace.sources.items import Items
from headrace.testing import ListSource


def test_a_source_that_ends_ends_the_experiment() -> None:
    """Without enough jobs nothing is made up: no throughput, no perturbation, and every job is delivered."""
    source = ListSource([b"1", b"2", b"3"])
    found = run_experiment(hr.Pipeline(source, stages=[hr.stage("work", lambda value: value)]), budget_seconds=30)
    assert found.ended == "source_ended"
    assert found.delivered
    assert found.perturbations == ()
    assert found.cost == 0.0


def test_a_folder_is_gone_around_without_delivering(tmp_path: Path) -> None:
    """Items come again and again until the experiment is stopped; no result reaches the user's delivery."""
    stop, seen = threading.Event(), []

    def work(value: Any) -> Any:
        seen.append(value)
        if len(seen) > 7:
            stop.set()
        return value

    delivery = hr.jsonl(tmp_path / "results.jsonl")
    pipeline = hr.Pipeline(Items(["a", "b", "c"]), stages=[hr.stage("work", work)], delivery=delivery)
    found = run_experiment(pipeline, budget_seconds=30, stop=stop)
    assert set(seen) == {"a", "b", "c"}
    assert len(seen) > 7
    assert not found.delivered
    assert found.ended == "interrupted"
    assert not (tmp_path / "results.jsonl").exists()


class Worked(FiniteSource):
    """Notes in which thread each of its items was made, as a clip's are: in one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []
        self.num_opened = 0

    def entries(self) -> Iterator[Entry]:
        """Make three."""
        for number in range(3):
            self.made.append(threading.current_thread().name)
            yield Entry(str(number), str(number))

    def open(self, settings: SourcePlan) -> None:
        """Count it."""
        self.num_opened += 1
        super().open(settings)


def test_every_round_is_made_as_in_a_run() -> None:
    """The source itself is opened and works for its items in every round; they have ids of their own, and one try each."""
    stop, seen, source = threading.Event(), [], Worked()

    def work(value: Any) -> Any:
        seen.append((current_jobs()[0].id, current_jobs()[0].max_attempts))
        if len(seen) > 7:
            stop.set()
        return value

    run_experiment(
        hr.Pipeline(source, stages=[hr.stage("work", work)], delivery=hr.collect()), budget_seconds=30, stop=stop
    )
    assert source.num_opened == 1
    assert len(source.made) >= len(seen) > 7
    assert len({job for job, _ in seen}) == len(seen)
    assert {"0", "0#2", "0#3"} <= {job for job, _ in seen}
    assert {tries for _, tries in seen} == {1}
    assert source.max_receives == 3


def test_a_document_is_written_into_the_run_folder(tmp_path: Path) -> None:
    """`experiment.json` is read back as it was returned."""
    pipeline = hr.Pipeline(ListSource([b"1"]), stages=[hr.stage("work", lambda value: value)])
    found = add_experiment(pipeline, Plan(), tmp_path, lambda text: None, budget_seconds=5)
    assert msgspec.json.decode((tmp_path / FILE).read_bytes(), type=ExperimentDocument) == found


def test_no_time_is_refused() -> None:
    """A budget of 0 is told with its value and what is usual."""
    with pytest.raises(SettingsError, match="above 0 s, got 0 s; 60 s is usual"):
        run_experiment(hr.Pipeline(ListSource([]), stages=[hr.stage("work", len)]), budget_seconds=0)
