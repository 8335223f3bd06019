"""A worker's process: warm before its lease, told of, stopped, and ended with its worker."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.ray import worker as module
from headrace.ray.leases import Lease, Setting
from headrace.ray.worker import Worker

#: Stands for the process that forks those of leases, each of which does what the lease's arguments say.
PROCESS = """
import signal, sys, time
from pathlib import Path
from headrace.cli.leased import serve
from headrace.ray.leases import Outcome

def work(lease):
    args, stopped = lease["args"], []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    print(args["how"], "begins", flush=True)
    if args["how"] == "die":
        signal.raise_signal(signal.SIGKILL)
    while args["how"] == "wait" and not stopped:
        time.sleep(0.01)
    if args["how"] == "read":
        print(repr(sys.stdin.read()), flush=True)
    return Outcome(status=args.get("status", 0), document=b"{}", interrupted=bool(stopped))

sys.exit(serve(int(sys.argv[1]), Path(sys.argv[2]), work))
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker whose processes are those above."""
    (tmp_path / "stand_in.py").write_text(PROCESS)
    monkeypatch.setattr(module, "PROCESS", "stand_in")
    made = Worker(Setting(str(tmp_path)))
    yield made
    made.close()


def lease(how: str, **more: object) -> Lease:
    """Return a lease that says what its process does."""
    return Lease("part 0", 0, argparse.Namespace(how=how, run=print, **more))


def test_a_lease_is_done_by_a_process_that_is_there_already(worker: Worker) -> None:
    """And the next one by another, forked by the same: nothing is loaded again."""
    waits = worker._next
    first, second = worker.work(lease("end")), worker.work(lease("end"))
    assert worker._next is waits
    assert (first.status, first.document, first.interrupted) == (0, b"{}", False)
    assert first.said == "end begins\n"
    assert first.pid != second.pid


def test_the_users_code_reads_no_lease(worker: Worker) -> None:
    """Its standard input is empty."""
    assert worker.work(lease("read")).said == "read begins\n''\n"


def test_a_worker_is_ready_once_its_process_is_warm(worker: Worker) -> None:
    """Or has ended: then its lease will tell why."""
    assert worker.ready()
    process = worker._next
    assert process is not None
    assert process.is_warm
    process.kill()
    while process.poll() is None:
        time.sleep(0.01)
    assert worker.ready()
    assert worker.work(lease("end")).status == -9


def test_a_process_that_dies_leaves_the_worker(worker: Worker) -> None:
    """Its signal is told."""
    assert worker.work(lease("die")).status == -9
    assert worker.work(lease("end")).status == 0


def test_an_error_is_told_with_its_status(worker: Worker) -> None:
    """As the process left it."""
    assert worker.work(lease("end", status=2)).status == 2


def test_one_that_is_asked_to_stop_ends_orderly(worker: Worker) -> None:
    """What it wrote so far can be asked for meanwhile."""
    reports = []
    thread = threading.Thread(target=lambda: reports.append(worker.work(lease("wait"))))
    thread.start()
    news = ""
    while "wait begins" not in news:
        news += worker.news()
        time.sleep(0.01)
    worker.stop()
    thread.join()
    assert (reports[0].status, reports[0].interrupted, reports[0].said) == (0, True, "")


def test_a_node_without_the_working_folder_is_named(tmp_path: Path) -> None:
    """With what to do."""
    with pytest.raises(FileNotFoundError, match="under the same path on every node"):
        Worker(Setting(str(tmp_path / "none")))


def test_a_worker_leaves_nothing(tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process, no file."""
    waits = worker._next
    assert waits is not None
    folder = waits._folder
    assert folder.is_dir()
    worker.close()
    assert not folder.exists()
    assert waits.poll() is not None
