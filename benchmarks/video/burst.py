"""Cameras that send five times as much for ten seconds, which is more than the model can do: when are answers as before?

python -m benchmarks.video.burst [--quick] [--json] [--write]
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import headrace as hr
from benchmarks import measure
from benchmarks.live_video import Seen
from benchmarks.video.clips import clip
from benchmarks.video.senders import cameras

_CAMERAS, _FPS, _MODEL_SECONDS, _FASTER = 8, 5, 0.01, 5.0
_BEFORE_SECONDS, _BURST_SECONDS, _AFTER_SECONDS = 4.0, 10.0, 5.0
#: An answer is as before if it is no older than p99 before, and so many seconds.
_NORMAL_SECONDS = 0.02


def run(quick: bool) -> dict[str, Any]:
    """Return ages before, during and after bursts, and how long after each the last late answer came."""
    bursts = [_burst(3.0 if quick else _BURST_SECONDS) for _ in range(1 if quick else 3)]
    return {"bursts": bursts, "recovery_s": max(one["recovery_s"] for one in bursts), "quick": quick}


def _burst(seconds: float) -> dict[str, Any]:
    with cameras(clip(8, (320, 180), suffix=".ts"), _CAMERAS) as (addresses, order):
        source = hr.live_video(addresses, fps=_FPS, size=224, max_age=0.5)
        seen = Seen()
        marks: list[float] = []

        def tell() -> None:
            while len({name for _, name, _ in seen.answers}) < _CAMERAS:
                time.sleep(0.05)
            time.sleep(2.0)
            for speed, lasts in ((1.0, _BEFORE_SECONDS), (_FASTER, seconds), (1.0, _AFTER_SECONDS)):
                order("speed", 0, speed)
                marks.append(time.monotonic())
                time.sleep(lasts)
            marks.append(time.monotonic())
            source.stop()

        teller = threading.Thread(target=tell)
        teller.start()
        plan = hr.Plan().with_settings(["device.workers=1"])
        hr.run(hr.Pipeline(source, stages=[hr.emulated("device", seconds=_MODEL_SECONDS)], delivery=seen), plan)
        teller.join()
        counts = source.counts().values()
    begin, burst, after, end = marks
    parts = {"before": (begin, burst), "burst": (burst, after), "after": (after, end)}
    ages = {name: [age for at, _, age in seen.answers if first <= at < last] for name, (first, last) in parts.items()}
    normal = _p99(ages["before"]) + _NORMAL_SECONDS
    late = [at - after for at, _, age in seen.answers if at >= after and age > normal]
    return {
        "answers_per_second": {name: len(ages[name]) / (last - first) for name, (first, last) in parts.items()},
        "age_p99_seconds": {name: _p99(found) for name, found in ages.items()},
        "dropped": sum(number for each in counts for what, number in each.items() if what.startswith("dropped_")),
        "recovery_s": max(late, default=0.0),
    }


def _p99(ages: Sequence[float]) -> float:
    return sorted(ages)[math.ceil(0.99 * len(ages)) - 1]


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    rows = []
    for one in result["bursts"]:
        rates, worst = one["answers_per_second"], one["age_p99_seconds"]
        told = [f"{rates[part]:.0f}/s, {1e3 * worst[part]:.0f} ms" for part in ("before", "burst", "after")]
        rows.append(f"| {' | '.join(told)} | {one['dropped']} | {one['recovery_s']:.2f} s |")
    share = _CAMERAS * _FPS * _FASTER * _MODEL_SECONDS
    return f"""# Bursts of live streams

{_CAMERAS} cameras of which {_FPS} frames a second go to a model that does {1 / _MODEL_SECONDS:.0f} a second (emulated).
For {_BURST_SECONDS:g} s they send {_FASTER:g} times as fast, which is {share:g} times what the model can do. Answers a second
and p99 of their age:

| before | burst | after | dropped | last answer older than before |
|---|---|---|---|---|
{chr(10).join(rows)}

An answer counts as older if it is more than {1e3 * _NORMAL_SECONDS:.0f} ms above the p99 before; the last such came
{result["recovery_s"]:.2f} s after a burst's end.
"""


if __name__ == "__main__":
    measure.run_benchmark("video.burst", "Bursts of live streams.", run, as_text)
