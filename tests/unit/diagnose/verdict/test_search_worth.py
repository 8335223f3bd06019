"""`headrace optimize --run`: what a recorded run says before a search for a cheaper model begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.runs.reader import Run

JOBS = """
import headrace as hr


class Classifier(hr.Module):
    input = hr.ImageInput(short_side=256, crop=224)

    def process(self, batch):
        return list(batch)


pipeline = hr.Pipeline(hr.folder("none"), module=Classifier(), delivery=hr.collect())
"""


@pytest.fixture
def run_folder(make_run: Callable[[Any], Run], made: Any, pipe: Any) -> Path:
    """Of a pipeline that decodes for 20 ms and asks its model for 2."""
    decode = made(name="decode", work="decode", cpu=0.02)
    process = made(name="process", kind="device", work="model", cpu=0.002, batch=1)
    return make_run(pipe(stages=[decode, process], num_jobs=400)).path


def optimize(run_folder: Path, *arguments: str) -> int:
    """Run the command with a model that is not there, which nobody sees who does not begin."""
    ledger = ["--ledger", str(run_folder.parent / "ledger.sqlite")]
    return main(["optimize", "no.onnx", "--run", str(run_folder), *ledger, *arguments])


def test_a_small_share_is_printed_with_what_to_mend_first(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The share of the time, what a free model would bring, the stage to work on and the next command; nothing is tried."""
    assert optimize(run_folder) == 4
    told = " ".join(capsys.readouterr().out.split())
    assert "process, the model, is 9% of the time that all stages work" in told
    assert "cost nothing at all, the pipeline would be 1.0" in told
    assert "fix decode first (91%)" in told
    assert f"next: headrace diagnose {run_folder}" in told


def test_as_json_it_is_a_document_like_any(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the figures and why nothing was tried."""
    assert optimize(run_folder, "--json") == 4
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["stopped"]) == ("headrace.optimization/1", "ceiling")
    assert document["ceiling"]["share"] == pytest.approx(2 / 22, abs=0.01)
    assert document["ceiling"]["ratio"] < 1.25
    assert document["ceiling"]["instead"] == "decode"


@pytest.mark.parametrize("arguments", [["--for", "size"], ["--for", "latency"], ["--anyway"]])
def test_a_ceiling_of_throughput_stops_nothing_else(
    arguments: list[str], run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A smaller or a quicker model may be worth it all the same: the search begins, and finds no model here."""
    assert optimize(run_folder, *arguments) == 2
    told = capsys.readouterr().err
    assert "the pipeline would be" in told
    assert "model file" in told


def test_smaller_images_are_looked_for_whatever_the_share_of_the_model(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decoding becomes cheaper with them, where a pipeline makes them; of arrays the model's share is all there is."""
    sizes = ["--input-sizes", "160"]
    jobs = run_folder.parent / "smaller_jobs.py"
    jobs.write_text(JOBS)
    assert optimize(run_folder, *sizes, "--pipeline", f"{jobs}:pipeline") == 2
    assert "smaller images are cheaper to decode and scale too: the search goes on" in capsys.readouterr().err
    assert optimize(run_folder, *sizes) == 4


def test_goals_that_are_met_stop_the_search(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the sense of `headrace diagnose`: what is good enough needs no cheaper model."""
    assert optimize(run_folder, "--rate", "10/s", "--json") == 4
    document = json.loads(capsys.readouterr().out)
    assert document["stopped"] == "goal"
    assert document["says"].startswith("your goal is met: stop here (met: >= 10/s: it is ")


def test_a_goal_that_is_missed_is_told_and_the_ceiling_asked(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One goal that is met does not make up for one that is not."""
    assert optimize(run_folder, "--rate", "10/s", "--slo", "p50=1us", "--json") == 4
    told = capsys.readouterr()
    assert json.loads(told.out)["stopped"] == "ceiling"
    assert "MISSED: p50" in told.err


def test_goals_without_a_run_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to hold them against; and what is no goal is said."""
    assert main(["optimize", "no.onnx", "--rate", "10/s"]) == 2
    assert "--run" in capsys.readouterr().err
    assert main(["optimize", "no.onnx", "--slo", "soon"]) == 2
    assert "p99=200ms" in capsys.readouterr().err
