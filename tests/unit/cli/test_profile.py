"""`headrace profile`, from arguments to exit status."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.pipeline_arguments import seconds
from headrace.cli.profile import _Interrupt, _new_folder

PIPELINE = """
import time
import headrace as hr

def work(value):
    time.sleep(0.001)
    return len(str(value))

pipeline = hr.Pipeline(hr.folder("items", patterns=["*.txt"]), stages=[hr.stage("work", work)], delivery=hr.collect())
once = hr.Pipeline(hr.items(iter("abc")), stages=[hr.stage("work", work)], delivery=hr.collect())
queued = hr.Pipeline(hr.queue("sqlite:///jobs.db", drain=True), stages=[hr.stage("work", work)], delivery=hr.collect())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with a pipeline and thirty items."""
    (tmp_path / "profiled_jobs.py").write_text(PIPELINE)
    (tmp_path / "items").mkdir()
    for number in range(30):
        (tmp_path / "items" / f"{number}.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "profiled_jobs", raising=False)
    return tmp_path


def test_it_prints_where_the_time_went(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text names each stage with its split, the verdict of the checks, the folder, and what to do next."""
    assert main(["profile", "profiled_jobs.py:pipeline", "-o", "run"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^work +.*ms", told, re.MULTILINE)
    assert "run delay" in told
    assert re.search("^(TRUSTED|NOT CHECKED): .* passed, 0 failed, ", told, re.MULTILINE)
    assert "headrace report run" in told
    assert (folder / "run" / "profiling.json").is_file()


def test_streams_are_shown_while_it_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever watches a run may ask of it afterwards what only a profile can answer."""
    assert main(["profile", "profiled_jobs.py:pipeline", "-o", "run", "--live-page", "0"]) == 0
    assert "headrace: streams at http://127.0.0.1:" in capsys.readouterr().err


def test_json_is_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json stdout holds the document and nothing else."""
    assert main(["profile", "profiled_jobs.py:pipeline", "-o", "run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "headrace.profile/1"
    assert document["counters"]["delivered"] == 30
    assert [stage["name"] for stage in document["stages"]] == ["work", "deliver"]


def test_without_a_name_the_run_has_one_of_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile without -o is kept all the same, under runs/, named for the pipeline and the moment."""
    assert main(["profile", "profiled_jobs.py:pipeline"]) == 0
    (run,) = (folder / "runs").iterdir()
    assert re.fullmatch(r"profiled_jobs-\d{8}-\d{6}", run.name)
    assert f"runs/{run.name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pipeline", "name"),
    [("jobs:pipeline", "jobs"), ("a/b.py:other", "a-b-py-other"), ("jobs.py", "jobs"), ("é:x", "x")],
)
def test_the_name_has_only_plain_letters(pipeline: str, name: str) -> None:
    """Whatever the pipeline is called, its folder is called something that every shell takes."""
    assert re.fullmatch(rf"{name}-\d{{8}}-\d{{6}}", _new_folder(pipeline).name)


@pytest.mark.parametrize("option", ["--isolate", "--layers", "--experiment"])
def test_what_can_be_read_once_is_refused_before_the_run(
    folder: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """These run the items again: said before the profile, not after it."""
    assert main(["profile", "profiled_jobs.py:once", "-o", "run", option]) == 2
    assert f"{option} runs the items of the source again" in capsys.readouterr().err
    assert not (folder / "run").exists()


@pytest.mark.parametrize("option", ["--isolate", "--layers"])
def test_a_queue_is_refused_before_the_run(folder: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be done afterwards is said before: no job is received, and no folder is left."""
    assert main(["submit", "sqlite:///jobs.db", "items/1.txt"]) == 0
    capsys.readouterr()
    assert main(["profile", "profiled_jobs.py:queued", "-o", "run", option]) == 2
    assert "queue" in capsys.readouterr().err
    assert not (folder / "run").exists()
    assert main(["queue", "stats", "sqlite:///jobs.db", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["visible"] == 1


def test_a_folder_that_is_not_empty_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier run is refused; with --force its files are replaced and the others stay."""
    assert main(["profile", "profiled_jobs.py:pipeline", "-o", "run"]) == 0
    (folder / "run" / "notes.txt").write_text("mine")
    (folder / "run" / "layers.json").write_text("of an earlier run")
    assert main(["profile", "profiled_jobs.py:pipeline", "-o", "run"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["profile", "profiled_jobs.py:pipeline", "-o", "run", "--force"]) == 0
    assert (folder / "run" / "notes.txt").read_text() == "mine"
    assert not (folder / "run" / "layers.json").exists()


def test_a_pipeline_without_a_model_has_no_layers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run is kept and printed, the error says why there are no layers, and the exit status says that something is."""
    assert main(["profile", "profiled_jobs.py:pipeline", "-o", "run", "--layers"]) == 2
    told = capsys.readouterr()
    assert "--layers needs a device stage" in told.err
    assert "work" in told.out


@pytest.mark.parametrize(("text", "expected"), [("1", 1.0), ("0.5", 0.5), ("200ms", 0.2)])
def test_seconds_may_be_written_in_several_ways(text: str, expected: float) -> None:
    """A number is seconds, and a unit may be given."""
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_impossible_seconds_are_refused(text: str) -> None:
    """What is no time span above 0 is an error that shows what was given."""
    with pytest.raises(argparse.ArgumentTypeError, match=text.lstrip("-")):
        seconds(text)


def test_the_first_ctrl_c_asks_and_the_second_ends() -> None:
    """What is measured after the run can end in its own time once, and at once the second time; then all is as before."""
    before = signal.getsignal(signal.SIGINT)
    with _Interrupt() as interrupt:
        assert not interrupt.is_set()
        signal.raise_signal(signal.SIGINT)
        assert interrupt.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
