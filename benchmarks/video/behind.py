"""Cameras that send more than all cores can decode: how old answers are by the sender's clock.

python -m benchmarks.video.behind [--quick] [--json] [--write]
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import headrace as hr
from benchmarks import measure
from benchmarks.video.app import Nothing
from benchmarks.video.clips import FPS, clip
from benchmarks.video.parts import decode
from benchmarks.video.senders import cameras
from headrace.runs.hardware import usable_cores
from headrace.sources.live_stream import CatchUp

#: So many times what the cores decode with nothing else to do is sent.
_TIMES, _USED_FPS, _SIDE, _MODEL_SECONDS = 2.5, 5, 224, 0.002
_SECONDS, _START_SECONDS, _QUICK_SECONDS = 30.0, 5.0, 8.0


class _Seen(Nothing):
    def __init__(self) -> None:
        self.answers: list[tuple[float, str, float, float]] = []
        """(monotonic seconds, stream, seconds of its clock, age since the frame was read)"""

    def deliver(self, job: hr.Job, result: Any) -> bool:
        """Note one answer."""
        read = time.time() - job.attributes["arrived"]
        self.answers.append((time.monotonic(), str(job.stream), job.attributes["seconds"], read))
        return True


def run(quick: bool) -> dict[str, Any]:
    """Return ages with and without leaving out what nobody can decode in time."""
    path = clip(40, suffix=".ts")  # longer than a run, so that a frame's time in it says when it was sent
    cost = _decoding(path)
    count = math.ceil(_TIMES * usable_cores() / cost / FPS)
    seconds = _QUICK_SECONDS if quick else _SECONDS
    runs = {"with": _watch(path, count, seconds, is_catching_up=True)}
    if not quick:
        runs["without"] = _watch(path, count, seconds, is_catching_up=False)
    return {"cameras": count, "decode_ms": 1e3 * cost, "seconds": seconds, "runs": runs, "quick": quick}


def _decoding(path: Path) -> float:
    """Return the seconds of CPU that a frame takes to decode."""
    began = time.process_time()
    count = sum(1 for _ in decode(path))
    return (time.process_time() - began) / count


def _watch(path: Path, count: int, seconds: float, *, is_catching_up: bool) -> dict[str, Any]:
    first = next(decode(path)).time
    without = mock.patch.object(CatchUp, "passes_by", return_value=False)
    with nullcontext() if is_catching_up else without, cameras(path, count) as (addresses, _):
        began = time.monotonic()  # the senders begin with their first frames
        streams = {str(number): address for number, address in enumerate(addresses)}
        source, seen = hr.live_video(streams, fps=_USED_FPS, size=_SIDE, max_age=0.5), _Seen()
        threading.Timer(seconds, source.stop).start()
        hr.run(hr.Pipeline(source, stages=[hr.emulated("model", seconds=_MODEL_SECONDS)], delivery=seen))
    ages: dict[str, list[float]] = {name: [] for name in streams}
    reads: list[float] = []
    for at, name, own, read in seen.answers:
        if at >= began + _START_SECONDS:
            ages[name].append(at - (began + int(name) / count / FPS + own - first))
            reads.append(read)
    every = sorted(age for found in ages.values() for age in found)
    lasts = [found[-1] for found in ages.values() if found]
    totals: Counter[str] = Counter()
    for each in source.counts().values():
        totals.update(each)
    return {
        "answers_per_second": len(every) / (seconds - _START_SECONDS),
        "streams_answered": len(lasts),
        "age_p50_seconds": statistics.median(every),
        "age_p99_seconds": every[math.ceil(0.99 * len(every)) - 1],
        "age_most_seconds": every[-1],
        "last_answers_most_seconds": max(lasts),
        "since_read_most_seconds": max(reads),
        "decoded_per_second": totals["decoded"] / seconds,
        "packets_behind": source.notes().get("video.packets_behind", 0),
    }


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    rows = [
        f"| {name} | {one['decoded_per_second']:.0f} | {one['packets_behind']:,} | {one['answers_per_second']:.0f} | "
        f"{one['streams_answered']} | {one['age_p50_seconds']:.2f} | {one['age_p99_seconds']:.2f} | "
        f"{one['age_most_seconds']:.2f} | {one['last_answers_most_seconds']:.2f} | {one['since_read_most_seconds']:.2f} |"
        for name, one in result["runs"].items()
    ]
    return f"""# Cameras that send more than all cores can decode

{result["cameras"]} cameras send 720p H.264 at {FPS} frames a second over TCP, from a process on the same cores:
{_TIMES:g} times what these decode with nothing else to do, at {result["decode_ms"]:.1f} ms of CPU a frame. Of each, {_USED_FPS}
frames a second go to an emulated model, with `max_age` at 0.5 s; {result["seconds"]:g} s, the first {_START_SECONDS:g} left
out. Age is by the sender's clock: from the moment when a frame was due to be sent to its answer, so what waits unread in
sockets is in it. `without`: the same with the rule switched off that leaves out packets of a stream that lags.

| | decoded/s | left out | answers/s | cameras | age p50, s | p99 | most | the last of each | since read |
|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}
"""


if __name__ == "__main__":
    measure.run_benchmark("video.behind", "Cameras that send more than all cores can decode.", run, as_text)
