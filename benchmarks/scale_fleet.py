"""A fleet of light workers on one queue: changes of its Plan that are bad, and workers that are taken away, under load.

    python -m benchmarks.scale_fleet [--quick] [--json] [--write] [--workers 20] [--queue redis|sqs]...

How this works. Each worker is a `headrace run` of its own, on a real Redis server or a moto server of SQS
(`benchmarks.scale_moto`); jobs are sent at a steady rate all the while, unless some wait already. All have one folder for
canaries and one for heartbeats, as machines with a shared file system have. First a Plan whose model is slow is given to the
fleet, then one whose answers are wrong: counted are the jobs that each had answered when it was taken back. Then three of four
workers get SIGTERM, and half of those that are left SIGKILL. At the end the queue is drained: what has no result is lost, what
has two is repeated.
Everything is counted, nothing is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks import measure
from benchmarks.crash import Broker, free_port, redis_broker, started
from benchmarks.paths import ROOT
from headrace.base.errors import QueueUnavailable
from headrace.monitor.fleet.place import FolderPlace
from headrace.monitor.fleet.status import read_fleet
from headrace.runs.canary_folder import CanaryFolder
from headrace.runs.formats.canary import CanaryState
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job

HEADRACE = (sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())")
#: {queue: jobs sent a second, while few wait}.
RATES = {"redis": 200.0, "sqs": 20.0}
#: Sent together at least, as many as SQS takes in a call; no more are sent while twice as many wait. moto looks at every
#: message for each call, so a backlog would make it slower and slower.
_LOT = 10
#: Plans that are given to the fleet.
CANDIDATES = ("slow", "wrong")
_PATIENCE_SECONDS = 480.0
#: A client of SQS sends again what was not answered for so long.
_SENT_AGAIN_SECONDS = 4.5


def write_models(folder: Path) -> None:
    """Write the model in use, one that is slow, one whose answers are wrong, and a Plan for each of these."""
    square = {"row": np.ones((1, 600), np.float32), "square": np.zeros((600, 600), np.float32)}
    slow = [
        helper.make_node("MatMul", ["x", "row"], ["wide"]),
        helper.make_node("MatMul", ["wide", "square"], ["product"]),
        helper.make_node("ReduceMax", ["product"], ["zero"], axes=[1], keepdims=1),
        helper.make_node("Add", ["x", "zero"], ["y"]),
    ]
    _save(folder / "same.onnx", _multiply(), factor=np.float32(1.0))
    _save(folder / "wrong.onnx", _multiply(), factor=np.float32(1.5))
    _save(folder / "slow.onnx", slow, **square)
    for name in ("slow", "wrong"):
        (folder / f"{name}.toml").write_text(f'[model]\nartifact = "{folder / name}.onnx"\n')


def _multiply() -> list[onnx.NodeProto]:
    return [helper.make_node("Mul", ["x", "factor"], ["y"])]


def _save(path: Path, nodes: Sequence[onnx.NodeProto], **constants: np.ndarray | np.float32) -> None:
    graph = helper.make_graph(
        nodes, "model",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 1])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@contextlib.contextmanager
def _moto(folder: Path) -> Iterator[Broker]:
    """Run a moto server with one queue."""
    import boto3

    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    port = free_port()
    server = started([sys.executable, "-m", "benchmarks.scale_moto", str(port)], port)
    try:
        endpoint = f"http://127.0.0.1:{port}"
        client = boto3.session.Session().client("sqs", region_name="eu-west-1", endpoint_url=endpoint)
        client.create_queue(QueueName="jobs")
        # A call may take seconds there, with so many workers.
        yield Broker(f"sqs://jobs?region=eu-west-1&endpoint={endpoint}&visibility=30s")
    finally:
        server.kill()
        server.wait()


_BROKERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Broker]]] = {
    "redis": lambda folder: redis_broker(folder, 0),
    "sqs": _moto,
}


class Fleet:
    """Workers on one queue, and what they write."""

    def __init__(self, folder: Path, address: str, num_workers: int) -> None:
        self.folder, self.address = folder, address
        self.canary = folder / "canary"
        write_models(folder)
        self.workers = [self._start(number) for number in range(num_workers)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FLEET_QUEUE": self.address,
            "FLEET_RESULTS": str(self.folder / f"results-{number}.jsonl"),
            "FLEET_MODEL": str(self.folder / "same.onnx"),
        }
        words = ["-q", "run", "benchmarks.scale_fleet_app:pipeline", "--canary", str(self.canary), "--fleet"]
        settings = ["--set", "process.batch=4", "--set", "model.threads=1"]
        with (self.folder / f"worker-{number}.log").open("wb") as log:
            return subprocess.Popen(
                [*HEADRACE, *words, str(self.folder / "fleet"), *settings],
                cwd=ROOT, env=environment, stdout=log, stderr=log,
            )  # fmt: skip

    def wait_until_all_are_there(self) -> None:
        """Wait for a heartbeat and a result of each."""
        place = FolderPlace(self.folder / "fleet")

        def are_there() -> bool:
            with contextlib.suppress(OSError):
                return len(list((self.folder / "fleet").iterdir())) >= len(self.workers)
            return False

        wait_for(are_there, "not all workers are there")
        wait_for(lambda: read_fleet(place).says[0].startswith(f"{len(self.workers)} workers"), "not all beat")
        wait_for(lambda: sum(self.results().values()) >= 5 * len(self.workers), "they do little")

    def end(self, workers: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> list[int]:
        """Send a signal to workers, and return their exit statuses."""
        for worker in workers:
            worker.send_signal(number)
        statuses = [worker.wait(_PATIENCE_SECONDS) for worker in workers]
        self.workers = [worker for worker in self.workers if worker not in workers]
        return statuses

    def results(self) -> Counter[str]:
        """Return how many results each job has."""
        found: Counter[str] = Counter()
        for file in self.folder.glob("results-*.jsonl"):
            found.update(json.loads(line)["id"] for line in file.read_bytes().splitlines() if line.endswith(b"}"))
        return found

    def said(self) -> list[str]:
        """Return the last lines of workers' logs, once each."""
        lines = [line for file in self.folder.glob("worker-*.log") for line in file.read_text().splitlines()[-3:]]
        return sorted(set(lines))[:10]


