"""Errors of the user's code, as the command line shows them: file, line and a short traceback, wherever the code ran."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.runs.errors_log import ErrorLine
from headrace.runs.reader import read_run

JOBS = '''"""A pipeline with faults."""
import headrace as hr


class Unshowable(Exception):
    def __str__(self):
        raise TypeError("no text")


def double(value):
    return value.scale


class Scorer(hr.Module):
    input = hr.BytesInput()

    def load(self, context):
        if context.options.get("fail") == "load":
            import foo_missing

    def preprocess(self, value):
        return double(value) if self.fails == "preprocess" else value

    def process(self, batch):
        if self.fails == "text":
            raise Unshowable
        password = "hunter2"
        return [double(value) for value in batch] if self.fails == "process" else batch

    def postprocess(self, result):
        return double(result) if self.fails == "postprocess" else len(result)


def made(where):
    module = Scorer()
    module.fails = where
    return hr.Pipeline(hr.folder("photos"), module=module, delivery=hr.jsonl("results.jsonl"))


class Leaving(hr.Stage):
    kind = "cpu"

    def open(self, context):
        raise KeyboardInterrupt


class LeavingDelivery(type(hr.collect())):
    def open(self, context):
        raise SystemExit(0)


def leave():
    raise SystemExit(0)


at_open = hr.Pipeline(hr.folder("photos"), stages=[Leaving("leaving")])
at_delivery = hr.Pipeline(hr.folder("photos"), stages=[hr.fetch("fetch")], delivery=LeavingDelivery())
preprocess, process, postprocess, text, load = map(made, ("preprocess", "process", "postprocess", "text", "load"))
'''
LINE = next(number for number, line in enumerate(JOBS.splitlines(), 1) if "return value.scale" in line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two images and `faulty_jobs.py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty_jobs", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "faulty_jobs.py").write_text(JOBS)
    (tmp_path / "photos").mkdir()
    for number in range(2):
        (tmp_path / f"photos/{number}.jpg").write_bytes(b"image")
    return tmp_path


def ran(where: str, *arguments: str) -> list[ErrorLine]:
    """Return the lines of `errors.jsonl` of a run whose code fails in one place."""
    main(["run", f"faulty_jobs:{where}", "-o", "out", "--set", "source.max_receives=1", *arguments])
    return read_run(Path("out")).errors()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("at_open", 3, "stage leaving could not be opened: KeyboardInterrupt (faulty_jobs.py:"),
        ("at_delivery", 3, "the run was ended by code of yours"),
        ("leave", 2, "faulty_jobs:leave failed: SystemExit: 0 (faulty_jobs.py:"),
    ],
)
def test_code_that_would_leave_is_an_error_with_its_place(
    capfd: pytest.CaptureFixture[str], target: str, status: int, said: str
) -> None:
    """Neither an interruption, which nobody asked for, nor an end without a word that looks like success."""
    assert main(["run", f"faulty_jobs:{target}"]) == status
    shown = capfd.readouterr().err
    assert said in shown
    assert "faulty_jobs.py" in shown
    assert "interrupted" not in shown


@pytest.mark.full
@pytest.mark.parametrize("executor", ["thread", "process", "inline"])
@pytest.mark.parametrize("stage", ["preprocess", "process"])
def test_the_place_is_known_in_every_executor(folder: Path, stage: str, executor: str) -> None:
    """Type, file, line, function and frames are the user's; nothing that a variable held is among them."""
    settings = f"{stage}.executor={executor}"
    if executor == "inline" and stage == "process":
        settings = "preprocess.executor=inline"
    lines = ran(stage, "--set", settings)
    origin = lines[0].origin
    assert origin is not None
    assert (origin.error, origin.file, origin.line, origin.function) == (
        "AttributeError",
        "faulty_jobs.py",
        LINE,
        "double",
    )
    assert f"in {stage}" in origin.traceback
    assert "headrace" not in origin.traceback
    assert "hunter2" not in (folder / "out/errors.jsonl").read_text()
    assert f"has no attribute 'scale' (faulty_jobs.py:{LINE})" in lines[0].reason
    assert lines[1].origin == origin.brief()


