"""The story of the batch that swaps comes out as it is told."""

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

STORY = Path(__file__).parents[3] / "examples" / "stories" / "swapping"


@pytest.fixture(scope="module")
def story() -> ModuleType:
    """Return the program that tells it."""
    spec = importlib.util.spec_from_file_location("story_of_swapping", STORY / "story.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
def test_sizes_are_tried_up_to_the_limit(story: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Doubled from 1; a line for each, of which one is recommended; twice the texts need more memory."""
    pytest.importorskip("torch")
    found = story.search("3GB", 4)
    told = capsys.readouterr().out
    trials = found["trials"]
    assert [trial["batch_size"] for trial in trials] == [1, 2, 4][: len(trials)]
    assert found["present_batch_size"] == 512
    assert told.count("texts/s") == len(trials)
    assert told.count("<- recommended") == 1
    assert trials[-1]["peak_bytes"] > trials[0]["peak_bytes"]


def test_the_transcript_is_of_this_story(story: ModuleType) -> None:
    """It holds the command as it is now, and the README has what is recommended."""
    told = (STORY / "transcript.txt").read_text(encoding="utf-8")
    assert f"$ headrace train batch train.py:make --memory {story.MEMORY}\n" in told
    ((size, rate, peak),) = re.findall(
        r"A batch of (\d+) trains (\d+) texts a second with (\d+) MB", " ".join(told.split())
    )
    readme = (STORY / "README.md").read_text(encoding="utf-8")
    assert f"| {size} | {rate} texts/s | {peak} MB |" in readme


def test_a_search_that_fails_ends_the_story(story: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it said."""
    failed = subprocess.CompletedProcess([], 2, "", "no such file")
    monkeypatch.setattr(story.subprocess, "run", lambda *_args, **_more: failed)
    with pytest.raises(RuntimeError, match=r"train batch train\.py:make --memory 1GB ended with 2: no such file"):
        story.search("1GB")
