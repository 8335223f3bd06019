"""The story of the same data comes out as it is told."""

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

STORY = Path(__file__).parents[3] / "examples" / "stories" / "same_data"


@pytest.fixture(scope="module")
def story() -> ModuleType:
    """Return the program that tells it."""
    spec = importlib.util.spec_from_file_location("story_of_same_data", STORY / "story.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_losses(told: str) -> list[float]:
    """Return the losses of one node, of several with the same data, and of several with a part each."""
    return [float(loss) for loss in re.findall(r"(\d\.\d{4}) on", told)]


@pytest.mark.full
def test_the_same_data_is_named_and_a_part_each_learns_more(
    story: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Several nodes with the same data end where one does; with a part each the loss is lower after as many steps."""
    story.tell(tmp_path, 2, 96)
    told = capfd.readouterr().out
    one, same, parts = read_losses(told)
    assert same == pytest.approx(one, abs=1e-3)
    assert parts < one - 0.02
    assert "ranks 0, 1 were given the same batches" in told
    named, left = re.findall(r"What diagnose names: (\w+) before, (\w+) after", told)[0]
    assert named == "DUPLICATED_DATA"
    assert left != "DUPLICATED_DATA"


def test_the_transcript_is_of_this_story(story: ModuleType) -> None:
    """It holds the commands and the changed lines as they are now, and the README has its losses."""
    told = (STORY / "transcript.txt").read_text(encoding="utf-8")
    for script in ("train.py", "fixed.py"):
        assert " ".join(["-m", *story.launch(script, story.NODES, story.STEPS)]) in told
    assert [line for line in story.changed() if f"   {line}\n" not in told] == []
    losses = read_losses(told)
    assert len(losses) == 3
    readme = (STORY / "README.md").read_text(encoding="utf-8")
    assert [loss for loss in losses if f"| {loss:.4f} |" not in readme] == []


def test_a_training_that_fails_ends_the_story(
    story: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With what it said."""
    failed = subprocess.CompletedProcess([], 1, "", "no such file")
    monkeypatch.setattr(story.subprocess, "run", lambda *_args, **_more: failed)
    with pytest.raises(RuntimeError, match=r"train\.py 2 ended with 1: no such file"):
        story.record(tmp_path, "train.py", 2, 2)
