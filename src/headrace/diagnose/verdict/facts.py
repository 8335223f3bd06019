"""The numbers that rules look at, gathered once from a run folder's evidence; None is "not measured", never 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from headrace.base.plan import Plan, StagePlan
from headrace.base.records import Receiving
from headrace.diagnose.accounting import window_rows
from headrace.diagnose.cpu_account import NATIVE
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.gil_holders import GilHolders, find_gil_holders
from headrace.diagnose.latency_parts import find_latency_parts
from headrace.diagnose.lock_holders import share_of_lock_waits
from headrace.diagnose.replay import Replay
from headrace.diagnose.replay.demands import LARGE_RESULT, largest_result
from headrace.diagnose.replay.jobs import COMES_AGAIN
from headrace.diagnose.span_columns import Array
from headrace.diagnose.verdict.proposal import WORTH_NAMING
from headrace.diagnose.verdict.work import Work, find_work
from headrace.runs.formats.diagnosis import Bound, Candidate, LatencyPart
from headrace.runs.formats.profile import ProfileDocument, StageAccount
from headrace.runs.run_folder import RunInfo

#: CPU over service without run delay: below it, what a stage costs is what it waits for (a device, a network).
_COMPUTES_AT_ALL = 0.1
#: Share of the blocked time below which samples of thread states say too little to split it.
_UNKNOWN = 0.5
#: Threads of libraries that want a core, over the cores there are, from which on they take cores from one another.
TOO_MANY_NATIVE = 1.5
#: Share of the CPU time that they use, and of a service that waits for a lock, from which on the lock counts as the library's.
MUCH_NATIVE = 0.25
#: Of a stage's service in the queue for the GIL: two threads that need nothing else wait half of it.
MUCH_GIL_WAIT = 0.25


@dataclass(frozen=True, kw_only=True)
class StageView:
    """One stage as rules see it."""

    account: StageAccount
    index: int
    """In the order an item meets them."""
    work: Work
    rows: Array
    """Its spans that began in the window."""
    releases_gil: bool
    plan: StagePlan
    is_largest: bool
    """No stage of its station, whose workers they share, takes longer."""

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.account.name

    @property
    def resources(self) -> tuple[str, ...]:
        """The candidates that stand for this stage's own work: itself, its device, the workers that it keeps busiest."""
        own = (f"stage:{self.name}", f"device:{self.name}")
        return (*own, f"workers:{self.account.station}") if self.is_largest else own

    @property
    def workers(self) -> int:
        """Workers of its station; 1 where it is not known."""
        return self.account.workers or 1

    @property
    def service(self) -> float:
        """Mean seconds that a worker is busy with one item (one batch: a device)."""
        return self.account.service.mean or 0.0

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all its items; 0 where it was not measured."""
        return (self.account.cpu_demand or 0.0) * self.account.items

    @property
    def cpu_share(self) -> float | None:
        """CPU time over service."""
        return self._over_service(self.account.cpu)

    @property
    def delay_share(self) -> float | None:
        """Waiting for a core, over service."""
        return self._over_service(self.account.run_delay)

    @property
    def blocked_share(self) -> float | None:
        """Neither running nor runnable, over service."""
        return self._over_service(self.account.blocked)

    @property
    def computing_share(self) -> float | None:
        """CPU time, and waiting for a core or for the GIL to use it, over service."""
        if self.cpu_share is None or self.delay_share is None:
            return None
        return self.cpu_share + self.delay_share + (self.waits("gil") or 0.0)

    def waits(self, *causes: str) -> float | None:
        """Return blocked time for these causes over service; None where the samples do not tell.

        Args:
            *causes: Fields of `BlockedSplit`: gil, lock, network, disk, sleep, process, other.
        """
        split, blocked = self.account.blocked_split, self.account.blocked
        if split is None or blocked is None or self.service <= 0:
            return None
        if split.unknown > _UNKNOWN * blocked and blocked > 0.01 * self.service:
            return None
        return float(sum(getattr(split, cause) for cause in causes)) / self.service

    @property
    def samples(self) -> int:
        """Samples of blocked threads behind `waits`."""
        return self.account.blocked_split.num_samples if self.account.blocked_split else 0

    @property
    def delivers_much(self) -> bool:
        """Whether it hands over results so large that writing them down can be what it computes."""
        return self.work in ("deliver", "callback") and largest_result(self.account) >= LARGE_RESULT

    @property
    def queue_fill(self) -> float | None:
        """Mean depth of its queue over the queue's bound; None for a stage without a queue of its own."""
        depth, capacity = self.account.queue_depth_mean, self.account.queue_capacity
        return None if depth is None or not capacity else depth / capacity

    def _over_service(self, seconds: float | None) -> float | None:
        return None if seconds is None or self.service <= 0 else seconds / self.service


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of one run."""

    replay: Replay
    candidates: tuple[Candidate, ...]
    bounds: tuple[Bound, ...]
    stages: tuple[StageView, ...]
    machine: dict[str, float] = field(default_factory=dict)
    """Means in the window of what was sampled of machine, processes and source; see `_GAUGES`."""

    @classmethod
    def of(cls, replay: Replay, candidates: Sequence[Candidate], bounds: Sequence[Bound]) -> Facts:
        """Gather the facts of a run."""
        evidence, document = replay.evidence, replay.document
        infos = {stage.name: stage for stage in evidence.info.stages}
        work = find_work(evidence.info.stages)
        busiest = {account.station: account.busy_seconds or 0.0 for account in sorted(document.stages, key=_busy)}
        stages = tuple(
            StageView(
                account=account,
                index=index,
                work=work.get(account.name, "compute"),
                rows=window_rows(evidence.spans, account.name, document.window),
                releases_gil=infos[account.name].releases_gil if account.name in infos else True,
                plan=replay.plan.stages.get(account.name, StagePlan()),
                is_largest=_busy(account) >= busiest[account.station],
            )
            for index, account in enumerate(document.stages)
        )
        return cls(
            replay=replay,
            candidates=tuple(candidates),
            bounds=tuple(bounds),
            stages=stages,
            machine=_machine(evidence, document),
        )

    @property
    def document(self) -> ProfileDocument:
        """The analysis."""
        return self.replay.document

    @property
    def evidence(self) -> Evidence:
        """What the run folder holds."""
        return self.replay.evidence

    @property
    def info(self) -> RunInfo:
        """`run.json`."""
        return self.replay.evidence.info

    @property
    def plan(self) -> Plan:
        """The Plan as resolved."""
        return self.replay.plan

    @property
    def cores(self) -> float:
        """Cores that the run may use, quota included."""
        return self.replay.cores

    @property
    def receiving(self) -> Receiving | None:
        """What the receivers did."""
        return self.info.receiving

    @property
    def span_seconds(self) -> float:
        """Length of the window."""
        return self.document.window.to_seconds - self.document.window.from_seconds

    @property
    def throughput(self) -> float:
        """Measured, jobs per second."""
        return self.replay.throughput

    @property
    def own_cores(self) -> float | None:
        """Cores that the run used."""
        return self.machine.get("processes.cpu_cores")

    @property
    def other_cores(self) -> float | None:
        """Cores that other programs used."""
        return self.machine.get("machine.other_cpu_cores")

    @cached_property
    def core_utilization(self) -> float | None:
        """Cores at work, the run's and others', over the cores there are."""
        if self.own_cores is None:
            return None
        return min(1.0, (self.own_cores + (self.other_cores or 0.0)) / self.cores)

    @cached_property
    def gil_wait(self) -> float | None:
        """Mean number of worker threads that wait for the GIL."""
        waits = [(view, view.waits("gil")) for view in self.stages]
        known = [share * (view.account.utilization or 0.0) * view.workers for view, share in waits if share is not None]
        return sum(known) if known else None

    @cached_property
    def native_runnable(self) -> float | None:
        """Mean number of threads that libraries started and that are on a core or wait for one.

        Where they were not counted: all that want a core on the machine, less those of others and this run's workers.
        """
        counted, wanting = self.machine.get("processes.native_runnable"), self.machine.get("machine.runnable")
        if counted is not None or wanting is None or self.other_cores is None:
            return counted
        shares = [(view, view.cpu_share, view.delay_share) for view in self.stages]
        own = [
            (cpu + delay) * (view.account.utilization or 0.0) * view.workers
            for view, cpu, delay in shares
            if cpu is not None and delay is not None
        ]
        return max(0.0, wanting - self.other_cores - sum(own))

    @property
    def do_native_threads_fight(self) -> bool:
        """Whether threads that libraries started want more cores than there are, and use some of them."""
        wanting = self.native_runnable
        return wanting is not None and wanting >= TOO_MANY_NATIVE * self.cores and self.native_share >= WORTH_NAMING

    @property
    def native_share(self) -> float:
        """Share of the CPU time that threads used which libraries started; 0 where it was not measured."""
        cpu = self.document.cpu
        return next((one.share for one in cpu.lines if one.name == NATIVE), 0.0) if cpu else 0.0

    def waits_in_library(self, view: StageView) -> bool:
        """Return whether workers of a stage wait at a lock of a library whose own threads compute meanwhile.

        A call of OpenBLAS takes all of its threads, and the next call waits until they are free. A lock of the program's own
        around such a call looks the same.
        """
        return self.native_share >= MUCH_NATIVE and (view.waits("lock") or 0.0) >= MUCH_NATIVE

    def lock_wait_while(self, view: StageView, *states: str, by_own: bool = False) -> float:
        """Return the share of a stage's service in which it waits for a lock while some worker is in one of these states.

        Args:
            view: The stage.
            *states: Of a worker.
            by_own: A worker of the stage itself, which may hold the lock.
        """
        waits = view.waits("lock")
        if not waits:
            return 0.0
        evidence = self.evidence
        window = self.document.window
        share = share_of_lock_waits(evidence.spans, evidence.states, window, view.name, states, by_own=by_own)
        return waits * (share or 0.0)

    @cached_property
    def gil_holders(self) -> GilHolders | None:
        """Who held the GIL; None where too few samples tell."""
        here = [view.account for view in self.stages if view.account.executor != "process"]
        seconds = max(self.document.elapsed_seconds, 1e-9)
        cpu_seconds = {one.name: (one.cpu_demand or 0.0) * (one.throughput or one.items / seconds) for one in here}
        return find_gil_holders(self.evidence.spans, self.evidence.states, self.document.window, cpu_seconds)

    @cached_property
    def gil_holder(self) -> StageView | None:
        """The stage that was seen to hold the GIL most; None where samples do not tell.

        Of those that the samples cannot tell apart it is the delivery, if its results are large: what a stage does may be
        needed, that numbers become text is a choice. Else it is the one that holds it most, where that was seen; or the one of
        those that keep the GIL that computes most.
        """
        holders = self.gil_holders
        if holders is None:
            return None
        views = [view for view in self.stages if view.name in holders.alike]
        writing = [view for view in views if view.delivers_much]
        if holders.errors is not None:
            return max(writing or views, key=lambda view: holders.shares[view.name], default=None)
        keeping = holders.find_keepers({view.name: view.cpu_seconds for view in views})
        views = writing or [view for view in views if view.name in keeping]
        return max(views, key=lambda view: view.cpu_seconds, default=None)

    @property
    def model(self) -> StageView | None:
        """The stage that runs the model; the busiest where there are several."""
        models = [view for view in self.stages if view.work == "model"]
        return max(models, key=lambda view: view.account.busy_seconds or 0.0, default=None)

    def stage(self, name: str | None) -> StageView | None:
        """Return a stage by its name."""
        return next((view for view in self.stages if view.name == name), None)

    def best(self, *names: str) -> Candidate | None:
        """Return the candidate with the largest gain among these; None if none of them was simulated."""
        return max((one for one in self.candidates if one.name in names), key=lambda one: one.gain, default=None)

    def gain(self, *names: str) -> float | None:
        """Return the largest gain among candidates of these names; None if none of them was simulated."""
        best = self.best(*names)
        return best.gain if best else None

    def utilization(self, name: str) -> float | None:
        """Return the utilization of a candidate's resource as simulated."""
        return next((one.utilization for one in self.candidates if one.name == name), None)

    def service_seconds(self, view: StageView) -> Array:
        """Return the service of each of a stage's spans in the window, float64 seconds."""
        spans = self.evidence.spans
        return np.asarray((spans.ended[view.rows] - spans.started[view.rows]) / 1e9)

    def own_seconds(self, view: StageView, rows: Array | None = None) -> Array:
        """Return what each of a stage's spans took without waiting for a core, float64 seconds.

        CPU time where the stage computes at all, however long it also waits for locks; else what it waits for outside counts.

        Args:
            view: The stage.
            rows: Its spans; None: those of the window.
        """
        spans, rows = self.evidence.spans, view.rows if rows is None else rows
        if self.is_costed_by_cpu(view):
            return np.asarray(spans.cpu[rows] / 1e9)
        return np.asarray((spans.ended[rows] - spans.started[rows] - np.nan_to_num(spans.run_delay[rows])) / 1e9)

    def is_costed_by_cpu(self, view: StageView) -> bool:
        """Return whether a stage computes at all, so that CPU time tells what its items cost."""
        cpu, delay = view.account.cpu or 0.0, view.account.run_delay or 0.0
        return bool(cpu) and cpu >= _COMPUTES_AT_ALL * max(view.service - delay, 1e-9)

    @cached_property
    def latency_parts(self) -> tuple[LatencyPart, ...]:
        """Where the latency of a job goes, the largest part first."""
        return find_latency_parts(self.evidence, self.document.window)

    @cached_property
    def do_jobs_come_again(self) -> bool:
        """Whether enough deliveries were lost, failed or given back that what came of them matters."""
        counters = self.info.counters
        return counters.lost + counters.retried + counters.returned >= COMES_AGAIN * max(counters.received, 1)

    @property
    def reads_queue(self) -> bool:
        """Whether the jobs came from a queue, whose depth was sampled, and not from a folder or a list."""
        return self.evidence.gauges.get("source", "visible") is not None

    def note(self, name: str) -> int | None:
        """Return what a stage counted; None if it did not."""
        return self.info.counters.notes.get(name)


