"""How many cameras a machine holds: predicted from the profile of a clip, and then tried with live cameras.

python -m benchmarks.video.held [CASE ...] [--quick] [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks import measure, models
from benchmarks.live_video import Seen
from benchmarks.video.app import stages
from benchmarks.video.clips import FPS, clip
from benchmarks.video.senders import cameras

MAX_AGE = 0.5
#: Of the frames that were chosen: more of them than this are not dropped where the cameras are held.
MOST_DROPPED = 0.01
#: Until all cameras are connected, and a keyframe of each came.
_START_SECONDS = 4.0
#: Other programs that take more make what is measured worthless.
_QUIET_CORES = 0.15


@dataclass(frozen=True)
class Case:
    """What cameras send, and what is done with it."""

    name: str
    fps: float
    """Frames a second of each camera that go into the pipeline; it sends 25."""
    size: tuple[int, int] = (1280, 720)
    plan: tuple[str, ...] = ()
    sleep: float = 0.0
    """Seconds of an emulated device for each frame, instead of a model."""
    region: tuple[float, float, float, float] | None = None
    side: int = 224

    @property
    def settings(self) -> list[str]:
        """Return what the Plan says."""
        return [] if self.sleep else [f"model.artifact={models.build()}", *self.plan]


BF16 = ("model.engine=openvino", "model.options.precision=bf16", "model.threads=1")
ONE = ("model.threads=1",)
SMALL = (640, 360)
CASES = (
    Case("720p, 5/s, MobileNetV2 bfloat16", 5, plan=BF16),
    Case("720p, 5/s, MobileNetV2", 5, plan=ONE),
    Case("720p, 1/s, MobileNetV2", 1, plan=ONE),
    Case("720p, 12.5/s, MobileNetV2 bfloat16", 12.5, plan=BF16),
    Case("720p, 5/s, a device of 20 ms", 5, sleep=0.020),
    Case("360p, 5/s, MobileNetV2 bfloat16", 5, SMALL, BF16),
    Case("360p, 5/s, MobileNetV2", 5, SMALL, ONE),
    Case("360p, 12.5/s, MobileNetV2", 12.5, SMALL, ONE),
    Case("360p, 25/s, a device of 5 ms", 25, SMALL, sleep=0.005),
    Case("360p, lower half, 5/s, MobileNetV2", 5, SMALL, ONE, region=(0, 0.5, 1, 1)),
)


def predict(case: Case, headroom: float = 0.0, photographs: int = 4) -> dict[str, Any]:
    """Return what `headrace capacity --cameras` says from the profile of a few clips, which begin with so many photographs."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        choice = "&".join(
            [
                f"fps={case.fps:g}",
                f"size={case.side}",
                *([f"region={','.join(map(str, case.region))}"] if case.region else []),
            ]
        )
        clips = Path(folder) / "clips"
        clips.mkdir()
        times = 3 if case.size == SMALL else 1  # a profile of a second says little
        for number in range(4 * times):
            shutil.copy(clip(8, case.size, first=number % photographs), clips / f"{number}.mp4")
        source = f"video://{clips}?{choice}"
        settings = [part for setting in case.settings for part in ("--set", setting)]
        profile = ["profile", "benchmarks/video/app.py:pipeline", "--source", source, "-o", run, *settings]
        _headrace([*profile, "-q"], {"VIDEO_SLEEP": str(case.sleep)})
        asked = ["capacity", run, "--cameras", f"{FPS}/s", "--headroom", f"{headroom:.0%}", "--untrusted", "--json"]
        found: dict[str, Any] = json.loads(_headrace(asked, {}))
        return found


def _headrace(arguments: list[str], more: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "headrace", *arguments]
    done = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 4):
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout


def watch(case: Case, count: int, seconds: float) -> dict[str, Any]:
    """Return what becomes of so many live cameras in so many seconds, the first ones left out."""
    with cameras(clip(8, case.size, suffix=".ts"), count) as (addresses, _):
        streams = {f"camera-{number}": address for number, address in enumerate(addresses)}
        source = hr.live_video(streams, fps=case.fps, size=case.side, region=case.region, max_age=MAX_AGE)
        seen, plan = Seen(), hr.Plan().with_settings(case.settings)
        marks: list[tuple[float, Counter[str], float]] = []

        def mark() -> None:
            marks.append((time.monotonic(), _total(source.counts()), measure.tree_cpu_seconds()))

        timers = [threading.Timer(after, mark) for after in (_START_SECONDS, _START_SECONDS + seconds)]
        stop = threading.Timer(_START_SECONDS + seconds + 0.2, source.stop)
        for timer in (*timers, stop):
            timer.start()
        with measure.Window() as window:
            hr.run(hr.Pipeline(source, stages=stages(case.sleep), delivery=seen), plan)
        for timer in timers:
            timer.join()
    (begin, before, cpu_before), (end, after, cpu_after) = marks
    counts = after - before
    ages = sorted(age for at, _, age in seen.answers if begin <= at <= end)
    dropped = counts["dropped_newer"] + counts["dropped_late"]
    return {
        "cameras": count,
        "decoded": counts["decoded"],
        "given": counts["given"],
        "dropped_newer": counts["dropped_newer"],
        "dropped_late": counts["dropped_late"],
        "dropped_share": dropped / max(1, dropped + counts["given"]),
        "came_share": counts["decoded"] / (count * FPS * (end - begin)),
        "age_p99": ages[math.ceil(0.99 * len(ages)) - 1] if ages else math.inf,
        "foreign_cores": window.foreign_cores,
        "cpu_ms_per_decoded_frame": 1e3 * (cpu_after - cpu_before) / max(1, counts["decoded"]),
    }


