"""Plants an incident, kills the run, and looks at what its recorder says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.watch.incidents.catalogue import Planted, is_right

#: Length of a run; at half of it something changes.
SECONDS = 24.0
_START_SECONDS = 30.0


def plant(planted: Planted, folder: Path, seconds: float = SECONDS) -> dict[str, Any]:
    """Run an incident and return its document (`headrace.incident/1`), written after the run was killed."""
    command = [sys.executable, "-m", "benchmarks.watch.incidents.world", json.dumps(planted.knobs), str(seconds)]
    world = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        process = int(world.stdout.readline()) if world.stdout else 0
        time.sleep(seconds)
    finally:
        world.kill()
        world.wait()
    return write_snapshot(process, folder)


def write_snapshot(process: int, folder: Path) -> dict[str, Any]:
    """Have the recording of a dead process written, and return the document."""
    command = [
        sys.executable,
        "-m",
        "headrace",
        "snapshot",
        str(process),
        "--incidents",
        str(folder),
        "--remove",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "NO_COLOR": "1"})
    document: dict[str, Any] = json.loads(done.stdout)["incidents"][0]
    return document


def score(planted: Planted, *, seconds: float = SECONDS) -> dict[str, Any]:
    """Return what was planted, what was named, and whether that is right."""
    with tempfile.TemporaryDirectory(prefix="headrace-incidents-") as folder:
        document = plant(planted, Path(folder), seconds)
    changes = document["changes"]
    return {
        "name": planted.name,
        "expected": [f"{kind.value} {stage or ''}".strip() for kind, stage in planted.expected],
        "named": [f"{one['kind']} {one['stage'] or ''}".strip() for one in changes[:3]],
        "shares": [round(one["explains_share"], 2) for one in changes[:3]],
        "bottleneck": document["bottleneck"].split(":")[0],
        "says": document["says"],
        "right": is_right(planted, changes),
    }


if __name__ == "__main__":
    from benchmarks.watch.incidents.catalogue import COMPOUND, SINGLE

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    wanted = sys.argv[1:]
    for one in (*SINGLE, *(COMPOUND if "compound" in wanted else ())):
        if not wanted or "compound" in wanted or any(word in one.name for word in wanted):
            print(json.dumps(score(one), indent=1), flush=True)
