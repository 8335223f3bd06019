"""A worker on a real queue is killed at random moments, again and again, and nothing is lost.

The same as a script, with the counts on stdout:

    python tests/integration/pipeline/test_kill.py --kills 20
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

pytestmark = pytest.mark.real_clock

VISIBILITY_SECONDS = 1.0
PLAN = {
    "stages": {"process": {"batch": 8}},
    "source": {"wait_seconds": 0.1, "max_receives": 1000, "max_in_flight": 60},
}


class Measure(hr.Module):
    """Answers how many bytes there are, slowly enough to be killed at it."""

    input = hr.BytesInput()

    def preprocess(self, value: bytes) -> int:
        """Return how many bytes there are."""
        time.sleep(0.005)
        return len(value)

    def process(self, batch: Any) -> list[Any]:
        """Return the batch."""
        time.sleep(0.002)
        return list(batch)


@dataclass(frozen=True)
class Counts:
    """What came of it."""

    jobs: int
    kills: int
    in_flight_at_kills: int
    """Jobs that killed workers had in their hands, all kills together."""
    lost: int
    duplicates: int
    """Results written more than once; at-least-once delivery allows them."""
    wrong: int
    """Results that are not the job's."""
    dead: int
    seconds: float


def work(database: Path, results: Path, executor: str, drain: bool) -> None:
    """Run one worker until the queue is empty, or until somebody ends it."""
    table = {**PLAN, "stages": {**PLAN["stages"], "preprocess": {"workers": 2, "executor": executor}}}
    source = hr.queue(f"sqlite:///{database}", visibility=VISIBILITY_SECONDS, drain=drain)
    hr.run(hr.Pipeline(source, module=Measure(), delivery=hr.jsonl(results)), Plan.from_table(table))


def payload(number: int) -> bytes:
    """Return the bytes of a job; their number is the right answer."""
    return b"x" * (1 + number % 97)


def send(queue: SqliteQueue, first: int, last: int) -> None:
    """Send jobs with these numbers, the last not included."""
    queue.send([encode_job(payload(number), id=f"job-{number}") for number in range(first, last)])


def start(database: Path, results: Path, executor: str = "thread", *, drain: bool = True) -> subprocess.Popen[bytes]:
    """Start a worker in a process of its own."""
    command = [sys.executable, __file__, "--work", str(database), str(results), executor, *(["--drain"] * drain)]
    return subprocess.Popen(command)


