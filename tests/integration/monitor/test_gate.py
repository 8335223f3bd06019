"""Two checkouts of one pipeline, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

_JOBS = """
import time
import headrace as hr
import helper

print("imported")  # is no part of the result
pipeline = hr.Pipeline(hr.items(["a", "b", "c"]), stages=[hr.stage("work", helper.work)], delivery=hr.collect())
other = hr.Pipeline(hr.items(["d", "e", "f"]), stages=[hr.stage("work", helper.work)], delivery=hr.collect())
"""
_HELPER = """
import os, time

def work(item):
    time.sleep({seconds})
    return item

if {dies}:
    work = lambda item: os._exit(7)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the checkouts `base`, `same`, `slow` and `dying`."""
    for name, seconds, dies in (
        ("base", 0.004, False),
        ("same", 0.004, False),
        ("slow", 0.012, False),
        ("dying", 0, True),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "jobs.py").write_text(_JOBS)
        (tmp_path / name / "helper.py").write_text(_HELPER.format(seconds=seconds, dies=dies))
    return tmp_path


def _gate(folder: Path, base: str, new: str, *options: str) -> subprocess.CompletedProcess[str]:
    quick = ("--seconds", "0.1", "--blocks", "6", "--time-limit", "40s")
    return subprocess.run(
        [sys.executable, "-m", "headrace", "gate", base, new, *quick, *options],
        cwd=folder, capture_output=True, text=True, check=False, env=dict(os.environ),
    )  # fmt: skip


@pytest.mark.smoke
def test_a_slower_checkout_fails(folder: Path) -> None:
    """Three times as slow: never passed; each checkout has its own helper module, and the files say the same."""
    done = _gate(
        folder, "base::jobs:pipeline", "slow::jobs:pipeline", "--json", "--markdown", "c.md", "--junit", "j.xml"
    )
    document = json.loads(done.stdout)
    assert done.returncode == {"failed": 1, "cannot_tell": 4}[document["verdict"]], done.stderr
    assert (
        document["comparison"]["b"]["stages"]["work"] >= 0.012 > document["comparison"]["a"]["stages"]["work"] >= 0.004
    )
    assert "throughput" in (folder / "c.md").read_text()
    assert "<testsuite" in (folder / "j.xml").read_text()


def test_the_same_code_does_not_fail(folder: Path) -> None:
    """It passes, or it cannot be told; and it says that it ran."""
    done = _gate(folder, "base::jobs.py:pipeline", "same::jobs.py:pipeline", "--max-slowdown", "20%")
    assert done.returncode in (0, 4), done.stderr
    assert "It ran " in done.stdout


@pytest.mark.parametrize(
    ("new", "status", "says"),
    [
        ("same::jobs:other", 2, "take other items from their sources"),
        ("same::jobs:nothing", 2, "no attribute 'nothing'"),
        ("same::none:pipeline", 2, "there is no module 'none'"),
        ("same::jobs:pipeline@none.toml", 2, "none.toml"),
        ("dying::jobs:pipeline", 3, "the process that runs it ended with status 7"),
    ],
)
def test_what_cannot_be_measured_says_why(folder: Path, new: str, status: int, says: str) -> None:
    """Never with the exit status of a verdict, and without a traceback of ours; in the files too."""
    done = _gate(folder, "base::jobs:pipeline", new, "--markdown", "c.md", "--junit", "j.xml")
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert says in (folder / "c.md").read_text()
    suite = ElementTree.parse(folder / "j.xml").getroot()
    assert suite.attrib["errors"] == "1"
    error = suite.find("testcase/error")
    assert error is not None
    assert says in error.attrib["message"]


def test_a_source_that_is_not_there_is_refused(folder: Path) -> None:
    """By the process that looks for it, in words and without a traceback."""
    done = _gate(folder, "base::jobs:pipeline", "same::jobs:pipeline", "--source", "nowhere")
    assert done.returncode == 3, done.stderr
    assert "nowhere does not exist; expected a folder" in done.stderr
    assert "Traceback" not in done.stderr