def is_held(found: Mapping[str, Any]) -> bool:
    """Return whether all frames came, and next to none was dropped or late."""
    return bool(found["dropped_share"] <= MOST_DROPPED and found["came_share"] >= 0.98 and found["age_p99"] <= MAX_AGE)


def _total(counts: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts.values():
        total.update(each)
    return total


def run(quick: bool, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return of each case how many cameras were predicted, and whether a tenth less are held, and a tenth more are not.

    Args:
        quick: The first case alone.
        names: Parts of the names of cases; none: all of them.
    """
    chosen = [case for case in CASES if not names or any(name in case.name for name in names)]
    rows = {case.name: _try(case, quick) for case in chosen[: 1 if quick else None]}
    return {"cases": rows, "most_dropped": MOST_DROPPED, "max_age": MAX_AGE, "quick": quick}


def _try(case: Case, quick: bool) -> dict[str, Any]:
    seconds, patience = (2.0, 0.0) if quick else (4.0, 30.0)
    measure.wait_quiet(_QUIET_CORES, patience)
    predicted = predict(case, photographs=2 if quick else 4)  # a smoke run makes no more clips than it has to
    if predicted["by_stages"] is None:
        return {"refused": predicted["refused"], "fewer_held": False, "more_held": False}
    limit = min(predicted["by_cpu"], predicted["by_stages"])
    fewer = _watch_alone(case, max(1, math.floor(0.9 * limit)), seconds, patience)
    more = _watch_alone(case, math.ceil(1.1 * limit), seconds, patience)
    tried = {one["cameras"]: is_held(one) for one in (fewer, more)}
    while not quick and (middle := _between(tried)) is not None:
        tried[middle] = is_held(_watch_alone(case, middle, seconds, patience))
    return {
        "tried": tried,
        "held": max((count for count, is_so in tried.items() if is_so), default=0),
        "by_cpu": predicted["by_cpu"],
        "by_stages": predicted["by_stages"],
        "predicted": limit,
        "fewer": fewer,
        "more": more,
        "fewer_held": is_held(fewer),
        "more_held": is_held(more),
    }


def _between(tried: Mapping[int, bool]) -> int | None:
    """Return a count halfway from the most that were held to the fewest that were not; None where no count is between."""
    low = max((count for count, is_so in tried.items() if is_so), default=0)
    high = min((count for count, is_so in tried.items() if not is_so), default=low)
    return (low + high) // 2 if high - low > 1 else None


def _watch_alone(case: Case, count: int, seconds: float, patience: float) -> dict[str, Any]:
    """Watch until other programs left the cores alone, twice at most, or once where nothing waits for that."""
    for _ in range(2 if patience else 1):
        measure.wait_quiet(_QUIET_CORES, patience)
        found = watch(case, count, seconds)
        if found["foreign_cores"] < _QUIET_CORES:
            break
    return found


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    lines = [
        f"| {name} | {row['refused']} | | | | |"
        if "refused" in row
        else f"| {name} | {row['by_cpu']:.1f} | {row['by_stages']:.1f} | {_say(row['fewer'], row['fewer_held'])} | "
        f"{_say(row['more'], row['more_held'])} | {row['held']} |"
        for name, row in result["cases"].items()
    ]
    right = sum(row["fewer_held"] and not row["more_held"] for row in result["cases"].values())
    return f"""# How many cameras a machine holds

`headrace capacity --cameras 25/s --headroom 0` from the profile of clips of 32 or 96 s, and then a tenth fewer and a tenth more
live cameras, which send over TCP from a process on the same cores; then others, by halves. Held: all
frames come, at most {result["most_dropped"]:.0%} of those chosen are dropped, and p99 of the answers' age is at most
{result["max_age"] * 1e3:.0f} ms.

| case | by cores | by stages | a tenth fewer | a tenth more | most held |
|---|---|---|---|---|---|
{chr(10).join(lines)}

{right} of {len(lines)} predictions are within a tenth: fewer are held, and more are not.
"""


def _say(found: Mapping[str, Any], is_it: bool) -> str:
    word = "held" if is_it else "not held"
    foreign = found.get("foreign_cores", 0.0)
    others = f" (other programs took {foreign:.1f} cores)" if foreign >= _QUIET_CORES else ""
    return (
        f"{found['cameras']}: {word}, {found['dropped_share']:.1%} dropped, p99 {found['age_p99'] * 1e3:.0f} ms{others}"
    )


def main() -> None:
    """Run what the command line asks for; with `--write`, keep today's cases of other calls."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.video.held", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="parts of names of cases; none: all of them")
    for option, text in (("quick", "the first alone"), ("json", "print JSON"), ("write", "write a dated result")):
        parser.add_argument(f"--{option}", action="store_true", help=text)
    arguments = parser.parse_args()
    result = run(arguments.quick, arguments.cases)
    before = measure.result_path("video.held").with_suffix(".json")
    if arguments.write:
        kept = json.loads(before.read_text())["data"]["cases"] if before.exists() else {}
        found = {**kept, **result["cases"]}
        result["cases"] = {case.name: found[case.name] for case in CASES if case.name in found}
        measure.write_result("video.held", as_text(result), result)
    print(json.dumps(result) if arguments.json else as_text(result))


if __name__ == "__main__":
    main()
