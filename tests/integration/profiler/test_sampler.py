"""The sampler process against what is known: threads whose states are certain, kills, signals, other processes."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.worker import WorkerThread
from headrace.profiler.sampler import control
from headrace.profiler.sampler.control import Sampler
from headrace.runs.reader import Run, read_run
from headrace.runs.resource_files import NAMES, seal
from headrace.runs.run_folder import RunFolder

SCRIPT = Path(__file__).with_name("watched_threads.py")


def shares(run: Run) -> dict[str, dict[str, float]]:
    """Return {thread: {state: share of its samples}}."""
    counts: dict[str, Counter[str]] = {}
    for row in run.states().to_pylist():
        counts.setdefault(row["thread"], Counter())[row["state"]] += 1
    return {name: {state: number / count.total() for state, number in count.items()} for name, count in counts.items()}


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Return whether a condition came true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def start_forever(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Start the script without an end; return it and its sampler's process id, once something was written."""
    process = subprocess.Popen([sys.executable, SCRIPT, folder, "0", "forever"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = json.loads(process.stdout.readline())["helper"]
    assert wait_until(lambda: (folder / "states" / "helper.jsonl").exists() and read_run(folder).states().num_rows > 50)
    return process, pid


def is_there(process: int) -> bool:
    """Return whether a process lives; one that waits to be asked how it ended does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def open_files(process: int) -> list[str]:
    """Return what a process has open."""
    found = []
    for file in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(file))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder."""
    return RunFolder.create(tmp_path / "run").path


@pytest.mark.measures
def test_states_of_known_threads(tmp_path: Path) -> None:
    """Threads that sleep, wait or fight for the GIL are seen so; the GIL's share agrees with the kernel's accounts."""
    folder = tmp_path / "run"
    answer = subprocess.run(
        [sys.executable, SCRIPT, folder, "3"], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    facts: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    assert facts["problem"] is None
    assert "gil" not in facts["not_measured"]
    assert "thread states" not in facts["not_measured"]
    seen = shares(read_run(folder))
    for name in ("sleep", "lock"):
        assert seen[name].get(name, 0) > 0.9, (name, seen[name])
    for name in ("network", "network-poll"):
        assert seen[name].get("network", 0) > 0.9, (name, seen[name])
    for name in ("process", "process-socket"):
        assert seen[name].get("process", 0) > 0.9, (name, seen[name])
    for name in ("burner-0", "burner-1"):
        assert set(seen[name]) <= {"running", "gil"}
        # Half of the time on a quiet machine; on one with other work less, because a thread that others keep from its
        # core is not waiting for the GIL. The kernel's own accounts know how much was left; the sampler, which needs a core
        # to look, sees the moments when it had one.
        assert 0.4 * facts["blocked"][name] < seen[name]["gil"] < facts["blocked"][name] + 0.3


@pytest.mark.measures
def test_resources_of_a_run(folder: Path) -> None:
    """A busy process is seen busy, every name is described, and rates stand in the sealed file."""
    sampler = Sampler(folder, resource_hertz=10)
    sampler.start()
    began, used = time.monotonic(), time.process_time()

    def cpu_cores() -> list[float]:
        sum(range(100_000))
        rows = read_run(folder).resources().to_pylist()
        return [row["value"] for row in rows if (row["scope"], row["name"]) == ("processes", "cpu_cores")]

    assert wait_until(lambda: len(cpu_cores()) >= 5 and time.process_time() - used > 0.5, 60)
    share = (time.process_time() - used) / (time.monotonic() - began)
    report = sampler.close()
    assert report.problem is None
    assert report.state_samples_per_second is None
    assert seal(folder) == []
    rows = read_run(folder).resources().to_pylist()
    assert {row["name"] for row in rows} <= set(NAMES)
    cpu = [row["value"] for row in rows if (row["scope"], row["name"]) == ("processes", "cpu_cores")]
    assert len(cpu) >= 5
    assert max(cpu) > 0.5 * share
    memory = [row["value"] for row in rows if (row["scope"], row["name"]) == ("processes", "rss_bytes")]
    assert min(memory) > 10_000_000
    others = [row["value"] for row in rows if row["name"] == "other_cpu_cores"]
    assert min(others) >= 0


@pytest.mark.measures
def test_threads_of_a_worker_process(folder: Path) -> None:
    """A child with an interpreter of its own: its threads' waits for its GIL are recognized."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=burn_in_threads, args=(theirs,), daemon=True)
    child.start()
    threads = ours.recv()
    sampler = Sampler(folder)
    sampler.start()
    main_thread = WorkerThread(child.pid or 0, child.pid or 0, "waits")
    burners = [WorkerThread(child.pid or 0, thread, f"burner-{n}") for n, thread in enumerate(threads)]
    sampler.set_threads([main_thread, *burners])
    assert wait_until(lambda: read_run(folder).states().num_rows > 600)
    report = sampler.close()
    child.kill()
    child.join()
    assert report.problem is None
    seen = shares(read_run(folder))
    assert seen["waits"]["process"] > 0.9
    assert set(seen["burner-0"]) == set(seen["burner-1"]) == {"running", "gil"}
    assert read_run(folder).states().column("process").unique().to_pylist() == [child.pid]


def burn_in_threads(connection: Any) -> None:
    """Compute in two threads until killed; tell their numbers. Runs in the child."""

    def burn() -> None:
        while True:
            sum(range(1000))

    threads = [threading.Thread(target=burn, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    connection.send([thread.native_id for thread in threads])
    connection.recv()


def test_a_killed_parent_leaves_readable_files_and_no_sampler(tmp_path: Path) -> None:
    """After SIGKILL of the profiled process the sampler ends, and what it saw can be read and sealed."""
    folder = tmp_path / "run"
    process, pid = start_forever(folder)
    process.kill()
    process.communicate()
    assert wait_until(lambda: not is_there(pid))
    run = read_run(folder)
    assert run.states().num_rows > 50
    assert run.resources().num_rows > 10
    assert all("run.json" in problem for problem in run.problems)
    assert seal(folder) == []
    assert read_run(folder).states().num_rows == run.states().num_rows


def test_a_forked_child_does_not_keep_the_sampler(tmp_path: Path) -> None:
    """A child of the killed process that holds the other end of the sampler's pipe does not keep it alive."""
    code = (
        "import os, sys, time; from pathlib import Path; from headrace.profiler.sampler.control import Sampler\n"
        "sampler = Sampler(Path(sys.argv[1])); sampler.start()\n"
        "child = os.fork()\n"
        "if child: print(sampler.helper_process, child, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid, child = (int(word) for word in process.stdout.readline().split())
    assert wait_until(lambda: (tmp_path / "resources" / "helper.jsonl").exists())
    process.kill()
    process.wait()
    process.stdout.close()
    gone = wait_until(lambda: not is_there(pid))
    assert is_there(child)
    os.kill(child, signal.SIGKILL)
    assert gone


def test_a_sampler_killed_with_its_parent_leaves_readable_files(tmp_path: Path) -> None:
    """SIGKILL of both at once loses at most the last moment."""
    folder = tmp_path / "run"
    process, pid = start_forever(folder)
    os.kill(pid, signal.SIGKILL)
    process.kill()
    process.communicate()
    run = read_run(folder)
    assert run.states().num_rows > 50
    assert all("run.json" in problem for problem in run.problems)


def test_a_killed_sampler_does_not_end_the_run(folder: Path) -> None:
    """After SIGKILL of the sampler everything goes on, and the report says what happened."""
    sampler = Sampler(folder)
    sampler.start()
    me = WorkerThread(os.getpid(), threading.get_native_id(), "me")
    sampler.set_threads([me])
    assert wait_until(lambda: read_run(folder).states().num_rows > 0)
    pid = sampler.helper_process or 0
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not is_there(pid))
    for number in range(3):
        sampler.set_threads([me] * number)
    report = sampler.close()
    assert report.helper_process is report.helper_cpu_seconds is None
    assert "SIGKILL" in (report.problem or "")
    assert set(report.not_measured) >= {"resources", "thread states"}
    assert sampler.close() is report
    assert seal(folder) == []
    assert read_run(folder).states().num_rows > 0


def test_signals_to_everybody_do_not_end_the_sampler(folder: Path) -> None:
    """Ctrl-C and a service manager's SIGTERM reach the sampler too; it watches how the run drains."""
    sampler = Sampler(folder)
    sampler.start()
    sampler.set_threads([WorkerThread(os.getpid(), threading.get_native_id(), "me")])
    assert wait_until(lambda: read_run(folder).states().num_rows > 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(sampler.helper_process or 0, number)
    before = read_run(folder).states().num_rows
    assert wait_until(lambda: read_run(folder).states().num_rows > before)
    assert sampler.close().problem is None


def test_a_sampler_that_cannot_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an interpreter to start, the run goes on and the report says so."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    sampler = Sampler(folder)
    sampler.start()
    sampler.set_threads([])
    report = sampler.close()
    assert "could not be started" in (report.problem or "")
    assert "No such file" in report.not_measured["resources"]


def test_a_sampler_that_fails_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that ends with an error is told with the last line that it wrote."""
    monkeypatch.setattr(control.SamplerSettings, "encode", lambda _: "{}")
    sampler = Sampler(folder)
    sampler.start()
    report = sampler.close()
    assert "exit code 1" in (report.problem or "")
    assert "KeyError" in (report.problem or "")


def test_a_stopped_sampler_does_not_stop_the_run(folder: Path) -> None:
    """A sampler that does not read is written to without waiting, and ended at the end."""
    sampler = Sampler(folder, close_seconds=0.5)
    sampler.start()
    pid = sampler.helper_process or 0
    os.kill(pid, signal.SIGSTOP)
    for number in range(200):  # far more than a pipe holds
        sampler.set_threads([WorkerThread(1, n, f"worker-{number}-{n}") for n in range(50)])
    report = sampler.close()
    assert "did not answer" in (report.problem or "")
    assert not is_there(pid)


def test_workers_told_while_the_sampler_was_busy_are_not_lost(folder: Path) -> None:
    """Messages that did not fit into the pipe arrive later, in order: the last one holds."""
    sampler = Sampler(folder)
    sampler.start()
    pid = sampler.helper_process or 0
    os.kill(pid, signal.SIGSTOP)
    for number in range(100):
        sampler.set_threads([WorkerThread(1, 2, f"worker-{number}-{n}") for n in range(50)])
    os.kill(pid, signal.SIGCONT)
    last = [WorkerThread(os.getpid(), threading.get_native_id(), "last")]

    def told() -> bool:
        sampler.set_threads(last)
        return "last" in read_run(folder).states().column("thread").to_pylist()

    assert wait_until(told)
    assert sampler.close().problem is None


def test_a_full_disk_is_reported(folder: Path) -> None:
    """When the disk takes no samples the sampler goes on, and the report says how many are lost."""
    for name in ("resources", "states"):
        (folder / name).mkdir()
        (folder / name / "helper.jsonl").symlink_to("/dev/full")
    sampler = Sampler(folder, resource_hertz=10)
    sampler.start()
    sampler.set_threads([WorkerThread(os.getpid(), threading.get_native_id(), "me")])
    assert wait_until(lambda: open_files(sampler.helper_process or 0).count("/dev/full") == 2)
    report = sampler.close()
    assert (report.state_samples_per_second or 0) > 0
    assert "could not be written" in (report.problem or "")


def test_closing_without_starting(folder: Path) -> None:
    """A sampler that was never started has nothing to report, and says so."""
    report = Sampler(folder).close()
    assert report.not_measured == {"resources": "not started", "thread states": "not started"}


@pytest.mark.parametrize("changes", [{"resource_hertz": 0.1}, {"resource_hertz": 11}, {"state_hertz": 0}])
def test_rates_out_of_range_are_refused(folder: Path, changes: dict[str, float]) -> None:
    """Rates that would tell nothing or cost too much are a caller's mistake."""
    with pytest.raises(ValueError, match="must lie between"):
        Sampler(folder, **changes)
