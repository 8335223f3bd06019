"""The story of dusk comes out as it is told."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

STORY = Path(__file__).parents[3] / "examples" / "stories" / "dusk" / "story.py"


@pytest.mark.measures
def test_dusk_a_larger_camera_and_a_new_one_are_told_apart(tmp_path: Path) -> None:
    """Dusk is drift of light, and decodes longer; smeared images are told, the gate's size with its cost, the dock is news."""
    done = subprocess.run(
        [sys.executable, str(STORY), str(tmp_path / "runs")],
        capture_output=True, text=True, timeout=500, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^\d\. ", done.stdout, flags=re.MULTILINE)[1:]
    usual, tomorrow, dusk, blurred, gate, dock = parts
    right = [int(share) for share in re.findall(r"(\d+)% of them are right", done.stdout)]
    assert right[0] > 90
    assert right[2] < right[0] / 2
    assert "simulated windows" in usual
    assert "drift: steady" in tomorrow
    assert "images are darker" in dusk
    assert re.search(r"decode takes [\d.]+x the CPU time", dusk)
    assert right[3] < right[0]
    assert "images are more blurred" in blurred
    assert "darker" not in blurred
    assert "images are larger" in gate
    assert re.search(
        r"images of folder 'gate' have [\d.]+x as many (pixels|bytes) since .* takes [\d.]+x the CPU time", gate
    )
    assert "folder 'dock' is new" in dock