def _busy(account: StageAccount) -> float:
    return account.busy_seconds or 0.0


#: Means that rules look at: {scope: names}.
_GAUGES = {
    "machine": (
        "other_cpu_cores", "runnable", "cpu_pressure_ratio", "io_pressure_ratio", "memory_pressure_ratio",
        "swap_in_bytes_per_second", "throttled_ratio", "throttled_cpu_cores",
        "cpu_iowait_ratio",
    ),
    "processes": (
        "cpu_cores", "major_faults_per_second", "involuntary_switches_per_second", "read_bytes_per_second",
        "write_bytes_per_second", "threads", "native_runnable",
    ),
    "source": ("visible", "source_in_flight", "oldest_age_seconds"),
    "run": ("in_flight",),
}  # fmt: skip
#: Counters since the start whose growth over the window is a share of time.
_COUNTERS = {"run": ("gc_seconds",)}


def _machine(evidence: Evidence, document: ProfileDocument) -> dict[str, float]:
    first, last = document.window.from_seconds, document.window.to_seconds
    found: dict[str, float] = {}
    for scope, names in _GAUGES.items():
        for name in names:
            gauge = evidence.gauges.get(scope, name)
            mean = gauge.between(first, last).mean() if gauge else None
            if mean is not None:
                found[f"{scope}.{name}"] = mean
    stations = {f"stage:{account.station}": ("gc_seconds",) for account in document.stages}
    for scope, names in (_COUNTERS | stations).items():
        for name in names:
            gauge = evidence.gauges.get(scope, name)
            inside = gauge.between(first, last) if gauge else None
            if inside and len(inside.values) > 1 and inside.seconds[-1] > inside.seconds[0]:
                grown = float(inside.values[-1] - inside.values[0])
                found[f"{scope}.{name}_share"] = grown / float(inside.seconds[-1] - inside.seconds[0])
    return found
