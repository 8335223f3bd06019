"""What `headrace train` starts, and what it refuses before anything was written."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.documents import encode_document
from headrace.cli import main
from headrace.runs.formats.training import TrainingProcess
from headrace.runs.reader import read_run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no script is named"),
        (["gone.py"], "script 'gone.py' does not exist"),
        (["-m"], "-m names no module"),
        (["no-such-program"], "'no-such-program' cannot be started"),
    ],
)
def test_what_cannot_be_started_leaves_nothing(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Misuse, with the reason; no run folder is left behind."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*"))


def test_a_program_that_never_trains_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good end without a step is a negative answer, loudly; the run folder says that the program ended well."""
    assert main(["train", "-o", str(tmp_path / "run"), "true"]) == 1
    assert "no training step was seen in true" in capsys.readouterr().err
    assert read_run(tmp_path / "run").info.status == "finished"


@pytest.mark.parametrize(
    ("code", "exit_status", "status", "reason"),
    [
        ("import sys; sys.exit(3)", 3, "failed", "exit status 3"),
        ("raise ValueError", 1, "failed", "exit status 1"),
        ("import os; os._exit(7)", 7, "failed", "exit status 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "failed", "ended by SIGKILL"),
        ("import os; os.kill(os.getpid(), 15)", 143, "interrupted", "ended by SIGTERM"),
        ("import os; os.kill(os.getppid(), 10); import time; time.sleep(60)", 138, "failed", "ended by SIGUSR1"),
    ],
)
def test_the_exit_status_is_the_scripts_own(
    code: str, exit_status: int, status: str, reason: str, tmp_path: Path
) -> None:
    """Whatever ends the script is in the run folder too; a signal to headrace is passed on."""
    script = tmp_path / "script.py"
    script.write_text(code)
    assert main(["train", "-o", str(tmp_path / "run"), str(script)]) == exit_status
    info = read_run(tmp_path / "run").info
    assert (info.status, info.ended_by) == (status, reason)


def test_a_script_that_needs_no_torch_imports_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules are those of a bare start, its `sys.path` is its own, and another `sitecustomize` is gone on to."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['SEEN'] = 'yes'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "ours = sorted(name for name in sys.modules if name.startswith(('headrace', 'torch', 'numpy', 'pyarrow')))\n"
        f"open({str(tmp_path / 'said')!r}, 'w').write(\n"
        "    repr((ours, os.environ['SEEN'], __name__, sys.argv[1:], 'armed' in str(sys.path))))\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    main(["train", "-o", str(tmp_path / "run"), str(script), "--lr", "0.1", "-o", "--"])
    assert (tmp_path / "said").read_text() == repr(([], "yes", "__main__", ["--lr", "0.1", "-o", "--"], False))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads, and replaces itself at once
@pytest.mark.parametrize("way", ["typed", "sent"])
def test_ctrl_c_reaches_the_script_once(way: str, tmp_path: Path) -> None:
    """Typed at a terminal it goes to both processes; sent to headrace alone it is passed on."""
    script = tmp_path / "script.py"
    script.write_text(
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "print('ready', flush=True)\n"
        "signal.sigwait([signal.SIGINT])\n"
        "print('twice' if signal.sigtimedwait([signal.SIGINT], 0.5) else 'once', flush=True)\n"
    )
    argv = [sys.executable, "-m", "headrace", "train", "-o", str(tmp_path / "run"), str(script)]
    process, terminal = pty.fork()
    if not process:
        os.execv(argv[0], argv)
    said = b""
    while b"once" not in said and b"twice" not in said:
        said += os.read(terminal, 1024)
        if b"ready" in said and b"sent" not in said:
            if way == "typed":
                os.write(terminal, b"\x03")
            else:
                os.kill(process, signal.SIGINT)
            said += b"sent"
    os.waitpid(process, 0)
    os.close(terminal)
    assert b"once" in said
    info = read_run(tmp_path / "run").info
    assert info.status == "finished", "the script caught it and ended well"


def test_a_module_is_run_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-m` takes everything behind it, also what looks like an option of headrace."""
    (tmp_path / "own.py").write_text("import sys\nopen('said', 'w').write(repr((__name__, sys.argv[1:])))\n")
    monkeypatch.chdir(tmp_path)
    main(["train", "-o", "run", "-m", "own", "-o", "x"])
    assert (tmp_path / "said").read_text() == repr(("__main__", ["-o", "x"]))
    assert read_run(tmp_path / "run").info.options == ["-m", "own", "-o", "x"]


def test_signals_are_blocked_for_nobody(tmp_path: Path) -> None:
    """The script has the signal mask that it would have without headrace."""
    script = tmp_path / "script.py"
    script.write_text("import signal, sys\nsys.exit(40 + len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))\n")
    assert main(["train", "-o", str(tmp_path / "run"), sys.executable, str(script)]) == 40


@pytest.mark.parametrize("exit_status", [0, 3])
@pytest.mark.parametrize("disaster", ["shutil.rmtree(run)", "shutil.rmtree(run); open(run, 'w').close()"])
def test_a_lost_run_folder_is_no_failure_of_the_script(
    disaster: str, exit_status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status stays the script's, whatever became of the profile; that is said on stderr and in the document."""
    run, script = tmp_path / "run", tmp_path / "script.py"
    script.write_text(f"import shutil, sys\nrun = {str(run)!r}\n{disaster}\nsys.exit({exit_status})\n")
    assert main(["train", "--json", "-o", str(run), str(script)]) == exit_status
    said = capsys.readouterr()
    assert "THE PROFILE IS LOST" in said.err
    assert f"script.py itself ended with exit status {exit_status}" in said.err
    document = json.loads(said.out)
    assert (document["exit_status"], document["processes"]) == (exit_status, [])
    assert str(run) in document["problem"]


def test_steps_that_are_lost_are_no_failure_of_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process says that it trained, and its spans could not be written: that is another thing than not to train."""
    run, script = tmp_path / "run", tmp_path / "script.py"
    about = TrainingProcess(
        host="h", process=7, rank=0, world_size=1, script="", framework="torch", torch_version="2", threads=1, device="cpu",
        modules=(), num_parameters=1, parameter_bytes=4, optimizers=(), steps=8, lost_spans=40,
    )  # fmt: skip
    script.write_text(
        f"import os\nos.mkdir({str(run / 'training')!r})\n"
        f"open({str(run / 'training' / 'h-7.json')!r}, 'wb').write({encode_document(about)!r})\n"
    )
    assert main(["train", "-o", str(run), str(script)]) == 0
    assert "no step of process 7 is in the run folder" in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError("no more"), ValueError("unforeseen")])
def test_a_report_that_fails_leaves_the_scripts_status(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What headrace cannot say once the script has ended is printed; the script did what it did."""

    def fail(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr("headrace.cli.train._report", fail)
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(5)")
    assert main(["train", "-o", str(tmp_path / "run"), str(script)]) == 5
    assert str(error) in (said := capsys.readouterr().err)
    assert "script.py itself ended with exit status 5" in said


@pytest.mark.full
def test_a_reader_that_leaves_hides_no_failure(tmp_path: Path) -> None:
    """`headrace train --json script.py | true`: the script failed, whoever reads what is said of it."""
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(5)")
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "headrace", "train", "--json", "-o", str(tmp_path / "run"), str(script)]
    assert subprocess.run(argv, stdout=writer, stderr=subprocess.DEVNULL, check=False).returncode == 5
    os.close(writer)


def test_a_nested_command_records_what_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says where its steps go, and what the outer one asked of its program (traces) is not asked of its own."""
    monkeypatch.setenv("HEADRACE_TRAIN", str(tmp_path / "outer"))
    monkeypatch.setenv("HEADRACE_TORCH_PROFILER", "wait=1,active=1")
    monkeypatch.setenv("HEADRACE_TRAIN_LAYERS", "1")
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "asked = sorted(name for name in os.environ if name.startswith('HEADRACE_T'))\n"
        f"open({str(tmp_path / 'said')!r}, 'w').write(repr(asked))\n"
    )
    main(["train", "-o", str(tmp_path / "run"), str(script)])
    assert (tmp_path / "said").read_text() == repr(["HEADRACE_TRAIN", "HEADRACE_TRAIN_SCRIPT"])
    assert f"go into {tmp_path / 'run'}, and not into {tmp_path / 'outer'}" in capsys.readouterr().err