def test_the_place_is_known_after_the_model(folder: Path) -> None:
    """`postprocess` is the user's too."""
    (first, _) = ran("postprocess")
    assert first.origin is not None
    assert (first.origin.line, "in postprocess" in first.origin.traceback) == (LINE, True)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_an_error_whose_text_raises_costs_its_item_alone(folder: Path, executor: str) -> None:
    """It is shown by its type, and the run goes on to its end."""
    lines = ran("text", "--set", f"process.executor={executor}")
    assert len(lines) == 2
    assert all("Unshowable (its message cannot be shown" in line.reason for line in lines)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_load_says_where(folder: Path, executor: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage that cannot be opened names the user's line and shows it."""
    settings = ("--set", "process.options.fail=load", "--set", f"process.executor={executor}")
    assert main(["run", "faulty_jobs:load", *settings]) == 3
    said = capsys.readouterr().err
    line = next(number for number, line in enumerate(JOBS.splitlines(), 1) if "foo_missing" in line)
    assert f"No module named 'foo_missing' (faulty_jobs.py:{line})" in said
    assert f'File "faulty_jobs.py", line {line}, in load\n    import foo_missing' in said


def test_a_broken_source_is_not_called_a_defect_of_headrace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the user's own source raises is shown as theirs."""
    (folder / "faulty_jobs.py").write_text(
        JOBS
        + "\nclass Broken(hr.folder('photos').__class__):\n    def entries(self):\n        raise KeyError('asset')\n"
        "\nbroken = hr.Pipeline(Broken('photos'), module=Scorer(), delivery=hr.jsonl('results.jsonl'))\n"
    )
    assert main(["run", "faulty_jobs:broken"]) == 3
    said = capsys.readouterr().err
    assert "KeyError: 'asset'" in said
    assert "defect of headrace" not in said


@pytest.mark.parametrize("command", [["run"], ["profile", "--no-overhead", "-o", "out"]])
def test_nothing_delivered_is_said_and_fails(
    folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nothing came of the work, reason, place and first item are shown, and the exit status is 1."""
    name, *options = command
    assert main([name, "faulty_jobs:process", *options, "--set", "source.max_receives=1"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "what failed: 2 process: AttributeError" in out
    assert f"(faulty_jobs.py:{LINE}) (delivery 1 of 1) [first " in out


def test_what_is_to_be_tried_again_has_its_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was rejected or dead-lettered, and still the summary says what failed."""
    assert main(["run", "faulty_jobs:process", "--limit", "2"]) == 1
    out = capsys.readouterr().out
    assert "2 received, 0 delivered, 2 retried" in out
    assert "; 2 to be tried again]" in " ".join(out.split())


def test_too_many_failures_end_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--max-failed` makes one failure too many the run's end."""
    arguments = ["--max-failed", "1", "--set", "source.max_receives=1"]
    assert main(["run", "faulty_jobs:process", *arguments]) == 1
    assert "ended early: 2 jobs failed, allowed were 1 (max_failed)" in capsys.readouterr().out


WRONG_SIGNATURES = """
class OneMore(Scorer):
    def preprocess(self, value, scale):
        return value


class NoSelf(Scorer):
    def process(batch):
        return batch


class NoContext(Scorer):
    def load(self):
        pass


class Opens(hr.Stage):
    def open(self, context):
        return lambda: 0


def one_more():
    return hr.Pipeline(hr.folder("photos"), module=OneMore(), delivery=hr.jsonl("results.jsonl"))


def no_self():
    return hr.Pipeline(hr.folder("photos"), module=NoSelf(), delivery=hr.jsonl("results.jsonl"))


def no_context():
    return hr.Pipeline(hr.folder("photos"), module=NoContext(), delivery=hr.jsonl("results.jsonl"))


def opens():
    return hr.Pipeline(hr.folder("photos"), stages=[Opens("opens")], delivery=hr.jsonl("results.jsonl"))


def builtin():
    return hr.Pipeline(hr.items([b"a", b"b"]), stages=[hr.stage("abs", abs)], delivery=hr.jsonl("results.jsonl"))
"""


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("one_more", "def preprocess(self, value, scale)", "OneMore.preprocess(self, value, scale) at {}"),
        ("no_self", "def process(batch)", "NoSelf.process(batch) at {}"),
        ("no_context", "def load(self):", "NoContext.load(self) at {}"),
        ("opens", "return lambda: 0", "what open() of stage opens returned: Opens.open.<locals>.<lambda>() at {}"),
    ],
)
def test_a_wrong_signature_is_said_before_the_first_job(
    folder: Path, name: str, line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's file and line and what is expected; no frame of headrace's, and no item is tried."""
    text = JOBS + WRONG_SIGNATURES
    (folder / "faulty_jobs.py").write_text(text)
    assert main(["run", f"faulty_jobs:{name}"]) == 2
    said = capsys.readouterr().err
    number = next(number for number, one in enumerate(text.splitlines(), 1) if line in one)
    assert says.format(f"faulty_jobs.py:{number} cannot be called with (") in said
    assert "headrace/" not in said


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_builtin_has_no_place(folder: Path, executor: str) -> None:
    """A stage function without frames of Python is named by its stage and its message, not by the line that called it."""
    (folder / "faulty_jobs.py").write_text(JOBS + WRONG_SIGNATURES)
    assert main(["run", "faulty_jobs:builtin", "-o", "out", "--set", f"abs.executor={executor}"]) == 1
    lines = read_run(Path("out")).errors()
    assert {line.origin for line in lines} == {None}
    assert all("abs: item" in line.reason and "bad operand type for abs()" in line.reason for line in lines)
    assert not any("headrace" in line.reason for line in lines)
