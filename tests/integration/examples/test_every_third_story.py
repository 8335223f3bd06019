"""The story of every third frame comes out as it is told."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

STORY = Path(__file__).parents[3] / "examples" / "stories" / "every_third" / "story.py"


@pytest.mark.slow
def test_every_third_frame_is_proved_every_tenth_is_not_and_all_are_decoded(tmp_path: Path) -> None:
    """Every third passes, every tenth misses what is short; the model gets a third of the frames, the decoder all."""
    pytest.importorskip("av")
    done = subprocess.run(
        [sys.executable, str(STORY), str(tmp_path / "runs")], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    ways = json.loads((tmp_path / "runs" / "ways.json").read_text())
    assert {one["every"]: one["outcome"] for one in ways["tried"]} == {2: "passed", 3: "passed", 10: "rejected"}
    third, tenth = ways["tried"][1]["events"], ways["tried"][2]["events"]
    assert third["found"] == third["total"]
    assert tenth["found"] < tenth["total"]
    assert re.findall(r"([\d,]+) frames decoded, ([\d,]+) given", done.stdout) == [
        ("14,000", "14,000"),
        ("14,000", "4,668"),
    ]
