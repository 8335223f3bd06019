"""Rounds in which all servers are up and get the same loads in turn, forwards and backwards."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.serve.contestants import OURS, Contestant, Knobs, Server
from benchmarks.serve.figures import Ratio, ratio
from benchmarks.serve.workloads import Workload

#: {name of the load: what `Server.offered` takes}.
Loads = Mapping[str, Mapping[str, Any]]


@dataclass
class Rounds:
    """What came out.

    Attributes:
        figures: {contestant: {load: figures, one for each round}}.
        failed: {contestant: why it has none}.
    """

    figures: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def median(self, name: str, load: str, figure: str = "rate") -> float:
        """Return the median over the rounds."""
        return statistics.median(one[figure] for one in self.figures[name][load])

    def spread(self, name: str, load: str, figure: str = "rate") -> tuple[float, float, float]:
        """Return median, least and greatest."""
        values = [one[figure] for one in self.figures[name][load]]
        return statistics.median(values), min(values), max(values)

    def peers(self) -> list[str]:
        """Return who else has figures."""
        return [name for name in self.figures if name != OURS.name]

    def best(self, names: Iterable[str], load: str, figure: str = "rate", choose: Callable[..., str] = max) -> str:
        """Return whose median is the best; `choose` is min where less is better."""
        return choose(names, key=lambda name: self.median(name, load, figure))

    def ratio(self, peer: str, load: str, figure: str = "rate") -> Ratio:
        """Return ours over a peer's, round by round."""
        return ratio(*([one[figure] for one in self.figures[name][load]] for name in (OURS.name, peer)))


def run_rounds(
    workload: Workload,
    contestants: Mapping[Contestant, Knobs],
    loads: Loads,
    rounds: int,
    folder: Path,
    say: Callable[[str], object],
) -> Rounds:
    """Run everything; a server that fails once takes no further part."""
    found = Rounds({one.name: {load: [] for load in loads} for one in contestants})
    for number in range(rounds):
        with ExitStack() as stack:
            servers = _start(stack, workload, contestants, found, folder)
            turned = servers if number % 2 == 0 else list(reversed(servers))
            for load, settings in loads.items():
                for server in turned:
                    _offer(server, load, settings, found, say)
    for name in found.failed:
        found.figures.pop(name, None)
    return found


def _start(
    stack: ExitStack, workload: Workload, contestants: Mapping[Contestant, Knobs], found: Rounds, folder: Path
) -> list[Server]:
    servers = []
    for contestant, knobs in contestants.items():
        if contestant.name in found.failed:
            continue
        try:
            servers.append(stack.enter_context(Server(contestant, workload, knobs, folder)))
        except (RuntimeError, OSError) as error:
            found.failed[contestant.name] = str(error)
    return servers


def _offer(server: Server, load: str, settings: Mapping[str, Any], found: Rounds, say: Callable[[str], object]) -> None:
    if server.name in found.failed:
        return
    figures = server.offered(**settings)
    found.figures[server.name][load].append(figures)
    wrong = {status: count for status, count in figures["statuses"].items() if status != "200"}
    told = f"; not answered 200: {wrong}, such as {figures['said']}" if wrong else ""
    say(f"{load}, {server.name}: {figures['rate']:.0f}/s{told}")
    if not figures["rate"]:
        found.failed[server.name] = f"no good answer under load {load}: {figures['statuses']}"


def as_rows(found: Rounds) -> dict[str, dict[str, Any]]:
    """Return, for each contestant and load, rate, latency and cost for JSON."""
    return {name: {load: _row(found, name, load) for load in loads} for name, loads in found.figures.items()}


def _row(found: Rounds, name: str, load: str) -> dict[str, Any]:
    low_high = found.spread(name, load)[1:]
    row = {
        figure: found.median(name, load, figure)
        for figure in ("rate", "p50_ms", "p99_ms", "server_cpu_us", "server_switches")
    }
    lost = sum(one["requests"] - one["statuses"].get("200", 0) for one in found.figures[name][load])
    return {**row, "rate_range": low_high, "not_answered": lost}


def ratio_record(one: Ratio, peer: str) -> dict[str, Any]:
    """Return a ratio for JSON."""
    return {**asdict(one), "peer": peer}
