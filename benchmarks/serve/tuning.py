"""A peer's best settings: each point of its grid under 64 connections, twice, in turn; remembered per machine and versions."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.paths import CACHE, digest
from benchmarks.serve.contestants import Contestant, Knobs, Server
from benchmarks.serve.environments import PEERS
from benchmarks.serve.workloads import Workload

_CONNECTIONS, _SECONDS, _ROUNDS = 64, 2.5, 2


def best_settings(contestant: Contestant, workload: Workload, folder: Path, say: Callable[[str], object]) -> Knobs:
    """Return the settings with the highest rate.

    Raises:
        RuntimeError: If the server answers with none of them.
    """
    grid = contestant.grids[workload.name]
    if len(grid) == 1:
        return grid[0]
    key = [
        contestant.name,
        PEERS[contestant.program],
        grid,
        dict(workload.settings) | {"lock": ""},
        measure.cpu_model(),
    ]
    kept = CACHE / f"served-{workload.name}-{contestant.name}-{digest([key, measure.usable_cores()])}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    runners = {json.dumps(knobs): partial(_rate, contestant, workload, knobs, folder) for knobs in grid}
    rates = measure.interleave(
        runners, _ROUNDS, on_result=lambda name, _, rate: say(f"{contestant.name} {name}: {rate:.0f}/s")
    )
    best = max(rates, key=lambda name: statistics.median(rates[name]))
    if not max(rates[best]):
        raise RuntimeError(f"{contestant.name} answers nothing with any of its {len(grid)} settings")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(best)
    return json.loads(best)


def _rate(contestant: Contestant, workload: Workload, knobs: Mapping[str, Any], folder: Path) -> float:
    try:
        with Server(contestant, workload, knobs, folder) as server:
            return float(server.offered(connections=_CONNECTIONS, seconds=_SECONDS)["rate"])
    except RuntimeError:
        return 0.0
