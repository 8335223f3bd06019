"""What is left of a flight recorder's memory when worker and supervisor are killed together.

A hundred kills take some minutes. What was counted when it was interrupted is kept, and a later run of that day goes on there.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.paths import CACHE
from benchmarks.watch.quiet import before_others
from headrace.monitor.recorder.places import list_recordings
from headrace.monitor.recorder.recording import Recording, read_recording
from headrace.monitor.recorder.ring import remove_recording
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

READABLE_SECONDS, MOST_LOST_SECONDS = 5.0, 1.5
_KILLS, _AT_ONCE = 100, 3
_KEPT = CACHE / "recorder_kills.json"
#: Folder of the queue: where others keep the disk busy, nothing happens for a while that could be recorded.
_MEMORY = "/dev/shm"
_APP = """
import time
import headrace as hr
pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db"),
    stages=[hr.stage("work", lambda value: time.sleep(0.02) or 1, kind="io")], delivery=hr.callback(),
)
"""


def measure(quick: bool) -> dict[str, Any]:
    """Return what `recorder` holds of the kills."""
    if quick:
        return {"recorder": {"readable_after_kill": sum(count_readable(1)), "kills": 1}}
    found = _read_kept()
    try:
        for is_readable in count_readable(_KILLS - len(found)):
            found.append(is_readable)
            _keep(found)
    except KeyboardInterrupt:
        print(f"interrupted after {len(found)} kills, which are kept; run it again", file=sys.stderr)
        raise
    _KEPT.unlink()
    return {"recorder": {"readable_after_kill": sum(found), "kills": len(found)}}


def _read_kept() -> list[bool]:
    """Return what runs of today counted before they were interrupted."""
    if not _KEPT.exists():
        return []
    kept = json.loads(_KEPT.read_text())
    return list(kept["readable"]) if kept["day"] == _today() else []


def _keep(readable: list[bool]) -> None:
    _KEPT.parent.mkdir(parents=True, exist_ok=True)
    _KEPT.write_text(json.dumps({"day": _today(), "readable": readable}))


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def as_text(result: dict[str, Any]) -> str:
    """Return the part of the page."""
    found = result["recorder"]
    return (
        f"## The flight recorder after a kill\n\nWorker and supervisor are killed together at a random moment, {_AT_ONCE} runs "
        f"side by side. The last {READABLE_SECONDS:g} s, up to the last {MOST_LOST_SECONDS:g} s, were readable after "
        f"{found['readable_after_kill']} of {found['kills']} kills (goal: all)."
    )


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line if the goal was missed."""
    found = result["recorder"]
    if found["readable_after_kill"] < found["kills"]:
        return [f"recorder: readable after {found['readable_after_kill']} of {found['kills']} kills"]
    return []


def count_readable(kills: int) -> Iterator[bool]:
    """Yield for each kill, of a run of its own, whether the last seconds can be read."""
    # Few at once: only the recordings of the newest four runs that were killed are kept.
    with before_others(), ThreadPoolExecutor(_AT_ONCE) as pool:
        for first in range(0, kills, _AT_ONCE):
            yield from pool.map(_kill_once, range(first, min(kills, first + _AT_ONCE)))


def _kill_once(number: int) -> bool:
    """Kill worker and supervisor at a random moment; return whether the last seconds can be read."""
    print(f"kill {number + 1}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-kill-", dir=_MEMORY) as folder:
        (Path(folder) / "app.py").write_text(_APP)
        queue = SqliteQueue(f"{folder}/jobs.db")
        queue.send([encode_job(b"job") for _ in range(6_000)])
        root = Path(__file__).resolve().parents[2]
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "headrace", "run", "app.py:pipeline", "--supervise", "1", "--recorder", "8MB",
             "--results", "out.jsonl", "--set", "work.workers=8"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return _is_readable(supervisor, READABLE_SECONDS + random.uniform(1.0, 2.5))
        finally:
            supervisor.kill()
            supervisor.wait()
            for place, identity in list_recordings():
                if identity.supervisor == supervisor.pid:
                    remove_recording(place)


def _is_readable(supervisor: subprocess.Popen[bytes], after_seconds: float) -> bool:
    recording = _wait_for_recording(supervisor.pid)
    if recording is None:
        return False
    time.sleep(after_seconds)
    for process in (recording.identity.process, supervisor.pid):
        os.kill(process, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    left = _wait_for_recording(supervisor.pid)
    return left is not None and not left.damaged_bytes and covers(left, killed_ns)


def covers(recording: Recording, killed_ns: int) -> bool:
    """Return whether each of the last five seconds has spans and resources, but for what may be lost at the end."""
    ends = killed_ns - round(MOST_LOST_SECONDS * 1e9)
    begins = killed_ns - round(READABLE_SECONDS * 1e9)
    steps = range(begins, ends, 500_000_000)
    spans = all(any(at <= span.put < at + 500_000_000 for span in recording.spans) for at in steps)
    last = max((sample.at_ns for sample in recording.samples), default=0)
    first = min((sample.at_ns for sample in recording.samples), default=killed_ns)
    return spans and first <= begins + 10**9 and last >= ends


def _wait_for_recording(supervisor: int) -> Recording | None:
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        for folder, identity in list_recordings():
            if identity.supervisor == supervisor:
                recording = read_recording(folder)
                if recording.spans:
                    return recording
        time.sleep(0.1)
    return None