def wait_for(condition: Callable[[], Any], what: str, seconds: float = _PATIENCE_SECONDS) -> None:
    """Return once it is so."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{what} after {seconds:g} s")
        time.sleep(0.05)


class Desk:
    """Sends jobs at a steady rate while it is entered; each has a number of its own as id."""

    def __init__(self, address: str, rate: float) -> None:
        self._queue, self._rate = open_queue(address), rate
        self.num_sent = 0
        self.uncertain: set[str] = set()
        """Jobs that the server may have never or twice, as its answer did not come in time: they count for nothing."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Desk:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._queue.close()

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        self._thread.join()

    def is_empty(self) -> bool:
        """Return whether nothing is left in the queue."""
        left = self._queue.statistics()
        return not (left.visible or left.in_flight or left.delayed)

    def dead(self) -> int:
        """Return the dead letters."""
        return self._queue.statistics().dead

    def _num_waiting(self) -> int:
        with contextlib.suppress(QueueUnavailable):
            return self._queue.statistics().visible
        return 0

    def _send(self) -> None:
        lot = max(_LOT, int(self._rate / 10))
        due = time.monotonic()
        while not self._stop.is_set():
            if self._num_waiting() > 2 * lot:
                due = time.monotonic() + lot / self._rate
                self._stop.wait(lot / self._rate)
                continue
            numbers = range(self.num_sent, self.num_sent + lot)
            began = time.monotonic()
            try:
                self._queue.send([encode_job(np.float32(n % 100 + 1).tobytes(), id=f"job-{n}") for n in numbers])
                is_certain = time.monotonic() - began < _SENT_AGAIN_SECONDS
            except QueueUnavailable:
                is_certain = False
            if not is_certain:
                self.uncertain |= {f"job-{n}" for n in numbers}
            self.num_sent += lot
            due += lot / self._rate
            self._stop.wait(max(0.0, due - time.monotonic()))


def try_candidate(fleet: Fleet, name: str) -> dict[str, Any]:
    """Give a Plan to the fleet, and return what became of it."""
    words = ["canary", "start", str(fleet.folder / f"{name}.toml"), "--at", str(fleet.canary)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*HEADRACE, *words], cwd=ROOT, env=environment, check=True, capture_output=True)
    folder = CanaryFolder(fleet.canary, must_exist=True)
    wait_for(lambda: _state(folder).status != "running", f"the {name} Plan is still tried")
    state = _state(folder)
    time.sleep(3.0)  # every worker has written down what it saw
    drawn = folder.sum_seen(state.id).jobs
    return {
        "became": state.status,
        "reason": state.reason,
        "largest_share": max(step.share for step in state.steps),
        "answered": sum(counts.canary for counts in drawn.values()),
        "answered_by_others": sum(counts.stable for counts in drawn.values()),
        "seconds": state.steps[-1].at_unix_seconds - state.steps[0].at_unix_seconds,
    }


