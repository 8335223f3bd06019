"""What is accepted for a training: a value in its settings file, a decision in the ledger, and the way back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from headrace.base.errors import SettingsError
from headrace.cli import main
from headrace.cli.train_accept import accept, check_file


def test_an_accepted_value_is_listed_and_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other values, tables and comments stay; each rollback goes one step back, the last one removes what was not there."""
    file, ledger = tmp_path / "training.toml", str(tmp_path / "ledger.sqlite")
    assert "batch_size = 64" in accept(file, "batch_size", 64, why="train batch training.py: 32 -> 64", ledger=ledger)
    accept(file, "checkpointed", ["0.1", "2"], why="train check", ledger=ledger)
    accept(file, "batch_size", 128, why="train batch training.py: 64 -> 128", ledger=ledger)
    assert tomllib.loads(file.read_text()) == {"batch_size": 128, "checkpointed": ["0.1", "2"]}
    assert main(["ledger", "list", "--ledger", ledger]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    assert "now holds batch_size = 128, checkpointed = ['0.1', '2'] for a training" in listed
    assert "64 -> 128" in listed
    found = []
    for _ in range(3):
        assert main(["ledger", "rollback", str(file), "--ledger", ledger]) == 0
        found.append(tomllib.loads(file.read_text()) if file.exists() else None)
    assert found == [{"batch_size": 64, "checkpointed": ["0.1", "2"]}, {"batch_size": 64}, None]


def test_other_settings_stay_as_they_are(tmp_path: Path) -> None:
    """A new value stands before the first table; a comment is kept."""
    file = tmp_path / "training.toml"
    file.write_text('# ours\n[optimizer]\nbatch_size = 3\nname = "SGD"\n')
    accept(file, "batch_size", 16, why="", ledger=str(tmp_path / "ledger.sqlite"))
    assert tomllib.loads(file.read_text()) == {"batch_size": 16, "optimizer": {"batch_size": 3, "name": "SGD"}}
    assert "# ours\n" in file.read_text()


@pytest.mark.parametrize("text", ["batch_size = [\n 3\n]\n", "not toml at all"])
def test_a_file_that_cannot_be_added_to_is_refused_before_anything_is_measured(tmp_path: Path, text: str) -> None:
    """A value over several lines, and what is no TOML; the file stays as it is."""
    file = tmp_path / "training.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"training\.toml"):
        check_file(file)
    assert main(["train", "batch", "no-such-recipe.py", "--accept", str(file)]) == 2
    assert file.read_text() == text
