"""More requests than there is room for, with a deadline: what is answered in time, and at whose cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.serve.contestants import OURS, Server
from benchmarks.serve.ours import read_counts
from benchmarks.serve.workloads import Workload

DEADLINE_MS = 100.0
FACTORS = (2, 3)
#: As many requests as may be under way in the client; beyond it they wait there, and their deadline passes.
_CONNECTIONS = 1_000


def measure_overload(
    workload: Workload, seconds: float, warm_seconds: float, folder: Path, say: Callable[[str], object]
) -> dict[str, dict[str, Any]]:
    """Return {"2x": ..., "3x": ...}: goodput of the peak, p99 of what was accepted, and items computed for nobody."""
    found = {}
    with Server(OURS, workload, {"settings": [f"serve.deadline_seconds={DEADLINE_MS / 1e3}"]}, folder) as server:
        for factor in FACTORS:
            peak = server.offered(connections=64, seconds=min(5.0, seconds), warm_seconds=warm_seconds)["rate"]
            load = {"seconds": seconds, "warm_seconds": warm_seconds, "rate": factor * peak}
            found[f"{factor}x"] = _overloaded(server, workload, peak, load)
            say(f"{factor}x overload: {found[f'{factor}x']}")
    return found


def _overloaded(server: Server, workload: Workload, peak: float, settings: Mapping[str, float]) -> dict[str, Any]:
    counts = Path(f"{workload.settings['lock']}.counts")
    before = read_counts(counts)[1]
    load = server.offered(connections=_CONNECTIONS, deadline_ms=DEADLINE_MS, **settings)
    computed = read_counts(counts)[1] - before
    answered = load["answered"]
    return {
        "peak": peak,
        "offered": load["offered"],
        "goodput_share": load["goodput"] / peak,
        "p99_ms": load["p99_ms"],
        "refused_p99_ms": load["refused"]["p99_ms"],
        "statuses": load["statuses"],
        "computed": computed,
        "computed_for_nobody": computed - answered,
        "client_late_p99_ms": load["client_late"]["p99_ms"],
        "server_cpu_us": load["server_cpu_us"],
    }
