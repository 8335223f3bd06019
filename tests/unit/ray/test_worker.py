"""A worker's process: warm before its lease, told of, stopped, and ended with its worker."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.ray import worker as module
from headrace.ray.leases import Lease, Setting
from headrace.ray.worker import Worker

#: Stands for the process that forks those of leases, each of which does what the lease's arguments say.
PROCESS = """
import atexit, os, signal, sys, threading, time, warnings
from pathlib import Path
import numpy.random
from headrace.cli import leased
from headrace.cli.leased import serve
from headrace.ray.leases import Outcome

held = []
fork, waitpid = os.fork, os.waitpid
warnings.simplefilter("always")

def fork_loudly():  # as Python 3.12 does where a library has threads
    text = "This process (pid=1) is multi-threaded, use of fork() may lead to deadlocks in the child."
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return fork()

def wait_and_be_asked(pid, options):  # to stop, in the moment in which the lease has ended
    ended = waitpid(pid, options)
    if os.waitstatus_to_exitcode(ended[1]) == -signal.SIGUSR1:
        signal.raise_signal(signal.SIGTERM)
    return ended

def leave_and_be_asked(folder, name, content):  # to stop, when the lease is done
    leave(folder, name, content)
    if name == "outcome" and Path("be asked at the end").exists() and os.getpid() != mine:
        os.kill(mine, signal.SIGTERM)
        time.sleep(600)

mine = os.getpid()
os.fork, os.waitpid = fork_loudly, wait_and_be_asked
leave, leased._leave = leased._leave, leave_and_be_asked

def work(lease):
    args, stopped = lease["args"], []
    if args["how"] == "end one of its own":  # as a pool of multiprocessing that is made at import and closed
        reader, writer = os.pipe()
        if (own := fork()) == 0:
            os.write(writer, b".")
            time.sleep(600)
        os.read(reader, 1)
        os.kill(own, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(waitpid(own, 0)[1]), flush=True)
    if args["how"] == "fail to read":
        raise OSError("nothing to read")
    if args["how"] == "load long":
        print("load long begins", flush=True)
        time.sleep(600)
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    print(args["how"], "begins", flush=True)
    if args["how"] == "thread":
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    if args["how"] == "grow":
        held.append(bytearray(os.urandom(1) * (300 << 20)))
    if args["how"] == "register":
        atexit.register(Path("ended").touch)
    if args["how"] == "fork and die":
        if fork() == 0:
            time.sleep(600)
        signal.raise_signal(signal.SIGKILL)
    if args["how"] == "be asked":
        stopped.append(1)
    if args["how"] == "die":
        signal.raise_signal(args["by"])
    if args["how"] == "leave":
        os._exit(args["status"])
    if args["how"] == "draw":
        print(numpy.random.random(), flush=True)
    if args["how"] == "load":
        print(sorted({"headrace.demo.scenes", "colorsys"} & set(sys.modules)), flush=True)
        import colorsys, headrace.demo.scenes
    while args["how"] == "ignore" or (args["how"] in ("wait", "wait and leave") and not stopped):
        time.sleep(0.01)
    if args["how"] == "wait and leave":
        os._exit(args["status"])
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


def is_there(process: psutil.Process) -> bool:
    """Return whether a process runs."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_lease_is_done_by_a_process_that_is_there_already(worker: Worker) -> None:
    """And so is the next: nothing is loaded again."""
    waits = worker._next
    first, second = worker.work(lease("end")), worker.work(lease("end"))
    assert worker._next is waits
    assert (first.status, first.document, first.interrupted) == (0, b"{}", False)
    assert first.said == "end begins\n"
    assert first.pid == second.pid


@pytest.mark.parametrize("how", ["thread", "grow", "fail", "be asked"])
def test_a_process_with_which_a_lease_did_not_end_well_does_no_other(worker: Worker, how: str) -> None:
    """Nor one that goes on with something, or holds more and more memory."""
    first, second = worker.work(lease("end")), worker.work(lease(how, status=int(how == "fail")))
    third = worker.work(lease("end"))
    assert second.pid == first.pid
    assert third.pid != first.pid
    assert third.status == 0


def test_a_process_that_dies_while_it_waits_costs_no_lease(worker: Worker) -> None:
    """Another one does the next."""
    first = worker.work(lease("end"))
    process = psutil.Process(first.pid)
    process.kill()
    while is_there(process):
        time.sleep(0.01)
    second = worker.work(lease("end"))
    assert (second.status, second.is_death) == (0, False)
    assert second.pid != first.pid


def test_a_death_is_seen_although_a_child_of_the_users_code_lives(worker: Worker) -> None:
    """It holds all that was open when it was forked."""
    report = worker.work(lease("fork and die"))
    assert (report.status, report.said) == (-9, "fork and die begins\n")


def test_a_process_ends_orderly_with_its_worker(worker: Worker, tmp_path: Path) -> None:
    """What the user's code has registered for that is done."""
    worker.work(lease("register"))
    assert not (tmp_path / "ended").exists()
    worker.close()
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("shard", [None, "0/2"])
def test_one_that_is_asked_to_stop_before_it_begins_has_not_died(worker: Worker, shard: str | None) -> None:
    """A portion is left to do then; of a place at a queue nothing is."""
    reports = []
    thread = threading.Thread(target=lambda: reports.append(worker.work(lease("load long", shard=shard))))
    thread.start()
    news = ""
    while "load long begins" not in news:
        news += worker.news()
        time.sleep(0.01)
    worker.stop()
    thread.join()
    assert (reports[0].status, reports[0].is_death, reports[0].interrupted) == (0, False, shard is not None)


