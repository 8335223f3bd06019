"""The story of the device that swaps, told by running it: `python story.py [FOLDER]` prints the transcript.

1. Batches of 32: the program has more memory than the device, and each call waits for the card.
2. The Plan says what the device has. Warm-up predicts the peak of each batch, and what would not fit is never made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from headrace.samples.generator import make

HERE = Path(__file__).parent
NUM_PHOTOS, BATCH, MEMORY = 128, 32, "256MB"


def run(*settings: str, folder: Path) -> float:
    """Print a run as it would be typed, with what it said, and return items a second."""
    arguments = [part for setting in settings for part in ("--set", setting)]
    print(f"$ headrace run jobs.py:pipeline {' '.join(arguments)}")
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "run", f"{HERE / 'jobs.py'}:pipeline", *arguments, "--json"],
        cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "400"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"it ended with {done.returncode}: {done.stderr}")
    for line in done.stderr.splitlines():
        if "batches have at most" in line or "[budget]" in line:
            print(f"   {line}")
    rate = float(json.loads(done.stdout)["throughput_per_second"])
    print(f"   {rate:.1f} images/s")
    return rate


def main(folder: Path) -> None:
    """Tell the story."""
    make(folder / "photos", count=NUM_PHOTOS, seed=5, split="held_out", force=True)
    print(f"1. Batches of {BATCH} on a device with {MEMORY} for this program.")
    before = run(f"process.batch={BATCH}", "source.max_in_flight=64", folder=folder)
    print("\n2. The Plan says how much memory there is.")
    after = run(f"process.batch={BATCH}", "source.max_in_flight=64", f"budget.memory={MEMORY}", folder=folder)
    print(f"\n{before:.1f} images/s became {after:.1f}: {after / before:.1f} times as many.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/small_device").resolve())
