"""Whether the kernel killed for want of memory: its counters, where they can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_CGROUP, _PROC = Path("/sys/fs/cgroup"), Path("/proc")


def memory_kills(cgroup: Path = _CGROUP, proc: Path = _PROC) -> int | None:
    """Return how many processes were killed for want of memory so far; None where it cannot be read.

    The control group of this process counts what happened in it and below; the machine's counter, where there is no
    such group, what happened anywhere.

    References:
        `memory.events` (control groups v2), `memory.oom_control` (v1), `oom_kill` of /proc/vmstat.
    """
    inside = (
        cgroup / "memory.events",
        cgroup / "memory" / "memory.oom_control",
    )  # a container sees its own group there
    for file in (*_own_group(cgroup, proc), *inside, proc / "vmstat"):
        kills = _counter(file)
        if kills is not None:
            return kills
    return None


def _own_group(cgroup: Path, proc: Path) -> Iterator[Path]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield cgroup / path.lstrip("/") / "memory.events"
        elif controllers == "memory":
            yield cgroup / "memory" / path.lstrip("/") / "memory.oom_control"


def _counter(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
