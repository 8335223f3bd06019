"""What Plans of a space are predicted to do, each asked for once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np

from headrace.base.errors import HeadraceError
from headrace.base.goals import LatencyGoal
from headrace.base.plan import Plan
from headrace.base.plan_changes import list_changed_settings
from headrace.diagnose.memory_need import PROCESS_BYTES, count_processes, estimate_queued_bytes
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import StageAccount
from headrace.tune.objective import Outlook
from headrace.tune.space import THREADS, Point, Space, Value

#: What one of the calls that a thread carries takes of the machine, in threads: a connection and its buffers.
_CALL_SIZE = 0.1
#: What a process takes of the machine, in threads: its own interpreter and imports.
PROCESS_SIZE = 3.0
#: Jobs that are simulated where they come at a rate; the first tenth of them meets an empty machine and counts for nothing.
_ARRIVING_JOBS, _WARM_UP = 2000, 0.1


class SimulatedPlan(Protocol):
    """What a simulation gives; see `diagnose.replay.SimulatedPlan`."""

    throughput: float
    latencies: np.ndarray
    cpu_per_job: float


class ReplayedRun(Protocol):
    """A recorded run that can be simulated under another Plan; see `diagnose.replay.Replay`."""

    throughput: float
    plan: Plan

    def simulate(self, change: Change, seed: int = 0, num_jobs: int | None = None) -> Any:
        """Return what the run would have done."""
        ...

    def ratio(self, change: Change, base: Change) -> float:
        """Return the throughput of a change over that of another, of the same jobs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What the recorded run did, that predictions are scaled to."""

    latencies: Mapping[float, float | None] = field(default_factory=dict)
    """{percentile: seconds}."""
    accounts: Mapping[str, StageAccount] = field(default_factory=dict)


class Predictor:
    """Predicts the points of a space, each once.

    Args:
        replay: The recorded run.
        space: What the points mean.
        measured: What the run did.
        resolve: Returns the resolved Plan of settings, which says what the Plan leaves open.
        cost_curves: {device stage: {batch size: seconds}} for sizes that the run itself did not see.
        goal: A percentile of the latency that is wanted.
        arrival_rate: Jobs per second that come at random times, for latencies; None: as in the run.
        thread_curves: {threads inside calls of the model: cost curves} that go before the others with so many.

    Attributes:
        num_predicted: Points that were simulated.
        refused: {why: a setting that it was said of} of what could not be predicted.
    """

    def __init__(
        self,
        replay: ReplayedRun,
        space: Space,
        measured: MeasuredRun,
        resolve: Callable[[tuple[str, ...]], Plan],
        *,
        cost_curves: Mapping[str, Mapping[int, float]] | None = None,
        goal: LatencyGoal | None = None,
        arrival_rate: float | None = None,
        thread_curves: Mapping[Value, Mapping[str, Mapping[int, float]]] | None = None,
    ) -> None:
        self.num_predicted = 0
        self.refused: dict[str, str] = {}
        self.space = space
        self._replay = replay
        self._measured = measured
        self._resolve = resolve
        self._cost_curves = {stage: dict(curve) for stage, curve in (cost_curves or {}).items()}
        self._goal = goal
        self._arrival_rate = arrival_rate
        self._thread_curves = dict(thread_curves or {})
        self._known: dict[tuple[tuple[str, Value], ...], Outlook | None] = {}
        self._base: SimulatedPlan = replay.simulate(self._make_change(()))
        self._base_bytes = estimate_queued_bytes(replay.plan, measured.accounts)

    @property
    def base_throughput(self) -> float:
        """Jobs per second of the recorded run, measured."""
        return self._replay.throughput

    def change(self, point: Point) -> Change:
        """Return a point as a change of the recorded run: every setting that differs once both Plans are resolved."""
        settings = list_changed_settings(self._replay.plan, self._resolve(self.space.settings(point)))
        return self._make_change(settings, self._thread_curves.get(point.get(THREADS), {}))

    def predict(self, point: Point) -> Outlook | None:
        """Return what is predicted of a point; None if it cannot be predicted, or run."""
        point = self.space.canonical(point)
        key = tuple(sorted(point.items()))
        if key not in self._known:
            self._known[key] = self._predict(point) if self.space.is_possible(point) else None
        return self._known[key]

    def _predict(self, point: Point) -> Outlook | None:
        settings = self.space.settings(point)
        try:
            plan = self._resolve(settings)
            change = self.change(point)
            simulated: SimulatedPlan = self._replay.simulate(change)
            # Of the same jobs, changed and not: a Plan that holds more at once is simulated with more of them.
            ratio = self._replay.ratio(change, self._make_change(()))
            latency = self._find_latency(change, simulated, ratio)
        except (HeadraceError, ValueError) as error:
            self.refused.setdefault(str(error), ", ".join(settings))
            return None
        self.num_predicted += 1
        cpu = self._base.cpu_per_job
        return Outlook(
            ratio=ratio,
            latency_p50=latency(50),
            latency_goal=None if self._goal is None else latency(self._goal.percentile),
            cpu_ratio=simulated.cpu_per_job / cpu if cpu > 0 else None,
            size=size(plan, self._measured.accounts),
            memory_bytes=self._more_bytes(plan),
        )

    def _find_latency(self, change: Change, simulated: SimulatedPlan, ratio: float) -> Callable[[float], float | None]:
        """Return what gives percentiles of the latency in seconds; None where it is not known, or grows without end."""
        rate = self._arrival_rate
        if rate is None:
            return functools.partial(self._latency, simulated)
        if ratio * self.base_throughput <= rate:
            return lambda percentile: None
        arriving = msgspec.structs.replace(change, arrival_rate=rate)
        latencies = self._replay.simulate(arriving, num_jobs=_ARRIVING_JOBS).latencies
        latencies = latencies[int(_WARM_UP * len(latencies)) :]
        return lambda percentile: float(np.percentile(latencies, percentile))

    def _latency(self, simulated: SimulatedPlan, percentile: float) -> float | None:
        measured = self._measured.latencies.get(percentile)
        before = float(np.percentile(self._base.latencies, percentile)) if len(self._base.latencies) else 0.0
        if measured is None or before <= 0 or not len(simulated.latencies):
            return None
        return measured * float(np.percentile(simulated.latencies, percentile)) / before

    def _more_bytes(self, plan: Plan) -> float | None:
        after = estimate_queued_bytes(plan, self._measured.accounts)
        if after is None or self._base_bytes is None:
            return None
        more_processes = count_processes(plan) - count_processes(self._replay.plan)
        return after - self._base_bytes + PROCESS_BYTES * more_processes

    def _make_change(
        self, settings: tuple[str, ...], curves: Mapping[str, Mapping[int, float]] | None = None
    ) -> Change:
        own = {stage: dict(curve) for stage, curve in (curves or {}).items()}
        return Change(settings=settings, cost_curves={**self._cost_curves, **own})


def size(plan: Plan, accounts: Mapping[str, StageAccount] | None = None) -> float:
    """Return how much of a machine a resolved Plan takes: threads, a process counting as several, queues a little.

    Args:
        plan: Resolved.
        accounts: Of the run's stages; those with batches compute with the model's threads.
    """
    total = 0.0
    for name, stage in plan.stages.items():
        if stage.executor == "inline":
            continue
        account = (accounts or {}).get(name)
        threads = (plan.model.threads or 1) if account is not None and account.batches is not None else 1
        one = {"process": PROCESS_SIZE, "events": _CALL_SIZE}.get(stage.executor or "", threads)
        total += (stage.workers or 1) * one + 0.01 * (stage.batch or 1)
    carrier = any(stage.executor == "events" for stage in plan.stages.values())
    return total + carrier + plan.source.receivers
