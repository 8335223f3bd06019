"""The story of the industrial camera comes out as it is told."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

STORY = Path(__file__).parents[3] / "examples" / "stories" / "industrial_camera" / "story.py"


@pytest.mark.full
@pytest.mark.slow
def test_smaller_images_are_proved_to_be_as_often_right(tmp_path: Path) -> None:
    """Both ways are asked on the golden set, and the Plan that is run takes what was accepted."""
    pytest.importorskip("onnx")
    done = subprocess.run(
        [sys.executable, str(STORY), str(tmp_path / "runs")], capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr
    eight_bits, smaller, after = re.split(r"^\d\. ", done.stdout, flags=re.MULTILINE)[2:]
    assert "int8.onnx" in eight_bits
    assert re.search(r"accuracy +\w+ +[\d.]+% right against [\d.]+%, of 220 items", eight_bits)
    assert re.search(r"speed +passed", smaller)
    assert re.search(r"accuracy +passed", smaller)
    assert "ACCEPT" in smaller
    assert "--plan small.toml" in after
    assert tomllib.loads((tmp_path / "runs" / "small.toml").read_text())["model"]["input_side"] == 160
