"""A run of these tests ends whatever a test does, and names the test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AT_ONCE = [
    "-n",
    "2",
    *re.findall(r"^AT_ONCE := -n auto (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split(),
]
#: A second test runs beside it, and others wait.
TESTS = """
import os, pathlib, signal, time
import pytest

def test_it():
{body}

@pytest.mark.parametrize("number", range(20))
def test_others(number):
    time.sleep(0.05)
"""
#: A plugin that says when the process that reports has noted that a test began.
HEARD = """
import os, pathlib
import pytest

@pytest.hookimpl(trylast=True)
def pytest_runtest_logstart(nodeid):
    if "PYTEST_XDIST_WORKER" not in os.environ and nodeid.endswith("test_it"):
        pathlib.Path("begun").touch()
"""


def begin(folder: Path, body: str, *options: str, is_ci: bool = False) -> subprocess.Popen[str]:
    """Run `test_it` with a body, and others, as the Makefile does."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "test_one.py").write_text(TESTS.format(body=f"    {body}"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CI"))}
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), *options]
    return subprocess.Popen(
        [*command, "-p", "no:cacheprovider", "test_one.py"], cwd=folder, text=True,
        env=environment | ({"CI": "true"} if is_ci else {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def end(run: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit status, and what the run printed."""
    with run:
        return run.wait(100), run.stdout.read() if run.stdout else ""


def test_a_crash_ends_the_run(tmp_path: Path) -> None:
    """The test that brought its process down is named, and is not tried again and again."""
    status, printed = end(begin(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)", *AT_ONCE))
    assert status == 1
    assert "crashed while running 'test_one.py::test_it'" in printed
    assert "replacing crashed worker" not in printed


def test_a_hang_ends_the_run(tmp_path: Path) -> None:
    """A test that no exception reaches ends its process with the stacks of its threads, and is named."""
    limits = ["-o", "faulthandler_timeout=1", "-o", "faulthandler_exit_on_timeout=true"]
    body = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(600)"
    status, printed = end(begin(tmp_path, body, *limits, *AT_ONCE))
    assert status == 1
    assert "Timeout (0:00:01)!" in printed
    assert "in test_it" in printed
    assert "crashed while running 'test_one.py::test_it'" in printed


def test_an_interrupted_run_names_what_was_running(tmp_path: Path) -> None:
    """As the time limit of the whole run interrupts it."""
    # The process that reports has heard of it: what the test itself could touch is there before that.
    (tmp_path / "heard.py").write_text(HEARD)
    run = begin(tmp_path, "time.sleep(600)", "-p", "heard", *AT_ONCE)
    give_up_at = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    status, printed = end(run)
    assert status == 2
    assert re.search(r"= running when the run ended =+\n(test_one.*\n)?test_one.py::test_it\n", printed)


@pytest.mark.parametrize("is_ci", [False, True])
def test_what_is_missing_fails_in_continuous_integration(tmp_path: Path, is_ci: bool) -> None:
    """A package that a test needs and that is not there: skipped here, failed there, with the reason."""
    status, printed = end(begin(tmp_path, "pytest.importorskip('nothing_of_the_kind')", is_ci=is_ci))
    assert status == is_ci
    assert ("1 failed, 20 passed" if is_ci else "20 passed, 1 skipped") in printed
    assert "No module named 'nothing_of_the_kind'" in printed
