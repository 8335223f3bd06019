"""The story of eight bits comes out as it is told."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

STORY = Path(__file__).parents[3] / "examples" / "stories" / "eight_bits" / "story.py"


@pytest.mark.measures
def test_a_variant_that_was_accepted_is_taken_back_and_rejected_once_the_golden_set_holds_what_breaks_it(
    tmp_path: Path,
) -> None:
    """Accepted on 8 bits, noticed by a shadow, rolled back, rejected on both, and the repair accepted on both."""
    done = subprocess.run(
        [sys.executable, str(STORY), str(tmp_path / "runs")], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    first, production, back, again, repaired = re.split(r"^\d\. ", done.stdout, flags=re.MULTILINE)[1:]
    assert "ACCEPT" in first
    assert "decision d1: plan.toml names eight_bits.onnx" in first
    assert "8,000 received, 8,000 delivered" in production
    changed = re.search(
        r"^shadow float64\.onnx: .*?([\d.]+)% of [\d,]+ answers changed", production, flags=re.MULTILINE
    )
    assert changed
    assert float(changed[1]) > 1
    assert "plan.toml is back at float64.onnx" in " ".join(
        back.split()
    )  # where its lines break depends on the folder's name
    right, before = map(float, re.findall(r"accuracy: rejected: ([\d.]+)% right against ([\d.]+)%", again)[0])
    assert right < before - 10
    assert "REJECT" in again
    assert "ACCEPT" in repaired
    assert "decision d3: plan.toml names float32.onnx" in repaired
    assert "float32.onnx" in (tmp_path / "runs" / "plan.toml").read_text()
