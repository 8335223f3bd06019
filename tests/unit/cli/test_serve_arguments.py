"""Options of `headrace serve` that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["--plan", "plan.toml"], ["--set", "process.batch=2"], ["--deadline", "1s"], ["--grpc-port", "1"], ["--probe", "a"],
        ["--supervise", "2"], ["--canary", "c"], ["--follow"], ["--ledger", "l"], ["-o", "run"], ["--json"],
        ["--otlp"], ["--recorder", "4MB"], ["--incidents", "i"], ["--slo", "p99=1s"], ["--slo-failed", "1%"], ["--drift", "d"],
        ["--review", "r"], ["--history", "h.jsonl"],
    ],
    ids=lambda given: given[0],
)  # fmt: skip
def test_what_is_for_a_pipeline_is_refused_in_front_of_a_queue(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """By its name: it would have no effect."""
    assert main(["serve", "--queue", "memory", *arguments]) == 2
    name = {"-o": "--output"}.get(arguments[0], arguments[0])
    assert f"{name} is for a pipeline" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--follow"], "--follow goes with --plan FILE"),
        (["--follow", "--canary", "c"], "--follow and --canary each choose the models"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "run"])
def test_what_is_followed_is_named_and_alone(
    command: str,
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is opened."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"followed_by_{command}.py").write_text(
        "import headrace as hr\npipeline = hr.Pipeline(hr.items([]), stages=[hr.stage('a', len)])\n"
    )
    assert main([command, f"followed_by_{command}.py:pipeline", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "run"])
def test_a_ledger_in_which_nothing_would_be_written_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a candidate there is nothing to keep."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"of_{command}.py").write_text(
        "import headrace as hr\npipeline = hr.Pipeline(hr.items([]), stages=[hr.stage('a', len)])\n"
    )
    assert main([command, f"of_{command}.py:pipeline", "--ledger", "ledger.sqlite"]) == 2
    assert "--canary DIR" in capsys.readouterr().err