def _state(folder: CanaryFolder) -> CanaryState:
    state = folder.read()
    assert state is not None
    return state


def ordeal(name: str, num_workers: int) -> dict[str, Any]:
    """Return what a fleet lost and repeated on a queue, and what became of bad Plans."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-fleet-")))
        broker = stack.enter_context(_BROKERS[name](folder))
        desk = stack.enter_context(Desk(broker.address, RATES[name]))
        fleet = stack.enter_context(_ending(Fleet(folder, broker.address, num_workers)))
        fleet.wait_until_all_are_there()
        found: dict[str, Any] = {"workers": num_workers}
        found |= {candidate: try_candidate(fleet, candidate) for candidate in CANDIDATES}
        before = sum(fleet.results().values())
        leaving = fleet.workers[: num_workers * 3 // 4]
        found["exit_statuses"] = Counter(map(str, fleet.end(leaving, signal.SIGTERM)))
        found["left"] = len(fleet.workers)
        time.sleep(3.0)
        repeated = _repeated(fleet, desk)
        killed = fleet.workers[: len(fleet.workers) // 2]
        fleet.end(killed, signal.SIGKILL)
        time.sleep(3.0)
        desk.stop()
        wait_for(desk.is_empty, "the queue is not empty")
        fleet.end(fleet.workers, signal.SIGTERM)
        results = fleet.results()
        certain = {f"job-{n}" for n in range(desk.num_sent)} - desk.uncertain
        return found | {
            "jobs": len(certain),
            "not_counted": len(desk.uncertain),
            "jobs_while_scaled_in": sum(results.values()) - before,
            "lost": len(certain - set(results)),
            "repeated_by_scaling_in": repeated,
            "killed": len(killed),
            "repeated_by_kills": _repeated(fleet, desk) - repeated,
            "dead_letters": desk.dead(),
            "said": fleet.said(),
        }


def _repeated(fleet: Fleet, desk: Desk) -> int:
    return sum(num - 1 for job, num in fleet.results().items() if job not in desk.uncertain)


@contextlib.contextmanager
def _ending(fleet: Fleet) -> Iterator[Fleet]:
    try:
        yield fleet
    finally:
        for worker in fleet.workers:
            worker.kill()
            worker.wait()


def describe(found: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = [
        "# A fleet of light workers on one queue",
        "",
        "`python -m benchmarks.scale_fleet`: each worker is a `headrace run` of its own on this machine; jobs are sent at a",
        "steady rate. Counts, no times.",
        "",
        "| | " + " | ".join(found) + " |",
        "|---|" + "---|" * len(found),
    ]
    rows: dict[str, Callable[[dict[str, Any]], object]] = {
        "workers": lambda one: f"{one['workers']}, then {one['left']}",
        "jobs": lambda one: f"{one['jobs']:,}",
        "jobs not counted, which the client may have sent twice": lambda one: one["not_counted"],
        "lost": lambda one: one["lost"],
        "repeated while scaled in (SIGTERM)": lambda one: one["repeated_by_scaling_in"],
        "killed after that (SIGKILL)": lambda one: one["killed"],
        "repeated by the kills": lambda one: one["repeated_by_kills"],
        "dead letters": lambda one: one["dead_letters"],
        "a Plan that is slow": lambda one: _fate(one["slow"]),
        "a Plan whose answers are wrong": lambda one: _fate(one["wrong"]),
    }
    lines += [f"| {row} | " + " | ".join(str(say(one)) for one in found.values()) + " |" for row, say in rows.items()]
    return "\n".join(lines)


def _fate(fate: dict[str, Any]) -> str:
    if not fate["largest_share"]:
        return f"{fate['became']} as a shadow: it answered no job"
    share, answered, others = fate["largest_share"], fate["answered"], fate["answered_by_others"]
    return f"{fate['became']} at a share of {share:.0%}: it answered {answered:,.0f} of {answered + others:,.0f} jobs"


def main() -> int:
    """Measure, and print the document."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale_fleet", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--write", action="store_true", help="write the dated result")
    parser.add_argument("--quick", action="store_true", help="four workers, on Redis")
    parser.add_argument("--workers", type=int, default=20, metavar="N", help="of each fleet")
    parser.add_argument("--queue", action="append", choices=sorted(RATES), help="instead of all")
    args = parser.parse_args()
    queues = args.queue or (["redis"] if args.quick else sorted(RATES))
    found = {name: ordeal(name, 4 if args.quick else args.workers) for name in queues}
    sys.stdout.write((json.dumps(found) if args.json else describe(found)) + "\n")
    if args.write:
        measure.write_result("_".join(["scale_fleet", *(args.queue or [])]), describe(found), found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
