"""Kills workers, supervisors and queue servers at random moments and counts what is lost; then runs long and looks for growth.

    python -m benchmarks.crash [--quick] [--json] [--write] [--queue NAME]...

How this works. Jobs are in the queue before a service, `headrace run --supervise 2`, begins. Kills are spread over the jobs:
after each so many deliveries, and a random moment more, one of the two workers gets SIGKILL; every tenth time it is the
supervisor instead, which is started again as a service manager would, or the queue's server. A kill counts only where jobs
were in flight: for workers the supervisor says how many, for the others the queue does. At the end every job must have been
delivered at least once; what was delivered more than once must carry the same idempotency key each time.

SQLite has no server. Redis runs with `appendonly yes`, as its guide says. The SQS server (moto) keeps its queues in memory:
it is not killed.

The soak runs one worker over many jobs, of which one in twenty fails somehow, and samples its memory, files and threads.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.crash_receiver import Receiver
from benchmarks.paths import ROOT
from headrace.base.errors import QueueUnavailable
from headrace.base.protocols import Queue
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job

SEED = 7
#: (jobs, kills) of the full run and of the quick one.
SIZES = {"sqlite": ((50_000, 500), (400, 10)), "redis": ((50_000, 500), (400, 10)), "sqs": ((5_000, 50), (60, 2))}
SOAK_JOBS, QUICK_SOAK_JOBS = 200_000, 2_000
#: Samples of the soak before this share of the jobs are warm-up: the summary keeps 65,536 values of each quantity, later a
#: sample of all.
WARM_UP_SHARE = 0.35
_DIED = re.compile(r"died: (.*); (\d+) jobs in work, (\d+) waiting")
_PATIENCE_SECONDS = 180.0
HEADRACE = (sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())")


# --- what is killed


class Service:
    """The supervised workers, started again whenever the supervisor is gone."""

    def __init__(self, address: str, receiver: Receiver) -> None:
        self._environment = {
            **os.environ,
            "CRASH_QUEUE": address,
            "CRASH_CALLBACK": f"{receiver.url}/cb",
            "CRASH_SECONDS": "0.04",
        }
        self.kills: Counter[str] = Counter()
        """What was killed with jobs in flight: worker, supervisor, server."""
        self.jobs_in_flight = 0
        """That killed workers had, all together."""
        self.said: list[str] = []
        self._start()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def num_kills(self) -> int:
        """Kills of everything."""
        return self.kills.total()

    def workers(self) -> list[int]:
        """Return the worker processes."""
        try:
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except OSError:
            return []

    def kill_worker(self, moment: random.Random) -> None:
        """Kill one of the workers."""
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(moment.choice(self.workers()), signal.SIGKILL)

    def kill_supervisor(self) -> None:
        """Kill the supervisor, and with it its workers, and start another."""
        self._process.kill()
        self._process.wait()
        self._start()

    def ensure(self) -> None:
        """Start another supervisor if this one gave up: a service manager would."""
        if self._process.poll() is not None:
            self.said.append(f"the supervisor ended with {self._process.returncode}")
            self._start()

    def stop(self) -> int:
        """Drain and return the exit status."""
        self._process.terminate()
        return self._process.wait(60)

    def _start(self) -> None:
        command = [
            *HEADRACE, "run", "benchmarks.crash_app:pipeline",
            "--plan", "benchmarks/plans/crash.toml", "--supervise", "2",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stderr:
            found = _DIED.search(line)
            if found is None:
                self.said = [*self.said, line.rstrip()][-30:]
            elif found[1].startswith("SIGKILL") and (in_flight := int(found[2]) + int(found[3])):
                self.kills["worker"] += 1
                self.jobs_in_flight += in_flight
            elif not found[1].startswith("SIGKILL"):
                self.said = [*self.said, line.rstrip()][-30:]


@dataclass
class Broker:
    """A queue's address and, where it has one that may be killed, its server."""

    address: str
    restart: Callable[[], None] | None = None


