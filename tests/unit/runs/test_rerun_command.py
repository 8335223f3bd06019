"""How a run is recorded again."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.pipeline_arguments import add_pipeline_arguments, list_choosing_options
from headrace.runs.rerun_command import profile_again

JOBS = """
import headrace as hr

pipeline = hr.Pipeline(hr.folder("none"), stages=[hr.stage("size", str)], delivery=hr.collect())
"""


def _recorded(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> argparse.Namespace:
    (folder / "again_jobs.py").write_text(JOBS)
    (folder / "items").mkdir(exist_ok=True)
    (folder / "items" / "a b.jpg").write_bytes(b"x")
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "again_jobs", raising=False)
    assert main(["run", "again_jobs.py:pipeline", *options, "-o", "run"]) == 0
    info = json.loads((folder / "run" / "run.json").read_text())
    return argparse.Namespace(pipeline=info["pipeline"], options=info["options"], served=info["served"])


def test_a_run_keeps_what_chose_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan, settings, source and limit come again, quoted for a shell; what is said last is added."""
    (tmp_path / "my plan.toml").write_text("[stages.size]\nworkers = 2\n")
    options = ["--plan", "my plan.toml", "--set", "size.workers=3", "--source", "items", "--limit", "5"]
    recorded = _recorded(tmp_path, monkeypatch, *options)
    again = profile_again(recorded, "--isolate")
    assert shlex.split(again) == ["headrace", "profile", "again_jobs.py:pipeline", *options, "--isolate"]


def test_a_setting_that_is_given_anew_is_not_given_twice() -> None:
    """What is tried with three workers is not asked for with eight first."""
    options = ["--set", "ask.workers=8", "--set", "look.workers=2"]
    recorded = argparse.Namespace(pipeline="jobs.py:p", options=options, served=False)
    again = profile_again(recorded, "--set", "ask.workers=3")
    assert again == "headrace profile jobs.py:p --set look.workers=2 --set ask.workers=3"


def test_a_command_that_was_suggested_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments are those that `headrace profile` takes, and give the same settings."""
    recorded = _recorded(tmp_path, monkeypatch, "--set", "size.workers=3", "--source", "items", "--limit", "5")
    parser = argparse.ArgumentParser()
    add_pipeline_arguments(parser)
    typed = parser.parse_args(shlex.split(profile_again(recorded))[2:])
    assert (typed.settings, typed.source, typed.limit) == (["size.workers=3"], "items", 5)


def test_of_a_portion_the_whole_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`headrace profile` knows no portions, and a command that is shown can be typed."""
    monkeypatch.chdir(tmp_path)
    recorded = argparse.Namespace(pipeline="jobs.py:p", options=["--source", "a", "--shard", "1/2"], served=False)
    assert profile_again(recorded) == "headrace profile jobs.py:p --source a"


@pytest.mark.parametrize("password", ["secret", "se@cret", "%2Fsecret"])
def test_a_password_is_not_kept(password: str) -> None:
    """User and password of a queue's address are left out, up to its last @, as a URL is read."""
    parser = argparse.ArgumentParser()
    add_pipeline_arguments(parser)
    arguments = parser.parse_args(
        ["jobs:pipeline", "--source", f"redis://me:{password}@host:6379/0?queue=a@b", "--drain"]
    )
    assert list(list_choosing_options(arguments)) == ["--source", "redis://...@host:6379/0?queue=a@b", "--drain"]


def test_a_run_from_code_names_what_is_missing() -> None:
    """A pipeline that no command line named is asked for."""
    nameless = argparse.Namespace(pipeline="", options=(), served=False)
    assert profile_again(nameless, "-o", "RUN") == "headrace profile MODULE:ATTRIBUTE -o RUN"


def test_a_longer_run_leaves_out_the_limit() -> None:
    """What seven jobs could not decide seven more of them cannot."""
    options = ["--set", "fetch.workers=2", "--limit", "7", "--source", "a"]
    recorded = argparse.Namespace(pipeline="jobs:pipeline", options=options, served=False)
    assert profile_again(recorded, longer=True) == "headrace profile jobs:pipeline --set fetch.workers=2 --source a"


def test_a_service_is_measured_while_it_serves() -> None:
    """Requests come from clients: the command is that of the service."""
    served = argparse.Namespace(pipeline="jobs.py:pipeline", options=("--plan", "p.toml"), served=True)
    assert profile_again(served, "-o", "RUN") == "headrace serve jobs.py:pipeline --plan p.toml --profile -o RUN"
