"""The story of every third frame, told by running it: `python story.py [FOLDER]` prints the transcript.

1. Every frame is answered, as it always was.
2. `headrace validate --frames` says from these answers what it would cost to look at fewer frames.
3. The fewest that pass are run. The processor does less, and not as much less as frames are fewer.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import clips

HERE = Path(__file__).parent
CAMERAS, SECONDS = ("east.mp4", "west.mp4"), 700
WAYS, MOST_DROP = "2,3,10", "3pt"


def headrace(*arguments: str, folder: Path, expect: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
    """Print a command as it would be typed, and run it in a folder."""
    print(f"$ {shlex.join(('headrace', *arguments))}".replace(f"{HERE}/", ""))
    command = [sys.executable, "-m", "headrace", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "110"}
    )
    if done.returncode not in expect:
        raise RuntimeError(f"it ended with {done.returncode}: {done.stderr}")
    return done


def answer(folder: Path, every: int) -> float:
    """Answer the frames of all clips, and return CPU seconds for an hour of them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = headrace("run", f"{HERE / 'jobs.py'}:pipeline", "--source", f"video://clips?size=224&every={every}",
                    "--results", f"every{every}.jsonl", "--json", folder=folder)  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    notes = json.loads(done.stdout)["notes"]
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    hourly = used * 3600 / (SECONDS * len(CAMERAS))
    print(f"   {notes['video.decoded']:,} frames decoded, {notes['video.given']:,} given to the model; "
          f"{hourly:.0f} s of CPU for an hour of video")  # fmt: skip
    return hourly


def main(folder: Path) -> None:
    """Tell the story."""
    clips.write(folder / "clips", CAMERAS, SECONDS)
    print("1. Every frame is answered.")
    all_of_them = answer(folder, 1)
    print("\n2. What would it cost to look at fewer?")
    done = headrace("validate", "--frames", "every1.jsonl", "--labels", "labels.csv", "--every", WAYS, "--max-drop", MOST_DROP,
                    "--event", clips.EVENT, "-o", "ways.json", folder=folder, expect=(0, 1, 4))  # fmt: skip
    print(done.stdout.strip())
    ways = json.loads((folder / "ways.json").read_text())
    if ways["best"] is None:
        print("None is proved to be good enough.")
        return
    every = ways["tried"][ways["best"]]["every"]
    print(f"\n3. One of {every} frames.")
    fewer = answer(folder, every)
    print(f"\nOne of {every} frames takes {fewer / all_of_them:.0%} of the processor: each frame is still decoded.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/every_third").resolve())
