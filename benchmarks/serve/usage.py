"""What the threads of a server used: CPU and voluntary switches, from the kernel's files of each thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Of all threads that live, of a process and its descendants."""

    cpu_seconds: float
    switches: int
    """Voluntary ones: each is a thread that went to sleep, and was woken."""

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.cpu_seconds - earlier.cpu_seconds, self.switches - earlier.switches)

    def per_request(self, figures: Mapping[str, Any]) -> dict[str, float]:
        """Return the usage of one request of a load, which began before the window that its figures are of."""
        count = max(1, figures["sent"])
        return {"server_cpu_us": self.cpu_seconds / count * 1e6, "server_switches": self.switches / count}


def usage(pid: int) -> Usage:
    """Return what a process and its descendants have used."""
    read = [one for task in _tasks(pid) if (one := _of_thread(task))]
    return Usage(sum(cpu for cpu, _ in read), sum(switches for _, switches in read))


def resident_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants; what they share counts for each."""
    total = 0
    for process in descendants(pid):
        lines = _read(Path("/proc", str(process), "status")).splitlines()
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    return total


def descendants(pid: int) -> set[int]:
    """Return a process and all that descend from it now."""
    return {int(task.parent.parent.name) for task in _tasks(pid)}


def _tasks(pid: int) -> Iterator[Path]:
    pending = [str(pid)]
    while pending:
        folder = Path("/proc", pending.pop(), "task")
        for task in folder.glob("*"):
            yield task
            pending += _read(task / "children").split()


def _of_thread(task: Path) -> tuple[float, int] | None:
    """Return CPU seconds and voluntary switches; None if the thread is gone."""
    times, status = _read(task / "schedstat").split(), _read(task / "status")
    if not times or not status:
        return None
    return int(times[0]) / 1e9, int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
