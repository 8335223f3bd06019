"""How a run was in some time, in the figures that incidents are explained with; read from its folder."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.diagnose.analysis import Analysis
from headrace.runs.formats.profile import StageAccount

_STATES = ("gil", "lock", "network", "disk", "sleep", "process", "other", "unknown")


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage; mean seconds per item."""

    account: StageAccount
    role: str
    wait: float
    """Before the work: in the queue, and for the others of its batch."""
    blocked_put: float
    """After it: for room in the next queue."""
    cpu: float
    run_delay: float
    blocked: float
    batch: float
    """Mean size; 1 without batches."""
    pixels: float | None
    """Mean bytes of an array that came out; None where none did."""

    @property
    def service(self) -> float:
        """Work, as the clock on the wall shows it."""
        return self.account.service.mean or 0.0

    @property
    def occupancy(self) -> float:
        """Time of a worker that an item takes."""
        return self.service / max(self.batch, 1.0)

    def waits_for(self, state: str) -> float:
        """Return the seconds in which it was blocked for this; 0 where it was not sampled enough."""
        split = self.account.blocked_split
        return float(getattr(split, state)) if split is not None else self.blocked if state == "unknown" else 0.0


class RunState:
    """A run folder, as far as it matters to what changed.

    Args:
        analysis: Of the folder.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.evidence = analysis.evidence
        self.profile = analysis.profile
        self.info = self.evidence.info
        roles = {stage.name: stage.role for stage in self.info.stages}
        self.stages = {
            one.name: _stage_state(one, roles.get(one.name, "map")) for one in self.profile.stages if one.num_spans
        }

    @property
    def latency(self) -> float | None:
        """Mean latency of jobs that went all the way, seconds."""
        return self.profile.latency.mean

    @cached_property
    def seconds(self) -> float:
        """Length."""
        spans = self.evidence.spans
        if not len(spans):
            return 0.0
        return max(float(spans.arrived.max()) / 1e9, 1e-9)

    @cached_property
    def num_jobs(self) -> int:
        """Recorded jobs."""
        return len(np.unique(self.evidence.spans.root))

    def mean(self, scope: str, name: str) -> float | None:
        """Return the mean of a gauge over the whole time; None if it was not measured."""
        gauge = self.evidence.gauges.get(scope, name)
        return gauge.mean() if gauge else None

    def largest(self, scope: str, name: str) -> float | None:
        """Return the largest value of a gauge."""
        gauge = self.evidence.gauges.get(scope, name)
        return float(gauge.values.max()) if gauge and len(gauge.values) else None

    def least(self, scope: str, name: str) -> float | None:
        """Return the smallest value of a gauge."""
        gauge = self.evidence.gauges.get(scope, name)
        return float(gauge.values.min()) if gauge and len(gauge.values) else None

    def slope(self, scope: str, name: str) -> float | None:
        """Return how much a gauge grows per second, by its ends; None with fewer than three samples."""
        gauge = self.evidence.gauges.get(scope, name)
        if gauge is None or len(gauge.values) < 3 or gauge.seconds[-1] <= gauge.seconds[0]:
            return None
        return float((gauge.values[-1] - gauge.values[0]) / (gauge.seconds[-1] - gauge.seconds[0]))

    @cached_property
    def arrival_rate(self) -> float | None:
        """Jobs that came per second: those received, and those that piled up in the queue meanwhile."""
        received = self.slope("run", "received")
        if received is None:
            spans = self.evidence.spans
            return (
                float(spans.weight[np.unique(spans.root, return_index=True)[1]].sum()) / self.seconds
                if len(spans)
                else None
            )
        return max(0.0, received + (self.slope("source", "visible") or 0.0))

    @cached_property
    def failed_share(self) -> float:
        """Of the deliveries that ended."""
        failed, settled = self.slope("run", "failed"), self.slope("run", "settled")
        if failed is not None and settled:
            return max(0.0, failed / settled)
        spans = self.evidence.spans
        bad = np.unique(spans.root[~spans.is_ok])
        return len(bad) / max(1, self.num_jobs)

    @cached_property
    def failures(self) -> Counter[tuple[str, str]]:
        """{(stage, outcome): recorded items}."""
        spans = self.evidence.spans
        rows = np.flatnonzero(~spans.is_ok)
        outcomes = spans.table["outcome"].to_pylist() if len(rows) else []
        return Counter((spans.stage_names[spans.stage[row]], str(outcomes[spans.row[row]])) for row in rows)

    @cached_property
    def own_cores(self) -> float | None:
        """Cores that the run used."""
        return self.mean("processes", "cpu_cores")

    @cached_property
    def other_cores(self) -> float | None:
        """Cores that others used, guests of the same host included."""
        others, steal = self.mean("machine", "other_cpu_cores"), self.mean("machine", "cpu_steal_ratio")
        return None if others is None else others + (steal or 0.0) * self.info.hardware.num_cores

    @cached_property
    def stuck_workers(self) -> dict[str, float]:
        """{station: workers found busy beyond what the items that came out of it explain}."""
        found = {}
        for name in {stage.station for stage in self.info.stages}:
            busy = self.mean(f"stage:{name}", "busy_workers")
            if busy is None:
                continue
            inside = [one for one in self.stages.values() if one.account.station == name]
            rate = max((one.account.throughput or 0.0 for one in inside), default=0.0)
            explained = sum((one.account.throughput or rate) * (one.occupancy + one.blocked_put) for one in inside)
            found[name] = busy - explained
        return found


def _stage_state(account: StageAccount, role: str) -> StageState:
    service = account.service.mean or 0.0
    cpu, delay = account.cpu, account.run_delay
    return StageState(
        account=account,
        role=role,
        wait=(account.queue_wait.mean or 0.0) + (account.setup or 0.0),
        blocked_put=account.blocked_put or 0.0,
        cpu=cpu or 0.0,
        run_delay=delay or 0.0,
        blocked=account.blocked if account.blocked is not None else max(0.0, service - (cpu or 0.0) - (delay or 0.0)),
        batch=account.batches.mean_size if account.batches else 1.0,
        pixels=account.bytes_out or None,
    )
