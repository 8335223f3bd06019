"""Ctrl-C at any moment of the program's life: exit status 130, one line at most, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Sends itself Ctrl-C when a module is imported.
_AT_IMPORT = """
import os, signal, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == at:
            os.kill(os.getpid(), signal.SIGINT)
at = sys.argv.pop(1)
sys.meta_path.insert(0, Watch())
from headrace.__main__ import main
raise SystemExit(main())
"""

_WHEN_LEAVING = """
import atexit, os, signal
from headrace.__main__ import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
raise SystemExit(main())
"""

#: Its worker process sends Ctrl-C to the whole group while it is still in its imports, as a terminal does.
_PIPELINE = """
import os, signal
import headrace as hr

if os.getpgrp() != os.getpid():
    os.killpg(0, signal.SIGINT)

def length(payload):
    return len(str(payload))

pipeline = hr.Pipeline(source=hr.urls(["http://a.example/1"]), stages=[hr.stage("length", length)], delivery=hr.collect())
"""

_IN_A_CLASS = """
import os, signal

class Field:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGINT)

class Module:
    field = Field()
"""


def ran(program: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a group of processes of its own."""
    return subprocess.run(
        [sys.executable, *program], cwd=cwd, capture_output=True, text=True, process_group=0, timeout=120, check=False
    )


def test_while_a_class_is_made(tmp_path: Path) -> None:
    """Python wraps what comes at such a moment into a RuntimeError, and a loader's reason may be around that."""
    (tmp_path / "pipe.py").write_text(_IN_A_CLASS)
    ended = ran(["-m", "headrace", "run", "pipe.py:pipeline"], cwd=tmp_path)
    assert (ended.returncode, ended.stderr.splitlines()) == (130, ["headrace: interrupted"])


def test_while_python_runs_a_text(tmp_path: Path) -> None:
    """As for every dataclass: Python would end itself by SIGINT later, whatever the exit status."""
    (tmp_path / "pipe.py").write_text("import os, signal\nexec('os.kill(os.getpid(), signal.SIGINT)')\n")
    ended = ran(["-m", "headrace", "run", "pipe.py:pipeline"], cwd=tmp_path)
    assert (ended.returncode, ended.stderr.splitlines()) == (130, ["headrace: interrupted"])


@pytest.mark.parametrize(
    "module", ["headrace.cli", "headrace.base.errors", "headrace.cli.run", "headrace.pipeline.execute"]
)
def test_in_the_midst_of_imports(module: str, tmp_path: Path) -> None:
    """Ours are as little of a user's concern as a command's."""
    (tmp_path / "pipe.py").write_text(_PIPELINE)
    ended = ran(["-c", _AT_IMPORT, module, "run", "pipe.py:pipeline"], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.splitlines() == ["headrace: interrupted"]


def test_while_python_shuts_down(tmp_path: Path) -> None:
    """What the command has printed stays; nothing is printed about modules that are half gone."""
    ended = ran(["-c", _WHEN_LEAVING, "explain", "HEALTHY"], cwd=tmp_path)
    assert ended.returncode == 130
    assert "HEALTHY" in ended.stdout
    assert ended.stderr.splitlines() == ["headrace: interrupted"]


@pytest.mark.full
def test_while_worker_processes_start(tmp_path: Path) -> None:
    """They leave Ctrl-C to the run, and it ends as it would have ended without them."""
    (tmp_path / "pipe.py").write_text(_PIPELINE)
    arguments = ["run", "pipe.py:pipeline", "--set", "length.executor=process", "--set", "length.workers=2"]
    ended = ran(["-m", "headrace", *arguments], cwd=tmp_path)
    assert ended.returncode == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "could not start" not in ended.stderr
