"""The flight recorder: what it costs, what is left after a kill, and whether it names the cause of planted incidents.

CPU: one process runs the same pipeline with and without the recorder in turn, A B B A, 400 items a second. Kills: worker and
supervisor are killed together at a random moment, and the last five seconds must be readable, up to the last second. Incidents:
see `benchmarks.watch.incidents`; without `--quick` all of them, and the compound ones apart.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.faults import work
from benchmarks.faults.sources import Broker, FedQueue
from benchmarks.watch.incidents.catalogue import COMPOUND, SINGLE
from benchmarks.watch.incidents.score import SECONDS, score
from headrace.base.observer import Observer
from headrace.base.plan import Plan
from headrace.base.records import Job, Outcome
from headrace.monitor.recorder.places import list_recordings
from headrace.monitor.recorder.recorder import Recorder, RecorderSettings
from headrace.monitor.recorder.recording import Recording, read_recording
from headrace.monitor.recorder.ring import remove_recording
from headrace.pipeline.execute import run
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

MOST_CPU_SHARE, READABLE_SECONDS, MOST_LOST_SECONDS, LEAST_RIGHT = 0.01, 5.0, 1.5, 22
_RATE, _STAGE_SECONDS = 400.0, 0.0006
_QUICK_INCIDENT = "slow receiver, 0.3 s"
_APP = """
import time
import headrace as hr
pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db"),
    stages=[hr.stage("work", lambda value: time.sleep(0.02) or 1, kind="io")], delivery=hr.callback(),
)
"""


def measure(quick: bool) -> dict[str, Any]:
    """Return `recorder` and `incidents`."""
    shares = _measure_cpu_shares(pairs=1 if quick else 12, seconds=2.0 if quick else 8.0)
    kills = 1 if quick else 100
    chosen = [one for one in SINGLE if not quick or one.name == _QUICK_INCIDENT]
    with ThreadPoolExecutor(max_workers=2 if quick else 1) as pool:  # what is quick need not be exact
        killing = pool.submit(lambda: sum(_kill_once(number) for number in range(kills)))
        scoring = pool.submit(lambda: [_score(one, seconds=16.0 if quick else SECONDS) for one in chosen])
        readable, found = killing.result(), scoring.result()
    compound = [] if quick else [_score(one, seconds=SECONDS) for one in COMPOUND]
    return {
        "recorder": {
            "cpu_share": statistics.median(shares),
            "cpu_share_of_each_pair": shares,
            "readable_after_kill": readable,
            "kills": kills,
        },
        "incidents": {
            "right": sum(one["right"] for one in found),
            "of": len(found),
            "each": found,
            "compound": {"right": sum(one["right"] for one in compound), "of": len(compound), "each": compound},
        },
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the part of the page."""
    recorder, incidents = result["recorder"], result["incidents"]
    pairs = ", ".join(f"{share:+.2%}" for share in recorder["cpu_share_of_each_pair"])
    cost = (
        f"CPU per item of a run of {_RATE:g} items/s with the recorder over the same without: {recorder['cpu_share']:+.2%} "
        f"(median of the pairs {pairs}). Readable after SIGKILL of worker and supervisor: {recorder['readable_after_kill']} of "
        f"{recorder['kills']}."
    )
    right = (
        f"Incidents named right from the recorder alone: {incidents['right']} of {incidents['of']}. Two at once: "
        f"{incidents['compound']['right']} of {incidents['compound']['of']}."
    )
    head = "| planted | expected | named first | share | verdict meanwhile | right |\n|---|---|---|---|---|---|"
    rows = [
        f"| {one['name']} | {', '.join(one['expected'])} | {', '.join(one['named'][: max(1, len(one['expected']))]) or '-'} | "
        f"{', '.join(f'{share:.0%}' for share in one['shares'][: len(one['expected'])])} | {one['bottleneck']} | "
        f"{'yes' if one['right'] else 'no'} |"
        for one in (*incidents["each"], *incidents["compound"]["each"])
    ]
    return "\n\n".join(["## Flight recorder", cost, right, "\n".join([head, *rows])])


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line for each goal that was missed."""
    recorder, incidents = result["recorder"], result["incidents"]
    missed = []
    if recorder["cpu_share"] > MOST_CPU_SHARE and not result["quick"]:  # a few seconds say nothing of one per cent
        missed.append(f"recorder: {recorder['cpu_share']:.2%} of CPU, goal {MOST_CPU_SHARE:.0%}")
    if recorder["readable_after_kill"] < recorder["kills"]:
        missed.append(f"recorder: readable after {recorder['readable_after_kill']} of {recorder['kills']} kills")
    least = LEAST_RIGHT / len(SINGLE)
    if incidents["right"] < least * incidents["of"]:
        missed.append(
            f"incidents: {incidents['right']} of {incidents['of']} right, goal {LEAST_RIGHT} of {len(SINGLE)}"
        )
    return missed


def _score(planted: Any, *, seconds: float) -> dict[str, Any]:
    print(f"incident: {planted.name}", file=sys.stderr, flush=True)
    return score(planted, seconds=seconds)


# --- cost


def _measure_cpu_shares(*, pairs: int, seconds: float) -> list[float]:
    """Return by how much the CPU per item is higher with the recorder, for each pair of runs."""
    work.calibrate()
    shares = []
    for number in range(pairs):
        print(f"cost: pair {number + 1} of {pairs}", file=sys.stderr, flush=True)
        order = (False, True) if number % 2 == 0 else (True, False)
        costs = {is_on: _cpu_per_item(is_on, seconds) for is_on in order}
        shares.append(costs[True] / costs[False] - 1)
    return shares


def _cpu_per_item(is_on: bool, seconds: float) -> float:
    """Return CPU seconds per delivered item of six stages at 400 items a second."""
    stages = [hr.stage(f"s{number}", _burn, releases_gil=True) for number in range(5)]
    source = FedQueue([b"x"], seconds, Broker(rate_per_second=_RATE))
    pipeline = hr.Pipeline(source, stages=stages, delivery=hr.collect())
    recorder, settled = Recorder(RecorderSettings()), _Settled()
    options: dict[str, Any] = {"observers": [recorder, settled], "watch": recorder.watch} if is_on else {}
    run(pipeline, Plan(), **{"observers": [settled], **options})
    (first_cpu, first), (last_cpu, last) = settled.readings[0], settled.readings[-1]
    return (last_cpu - first_cpu) / max(1, last - first)


class _Settled(Observer):
    """Notes what the process used whenever 100 jobs had been settled: opening and closing are no cost of each item."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, int]] = []
        self._count = itertools.count(1)

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Count it."""
        number = next(self._count)
        if number % 100 == 0:
            self.readings.append((time.process_time(), number))


def _burn(value: Any) -> Any:
    work.burn(_STAGE_SECONDS)
    return value


# --- kills


def _kill_once(number: int) -> bool:
    """Kill worker and supervisor at a random moment; return whether the last seconds can be read."""
    print(f"kill {number + 1}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-kill-") as folder:
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
