"""The story of the device that swaps comes out as it is told."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

STORY = Path(__file__).parents[3] / "examples" / "stories" / "small_device" / "story.py"


@pytest.mark.slow
def test_what_does_not_fit_is_never_made(tmp_path: Path) -> None:
    """The budget makes batches smaller, before one is made that would not fit."""
    done = subprocess.run(
        [sys.executable, str(STORY), str(tmp_path / "runs")], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split("\n2. ")
    assert "batches have at most" not in before
    (largest,) = re.findall(r"batches have at most (\d+) items", after)
    assert int(largest) < 32
