"""The benchmark that kills everything, in its short form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_nothing_is_lost() -> None:
    """After ten kills of workers and their supervisor each job was delivered, and duplicates carry the same key."""
    command = [sys.executable, "-m", "benchmarks.crash", "--quick", "--json", "--queue", "sqlite"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    row = document["queues"]["sqlite"]
    assert (row["lost"], row["dead_letters"], row["left_in_queue"]) == (0, 0, 0)
    assert row["kills"] == 10
    assert row["duplicates"] == row["duplicates_same_key"]
    assert document["soak"]["counters"]["delivered"] == 1950
