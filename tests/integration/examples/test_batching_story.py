"""The story of batching comes out as it is told."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

STORY = Path(__file__).parents[3] / "examples" / "stories" / "batching" / "story.py"


@pytest.mark.measures
def test_batches_make_pages_several_times_faster(tmp_path: Path) -> None:
    """One image per call takes a page 16 calls; batches take it about two; nothing fails, and nothing was predicted wrongly."""
    done = subprocess.run(
        [sys.executable, str(STORY), str(tmp_path / "runs")],
        capture_output=True, text=True, timeout=300, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = [int(found) for found in re.findall(r"a page is complete after (\d+) ms", done.stdout)]
    naive, one, sixteen = pages
    assert naive >= 16 * 17.6
    assert one >= 16 * 17.6
    assert sixteen < one / 3
    assert done.stdout.count(", 0 failed") == 3
    assert "ARRIVAL_LIMITED" in done.stdout or "UNTRUSTED" in done.stdout
    assert "whatif process.batch=16 predicts" in done.stdout
    assert "The device was emulated" in done.stdout
