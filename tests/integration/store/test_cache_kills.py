"""The disk cache under kills, and under readers that want the same: the benchmark's program, with few of each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.smoke
@pytest.mark.parametrize("damage", [[], ["--damage"]])
def test_kills_and_readers_change_no_byte(damage: list[str], tmp_path: Path) -> None:
    """Twenty kills and ten rounds of eight readers: nothing wrong, the limit holds, nothing is left, one download an item."""
    program = [sys.executable, "-m", "benchmarks.feed.cache", str(tmp_path), "--kills", "20", "--rounds", "10", *damage]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2_000:]
    found = json.loads(done.stdout)
    assert found["kills"]["kills"] == 20
    assert found["kills"]["lookups"] > 100
    for name in ("over_limit", "wrong", "damaged", "files_left", "room_not_of_files"):
        assert found["kills"][name] == 0, (name, found)
    assert found["readers"]["wrong"] == 0
    assert found["readers"]["downloads_per_item"] == 1.0
