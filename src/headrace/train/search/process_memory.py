"""Resident memory of a process: now, its peak. Linux only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def read_status(name: str) -> int:
    """Return `VmRSS` (resident) or `VmHWM` (its peak) of this process, bytes."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Let the peak begin again at what is resident now; where the kernel refuses that, it includes what was before."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")


def resident_bytes(process: int) -> int:
    """Return resident memory of another process, bytes; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
