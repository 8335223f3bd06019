"""The story of the slow link comes out as it is told."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

STORY = Path(__file__).parents[3] / "examples" / "stories" / "slow_link"


@pytest.fixture(scope="module")
def story() -> ModuleType:
    """Return the program that tells it."""
    spec = importlib.util.spec_from_file_location("story_of_the_slow_link", STORY / "story.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_ratios(told: str) -> list[float]:
    """Return what each training was of one node: few, few repaired, many, many repaired."""
    (last,) = (line for line in told.splitlines() if line.startswith("Of one node:"))
    return [float(one) for one in re.findall(r"x(\d+\.\d+)", last)]


@pytest.mark.slow
def test_the_link_is_named_and_fewer_exchanges_repair_it(
    story: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exchanging takes the step, which a ring over that link needs at least; exchanging less often gives more samples."""
    story.tell(tmp_path, 2, 3, 24)
    told = capfd.readouterr().out
    few, few_fixed, many, many_fixed = read_ratios(told)
    assert "What diagnose named first: COMMUNICATION" in told
    assert few_fixed > few
    assert many_fixed > many
    assert many < 1  # a step of 20 ms, and an exchange of 1 MB x 4/3 at 7 MB/s: 200 ms


def test_the_transcript_is_of_this_story(story: ModuleType) -> None:
    """It holds the commands as they are now, and the README has its ratios; eight nodes are slower than one."""
    told = (STORY / "transcript.txt").read_text(encoding="utf-8")
    commands = (
        story.launch("train.py", 1, story.LINK, story.STEPS),
        story.launch("train.py", story.MANY, story.THROTTLED, story.STEPS),
        story.launch("fixed.py", story.FEW, story.LINK, story.STEPS // story.EVERY + 8, story.EVERY),
    )
    assert [one for one in commands if " ".join(one) not in told] == []
    ratios = read_ratios(told)
    assert len(ratios) == 4
    few, few_fixed, many, many_fixed = ratios
    assert many < 1 < few < few_fixed
    assert many_fixed > 1.7
    readme = (STORY / "README.md").read_text(encoding="utf-8")
    assert [one for one in ratios if f"x{one:.2f}" not in readme] == []
