"""Resources of the run's processes, on a made-up process file system and on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.profiler.sampler.processes import Processes
from headrace.runs.resource_files import NAMES

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

Put = Callable[..., None]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Makes up a process."""

    def made(
        process: int, *, children: str = "", cpu: int = 0, ended_cpu: int = 0, state: str = "S", switches: int = 0
    ) -> None:
        folder = tmp_path / str(process)
        thread = folder / "task" / str(process)
        thread.mkdir(parents=True, exist_ok=True)
        (folder / "fd").mkdir(exist_ok=True)
        (folder / "fd" / "0").touch()
        # pid (name) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime cutime cstime
        # priority nice num_threads itrealvalue starttime vsize rss
        (folder / "stat").write_text(
            f"{process} (a ) S (b) {state} 1 1 1 0 -1 0 100 10 5 1 {cpu * TICKS} 0 {ended_cpu * TICKS} 0 20 0 3 0 9 9 7 1\n"
        )
        (folder / "io").write_text("rchar: 9\nwchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\n")
        (thread / "children").write_text(children)
        (thread / "status").write_text(
            f"Name:\tx\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t{switches * 2}\n"
        )

    return made


def test_sums_over_descendants_without_the_helper(put: Put, tmp_path: Path) -> None:
    """The process, its child and its grandchild count; the sampler and what it starts do not."""
    put(10, children="11 99 ")
    put(11, children="12 ")
    put(12)
    put(99, children="98 ")
    put(98)
    measured = Processes(10, 99, tmp_path).sample(1.0)
    assert measured["num_processes"] == 3
    assert measured["rss_bytes"] == 3 * 7 * PAGE
    assert measured["threads"] == 9
    assert measured["open_files"] == 3
    assert measured["cpu_cores"] is None
    assert set(measured) <= set(NAMES)


def test_cpu_of_ended_children_is_not_lost(put: Put, tmp_path: Path) -> None:
    """What a child used before it ended moves to its parent, and the rate goes on."""
    put(10, children="11 ", cpu=5)
    put(11, cpu=3)
    processes = Processes(10, 99, tmp_path)
    processes.sample(1.0)
    put(10, cpu=6, ended_cpu=4)  # the child did another second before it ended
    assert processes.sample(3.0)["cpu_cores"] == 1.0


def test_switches_of_a_thread_that_ended_stay(put: Put, tmp_path: Path) -> None:
    """A thread that ends takes its counter with it, and the rate of the others is right all the same."""
    put(10, children="11 ", switches=10)
    put(11, switches=1000)
    processes = Processes(10, 99, tmp_path)
    processes.sample(1.0)
    put(10, switches=14)
    measured = processes.sample(3.0)
    assert (measured["voluntary_switches_per_second"], measured["involuntary_switches_per_second"]) == (2.0, 4.0)


def test_a_process_that_is_gone_has_nothing(tmp_path: Path) -> None:
    """No process, no values."""
    assert Processes(10, 99, tmp_path).sample(1.0) == {}


def test_unreadable_counters_are_told(put: Put, tmp_path: Path) -> None:
    """Where /proc/PID/io or fd cannot be read the rest is sampled, and the reason told."""
    put(10)
    (tmp_path / "10" / "io").unlink()
    processes = Processes(10, 99, tmp_path)
    measured = processes.sample(1.0)
    assert measured["read_bytes_per_second"] is measured["write_bytes_per_second"] is None
    assert measured["rss_bytes"] == 7 * PAGE
    assert "CONFIG_TASK_IO_ACCOUNTING" in " ".join(processes.not_measured.values())


@pytest.mark.parametrize("has_children_files", [True, False])
def test_real_children_are_found(has_children_files: bool) -> None:
    """Both ways to find descendants agree on a real family: a shell-like parent with two children, one left out."""
    code = (
        "import subprocess, sys\n"
        "sleep = [sys.executable, '-c', 'input()']\n"
        "children = [subprocess.Popen(sleep, stdin=subprocess.PIPE) for _ in range(2)]\n"
        "print(*[child.pid for child in children], flush=True)\n"
        "input()\n"
        "for child in children: child.communicate(b'x')\n"
    )
    family = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert family.stdout is not None
    children = [int(word) for word in family.stdout.readline().split()]
    processes = Processes(family.pid, children[0])
    processes._has_children_files = has_children_files
    measured = processes.sample(time.monotonic())
    family.communicate("x")
    assert measured["num_processes"] == 2
    assert (measured["rss_bytes"] or 0) > 1_000_000


def test_threads_of_libraries_that_want_a_core_are_counted(put: Put, tmp_path: Path) -> None:
    """Of a hundred threads beside a worker, all of which want a core; the worker is none; unknown before workers are known."""
    put(10)
    for thread in (10, *range(1000, 1100)):
        folder = tmp_path / "10" / "task" / str(thread)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{thread} (a ) S (b) {'S' if thread == 10 else 'R'} 1 1\n")
    processes = Processes(10, 99, tmp_path)
    assert processes.sample(1.0)["native_runnable"] is None
    processes.set_workers([(10, 10)])
    assert processes.sample(2.0)["native_runnable"] == 100
    processes.set_workers([(10, 10), *((10, thread) for thread in range(1000, 1090))])
    assert processes.sample(3.0)["native_runnable"] == 10
