"""How a run was in some time, in the figures that incidents are explained with; read from its folder."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headrace.diagnose.accounting import Cost, split_blocked
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.blocked_split import BlockedSamples, count_samples
from headrace.runs.formats.profile import BlockedSplit, StageAccount

_STATES = ("gil", "lock", "network", "disk", "sleep", "process", "output", "other", "unknown")
#: Samples of blocked threads that are enough to say what most of the time was waited for: a recorder takes eight a second.
_FEWEST_SAMPLES = 4
#: Jobs that come within this time come at once; times of this length that tell how evenly they come.
_AT_ONCE_SECONDS, _FEWEST_CELLS = 0.25, 16


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
    split: BlockedSplit
    """What it was blocked for; all `unknown` where it was not sampled enough."""

    @property
    def service(self) -> float:
        """Work, as the clock on the wall shows it."""
        return self.account.service.mean or 0.0

    @property
    def occupancy(self) -> float:
        """Time of a worker that an item takes."""
        return self.service / max(self.batch, 1.0)

    def waits_for(self, state: str) -> float:
        """Return the seconds in which it was blocked for this."""
        return float(getattr(self.split, state))

    @property
    def longest_wait(self) -> str:
        """What it was blocked for most of the time."""
        return max(_STATES, key=self.waits_for)

    @property
    def cores(self) -> float:
        """CPU time per second of its workers."""
        return self.cpu / max(self.batch, 1.0) * (self.account.throughput or 0.0)

    def predict_call(self, sizes: dict[int, int]) -> float | None:
        """Return how long a call of an item would take in batches of other sizes; None if nothing was measured at warm-up.

        Args:
            sizes: {size: batches of it}.
        """
        curve = dict(sorted(self.account.batches.cost_curve.items())) if self.account.batches else {}
        items = sum(size * count for size, count in sizes.items())
        if len(curve) < 2 or not items:
            return None
        seconds = np.interp(list(sizes), list(curve), list(curve.values()))
        return float(sum(one * size * count for one, (size, count) in zip(seconds, sizes.items(), strict=True)) / items)


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
        samples = count_samples(self.evidence.spans, self.evidence.states, self.profile.window)
        samples = replace(samples, fewest=_FEWEST_SAMPLES) if samples is not None else None
        self.stages = {
            one.name: _stage_state(one, roles.get(one.name, "map"), samples)
            for one in self.profile.stages
            if one.num_spans
        }

    @property
    def latency(self) -> float | None:
        """Mean latency of jobs that went all the way, seconds."""
        return self.profile.latency.mean

    @cached_property
    def seconds(self) -> float:
        """Length."""
        spans = self.evidence.spans
        if not len(spans):  # nothing went through any stage: as long as it was watched
            return self.evidence.elapsed_seconds
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

    def slope(self, scope: str, name: str) -> float | None:
        """Return how much a gauge grows per second, by its ends; None with fewer than three samples."""
        gauge = self.evidence.gauges.get(scope, name)
        if gauge is None or len(gauge.values) < 3 or gauge.seconds[-1] <= gauge.seconds[0]:
            return None
        return float((gauge.values[-1] - gauge.values[0]) / (gauge.seconds[-1] - gauge.seconds[0]))

    @cached_property
    def arrival_rate(self) -> float | None:
        """Jobs that came per second: those received, and those that piled up in the queue meanwhile, each counted once."""
        received = self.slope("run", "received")
        if received is None:
            spans = self.evidence.spans
            return (
                float(spans.weight[np.unique(spans.root, return_index=True)[1]].sum()) / self.seconds
                if len(spans)
                else None
            )
        again = self.slope("run", "given_back") or 0.0  # these are seen in the queue, or are received again
        return max(0.0, received + (self.slope("source", "visible") or 0.0) - again)

    @cached_property
    def arrivals_at_once(self) -> tuple[float, float] | None:
        """How unevenly jobs come: the index of dispersion of their number in a quarter of a second, and the largest number.

        None where it cannot be told: where jobs wait in the source, they come when there is room.
        """
        waiting = self.evidence.gauges.get("source", "visible")
        spans = self.evidence.spans
        if not len(spans) or (waiting is not None and len(waiting.values) and np.median(waiting.values) > 1):
            return None
        _, first = np.unique(
            spans.root, return_index=True
        )  # rows are by stage, so it is where the job came in or later
        came = np.full(int(spans.root.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(came, spans.root, spans.arrived)
        cells = (came[spans.root[first]] / (_AT_ONCE_SECONDS * 1e9)).astype(np.int64)
        counts = np.bincount(cells - cells.min(), spans.weight[first])
        if len(counts) < _FEWEST_CELLS:
            return None
        return float(counts.var() / counts.mean()), float(counts.max())

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
    def stage_cores(self) -> float:
        """Cores that the stages' workers used."""
        return sum(stage.cores for stage in self.stages.values())

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


def larger_batches(before: StageState, after: StageState) -> float:
    """Return the seconds by which a call of an item grew because batches are larger: waiting for the others of its batch."""
    if before.account.batches is None or after.account.batches is None:
        return 0.0
    usual = before.predict_call(before.account.batches.sizes)
    now = before.predict_call(after.account.batches.sizes)
    return max(0.0, now - usual) if usual is not None and now is not None else 0.0


def blocked_growth(before: StageState, after: StageState) -> dict[str, float]:
    """Return {state: seconds by which being blocked in it grew}.

    Where one of the two times was not sampled enough, only the sum is known, and what is most of it in the other time.
    """
    if not before.split.unknown and not after.split.unknown:
        return {state: after.waits_for(state) - before.waits_for(state) for state in _STATES}
    grown = after.blocked - before.blocked
    if not after.split.unknown:
        return {state: grown * after.waits_for(state) / max(after.blocked, 1e-9) for state in _STATES}
    return {before.longest_wait if grown < before.blocked else "unknown": grown}


def _stage_state(account: StageAccount, role: str, samples: BlockedSamples | None) -> StageState:
    service = account.service.mean or 0.0
    cpu, delay = account.cpu, account.run_delay
    blocked = account.blocked if account.blocked is not None else max(0.0, service - (cpu or 0.0) - (delay or 0.0))
    split = split_blocked(Cost(cpu, delay, blocked), account.name, account.executor, samples)
    return StageState(
        account=account,
        role=role,
        wait=(account.queue_wait.mean or 0.0) + (account.setup or 0.0),
        blocked_put=account.blocked_put or 0.0,
        cpu=cpu or 0.0,
        run_delay=delay or 0.0,
        blocked=blocked,
        batch=account.batches.mean_size if account.batches else 1.0,
        split=split or BlockedSplit(unknown=blocked),
    )
