"""SIGUSR2 at any moment of a run's life: it asks for an incident, and ends nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Sends itself the signal when a module is imported.
_AT_IMPORT = """
import os, signal, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == at:
            os.kill(os.getpid(), signal.SIGUSR2)
at = sys.argv.pop(1)
sys.meta_path.insert(0, Watch())
from headrace.__main__ import main
raise SystemExit(main())
"""

#: The user's own module sends it, and so does, to the whole group, the worker process of a stage in its imports.
_PIPELINE = """
import os, signal
import headrace as hr

os.killpg(0, signal.SIGUSR2) if os.getpgrp() != os.getpid() else os.kill(os.getpid(), signal.SIGUSR2)

def length(payload):
    return len(str(payload))

pipeline = hr.Pipeline(source=hr.items([1, 2, 3]), stages=[hr.stage("length", length)], delivery=hr.collect())
"""


def ran(program: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a group of processes of its own."""
    return subprocess.run(
        [sys.executable, *program], cwd=cwd, capture_output=True, text=True, process_group=0, timeout=120, check=False
    )


@pytest.mark.parametrize("options", [[], ["--recorder", "4MB"]], ids=["plain", "recorded"])
@pytest.mark.parametrize("module", ["headrace.cli", "headrace.cli.run", "headrace.pipeline.execute"])
def test_in_the_midst_of_imports(module: str, options: list[str], tmp_path: Path) -> None:
    """The run goes on, and a run that records says what to do."""
    (tmp_path / "pipe.py").write_text(_PIPELINE)
    ended = ran(["-c", _AT_IMPORT, module, "run", "pipe.py:pipeline", *options], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ("SIGUSR2 came before anything was recorded; for an incident send it again" in ended.stderr) == bool(options)


def test_what_the_user_made_of_it_stays(tmp_path: Path) -> None:
    """Nobody else's handler is replaced by a run that records nothing."""
    (tmp_path / "pipe.py").write_text(
        "import os, signal\nimport headrace as hr\n"
        "signal.signal(signal.SIGUSR2, lambda *_: print('mine'))\n"
        "def send(value):\n    os.kill(os.getpid(), signal.SIGUSR2)\n    return value\n"
        "pipeline = hr.Pipeline(hr.items([1]), stages=[hr.stage('send', send)], delivery=hr.collect())\n"
    )
    ended = ran(["-m", "headrace", "run", "pipe.py:pipeline"], cwd=tmp_path)
    assert (ended.returncode, ended.stdout.splitlines()[:1]) == (0, ["mine"]), ended.stderr


@pytest.mark.full
def test_while_worker_processes_start(tmp_path: Path) -> None:
    """They leave it to the run, as a service manager sends it to all processes of a service."""
    (tmp_path / "pipe.py").write_text(_PIPELINE)
    arguments = ["run", "pipe.py:pipeline", "--set", "length.executor=process", "--set", "length.workers=2"]
    ended = ran(["-m", "headrace", *arguments], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "died" not in ended.stderr