@contextlib.contextmanager
def sqlite_broker(folder: Path, jobs: int) -> Iterator[Broker]:
    """Give a queue in a file."""
    yield Broker(f"sqlite:///{folder}/jobs.db?visibility=3s")


@contextlib.contextmanager
def redis_broker(folder: Path, jobs: int) -> Iterator[Broker]:
    """Run a redis-server that keeps what it was told."""
    program, port = shutil.which("redis-server"), free_port()
    if program is None:
        raise SystemExit("redis-server is not installed; leave this queue out with --queue")
    command = [
        program,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "yes",
        "--dir",
        str(folder),
    ]
    server = started(command, port)

    def restart() -> None:
        nonlocal server
        server.kill()
        server.wait()
        server = started(command, port)

    try:
        yield Broker(f"redis://127.0.0.1:{port}/0?visibility=3s", restart)
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def sqs_broker(folder: Path, jobs: int) -> Iterator[Broker]:
    """Run a moto server with one queue."""
    import boto3

    port = free_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    server = started([str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)], port)
    try:
        endpoint = f"http://127.0.0.1:{port}"
        boto3.session.Session().client("sqs", region_name="eu-west-1", endpoint_url=endpoint).create_queue(
            QueueName="jobs"
        )
        # With many messages a call takes up to a second: with short loans there would be no time but for extending them.
        seconds = 60 if jobs > 1000 else 5
        yield Broker(f"sqs://jobs?region=eu-west-1&endpoint={endpoint}&visibility={seconds}s")
    finally:
        server.kill()
        server.wait()


BROKERS = {"sqlite": sqlite_broker, "redis": redis_broker, "sqs": sqs_broker}


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(command: list[str], port: int) -> subprocess.Popen[bytes]:
    """Start a server and return it once it takes connections."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait(lambda: _answers(port), f"{command[0]} takes no connections")
    return process


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _wait(condition: Callable[[], Any], what: str, seconds: float = _PATIENCE_SECONDS) -> None:
    give_up_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{what} after {seconds:g} s")
        time.sleep(0.02)


# --- the kills


def ordeal(name: str, jobs: int, kills: int) -> dict[str, Any]:
    """Kill until it was often enough, let the rest be done, and count."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        BROKERS[name](Path(folder), jobs) as broker,
        Receiver() as receiver,
        contextlib.closing(open_queue(broker.address)) as queue,
    ):
        desk = Desk(queue, 10 if name == "sqs" else 500)  # what one call sends
        # moto looks at every message for each that it gives out: with thousands there it would do nothing else.
        desk.send(min(jobs, 150) if name == "sqs" else jobs)
        _say(f"{name}: {desk.num_sent:,} jobs sent")
        with Service(broker.address, receiver) as service:
            _Killer(name, service, broker, desk, receiver, min(100 if name == "sqs" else 300, jobs // 4)).run(
                jobs, kills
            )
            _finish(service, queue, receiver, desk.num_sent)
            status = service.stop()
        state = queue.statistics()
        deliveries = receiver.deliveries()
    return {
        "jobs": desk.num_sent,
        "kills": service.num_kills,
        "lost": desk.num_sent - len(deliveries),
        "duplicates": sum(len(keys) - 1 for keys in deliveries.values()),
        "duplicates_same_key": sum(keys.count(keys[0]) - 1 for keys in deliveries.values()),
        "kills_of_workers": service.kills["worker"],
        "kills_of_supervisor": service.kills["supervisor"],
        "kills_of_server": service.kills["server"],
        "in_flight_at_worker_kills": service.jobs_in_flight,
        "dead_letters": state.dead,
        "left_in_queue": state.visible + state.in_flight + state.delayed,
        "exit_status": status,
        "seconds": round(time.monotonic() - began, 1),
        "said": service.said[-10:],
    }


class Desk:
    """Sends jobs, each once."""

    def __init__(self, queue: Queue, lot: int) -> None:
        self._queue = queue
        self._lot = lot
        self.num_sent = 0

    def send(self, number: int) -> None:
        """Send so many more."""
        last = self.num_sent + number
        lots = [range(first, min(last, first + self._lot)) for first in range(self.num_sent, last, self._lot)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._send_lot, lots))
        self.num_sent = last

    def _send_lot(self, numbers: range) -> None:
        while True:
            try:
                self._queue.send([encode_job(str(n).encode(), id=f"job-{n}") for n in numbers])
                return
            except QueueUnavailable:  # its server is being started; what was sent all the same is delivered twice
                time.sleep(0.1)

    def num_in_flight(self) -> int:
        """Return how many are in somebody's hands."""
        try:
            return self._queue.statistics().in_flight
        except QueueUnavailable:
            return 0


