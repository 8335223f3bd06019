"""The story of NaN in float16 comes out as it is told."""

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

STORY = Path(__file__).parents[3] / "examples" / "stories" / "nan_float16"


@pytest.fixture(scope="module")
def story() -> ModuleType:
    """Return the program that tells it."""
    spec = importlib.util.spec_from_file_location("story_of_nan_float16", STORY / "story.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_losses(told: str) -> list[str]:
    """Return the last losses: in float32, in float16, and in float16 with the fix."""
    return re.findall(r"(\d\.\d{4}|nan) in float", told)


@pytest.mark.full
def test_the_layer_is_named_and_float32_mends_it(story: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """The loss is NaN, one layer is blamed, and with it in float32 the loss is close to that of float32."""
    story.tell()
    told = capsys.readouterr().out
    exact, broken, mended = read_losses(told)
    assert broken == "nan"
    assert float(mended) == pytest.approx(float(exact), rel=0.1)
    assert float(exact) < 0.3
    assert re.findall(r"float16: layer 1 \(Normalise\): (\w+): ", told) == ["NaN"]
    assert "Layers named: Normalise before, none after." in told


def test_the_transcript_is_of_this_story(story: ModuleType) -> None:
    """It holds the commands and the changed lines as they are now, and the README has its losses."""
    told = (STORY / "transcript.txt").read_text(encoding="utf-8")
    for script in ("train.py", "fixed.py"):
        assert f"$ python {script} float16\n" in told
        assert f"$ headrace train check {script}:make --only precision\n" in told
    assert [line for line in story.changed() if f"   {line}\n" not in told] == []
    losses = read_losses(told)
    assert len(losses) == 3
    readme = (STORY / "README.md").read_text(encoding="utf-8")
    assert [loss for loss in losses if f"| {loss} |" not in readme] == []


def test_a_training_that_fails_ends_the_story(story: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it said."""
    failed = subprocess.CompletedProcess([], 1, "", "no such file")
    monkeypatch.setattr(story.subprocess, "run", lambda *_args, **_more: failed)
    with pytest.raises(RuntimeError, match=r"python train\.py float16 ended with 1: no such file"):
        story.train("train.py", "float16")
