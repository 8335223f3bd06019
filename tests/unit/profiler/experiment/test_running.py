"""Experiments on runs that end before there is an answer: the run is right, and the document says why."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.profiler.experiment.running import RoundAndRound, add_experiment, run_experiment
from headrace.runs.formats.experiment import FILE, ExperimentDocument
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


def test_rounds_have_ids_of_their_own() -> None:
    """The second round's items are others for whoever counts by id."""
    ids = [entry.id for entry in itertools.islice(RoundAndRound(Items(["a", "b"])).entries(), 5)]
    assert len(set(ids)) == 5
    assert ids[2] == f"{ids[0]}#2"


def test_a_document_is_written_into_the_run_folder(tmp_path: Path) -> None:
    """`experiment.json` is read back as it was returned."""
    pipeline = hr.Pipeline(ListSource([b"1"]), stages=[hr.stage("work", lambda value: value)])
    found = add_experiment(pipeline, Plan(), tmp_path, lambda text: None, budget_seconds=5)
    assert msgspec.json.decode((tmp_path / FILE).read_bytes(), type=ExperimentDocument) == found


def test_no_time_is_refused() -> None:
    """A budget of 0 is told with its value and what is usual."""
    with pytest.raises(SettingsError, match="above 0 s, got 0 s; 60 s is usual"):
        run_experiment(hr.Pipeline(ListSource([]), stages=[hr.stage("work", len)]), budget_seconds=0)
