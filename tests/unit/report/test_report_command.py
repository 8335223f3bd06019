"""`headrace report`: what it writes, and what it refuses before it begins."""

from __future__ import annotations

import argparse
import json
import webbrowser
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from headrace.base.errors import HeadraceError, RunFolderError, SettingsError
from headrace.cli import report
from headrace.diagnose import diagnosis
from headrace.diagnose.analysis import Analysis
from headrace.runs.run_folder import RunFolder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Return a run in which nothing was received."""
    folder = RunFolder.create(tmp_path / "first", pipeline="jobs:pipeline")
    folder.finish("finished")
    return tmp_path / "first"


def command(*arguments: str | Path) -> int:
    """Run `headrace report` with these arguments."""
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return report.run(parser.parse_args([str(argument) for argument in arguments]))


def test_the_page_goes_into_the_run_folder(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without -o it is RUN/report.html, and stdout says where and whether to believe it."""
    assert command(run_folder) == 0
    page = (run_folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "jobs:" in page
    out = capsys.readouterr().out
    assert str(run_folder / "report.html") in out
    assert "TRUSTED" in out


def test_the_diagnosis_is_on_the_page(run_folder: Path) -> None:
    """A run that cannot be diagnosed has a section that says why, and the next command."""
    command(run_folder)
    page = (run_folder / "report.html").read_text(encoding="utf-8")
    assert 'id="diagnosis"' in page
    assert "headrace explain UNTRUSTED" in page
    assert "headrace profile jobs:pipeline" in page


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), HeadraceError("the spans are cut off")])
def test_a_failing_diagnosis_leaves_the_report(
    error: Exception, run_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page is written, its section says why, and what is a defect of headrace is told with its traceback."""

    def fail(analysis: Analysis) -> None:
        raise error

    monkeypatch.setattr(diagnosis, "diagnosis_document", fail)
    assert command(run_folder) == 0
    page = (run_folder / "report.html").read_text(encoding="utf-8")
    assert "could not be diagnosed" in page
    assert str(error)[1:] in page  # its first letter becomes a large one
    is_defect = not isinstance(error, HeadraceError)
    assert ("defect of headrace" in page) is is_defect
    assert ("ZeroDivisionError" in caplog.text) is is_defect


def test_json_is_one_document(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json stdout holds one object with the sizes and the verdict."""
    assert command(run_folder, "-o", tmp_path / "x.html", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "headrace.report/1"
    assert told["num_bytes"] == (tmp_path / "x.html").stat().st_size
    assert (told["run"], told["timelines"]) == ("first", {})


def test_a_file_that_exists_is_kept_without_force(run_folder: Path, tmp_path: Path) -> None:
    """It is refused with the option that replaces it; with --force it is replaced."""
    page = tmp_path / "mine.html"
    page.write_text("mine")
    with pytest.raises(SettingsError, match=r"mine\.html exists; .*--force"):
        command(run_folder, "-o", page)
    assert page.read_text() == "mine"
    assert command(run_folder, "-o", page, "--force") == 0
    assert "<!doctype html>" in page.read_text(encoding="utf-8")


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    """The message says what was expected."""
    with pytest.raises(RunFolderError, match="expected a run folder"):
        command(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "missing/x.html"], "there is no folder missing"),
        (["-o", "."], "is a folder"),
        (["-o", "x.html", "--trace", "./x.html"], "same name"),
        (["--compare", "none.json"], "none.json cannot be read"),
        (["--compare", "text.json"], "is not a comparison"),
        (["--compare", "run.json"], "is not a comparison"),
    ],
)
def test_what_cannot_be_done_is_said_first(
    arguments: list[str], says: str, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written when an output or a comparison cannot be used."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_bytes(b"\xff not json")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(HeadraceError, match=says):
        command(run_folder, *arguments)
    assert not (run_folder / "report.html").exists()
    assert not (tmp_path / "x.html").exists()


def test_a_comparison_is_shown(run_folder: Path, tmp_path: Path, documents: ModuleType) -> None:
    """--compare takes what `headrace compare -o` writes."""
    (tmp_path / "compare.json").write_bytes(msgspec.json.encode(documents.comparison_document()))
    command(run_folder, "-o", tmp_path / "x.html", "--compare", tmp_path / "compare.json")
    assert "B is better" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_a_timeline_is_written_beside_the_page(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--trace writes the Chrome trace and says where to open it."""
    command(run_folder, "-o", tmp_path / "x.html", "--trace", tmp_path / "t.json")
    assert "traceEvents" in json.loads((tmp_path / "t.json").read_text())
    assert "ui.perfetto.dev" in capsys.readouterr().out


def test_open_shows_the_page(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The browser is given the file; where there is none, stderr names the file."""
    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or False)
    assert command(run_folder, "--open") == 0
    assert asked == [(run_folder / "report.html").as_uri()]
    assert "open" in capsys.readouterr().err


def test_a_name_that_is_not_utf8_can_be_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder's odd bytes are shown as U+FFFD; neither the page nor the output fails."""
    path = tmp_path / "run\udce9"
    RunFolder.create(path, pipeline="jobs:pipeline").finish("finished")
    assert command(path) == 0
    assert command(path, "--force", "--json") == 0
    assert "run\ufffd" in (path / "report.html").read_text(encoding="utf-8")
    assert "run\ufffd" in capsys.readouterr().out
