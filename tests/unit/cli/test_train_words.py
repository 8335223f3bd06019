"""Second words of `headrace train` that are no script."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.train_words import WORDS, is_word


@pytest.mark.parametrize("word", sorted(WORDS))
def test_a_word_explains_itself(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`headrace train WORD --help` prints the options of the word, not those of `headrace train`."""
    with pytest.raises(SystemExit) as ended:
        main(["train", word, "--help"])
    assert ended.value.code == 0
    assert f"usage: headrace train {word} " in capsys.readouterr().out


def test_a_file_called_like_the_word_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`headrace train batch` with a file `batch` in the folder trains that file."""
    monkeypatch.chdir(tmp_path)
    assert is_word(["batch", "training.py"])
    (tmp_path / "batch").touch()
    assert not is_word(["batch", "training.py"])
    assert not is_word(["train.py"])
    assert not is_word([])


def test_impossible_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer seeds than an interval needs, and a size that is none."""
    for option, says in ((["--seeds", "5"], "expected 6 or more, got 5"), (["--memory", "lots"], "expected a size")):
        with pytest.raises(SystemExit) as ended:
            main(["train", "batch", "training.py", *option])
        assert ended.value.code == 2
        assert says in capsys.readouterr().err
