"""What is known of a stage's hot spots, and the files it is kept in."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.documents import encode_document
from headrace.base.formatting import encodable
from headrace.runs.run_folder import replace_file

logger = logging.getLogger("headrace")

SCHEMA = "headrace.hot_spots/1"
#: Rows of the table.
_TOP = 100

#: Outermost first.
Stack = tuple["Frame", ...]


class Frame(msgspec.Struct, frozen=True):
    """A place in the code."""

    name: str
    file: str
    line: int
    """The line at work (sampling), or where the function begins (counting); 0 for functions in C."""


class HotSpot(msgspec.Struct, frozen=True, kw_only=True):
    """One place and what it costs."""

    function: str
    file: str
    line: int
    """See `Frame.line`."""
    self_share: float
    """Of the stage's time at work, 0 to 1: in this line, or function, itself."""
    total_share: float
    """With what it called."""
    calls: int | None = None
    """None where they were not counted."""


class HotSpots(msgspec.Struct, frozen=True, kw_only=True):
    """Where one stage's Python code spends its time."""

    schema: str = SCHEMA
    stage: str
    method: str
    """`py-spy`: samples of threads at work. `cProfile`: every call, in wall time."""
    seconds: float
    """Observed, summed over workers: samples over their rate, or time in the stage's calls."""
    num_samples: int | None
    """Within the stage's calls; None where calls were counted."""
    num_outside: int | None
    """Samples of its workers at headrace's own work: taking items and handing them on."""
    num_without_stack: int | None
    """Samples whose stack could not be read."""
    num_calls: int | None
    """Of the stage; None where it was sampled."""
    workers: tuple[str, ...]
    """Threads that were seen at work, or processes that were counted."""
    files: tuple[str, ...]
    """In the folder."""
    notes: tuple[str, ...]
    top: tuple[HotSpot, ...]
    """The most costly ones by their own share."""


def most_costly(found: list[HotSpot]) -> list[HotSpot]:
    """Return the rows of the table, the largest own share first."""
    return sorted(found, key=lambda one: (-one.self_share, -one.total_share, one.file, one.line, one.function))[:_TOP]


def speedscope(name: str, profiles: dict[str, dict[Stack, float]]) -> bytes:
    """Return a speedscope file.

    Args:
        name: Title.
        profiles: {thread: {stack, outermost first: seconds}}; stacks are sorted, so that equal ones are neighbours.
    """
    frames: dict[Frame, int] = {}
    written = []
    for thread, stacks in profiles.items():
        ordered = sorted(stacks.items(), key=lambda one: [(frame.name, frame.file, frame.line) for frame in one[0]])
        samples = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack, _ in ordered]
        weights = [weight for _, weight in ordered]
        written.append(
            {
                "type": "sampled",
                "name": thread,
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        )
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "exporter": "headrace",
        "activeProfileIndex": 0,
        "shared": {"frames": [_speedscope_frame(frame) for frame in frames]},
        "profiles": written,
    }
    return encode_document(document)


def _speedscope_frame(frame: Frame) -> dict[str, Any]:
    place = {"file": encodable(frame.file), "line": frame.line} if frame.line else {}
    return {"name": encodable(frame.name), **place}


def fold_stacks(stacks: Counter[Stack]) -> bytes:
    """Return stacks as lines `outer;inner count`, which flame graph tools read."""
    lines = []
    for stack, count in stacks.items():
        names = [f"{frame.name} ({Path(frame.file).name}:{frame.line})".replace(";", ",") for frame in stack]
        lines.append(f"{';'.join(names)} {count}\n")
    return encodable("".join(sorted(lines))).encode()


def encode_record(result: HotSpots) -> bytes:
    """Return the record as its file holds it."""
    return encode_document(result, indent=True) + b"\n"


def write_files(folder: Path, contents: dict[str, bytes]) -> None:
    """Write each file whole or not at all, and make the folder if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        replace_file(folder / name, content)


def file_stem(stage: str) -> str:
    """Return a stage's name as files can have it."""
    return re.sub(r"[^\w.-]", "_", stage)
