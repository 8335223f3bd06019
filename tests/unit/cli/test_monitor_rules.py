"""`headrace monitor rules`, `dashboard` and `check` write what they should, and replace nothing unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main


def test_rules_and_dashboard_are_written_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Into one folder, which is made; the second time only with --force."""
    folder = tmp_path / "new" / "alerts"
    assert main(["monitor", "rules", "-o", str(folder), "--job", "scenes", "--objective", "99.9%", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "headrace.rules/1"
    assert set(document["files"]) == {file.name for file in folder.iterdir()}
    assert "HeadraceQueueStalled" in document["alerts"]
    rules = (folder / "rules.yml").read_text()
    assert 'job="scenes"' in rules
    assert "/ 0.001" in rules
    assert main(["monitor", "dashboard", "-o", str(folder)]) == 0
    assert json.loads((folder / "dashboard.json").read_text())["title"] == "headrace"
    assert main(["monitor", "rules", "-o", str(folder)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["monitor", "rules", "-o", str(folder), "--force"]) == 0
    assert 'job="headrace"' in (folder / "rules.yml").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--objective", "many"], "--objective 'many' is no share"),
        (["--objective", "120%"], "objective = 1.2"),
        (["--latency", "soon"], "--latency"),
        (["--job", 'x"}'], "job ="),
    ],
)
def test_what_is_impossible_is_said(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written."""
    assert main(["monitor", "rules", "-o", str(tmp_path / "alerts"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "alerts").exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file stands in its place."""
    (tmp_path / "alerts").touch()
    assert main(["monitor", "dashboard", "-o", str(tmp_path / "alerts")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_check_needs_rules_and_promtool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 2 without rules, 3 without promtool."""
    assert main(["monitor", "check", str(tmp_path)]) == 2
    assert "headrace monitor rules" in capsys.readouterr().err
    assert main(["monitor", "rules", "-o", str(tmp_path)]) == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["monitor", "check", str(tmp_path)]) == 3
    assert "promtool is not on the PATH" in capsys.readouterr().err
