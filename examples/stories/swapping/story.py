"""The story of the batch that swaps, told by running it: `python story.py` prints the transcript.

A search tries sizes from 1 on, each in a process of its own that is ended above the limit; the sweet spot is where more samples
at once bring nothing any more.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MEMORY = "900MB"


def search(memory: str, largest: int | None = None) -> dict[str, Any]:
    """Show a search as it would be typed, with what it found for each size, and return what it found."""
    asked = ["train", "batch", "train.py:make", "--memory", memory]
    asked += [] if largest is None else ["--largest", str(largest)]
    print(f"$ {' '.join(('headrace', *asked))}")
    command = [sys.executable, "-m", "headrace", *asked, "--json"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"headrace {' '.join(asked)} ended with {done.returncode}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    best = max(trial["samples_per_second"] or 0.0 for trial in found["trials"])
    for trial in found["trials"]:
        print(f"   {describe(trial, best)}{'   <- recommended' if trial['batch_size'] == found['batch_size'] else ''}")
    return found


def describe(trial: dict[str, Any], best: float) -> str:
    """Return a size in a line: texts a second with a bar, and memory."""
    if trial["outcome"] != "measured":
        return f"batch of {trial['batch_size']:>3}: {trial['why']}"
    rate, bar = trial["samples_per_second"], "#" * round(30 * trial["samples_per_second"] / best)
    return f"batch of {trial['batch_size']:>3}: {rate:5.0f} texts/s, {trial['peak_bytes'] / 1e6:4.0f} MB  {bar}"


def tell() -> None:
    """Tell the story, to be read while it goes on."""
    print(f"A machine has {MEMORY} for this training. Its batch of 512 makes it swap; would 256 do?")
    found = search(MEMORY)
    memory = found["memory"]
    present = found["present_batch_size"]
    whole, half = (memory["fixed_bytes"] + memory["bytes_per_sample"] * size for size in (present, present // 2))
    chosen = next(trial for trial in found["trials"] if trial["batch_size"] == found["batch_size"])
    largest = [trial for trial in found["trials"] if trial["outcome"] == "measured"][-1]
    print(f"\nThe batch of {present} would need {whole / 1e9:.1f} GB, and one of {present // 2} {half / 1e9:.1f} GB.")
    print(
        f"A batch of {chosen['batch_size']} trains {chosen['samples_per_second']:.0f} texts a second with "
        f"{chosen['peak_bytes'] / 1e6:.0f} MB; one of {largest['batch_size']}, the largest that was run, "
        f"{largest['samples_per_second']:.0f} with {largest['peak_bytes'] / 1e6:.0f} MB."
    )
    print(f"The {MEMORY} are a setting: a process that takes more is ended, where a real machine would begin to swap.")


if __name__ == "__main__":
    if not importlib.util.find_spec("torch"):
        sys.exit("this story trains: it needs PyTorch (pip install torch)")
    tell()
