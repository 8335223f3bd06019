"""How far `headrace capacity --machines` is off, beside 1, 2 and 4 real processes that share a queue, a store and a receiver.

    python -m benchmarks.scale_prediction --write    # two minutes

One process is profiled with nothing throttled. Then each number of processes works on one SQLite queue, each pinned to a core;
the store gives so many bytes a second, and the receiver takes so many calls, together. The rate is counted at the receiver.
Processes stand for machines: their model is a wait, so that two cores hold four of them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.scale_prediction_server import ITEM
from headrace.diagnose.analysis import Analysis
from headrace.runs.reader import read_run
from headrace.tune.machines import Wish, machines_document
from headrace.tune.shared_limits import parse_limit

GOAL = 0.08
MACHINES = (1, 2, 4)
#: {case: (store, receiver)}: items a second of all machines, 0 for no limit. One machine does 80.
CASES = {"receiver": (0, 200), "store": (130, 0), "both": (250, 240)}
#: Four waits of 50 ms side by side are 80 jobs a second, whatever else the processor does.
_PLAN = ("--set", "model.workers=4", "--allow", "127.0.0.1")
_JOBS = 16_000
_HUNDRED_SECONDS = 30.0


class Bench:
    """The services, and what works on them."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._url = f"http://127.0.0.1:{port}"
        self._environment = {
            **os.environ,
            "SCALE_QUEUE": f"sqlite:///{folder}/jobs.db",
            "SCALE_CALLBACK": f"{self._url}/results",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    def _headrace(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "headrace", *arguments]

    def fill(self, count: int) -> None:
        """Put jobs into the queue."""
        jobs = self._folder / "jobs.txt"
        jobs.write_text("".join(f"{self._url}/item?{n}\n" for n in range(count)))
        subprocess.run(
            self._headrace("submit", self._environment["SCALE_QUEUE"], "--from", str(jobs)),
            env=self._environment, cwd=self._folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def profile(self, seconds: float) -> Analysis:
        """Return the profile of one machine that nothing holds up."""
        self.ask("/limits/0/0")
        run = self._folder / "run"
        with self.working("profile", "-o", str(run)):
            time.sleep(seconds)
        return Analysis(read_run(run))

    def rate(self, machines: int, store: int, receiver: int, seconds: float) -> float:
        """Return the jobs a second that so many processes bring to the receiver, once all are at work."""
        self.ask(f"/limits/{store * len(ITEM)}/{receiver}")
        with contextlib.ExitStack() as working:
            for number in range(machines):
                working.enter_context(self.working("run", core=number % (os.cpu_count() or 1)))
            self._wait_for(50 * machines)
            began, before = time.monotonic(), self.taken()
            time.sleep(seconds)
            return (self.taken() - before) / (time.monotonic() - began)

    @contextlib.contextmanager
    def working(self, command: str, *more: str, core: int = 0) -> Iterator[None]:
        """Have a process at work."""
        process = subprocess.Popen(
            self._headrace(command, "benchmarks.scale_prediction_app:pipeline", *_PLAN, *more),
            env=self._environment, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.sched_setaffinity(process.pid, {core})
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)

    def ask(self, path: str) -> bytes:
        """Return an answer of the services."""
        with urllib.request.urlopen(self._url + path) as answer:
            return bytes(answer.read())

    def taken(self) -> int:
        """Return how many results the receiver took so far."""
        return int(self.ask("/taken"))

    def _wait_for(self, more: int) -> None:
        """Wait until all processes are surely at work: each does some at once, and all start together."""
        before = self.taken()
        deadline = time.monotonic() + 30
        while self.taken() < before + more:
            if time.monotonic() > deadline:
                raise RuntimeError("the processes did not begin to work within 30 s")
            time.sleep(0.1)
        time.sleep(1.0)


def predict(analysis: Analysis, store: int, receiver: int) -> list[float]:
    """Return the predicted rate of each number of machines."""
    limits = [f"store={store * len(ITEM)}B/s"] if store else []
    limits += [f"receiver={receiver}/s"] if receiver else []
    replay = analysis.replay
    document = machines_document(analysis, Wish(machines=MACHINES), [parse_limit(text, replay) for text in limits])
    return [row.jobs_per_second for row in document.rows]


def measure_all(quick: bool) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    seconds = 2.0 if quick else 4.0
    command = [sys.executable, "-m", "benchmarks.scale_prediction_server"]
    with (
        tempfile.TemporaryDirectory(prefix="scale-") as folder,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
        measure.Window() as window,
    ):
        assert server.stdin
        assert server.stdout
        bench = Bench(Path(folder), int(server.stdout.readline()))
        bench.fill(_JOBS // 3 if quick else _JOBS)
        analysis = bench.profile(6.0 if quick else 12.0)
        rows: list[dict[str, Any]] = []
        for case, limits in dict(list(CASES.items())[:1] if quick else CASES).items():
            for machines, predicted in zip(MACHINES, predict(analysis, *limits), strict=True):
                measured = bench.rate(machines, *limits, seconds)
                rows.append({"case": case, "machines": machines, "predicted": predicted, "measured": measured})
        hundred = time_hundred(analysis)
        server.stdin.close()
    errors = [abs(row["predicted"] / row["measured"] - 1) for row in rows]
    return {
        "prediction": {"max_error": max(errors)},
        "rows": rows,
        "hundred_seconds": hundred,
        "foreign_cores": window.foreign_cores,
        "quick": quick,
    }


def time_hundred(analysis: Analysis) -> float:
    """Return what simulating an hour of 100 machines takes, in seconds."""
    began = time.perf_counter()
    machines_document(analysis, Wish(machines=(100,)), [parse_limit("receiver=1000/s", analysis.replay)])
    return time.perf_counter() - began


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    worst = result["prediction"]["max_error"]
    lines = [
        "# More machines, predicted and counted",
        "",
        "Jobs a second of so many pinned processes on one SQLite queue, whose store or receiver, or both, are throttled.",
        "Predicted by `headrace capacity --machines` from a profile of one process that nothing held up. The model is emulated",
        "(a wait).",
        "",
        "| throttled | machines | predicted | counted | error |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        error = row["predicted"] / row["measured"] - 1
        figures = f"{row['predicted']:.1f} | {row['measured']:.1f} | {error:+z.1%}"
        lines.append(f"| {row['case']} | {row['machines']} | {figures} |")
    lines += [
        "",
        f"The largest error is {worst:.1%} (goal: {GOAL:.0%}).",
        f"Simulating an hour of 100 machines took {result['hundred_seconds']:.1f} s ({_HUNDRED_SECONDS:.0f}).",
        f"Others took {result['foreign_cores']:.2f} cores.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run_benchmark("scale_prediction", __doc__.splitlines()[0], measure_all, as_text)
