"""All of it: ``python -m benchmarks.video [--quick] [--json] [--write]``; each part has a command of its own too."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import live_video, measure
from benchmarks.video import faults, files, held


def run(quick: bool) -> dict[str, Any]:
    """Return what all parts come to."""
    parts = (files.run, live_video.run, faults.run)
    if quick:  # side by side: a smoke run's figures count for nothing
        with ThreadPoolExecutor(len(parts)) as pool:
            clips, live, failing = pool.map(lambda part: part(quick), parts)
    else:
        clips, live, failing = (part(quick) for part in parts)
    cameras = held.run(quick, ["720p, 5/s, MobileNetV2 bfloat16"])["cases"]
    (first,) = cameras.values()
    recoveries = live["recovery_seconds"]
    return {
        "files": {"ratio_best_peer": clips["ratio_best_peer"], "peers": clips["peers"], "headrace": clips["headrace"]},
        "missing_peers": clips["missing"],
        "streams_held": first.get("held"),
        "age_p99_share": live["age_p99_share"],
        "jain": live["jain"],
        "cpu_ms_per_frame": clips["headrace"]["cpu_ms_per_frame"],
        "recovery_s": max(recoveries) if recoveries else None,
        "faults": {
            "tried": sum(sum(failing[how]["tried"].values()) for how in ("live", "rtsp")) + failing["clips"]["tried"],
            "lost": failing["live"]["lost"]
            + failing["rtsp"]["lost"]
            + failing["clips"]["errors"]
            + failing["clips"]["crashed"],
        },
        "memory": {**failing["live"]["grew"], "clips_mib": failing["clips"].get("grew_mib")},
        "parts": {"files": clips, "live": live, "faults": failing, "held": cameras},
        "quick": quick,
    }


def as_text(result: Mapping[str, Any]) -> str:
    """Return the results of all parts for readers."""
    parts = result["parts"]
    cases = {"cases": parts["held"], "most_dropped": held.MOST_DROPPED, "max_age": held.MAX_AGE}
    texts = (
        files.as_text(parts["files"]),
        held.as_text(cases),
        live_video.as_text(parts["live"]),
        faults.as_text(parts["faults"]),
    )
    return "\n\n".join(text.strip() for text in texts) + "\n"


if __name__ == "__main__":
    measure.run_benchmark("video", "Video against loops that people write, live streams, faults.", run, as_text)