@dataclass
class _Killer:
    """Kills something whenever so many more jobs were delivered."""

    name: str
    service: Service
    broker: Broker
    desk: Desk
    receiver: Receiver
    fewest_left: int
    """While something is to be killed there are at least so many jobs to do."""
    moment: random.Random = field(default_factory=lambda: random.Random(SEED))

    def run(self, jobs: int, kills: int) -> None:
        """Kill until it was often enough, and see that so many jobs are sent at least."""
        self._kill(jobs / kills, kills)
        while self.desk.num_sent < jobs:
            self._wait_for(self.desk.num_sent - self.fewest_left + 1)

    def _kill(self, jobs_per_kill: float, kills: int) -> None:
        aim = float(self.receiver.num_deliveries())
        while self.service.num_kills < kills:
            # A tenth less, because not every kill finds jobs in flight, and some jobs are to be left at the end.
            aim = max(aim, self.receiver.num_deliveries() - jobs_per_kill)
            aim += 0.9 * jobs_per_kill * self.moment.uniform(0.5, 1.5)
            self._wait_for(aim)
            time.sleep(self.moment.uniform(0.0, 0.03))
            self._kill_one(self.service.num_kills)

    def _wait_for(self, num_deliveries: float) -> None:
        def reached() -> bool:
            self.service.ensure()
            done = self.receiver.num_deliveries()
            if self.desk.num_sent - done < self.fewest_left:
                self.desk.send(self.fewest_left)  # with fewer, a kill might find nothing in flight
            return done >= num_deliveries

        _wait(reached, f"{self.name}: no progress to {num_deliveries:.0f} deliveries: {self.service.said}")

    def _kill_one(self, done: int) -> None:
        service = self.service
        if done % 10 != 9:
            service.kill_worker(self.moment)
            with contextlib.suppress(TimeoutError):  # it had nothing in flight, and does not count
                _wait(lambda: service.num_kills > done, "", 1.0)
        elif not self.desk.num_in_flight():
            return
        elif self.broker.restart is not None and done % 20 == 9:
            self.broker.restart()
            service.kills["server"] += 1
        else:
            service.kill_supervisor()
            service.kills["supervisor"] += 1
        if service.num_kills % 50 == 0:
            _say(f"{self.name}: {service.num_kills} kills, {self.receiver.num_deliveries():,} deliveries")


def _finish(service: Service, queue: Queue, receiver: Receiver, jobs: int) -> None:
    """Wait until the queue is empty; what hangs is left, and counts as lost."""

    def is_done() -> bool:
        service.ensure()
        if receiver.num_deliveries() < jobs:
            return False
        state = queue.statistics()
        return not (state.visible or state.in_flight or state.delayed)

    with contextlib.suppress(TimeoutError):
        _wait(is_done, "jobs are left", 60 + jobs / 50)


# --- the soak


