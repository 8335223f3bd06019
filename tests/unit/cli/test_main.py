"""The command line as a whole: exit statuses, and what goes to which stream."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import COMMANDS, main
from headrace.cli.terminal import is_quiet

MODULE = """
import headrace as hr

pipeline = hr.Pipeline(
    source=hr.folder("files", patterns=["*.bin"]), stages=[hr.fetch("fetch"), hr.stage("size", len)],
    delivery=hr.jsonl("results.jsonl"),
)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the working folder: a pipeline in `sizes.py` over three files."""
    (tmp_path / "sizes.py").write_text(MODULE)
    (tmp_path / "files").mkdir()
    for number in range(3):
        (tmp_path / "files" / f"{number}.bin").write_bytes(b"x" * number)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "sizes", raising=False)
    return tmp_path


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every command explains itself."""
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    assert " ".join(["usage: headrace", *command]) in capsys.readouterr().out


def test_run_prints_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json there is one JSON object on stdout and nothing else; the run folder and the results are written."""
    assert main(["run", "sizes.py", "--json", "-o", "out"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["counters"]["delivered"]) == ("headrace.run/1", 3)
    assert (folder / "out" / "run.json").exists()
    assert len((folder / "results.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_closed_stdout_is_no_defect(option: list[str]) -> None:
    """`headrace run ... >&-` does its work and prints nothing."""
    shell = '"$0" -c "from headrace.cli import main; raise SystemExit(main())" "$@" >&-'
    ran = subprocess.run(
        ["bash", "-c", shell, sys.executable, "run", "sizes.py", *option], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "3 received, 3 of 3 delivered" in ran.stderr


@pytest.mark.parametrize("command", [["run"], ["profile", "-o", "out"]])
def test_what_stages_print_is_no_part_of_the_document(
    folder: Path, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """With --json the user's prints, also those past Python, go to stderr; without it nobody touches them."""
    loud = (
        "import os\n\ndef loud(value):\n    print('by Python')\n    os.write(1, b'by C\\n')\n    return len(value)\n\n"
    )
    (folder / "sizes.py").write_text(loud + MODULE.replace(", len)", ", loud)"))
    assert main([command[0], "sizes.py", "--json", *command[1:]]) == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["counters"]["delivered"] == 3
    assert told.err.count("by Python") == told.err.count("by C") == 3
    assert main(["run", "sizes.py"]) == 0
    assert capfd.readouterr().out.count("by C") == 3


def test_the_last_line_counts_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """What a log says last is how the run ended."""
    assert main(["run", "sizes.py"]) == 0
    assert "3 received, 3 of 3 delivered" in capsys.readouterr().err


def test_run_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the stages are shown."""
    assert main(["run", "sizes.py", "--limit", "2"]) == 0
    out = capsys.readouterr().out
    assert "size" in out
    assert "deliver" in out


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["run", "none.py"], 2, "none.py does not exist"),
        (["run", "sizes.py", "--plan", "none.toml"], 2, "plan none.toml cannot be read"),
        (["run", "sizes.py", "--set", "size.wokers=2"], 2, "unknown key 'wokers'. Did you mean 'workers'?"),
        (["run", "sizes.py", "--set", "size.options.speed=2"], 2, "[stages.size.options]: unknown key 'speed'"),
        (["run", "sizes.py", "--set", "run.grace_seconds=1e10"], 2, "too long"),
        (
            ["run", "sizes.py", "--set", "model.engine=abacus"],
            2,
            "model.engine = 'abacus' is not possible; allowed: onnx",
        ),
        (
            ["run", "sizes.py", "--drain"],
            2,
            "--drain is for a queue or live streams, and the pipeline's source is a Folder",
        ),
        (["run", "sizes.py", "--source", "nowhere"], 3, "nowhere does not exist"),
        (["run", "sizes.py", "-o", "files"], 2, "folder files is not empty and holds no run"),
        (["queue", "stats", "sqlite:///none.db"], 3, "the queue file none.db does not exist"),
        (["samples", "make", "files", "--count", "1"], 2, "files is not empty"),
        (["samples", "make", "sizes.py/new", "--count", "1"], 2, "sizes.py/new cannot be written"),
        (["demo", "-o", "sizes.py"], 2, "--output sizes.py cannot be written"),
        (["demo", "-o", "files"], 2, "allowed: a new or empty folder"),
    ],
)
def test_mistakes(arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake is told on stderr in a sentence, with the exit status of the manual, and stdout stays empty."""
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert said in err
    assert "Traceback" not in err
    assert out == ""


