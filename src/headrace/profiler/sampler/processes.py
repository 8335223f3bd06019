"""What the run's process and its descendants use, without the sampler. Names and units: `runs.resource_files`.

Own lines of /proc instead of psutil: one reading of `stat` answers what would be five there, and psutil tells no page faults
and only the main thread's switches.

References:
    proc_pid_stat(5), proc_pid_io(5), proc_tid_children(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headrace.profiler.sampler.rates import Rates, table_of, text_of

#: Threads of a process whose switches are read, and how seldom: `status` is the slowest of all files, up to 40 us each.
_MAX_THREADS = 256
_SWITCHES_SECONDS = 2.0
#: Threads of a process of which it is looked up whether they want a core; of more, every second, third, ... one.
_MAX_STATES = 64


@dataclass
class _Totals:
    """Sums over processes. Counters hold what ended children did, once their parent has waited for them."""

    num_processes: int = 0
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    threads: int = 0
    open_files: int | None = 0
    read_bytes: int | None = 0
    write_bytes: int | None = 0
    process_ids: list[int] = field(default_factory=list)
    """Of those that still run."""


class Processes:
    """Samples the run's processes.

    Attributes:
        not_measured: {what: why}.
    """

    def __init__(self, process: int, sampler: int, proc: Path = Path("/proc")) -> None:
        """Sample a process and its descendants, except one.

        Args:
            process: The run's process.
            sampler: The process that is left out, with its descendants.
            proc: Where the process file system is mounted.
        """
        self.not_measured: dict[str, str] = {}
        self._process = process
        self._sampler = sampler
        self._proc = proc
        self._rates = Rates()
        self._switches: dict[tuple[int, str], tuple[int, int]] = {}
        self._total_switches = [0, 0]
        self._switches_due = 0.0
        self._workers: frozenset[tuple[int, int]] = frozenset()
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._has_children_files = (proc / str(process) / "task" / str(process) / "children").exists()

    def set_workers(self, threads: Iterable[tuple[int, int]]) -> None:
        """Say which threads, each (process, thread), are workers; all others count as native.

        The few that headrace has beside its workers hardly ever want a core.
        """
        self._workers = frozenset(threads)

    def sample(self, now: float) -> dict[str, float | None]:
        """Return {name: value}; None for what cannot be told (yet), empty once the run's process is gone.

        Args:
            now: Seconds of the monotonic clock.
        """
        totals = _Totals()
        for process in self._find():
            self._add(process, totals)
        if not totals.num_processes:
            return {}
        growth = self._rates.growth
        measured = {
            "cpu_cores": growth("cpu", totals.cpu_seconds, now),
            "rss_bytes": totals.rss_bytes,
            "minor_faults_per_second": growth("minor", totals.minor_faults, now),
            "major_faults_per_second": growth("major", totals.major_faults, now),
            "num_processes": totals.num_processes,
            "threads": totals.threads,
            "native_runnable": sum(map(self._count_native_runnable, totals.process_ids)) if self._workers else None,
            "open_files": totals.open_files,
            "read_bytes_per_second": None if totals.read_bytes is None else growth("read", totals.read_bytes, now),
            "write_bytes_per_second": None if totals.write_bytes is None else growth("write", totals.write_bytes, now),
        }
        if now >= self._switches_due:
            self._switches_due = now + _SWITCHES_SECONDS
            self._add_switches(totals.process_ids)
            measured["voluntary_switches_per_second"] = growth("voluntary", self._total_switches[0], now)
            measured["involuntary_switches_per_second"] = growth("involuntary", self._total_switches[1], now)
        return measured

    def _find(self) -> list[int]:
        """Return the run's process and its descendants, without the sampler and its own."""
        if not self._has_children_files:
            return [self._process, *self._find_by_psutil()]
        found = [self._process]
        for process in found:  # grows meanwhile
            tasks = f"{self._proc}/{process}/task"  # text: a Path costs as much as reading the file
            for thread in _list_folder(tasks):
                children = text_of(f"{tasks}/{thread}/children") or ""
                found += [child for word in children.split() if (child := int(word)) != self._sampler]
        return found

    def _find_by_psutil(self) -> list[int]:
        """Ask all processes of the machine for their parents: on a kernel without CONFIG_PROC_CHILDREN."""
        psutil.PROCFS_PATH = str(self._proc)
        try:
            descendants = psutil.Process(self._process).children(recursive=True)
        except psutil.Error:
            return []
        return [child.pid for child in descendants if child.pid != self._sampler]

    def _add(self, process: int, totals: _Totals) -> None:
        folder = self._proc / str(process)
        # The name in brackets may hold anything, also brackets and blanks.
        fields = (text_of(folder / "stat") or "").rpartition(")")[2].split()
        if len(fields) < 22:
            return  # it has ended
        totals.num_processes += 1
        totals.minor_faults += int(fields[7]) + int(fields[8])
        totals.major_faults += int(fields[9]) + int(fields[10])
        totals.cpu_seconds += sum(map(int, fields[11:15])) / self._ticks_per_second
        totals.threads += int(fields[17])
        totals.rss_bytes += int(fields[21]) * self._page_bytes
        if fields[0] in "ZX":
            return  # it has ended, and its parent has not asked: only the counters are left
        totals.process_ids.append(process)
        self._add_files(folder, totals)

    def _add_files(self, folder: Path, totals: _Totals) -> None:
        try:
            num_files = len(os.listdir(folder / "fd"))
        except FileNotFoundError:
            return
        except OSError as error:
            self._refuse("open_files", error)
            totals.open_files = None
        else:
            if totals.open_files is not None:
                totals.open_files += num_files
        counters = {name.rstrip(":"): value for name, value in table_of(folder / "io").items()}
        if "read_bytes" not in counters or totals.read_bytes is None or totals.write_bytes is None:
            totals.read_bytes = totals.write_bytes = None
            self.not_measured["processes read_bytes_per_second, write_bytes_per_second"] = (
                f"{folder}/io cannot be read: it takes the right to trace the process, and CONFIG_TASK_IO_ACCOUNTING"
            )
            return
        totals.read_bytes += counters["read_bytes"]
        totals.write_bytes += counters["write_bytes"]

    def _add_switches(self, processes: list[int]) -> None:
        """Add what each thread's counters grew by: a thread that ends must not take its own away."""
        found = {}
        for process in processes:
            folder = f"{self._proc}/{process}/task"
            for thread in _list_folder(folder)[:_MAX_THREADS]:
                counters = _switches(f"{folder}/{thread}/status")
                if counters is not None:
                    found[process, thread] = counters
        for thread_key, (voluntary, involuntary) in found.items():
            before = self._switches.get(thread_key, (0, 0))
            self._total_switches[0] += max(0, voluntary - before[0])
            self._total_switches[1] += max(0, involuntary - before[1])
        self._switches = found

    def _count_native_runnable(self, process: int) -> float:
        """Return how many threads of a process that are no workers are on a core or wait for one."""
        folder = f"{self._proc}/{process}/task"
        native = [thread for thread in _list_folder(folder) if (process, int(thread)) not in self._workers]
        step = -(-len(native) // _MAX_STATES) or 1
        states = ((text_of(f"{folder}/{thread}/stat") or "").rpartition(")")[2].split() for thread in native[::step])
        return float(step * sum(fields[:1] == ["R"] for fields in states))

    def _refuse(self, what: str, error: OSError) -> None:
        self.not_measured[f"processes {what}"] = f"{error.filename}: {error.strerror}"


def _list_folder(folder: Path | str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _switches(status: str) -> tuple[int, int] | None:
    """Return voluntary and involuntary switches of a thread, or None if it has ended."""
    text = text_of(status) or ""
    _, found, rest = text.rpartition("\nvoluntary_ctxt_switches:")
    words = rest.split()
    return (int(words[0]), int(words[2])) if found and len(words) >= 3 else None