def soak(jobs: int) -> dict[str, Any]:
    """Run one worker over many jobs and return how its memory, files and threads went."""
    began, samples = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder, Receiver(fail=0.025) as receiver:
        address = f"sqlite:///{folder}/jobs.db"
        with contextlib.closing(open_queue(address)) as queue:
            for first in range(0, jobs, 1000):
                numbers = range(first, min(jobs, first + 1000))
                queue.send([encode_job(f"{n}{'!' * (n % 40 == 0)}".encode(), id=f"job-{n}") for n in numbers])
        worker = subprocess.Popen(
            [*HEADRACE, "run", "benchmarks.crash_app:pipeline", "--plan", "benchmarks/plans/crash.toml",
             "--source", address, "--drain", "-o", f"{folder}/run", "--json"],
            cwd=ROOT, env={**os.environ, "CRASH_QUEUE": address, "CRASH_CALLBACK": f"{receiver.url}/cb"},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        while worker.poll() is None:
            with contextlib.suppress(OSError):
                samples.append(_sample(worker.pid, receiver.num_deliveries()))
            time.sleep(0.5)
        document = json.loads(worker.stdout.read())
    warm = [sample for sample in samples if WARM_UP_SHARE * jobs <= sample["items"] and sample["threads"] > 1]
    warm = [sample for sample in warm if sample["items"] < 0.97 * jobs]  # the end closes threads and files
    tenth = max(1, len(warm) // 10)
    first, last = warm[:tenth], warm[-tenth:]

    def median(part: list[dict[str, int]], key: str) -> float:
        return statistics.median(sample[key] for sample in part)

    return {
        "items": jobs,
        "counters": {
            name: document["counters"][name] for name in ("delivered", "rejected", "dead_lettered", "retried", "lost")
        },
        "rss_mb_first": median(first, "rss") / 1e6,
        "rss_mb_last": median(last, "rss") / 1e6,
        "rss_growth_ratio": median(last, "rss") / median(first, "rss") - 1,
        "files_first": median(first, "files"),
        "files_last": median(last, "files"),
        "threads_first": median(first, "threads"),
        "threads_last": median(last, "threads"),
        "seconds": round(time.monotonic() - began, 1),
        "samples": len(warm),
        "curve_mb": [
            [sample["items"], round(sample["rss"] / 1e6, 1)] for sample in samples[:: max(1, len(samples) // 40)]
        ],
    }


def _sample(pid: int, items: int) -> dict[str, int]:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "items": items,
        "rss": pages * os.sysconf("SC_PAGE_SIZE"),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }


# --- all of it


def measure_all(quick: bool, queues: list[str]) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    found = {}
    for name in queues:
        found[name] = ordeal(name, *SIZES[name][quick])
        _say(f"{name}: {found[name]}")
    result = {"queues": found, "soak": soak(QUICK_SOAK_JOBS if quick else SOAK_JOBS), "quick": quick}
    _say(f"soak: {result['soak']}")
    return result


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    lines = [
        "# Kills at random moments, and a long run",
        "",
        "| queue | jobs | kills | of workers / supervisor / server | lost | delivered twice | with the same key |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in result["queues"].items():
        kinds = f"{row['kills_of_workers']} / {row['kills_of_supervisor']} / {row['kills_of_server']}"
        lines.append(
            f"| {name} | {row['jobs']:,} | {row['kills']} | {kinds} | {row['lost']} | {row['duplicates']} | "
            f"{row['duplicates_same_key']} |"
        )
    return "\n".join([*lines, "", "Each kill had jobs in flight.", "", *_soak_text(result["soak"])])


def _soak_text(soaked: dict[str, Any]) -> list[str]:
    grown = ", ".join(
        f"{what} {soaked[key + '_first']:.4g} to {soaked[key + '_last']:.4g}"
        for what, key in (("MB", "rss_mb"), ("files", "files"), ("threads", "threads"))
    )
    return [
        f"Soak: {soaked['items']:,} jobs, one in twenty failing at first or for good: {soaked['counters']}.",
        f"Medians of the first and the last tenth of what came after {WARM_UP_SHARE:.0%} of the jobs: {grown}.",
        f"Growth of memory: {soaked['rss_growth_ratio']:+.2%}.",
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark from the command line."""
    chooser = argparse.ArgumentParser(add_help=False)
    chooser.add_argument("--queue", action="append", choices=list(BROKERS))
    chosen, rest = chooser.parse_known_args()
    sys.argv[1:] = rest
    queues = chosen.queue or list(BROKERS)
    measure.run_benchmark("crash", __doc__.splitlines()[0], lambda quick: measure_all(quick, queues), as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
