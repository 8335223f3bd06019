"""What the tests of tuning share: a run that is predicted by a formula, and accounts of stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from headrace.base.errors import HeadraceError
from headrace.base.plan import Plan, StageDefaults, resolve
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import BlockedSplit, Distribution, StageAccount
from headrace.sources.finite import Entry, FiniteSource


class Numbers(FiniteSource):
    """Forty items without content."""

    def entries(self) -> Iterator[Entry]:
        """Return them."""
        return (Entry(str(number), b"x") for number in range(40))


@dataclass
class Simulated:
    """What a formula says."""

    throughput: float
    latencies: np.ndarray
    cpu_per_job: float


class FormulaReplay:
    """A run of which a formula of the Plan tells the throughput.

    Args:
        plan: As it ran, resolved.
        formula: Jobs per second under a Plan.
        defaults: Of the stages, to resolve a changed Plan.
    """

    def __init__(self, plan: Plan, formula: Callable[[Plan], float], defaults: list[StageDefaults]) -> None:
        self.plan = plan
        self.throughput = formula(plan)
        self.num_asked = 0
        self._formula = formula
        self._defaults = defaults

    def ratio(self, change: Change, base: Change) -> float:
        """Return the formula's throughput of a change over that of another."""
        asked = self.num_asked
        ratio = self.simulate(change).throughput / self.simulate(base).throughput
        self.num_asked = asked
        return ratio

    def simulate(self, change: Change, seed: int = 0, num_jobs: int | None = None) -> Simulated:
        """Return what the formula says."""
        self.num_asked += 1
        plan = resolve(self.plan.with_settings(change.settings), self._defaults, 4)
        rate = self._formula(plan)
        if rate <= 0:
            raise HeadraceError("this Plan is beyond what was measured")
        in_flight = plan.source.max_in_flight or 100
        cpu = sum(0.001 for _ in plan.stages)
        arriving = change.arrival_rate
        # One server and random arrivals: 1 / (m - l), in the mean. Kept full: N / X, Little's law.
        latency = in_flight / rate if arriving is None else 1 / max(rate - arriving, 1e-9)
        return Simulated(rate, np.full(num_jobs or 100, latency), cpu)


def account(
    name: str, *, service: float = 0.01, cpu: float = 0.01, kind: str = "cpu", gil: float = 0.0
) -> StageAccount:
    """Return the account of a stage: mean service and CPU in seconds, the rest of the service blocked."""
    times = Distribution(num_samples=100, mean=service, minimum=service, maximum=service, percentiles=())
    return StageAccount(
        name=name, kind=kind, executor="thread", station=name, workers=1, items=100, failed=0, num_spans=100,
        service=times, queue_wait=times, setup=0.0, blocked_put=0.0, cpu=cpu, run_delay=0.0, blocked=service - cpu,
        blocked_split=BlockedSplit(gil=gil) if gil else None, cpu_demand=cpu, busy_seconds=1.0, utilization=0.5,
        throughput=100.0, bytes_in=1000.0, bytes_out=1000.0, queue_depth_mean=1.0, queue_depth_max=4.0, queue_capacity=16,
    )  # fmt: skip


def defaults_of(kinds: Mapping[str, str]) -> list[StageDefaults]:
    """Return the defaults of stages {name: kind}."""
    return [StageDefaults(name=name, kind=kind) for name, kind in kinds.items()]  # type: ignore[arg-type]
