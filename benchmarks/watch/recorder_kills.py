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
#: A sleep that ends so late says that this program, and with it the run, was stopped; another run is then killed.
_MOST_LATE_SECONDS = 1.0
#: Runs for one kill: a recorder that never begins is no machine that stood still.
_MOST_TRIES = 3
#: Jobs at work when the run is killed: of so many it is open on which side of a moment they ended.
_WORKERS = 8
#: Beside the recorder each job writes down by itself when it ended; a line that was written outlives the process.
_WITNESS = "ended.txt"
_APP = f"""
import os, time
import headrace as hr

witness = os.open("{_WITNESS}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def work(value):
    time.sleep(0.02)
    os.write(witness, b"%d\\n" % time.monotonic_ns())
    return 1

pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db"), stages=[hr.stage("work", work, kind="io")], delivery=hr.callback(),
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
        f"{found['readable_after_kill']} of {found['kills']} kills (goal: all): resources, and spans of each half second "
        "in which jobs ended, by what they wrote down themselves."
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
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for first in range(0, kills, _AT_ONCE):
            yield from pool.map(_kill_once, range(first, min(kills, first + _AT_ONCE)))


def _kill_once(number: int) -> bool:
    """Kill worker and supervisor at a random moment; return whether the last seconds can be read."""
    tries = (_try_kill() for _ in range(_MOST_TRIES))
    missing = next((one for one in tries if one is not None), f"no recording in {_MOST_TRIES} runs, or all stood still")
    print(f"kill {number + 1}: {missing or 'readable'}", file=sys.stderr, flush=True)
    return not missing


def _try_kill() -> str | None:
    """Return what could not be read after a kill, empty for nothing; None where the machine stood still."""
    with tempfile.TemporaryDirectory(prefix="headrace-kill-", dir=_MEMORY) as folder:
        (Path(folder) / "app.py").write_text(_APP)
        queue = SqliteQueue(f"{folder}/jobs.db")
        queue.send([encode_job(b"job") for _ in range(6_000)])
        root = Path(__file__).resolve().parents[2]
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "headrace", "run", "app.py:pipeline", "--supervise", "1", "--recorder", "8MB",
             "--results", "out.jsonl", "--set", f"work.workers={_WORKERS}"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return _find_missing(supervisor, READABLE_SECONDS + random.uniform(1.0, 2.5), Path(folder) / _WITNESS)
        finally:
            supervisor.kill()
            supervisor.wait()
            for place, identity in list_recordings():
                if identity.supervisor == supervisor.pid:
                    remove_recording(place)


def _find_missing(supervisor: subprocess.Popen[bytes], after_seconds: float, witness: Path) -> str | None:
    """Kill worker and supervisor after that time; return what of the last seconds cannot be read, as `_try_kill` does."""
    recording = _wait_for_recording(supervisor.pid)
    if recording is None:
        return None  # it was not there in half a minute, and nothing was killed
    began = time.monotonic()
    time.sleep(after_seconds)
    if time.monotonic() - began > after_seconds + _MOST_LATE_SECONDS:
        return None
    for process in (recording.identity.process, supervisor.pid):
        os.kill(process, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    left = _wait_for_recording(supervisor.pid)
    if left is None:
        return "no recording is left"
    if left.damaged_bytes:
        return f"{left.damaged_bytes} bytes are damaged"
    return find_gap(left, [int(line) for line in witness.read_text().split()], killed_ns)


def find_gap(recording: Recording, ended_ns: list[int], killed_ns: int) -> str:
    """Return what is missing of the last five seconds, but for what may be lost at the end; empty if nothing is.

    Args:
        recording: What is left.
        ended_ns: When jobs ended, as they wrote down by themselves: nothing is missing of a moment in which none did.
        killed_ns: When the run was killed.
    """
    ends = killed_ns - round(MOST_LOST_SECONDS * 1e9)
    begins = killed_ns - round(READABLE_SECONDS * 1e9)
    for at in range(begins, ends, 500_000_000):
        jobs, spans = (
            sum(at <= when < at + 500_000_000 for when in times)
            for times in (ended_ns, [span.put for span in recording.spans])
        )
        if jobs > _WORKERS and not spans:
            return f"{jobs} jobs ended {(killed_ns - at) / 1e9:.1f} s before the kill, and no span is left of them"
    taken = [sample.at_ns for sample in recording.samples]
    if not taken or min(taken) > begins + 10**9 or max(taken) < ends:
        last = f"{(killed_ns - max(taken)) / 1e9:.1f} s before the kill" if taken else "never"
        return f"resources were read last {last}"
    return ""


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
