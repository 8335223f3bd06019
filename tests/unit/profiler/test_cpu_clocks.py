"""CPU time by what threads do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from headrace.base.metering import process_cpu_seconds, thread_cpu_seconds
from headrace.pipeline.unflushed import UnflushedResults
from headrace.pipeline.worker import WorkerThread
from headrace.profiler.cpu_clocks import (
    DECODING,
    FINISHING,
    OTHER,
    PROCESSES,
    RECEIVING,
    WORKERS,
    WRITING,
    CpuClocks,
)
from headrace.testing import FakeClock


def spin(seconds: float) -> None:
    """Compute for so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def in_thread(name: str, seconds: float, clocks: CpuClocks, *, is_worker: bool = False) -> tuple[float, float]:
    """Compute in a thread of that name, and look at the clocks before it ends; return its own clock before and after that."""
    own: list[float] = []

    def work() -> None:
        spin(seconds)
        place = WorkerThread(os.getpid(), threading.get_native_id(), name)
        own.append(time.thread_time())
        clocks.read([place] if is_worker else [])
        own.append(time.thread_time())

    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()
    before, after = own
    return before, after


def test_the_kernel_clock_of_a_thread_is_its_cpu_time() -> None:
    """Another way to read this thread's own clock gives the same."""
    before = time.thread_time()
    seconds = thread_cpu_seconds(threading.get_native_id())
    assert seconds is not None
    assert before <= seconds <= time.thread_time()


def test_the_kernel_clock_of_a_process_is_its_cpu_time() -> None:
    """Another way to read this process's own clock gives the same."""
    before = time.process_time()
    seconds = process_cpu_seconds(os.getpid())
    assert seconds is not None
    assert before <= seconds <= time.process_time()


def test_what_does_not_exist_has_no_clock() -> None:
    """A thread or process that is not there has None, not 0."""
    assert process_cpu_seconds(2**22 + 1) is None
    assert thread_cpu_seconds(2**22 + 1) is None


@pytest.mark.parametrize(
    ("name", "is_worker", "role"),
    [
        ("decode-0", True, WORKERS),
        ("process-0-finisher", False, FINISHING),
        ("receiver-3", False, RECEIVING),
        ("receiver-3", True, WORKERS),
        ("heartbeat", False, "heartbeats"),
        ("headrace-span-writer", False, "writing spans"),
        ("video", False, DECODING),
        ("video-gate", False, DECODING),
        ("somebody", False, OTHER),
    ],
)
def test_a_thread_counts_for_what_it_does(name: str, is_worker: bool, role: str) -> None:
    """CPU time goes to the role of the thread's name, and stays there when the thread has ended."""
    clocks = CpuClocks()
    before, after = in_thread(name, 0.1, clocks, is_worker=is_worker)
    clocks.read([])
    assert 0.1 <= before <= clocks.sum_by_role()[role] <= after + 0.05  # other threads of that role hardly do anything


def test_only_what_came_after_its_making_counts() -> None:
    """CPU time of the process before the clocks were made is left out."""
    spin(0.05)
    before = time.process_time()
    clocks = CpuClocks()
    clocks.read([])
    assert 0 < clocks.total() <= time.process_time() - before


def test_python_threads_are_not_native() -> None:
    """What Python's own threads used is not put down to native threads."""
    clocks = CpuClocks()
    in_thread("decode-0", 0.2, clocks, is_worker=True)
    assert clocks.native() < 0.1


def test_a_worker_process_counts() -> None:
    """CPU time of a process in which stages run is in the total, under a role of its own."""
    clocks = CpuClocks()
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        clocks.read([WorkerThread(child.pid, child.pid, "decode-0")])
        child.communicate(b"\n")
    assert clocks.sum_by_role()[PROCESSES] >= 0.3
    assert clocks.total() >= 0.3


def test_what_a_worker_process_used_before_does_not_count() -> None:
    """Starting Python and opening stages took place before the first job, and is no work of the run."""
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        place = WorkerThread(child.pid, child.pid, "decode-0")
        clocks = CpuClocks([place])
        clocks.read([place])
        child.communicate(b"\n")
    assert clocks.sum_by_role()[PROCESSES] < 0.15


def test_the_thread_that_waits_for_a_worker_process_is_a_worker() -> None:
    """What it costs to hand items to a process is put down to the workers, not to threads that nobody knows."""
    clocks = CpuClocks()

    def work() -> None:
        spin(0.03)
        clocks.read([WorkerThread(os.getpid() + 1, 2**22 + 1, "decode-0")])

    thread = threading.Thread(target=work, name="decode-0")
    thread.start()
    thread.join()
    assert clocks.sum_by_role()[WORKERS] >= 0.03


def test_a_thread_that_noted_its_time_at_its_end_counts_whole() -> None:
    """What a thread did between the last look and its end is not lost where it told; others' numbers mean nothing."""
    clocks = CpuClocks()
    in_thread("receiver-0", 0.01, clocks)
    (number,) = (number for number, role in clocks._roles.items() if role == RECEIVING)
    clocks.read([], ended={number: 7.0, 2**22 + 1: 5.0})
    assert clocks.sum_by_role()[RECEIVING] == 7.0


def test_switches_count_from_its_making_on() -> None:
    """A thread that sleeps twenty times goes to sleep at least so often, and what was before does not count."""
    clocks = CpuClocks()
    assert clocks.count_switches() == (0, 0)
    for _ in range(20):
        time.sleep(0.0001)
    clocks.read([])
    assert clocks.count_switches()[0] >= 20


def test_a_worker_that_ran_before_counts_from_then_on() -> None:
    """Of a thread that was there before the clocks, and is told to be a worker later, only the new CPU time counts."""
    told: list[CpuClocks] = []
    go, made = threading.Event(), threading.Event()

    def work() -> None:
        spin(0.2)
        go.set()
        made.wait()
        told[0].read([WorkerThread(os.getpid(), threading.get_native_id(), "decode-0")])

    thread = threading.Thread(target=work, name="decode-0")
    thread.start()
    go.wait()
    told.append(CpuClocks())
    made.set()
    thread.join()
    assert told[0].sum_by_role()[WORKERS] < 0.1


def test_results_that_a_worker_writes_down_are_no_work_of_its_own() -> None:
    """A database that computes for each row was taken for work of the workers that nobody can explain."""

    class Computing:
        flush_items, flush_seconds = 2, 10.0

        def flush(self) -> None:
            spin(0.05)

    clocks = CpuClocks()
    unflushed = UnflushedResults(Computing(), lambda items: None, FakeClock(), lambda item, reason: None)  # type: ignore[arg-type]

    def work() -> None:
        unflushed.add([SimpleNamespace(job=SimpleNamespace(id=name)) for name in "ab"])  # type: ignore[misc]
        clocks.read([WorkerThread(os.getpid(), threading.get_native_id(), "work-0")])

    thread = threading.Thread(target=work, name="work-0")
    thread.start()
    thread.join()
    roles = clocks.sum_by_role(unflushed.cpu_seconds)
    assert roles[WRITING] >= 0.05
    assert roles[WORKERS] == clocks.sum_by_role()[WORKERS] - roles[WRITING]