def size_of(path: Path) -> int:
    """Return the size of a file, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError("waited in vain")
        time.sleep(0.005)


def kill_with_jobs_in_hand(
    worker: subprocess.Popen[bytes], queue: SqliteQueue, results: Path, moment: random.Random, since: float
) -> int:
    """Kill a worker at a random moment at which it has jobs in flight and return how many, or 0 if it is done."""
    before = size_of(results)
    wait_until(lambda: size_of(results) > before or worker.poll() is not None)
    while worker.poll() is None:
        time.sleep(moment.uniform(0.0, 0.2))
        # Frozen, so that what is counted is what it has at its end; older loans have run out by then.
        worker.send_signal(signal.SIGSTOP)
        in_flight = queue.statistics().in_flight if time.monotonic() > since + VISIBILITY_SECONDS else 0
        if in_flight:
            worker.kill()
            worker.wait()
            return in_flight
        worker.send_signal(signal.SIGCONT)
    return 0


def ordeal(folder: Path, kills: int, executor: str, seed: int) -> Counts:
    """Kill workers until it was often enough, let the last one finish, and count."""
    began = time.monotonic()
    moment = random.Random(seed)
    database, results = folder / "jobs.db", folder / "results.jsonl"
    counts = Counter[str]()
    with contextlib.closing(SqliteQueue(database, visibility_seconds=VISIBILITY_SECONDS)) as queue:
        jobs, last_kill = 0, -VISIBILITY_SECONDS
        while counts["kills"] < kills:
            missing = max(0, 600 - queue.statistics().visible)  # more than a worker can do before it is killed
            send(queue, jobs, jobs := jobs + missing)
            worker = start(database, results, executor)
            in_flight = kill_with_jobs_in_hand(worker, queue, results, moment, last_kill)
            last_kill = time.monotonic()
            counts["kills"] += in_flight > 0
            counts["in_flight"] += in_flight
        start(database, results, executor).wait()
        state = queue.statistics()
    lines = [json.loads(line) for line in results.read_text().splitlines() if line.endswith("}")]
    seen = Counter(line["id"] for line in lines)
    return Counts(
        jobs=jobs,
        kills=counts["kills"],
        in_flight_at_kills=counts["in_flight"],
        lost=jobs - len(seen) + state.visible + state.in_flight + state.delayed,
        duplicates=sum(seen.values()) - len(seen),
        wrong=sum(line["result"] != len(payload(int(line["id"].removeprefix("job-")))) for line in lines),
        dead=state.dead,
        seconds=round(time.monotonic() - began, 1),
    )


@pytest.mark.timeout(100)
@pytest.mark.parametrize(("executor", "kills"), [("thread", 8), ("process", 4)])
def test_nothing_is_lost(
    tmp_path: Path, record_property: Callable[[str, object], None], executor: str, kills: int
) -> None:
    """However often a worker is killed with jobs in its hands, each job is delivered, with its own result."""
    counts = ordeal(tmp_path, kills, executor, seed=7)
    print(f"kill test, preprocess in a {executor}: {counts}")
    for name, value in vars(counts).items():
        record_property(name, value)
    assert counts.kills == kills
    assert counts.in_flight_at_kills >= kills
    assert (counts.lost, counts.wrong, counts.dead) == (0, 0, 0)


@pytest.mark.smoke
def test_sigterm_drains(tmp_path: Path) -> None:
    """SIGTERM ends a worker cleanly: what it had is delivered once, the rest is still in the queue, nothing is lent."""
    database, results = tmp_path / "jobs.db", tmp_path / "results.jsonl"
    with contextlib.closing(SqliteQueue(database, visibility_seconds=30)) as queue:
        send(queue, 0, 3000)
        worker = start(database, results, drain=False)
        wait_until(lambda: size_of(results) > 0)
        worker.terminate()
        assert worker.wait(20) == 0
        state = queue.statistics()
        delivered = [json.loads(line)["id"] for line in results.read_text().splitlines()]
        assert len(delivered) == len(set(delivered)) > 0
        assert (state.visible, state.in_flight, state.delayed, state.dead) == (3000 - len(delivered), 0, 0, 0)


@pytest.mark.parametrize(
    ("number", "drain", "status"),
    [(signal.SIGINT, False, 130), (signal.SIGTERM, False, 0), (signal.SIGTERM, True, 130)],
)
def test_signals_to_the_command(tmp_path: Path, number: signal.Signals, drain: bool, status: int) -> None:
    """Both drain and lose nothing; the status is 0 where a service manager ends what has no end, else 130."""
    database, results = tmp_path / "jobs.db", tmp_path / "results.jsonl"
    (tmp_path / "app.py").write_text(
        "import headrace as hr\n"
        "import time\n"
        f"pipeline = hr.Pipeline(hr.queue('sqlite:///{database}', drain={drain}),"
        " stages=[hr.fetch('fetch'), hr.stage('n', len)],"
        f" delivery=hr.jsonl({str(results)!r}))\n"
    )
    with contextlib.closing(SqliteQueue(database, visibility_seconds=30)) as queue:
        send(queue, 0, 20_000)
        command = [sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())"]
        worker = subprocess.Popen(
            [*command, "run", f"{tmp_path / 'app.py'}:pipeline"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        wait_until(lambda: size_of(results) > 0 or worker.poll() is not None)
        worker.send_signal(number)
        _, told = worker.communicate(timeout=90)
        assert worker.returncode == status, told.decode()
        delivered = results.read_text().count("\n")
        state = queue.statistics()
        assert (state.visible, state.in_flight, state.dead) == (20_000 - delivered, 0, 0)


def main() -> None:
    """Run a worker, or the whole ordeal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--executor", choices=["thread", "process"], default="thread")
    parser.add_argument("--work", nargs=3, metavar=("DATABASE", "RESULTS", "EXECUTOR"), help=argparse.SUPPRESS)
    parser.add_argument("--drain", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        database, results, executor = args.work
        work(Path(database), Path(results), executor, args.drain)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(ordeal(Path(folder), args.kills, args.executor, args.seed))


if __name__ == "__main__":
    main()