def test_options_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    """What is submitted may stand behind the options, too."""
    assert main(["submit", "sqlite:///jobs.db", "--task", "t", "files/*.bin", "https://e.com/1"]) == 0
    assert "4 jobs sent" in capsys.readouterr().out


def test_an_unknown_option_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that does not exist is told."""
    with pytest.raises(SystemExit) as end:
        main(["submit", "sqlite:///jobs.db", "x.jpg", "--tsk", "t"])
    assert end.value.code == 2
    assert "unrecognized arguments: --tsk" in capsys.readouterr().err


def test_general_options_stand_before_or_behind_a_command(capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody has to know which options are the program's and which the command's."""
    for argv in (["-q", "run", "sizes.py", "--force"], ["run", "sizes.py", "--force", "-q"]):
        assert main(argv) == 0
        assert capfd.readouterr().err == ""
        assert not is_quiet()  # it is the command's, not that of whatever the process does next


def test_lines_begin_with_the_time_where_that_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    """Progress, log lines and errors, as the journal of a service shows them."""
    main(["run", "missing.py", "--timestamps"])
    [line] = capfd.readouterr().err.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z headrace: ", line)


@pytest.mark.parametrize(
    ("argv", "meant"),
    [(["profil"], "profile"), (["run", "sizes.py", "--plam", "a"], "--plan"), (["zzz"], "--help` lists them")],
)
def test_what_was_probably_meant(argv: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt command or option names the one that is most like it."""
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert meant in capsys.readouterr().err


def test_the_package_can_be_run() -> None:
    """`python -m headrace` is the command."""
    ran = subprocess.run([sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("headrace ")


@pytest.mark.full
def test_a_misspelt_name_is_an_error_of_types(folder: Path) -> None:
    """Mypy finds `hr.calback`, as it finds that `hr.callback` is there."""
    mypy = pytest.importorskip("mypy.api")
    (folder / "typed.py").write_text("import headrace as hr\n\nhr.callback()\nhr.calback()\n")
    found, _, _ = mypy.run(["--no-incremental", "--follow-imports=silent", str(folder / "typed.py")])
    assert 'typed.py:4: error: Module has no attribute "calback"; maybe "callback"' in found
    assert "typed.py:3" not in found


def test_results_go_where_the_command_says(folder: Path) -> None:
    """`--results` stands in for the pipeline's delivery: a file of JSON Lines, or a folder of Parquet."""
    assert main(["run", "sizes.py", "--results", "other.jsonl"]) == 0
    assert main(["run", "sizes.py", "--results", "table"]) == 0
    assert len((folder / "other.jsonl").read_text().splitlines()) == 3
    assert list((folder / "table").glob("part-*.parquet"))
    assert not (folder / "results.jsonl").exists()


def test_a_callback_without_an_address_is_said_before_the_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Jobs of a folder name no receiver: nothing is worked on in vain."""
    (folder / "sizes.py").write_text(MODULE.replace('hr.jsonl("results.jsonl")', "hr.callback()"))
    assert main(["run", "sizes.py", "--source", "files"]) == 2
    assert "--results results.jsonl" in capfd.readouterr().err


def test_the_sample_model_and_images_are_made(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What the first pages need; a file that is there stays."""
    assert main(["samples", "model"]) == 0
    assert (folder / "scenes.onnx").stat().st_size > 100_000
    assert main(["samples", "model"]) == 2
    assert main(["samples", "make", "photos", "--count", "2"]) == 0
    assert "photos" in capfd.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["queue", "redis://u:SECRETPW@h/0"],
        ["queue", "stats", "redis://h/0", "redis://u:SECRETPW@h/0"],
        ["redis://:SECRET@PW@h/0"],
        ["run", "sizes.py", "--limit", "redis://u:SECRET/PW@h/0"],
    ],
    ids=["choice", "unrecognized", "command", "value"],
)
def test_misuse_shows_no_password(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """An address that stands where it does not belong is repeated without user and password."""
    with pytest.raises(SystemExit):
        main(arguments)
    shown = capfd.readouterr().err
    assert "redis://***@h/0" in shown
    assert "SECRET" not in shown
    assert "PW" not in shown


def test_resuming_into_the_record_of_the_run_says_what_to_do(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same command once more with `--resume`: its `-o` is taken, and `--force` would drop what was recorded."""
    assert main(["run", "sizes.py", "-o", "RUN"]) == 0
    (folder / "results.jsonl").write_text("")
    capfd.readouterr()
    assert main(["run", "sizes.py", "-o", "RUN", "--resume"]) == 2
    said = capfd.readouterr().err
    assert "-o RUN-2" in said
    assert main(["run", "sizes.py", "-o", "RUN-2", "--resume"]) == 0
    assert len((folder / "results.jsonl").read_text().splitlines()) == 3
