"""More requests than there is room for, with a deadline: what is answered in time, and at whose cost.

The client has a thousand connections. A request that finds none free is not sent: it would wait in the client, in a queue that
grows for as long as more is offered than the server can answer and refuse, and every answer would be late before its request
was sent. So three rates are given: offered, sent, and answered in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.serve.contestants import OURS, Server
from benchmarks.serve.ours import read_counts
from benchmarks.serve.refusals import milliseconds, read_histograms
from benchmarks.serve.workloads import ITEM_SECONDS, LAUNCH_SECONDS, Workload

FACTORS = (2, 3)


@dataclass(frozen=True)
class Device:
    """An emulated one, and the deadline of its clients."""

    launch_seconds: float
    item_seconds: float
    deadline_ms: float

    @property
    def title(self) -> str:
        """For readers."""
        cost = f"{self.launch_seconds * 1e3:g} + {self.item_seconds * 1e3:g} n ms"
        return f"a device of {cost}, deadline {self.deadline_ms:.0f} ms"


#: The first asks for all that the front can do on two cores; the second tells what admission is worth where the cores are not
#: what is short, such as beside other programs.
DEVICES = {"fast": Device(LAUNCH_SECONDS, ITEM_SECONDS, 100.0), "slow": Device(0.02, 0.002, 300.0)}
#: As many requests as may be under way.
_CONNECTIONS = 1_000


def measure_overload(
    workload: Workload, device: Device, seconds: float, warm_seconds: float, folder: Path, say: Callable[[str], object]
) -> dict[str, dict[str, Any]]:
    """Return {"2x": ..., "3x": ...}: goodput of the peak, p99 of what was accepted, and items computed for nobody."""
    found = {}
    told = {"launch_seconds": device.launch_seconds, "item_seconds": device.item_seconds}
    workload = replace(workload, settings={**workload.settings, **told})
    knobs = {
        "settings": [f"serve.deadline_seconds={device.deadline_ms / 1e3}"],
        "refusals": str(_refusals_file(workload)),
    }
    with Server(OURS, workload, knobs, folder) as server:
        for factor in FACTORS:
            peak = server.offered(connections=64, seconds=min(5.0, seconds), warm_seconds=warm_seconds)["rate"]
            load = {
                "seconds": seconds,
                "warm_seconds": warm_seconds,
                "rate": factor * peak,
                "deadline_ms": device.deadline_ms,
            }
            found[f"{factor}x"] = _overloaded(server, workload, peak, load)
            say(f"{device.title}, {factor}x overload: {found[f'{factor}x']}")
    return found


def _overloaded(server: Server, workload: Workload, peak: float, settings: Mapping[str, float]) -> dict[str, Any]:
    counts = Path(f"{workload.settings['lock']}.counts")
    before, refused_before = read_counts(counts)[1], read_histograms(_refusals_file(workload))
    load = server.offered(connections=_CONNECTIONS, waits_for_connection=False, **settings)
    computed = read_counts(counts)[1] - before
    refused = milliseconds(refused_before, read_histograms(_refusals_file(workload)))
    answered = load["answered"]
    return {
        "peak": peak,
        "seconds": settings["seconds"],
        "offered": load["offered"],
        "sent": load["sent_rate"],
        "goodput": load["goodput"],
        "goodput_share": load["goodput"] / peak,
        "p99_ms": load["p99_ms"],
        "refused_p99_ms": load["refused"]["p99_ms"],
        "refused_by_server": refused,
        "statuses": load["statuses"],
        "computed": computed,
        "computed_for_nobody": computed - answered,
        "client_late_p99_ms": load["client_late"]["p99_ms"],
        "server_cpu_us": load["server_cpu_us"],
    }


def _refusals_file(workload: Workload) -> Path:
    return Path(f"{workload.settings['lock']}.refusals")
