"""What is left of a flight recorder's memory when worker and supervisor are killed together."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.watch.quiet import before_others
from headrace.monitor.recorder.places import list_recordings
from headrace.monitor.recorder.recording import Recording, read_recording
from headrace.monitor.recorder.ring import remove_recording
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

READABLE_SECONDS, MOST_LOST_SECONDS = 5.0, 1.5
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


def count_readable(kills: int) -> int:
    """Return after how many kills, each of a run of its own, the last seconds can be read."""
    with before_others():  # one after the other: only the recordings of the newest runs that were killed are kept
        return sum(_kill_once(number) for number in range(kills))


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
