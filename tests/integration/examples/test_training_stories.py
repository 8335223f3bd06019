"""The stories of trainings that `headrace demo` types come out as they are told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.demo import telling
from headrace.demo.stories import copy_story, find_folder, read_story
from headrace.demo.telling import Telling

#: {story: what diagnose says of it on a quiet machine}
VERDICTS = {
    "network_shuffle": "LOADING (too few workers) in read",
    "remote_epoch": "LOADING (too few workers) in read",
    "tokeniser": "LOADING (no workers) in tokenise",
    "train_augmentation": "LOADING (no workers) in augment",
}
#: What is said of it on a machine whose cores others have.
OF_THE_MACHINE = {"NEIGHBOUR", "OVERSUBSCRIPTION (training)", "TIE", "INCONCLUSIVE"}


@pytest.mark.full
def test_a_story_of_a_training_is_told_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It records, diagnoses, predicts and compares; reading from the store is named, unless the machine was in the way."""
    pytest.importorskip("torch")
    monkeypatch.setattr(telling, "PAIRS", 1)
    folder = tmp_path / "story"
    copy_story(find_folder("remote_epoch"), folder)
    lines: list[str] = []
    Telling(read_story(folder), folder, lines.append).tell()
    (verdict,) = re.findall(r"^  (.+?)   \[confidence", "\n".join(lines), flags=re.MULTILINE)
    assert verdict == VERDICTS["remote_epoch"] or verdict in OF_THE_MACHINE
    told = " ".join(" ".join(lines).split())  # lines are 80 columns wide
    assert "wait " in told
    assert told.count("predicted: x") == 3
    assert "throughput of B is" in told
    assert "too few for an interval" in told  # of one pair
    names = sorted(path.name for path in (folder / "bucket").iterdir())
    assert sorted(path.name for path in (folder / "kept").iterdir()) == names
    assert all((folder / "kept" / name).read_bytes() == (folder / "bucket" / name).read_bytes() for name in names)
    assert main(["diagnose", str(folder / "runs" / "slow")]) in (0, 4)


@pytest.mark.slow
@pytest.mark.measures
@pytest.mark.parametrize("name", VERDICTS)
def test_a_story_of_a_training_comes_out_as_it_is_told(name: str, tmp_path: Path) -> None:
    """The cause is named and the fix is not worse, where other programs were not in the way."""
    pytest.importorskip("transformers" if name == "tokeniser" else "torch")
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "demo", name, "-o", str(tmp_path / "story")],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (verdict,) = re.findall(r"^  (.+?)   \[confidence", done.stdout, flags=re.MULTILINE)
    assert verdict == VERDICTS[name] or verdict in OF_THE_MACHINE, done.stdout
    assert "throughput of B is" in done.stdout
    assert "B is worse" not in done.stdout