@pytest.mark.parametrize("shard", [None, "0/2"])
def test_one_that_was_asked_to_stop_before_its_lease_has_not_died(worker: Worker, shard: str | None) -> None:
    """The same is to be said of the lease."""
    worker.work(lease("end"))
    waits = worker._next
    assert waits is not None
    os.kill(waits.pid, signal.SIGTERM)
    report = worker.work(lease("wait", shard=shard))
    assert (report.status, report.is_death, report.interrupted) == (0, False, shard is not None)
    assert worker.work(lease("end")).document == b"{}"


def test_one_that_is_asked_to_stop_when_all_is_done_has_done_it(worker: Worker, tmp_path: Path) -> None:
    """What it left is not taken back."""
    (tmp_path / "be asked at the end").touch()
    report = worker.work(lease("end", shard="0/2"))
    assert (report.status, report.interrupted, report.document) == (0, False, b"{}")


def test_what_the_users_code_forks_ends_as_without_headrace(worker: Worker) -> None:
    """And says nothing of the lease."""
    report = worker.work(lease("end one of its own", shard="0/2"))
    assert (report.status, report.interrupted, report.document) == (0, False, b"{}")
    assert report.said.startswith("-15\n")


def test_an_error_that_nobody_expected_is_told(worker: Worker) -> None:
    """Its lease has not ended orderly."""
    report = worker.work(lease("fail to read"))
    assert (report.status, report.is_death) == (1, True)
    assert "OSError: nothing to read" in report.said


def test_what_a_process_needed_of_headrace_is_there_for_the_next(worker: Worker) -> None:
    """Engines and decoders are loaded once. What else was loaded went with the first."""
    first = worker.work(lease("load"))
    worker.work(lease("die", by=signal.SIGKILL))
    second = worker.work(lease("load"))
    assert first.said == "load begins\n[]\n"
    assert second.said == "load begins\n['headrace.demo.scenes']\n"


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
    assert worker.work(lease("die", by=signal.SIGKILL)).status == -9
    assert worker.work(lease("end")).status == 0


@pytest.mark.parametrize("status", [0, 7])
def test_a_process_that_leaves_in_the_midst_is_told_as_dead(worker: Worker, status: int) -> None:
    """Whatever its exit status, as of what calls `os._exit`; one that ends its lease is not."""
    report = worker.work(lease("leave", status=status))
    assert (report.status, report.is_death) == (status, True)
    assert not worker.work(lease("end")).is_death


def test_one_that_dies_while_it_is_asked_to_stop_is_told_as_dead(worker: Worker) -> None:
    """Nobody is there to pass the request on to."""
    report = worker.work(lease("die", by=signal.SIGUSR1))
    assert (report.status, report.said) == (-signal.SIGUSR1, "die begins\n")


def test_processes_draw_other_numbers(worker: Worker) -> None:
    """NumPy's own state would be that of the process which forks them."""
    first = worker.work(lease("draw"))
    worker.work(lease("die", by=signal.SIGKILL))
    assert worker.work(lease("draw")).said != first.said


def test_what_ignores_its_end_ends_although_its_parent_was_killed(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time that it has to finish what it has in hand."""
    monkeypatch.setattr(module, "_LEAVE_SECONDS", 0.0)
    process = worker._next
    assert process is not None
    process._grace_seconds = 0.2
    reports = []
    thread = threading.Thread(target=lambda: reports.append(worker.work(lease("ignore"))))
    thread.start()
    news = ""
    while "ignore begins" not in news:
        news += worker.news()
        time.sleep(0.01)
    (child,) = psutil.Process(process.pid).children()
    os.kill(process.pid, signal.SIGKILL)
    thread.join()
    assert reports[0].status == -9
    until = time.monotonic() + 20
    while is_there(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_there(child)


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


def test_one_that_leaves_when_it_is_asked_to_stop_has_died(worker: Worker) -> None:
    """Its exit status is that of a library, and not that of the run."""
    reports = []
    thread = threading.Thread(target=lambda: reports.append(worker.work(lease("wait and leave", status=7))))
    thread.start()
    news = ""
    while "wait and leave begins" not in news:
        news += worker.news()
        time.sleep(0.01)
    worker.stop()
    thread.join()
    assert (reports[0].status, reports[0].interrupted, reports[0].is_death) == (7, True, True)


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


@pytest.mark.parametrize("does", ["idle", "work"])
def test_a_worker_that_is_killed_leaves_nothing(tmp_path: Path, does: str) -> None:
    """The processes that it started remove their files: Ray kills its actors."""
    (tmp_path / "stand_in.py").write_text(PROCESS)
    program = f"""
import argparse, threading, time
from headrace.ray import worker as module
from headrace.ray.leases import Lease, Setting
module.PROCESS = "stand_in"
worker = module.Worker(Setting({str(tmp_path)!r}))
worker.ready()
if {does == "work"}:
    threading.Thread(target=worker.work, args=(Lease("part 0", 0, argparse.Namespace(how="wait")),)).start()
    news = ""
    while "wait begins" not in news:
        news += worker.news()
        time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(temporary)}
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            assert len(list(temporary.iterdir())) == 1
        finally:
            process.kill()
    until = time.monotonic() + 60
    while list(temporary.iterdir()) and time.monotonic() < until:
        time.sleep(0.01)
    assert not list(temporary.iterdir())
