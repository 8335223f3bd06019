"""How much memory a training may take, and who says so."""

from __future__ import annotations

import resource
from pathlib import Path

from headrace.runs.hardware import find_hardware

_MEMINFO = Path("/proc/meminfo")


def find_limit(asked_bytes: int | None, device_bytes: int | None) -> tuple[int, str]:
    """Return the limit on the memory of a training process, bytes, and where it comes from.

    Args:
        asked_bytes: By the user; None: not asked.
        device_bytes: Memory of the CUDA device; None: it trains on the CPU.
    """
    found = {"--memory": asked_bytes, "the device": device_bytes}
    if device_bytes is None:
        found["the machine or its control group"] = find_hardware().memory_bytes
        found["what is available now"] = _available()
        for name, kind in (("RLIMIT_AS", resource.RLIMIT_AS), ("RLIMIT_DATA", resource.RLIMIT_DATA)):
            soft = resource.getrlimit(kind)[0]
            found[name] = None if soft == resource.RLIM_INFINITY else soft
    known = {name: value for name, value in found.items() if value is not None}
    name = min(known, key=lambda name: known[name])
    return known[name], name


def _available() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
