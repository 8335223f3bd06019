"""Predictions from one profiled run: its space of Plans, and the points that were predicted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from headrace.base.plan import Plan
from headrace.diagnose.memory_need import estimate_queued_bytes
from headrace.runs.emulation import emulated_engines
from headrace.runs.formats.prediction import Change, PredictionDocument, TrackRecord
from headrace.runs.formats.profile import ProfileDocument, StageAccount
from headrace.runs.reader import Run
from headrace.tune.objective import Objective
from headrace.tune.predictor import MeasuredRun, Predictor, ReplayedRun
from headrace.tune.rounds import Entrant
from headrace.tune.search import FoundPoint, search
from headrace.tune.space import THREADS, Limits, Point, Value, build_space
from headrace.tune.sweep import BatchCosts, ThreadCosts, scale_to_run, slowdowns_by_threads
from headrace.tune.tuning_runs import TuningRuns

#: A search with fewer predictions than the first may take the second times as long.
_FEWEST_PREDICTED, _PATIENCE = 200, 3.0
#: Of the machine's memory, or the control group's limit: what a Plan may use.
_MEMORY_SHARE = 0.8
#: Queues that could fill more than this share of the memory that is left are worth bounding.
_MUCH = 0.25


class Diagnosis(Protocol):
    """What reads a run and predicts from it."""

    def replay(self, run: Run) -> Any:
        """Return the run, ready to be simulated under other Plans; see `diagnose.replay.Replay`."""
        ...

    def predict(self, replay: Any, change: Change, record: TrackRecord) -> PredictionDocument:
        """Return a prediction with its interval."""
        ...


class Simulator:
    """headrace's own diagnosis."""

    def replay(self, run: Run) -> Any:
        """Return the run, ready to be simulated; raises CannotReplay for one that is not understood."""
        from headrace.diagnose.analysis import Analysis

        replay = Analysis(run).replay
        replay.check_understood()
        return replay

    def predict(self, replay: Any, change: Change, record: TrackRecord) -> PredictionDocument:
        """Return a prediction with its interval."""
        from headrace.diagnose.whatif import predict

        return predict(replay, change, record)


@dataclass(slots=True)
class Predictions:
    """What was predicted from one profiled run."""

    base_settings: tuple[str, ...]
    """Settings that turn the user's Plan into this run's Plan; empty where it is the user's."""
    replay: ReplayedRun
    document: ProfileDocument
    predictor: Predictor
    objective: Objective
    """With the memory that there is room for."""
    costs: Mapping[str, BatchCosts] = field(default_factory=dict)
    """{device stage: what its batches cost} where this run computed."""
    over_base: float = 1.0
    """Throughput of this run's Plan over that of the user's, measured."""
    found: list[FoundPoint] = field(default_factory=list)
    """Points that were looked at, best first."""
    entrant: Entrant | None = None
    """Who measures this run's Plan in the rounds."""

    @property
    def promise(self) -> float:
        """Throughput predicted of the best that was looked at, over that of the user's Plan; 0 without any."""
        return self.over_base * self.found[0].outlook.ratio if self.found else 0.0

    def settings(self, point: Point) -> tuple[str, ...]:
        """Return what makes a point's Plan of the user's, each key once."""
        both = (*self.base_settings, *self.predictor.space.settings(point))
        return tuple({setting.partition("=")[0]: setting for setting in both}.values())

    def words(self, point: Point) -> str:
        """Return what a point changes, in words: `fetch.workers 16 -> 32`; and what computes at another place."""
        space = self.predictor.space
        moved = [short(one) for one in self.base_settings if one.partition("=")[0] not in space.base]
        changed = [
            f"{short(key)} {format_value(space.base[key])} -> {format_value(point[key])}"
            for key in space.list_changed(point)
        ]
        return ", ".join((*moved, *changed))


def short(key: str) -> str:
    """Return a setting's path as people write it."""
    return key.removeprefix("stages.")


def format_value(value: object) -> str:
    """Return a setting's value as people read it."""
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def look(
    bench: TuningRuns,
    diagnosis: Diagnosis,
    run: Run,
    base_settings: tuple[str, ...],
    *,
    objective: Objective,
    costs: Mapping[str, BatchCosts],
    search_seconds: float,
    seed: int,
    keep: frozenset[str] = frozenset(),
) -> Predictions:
    """Return what can be predicted from a profiled run, with the search done.

    Args:
        bench: What ran it.
        diagnosis: What predicts.
        run: The run folder.
        base_settings: What makes its Plan of the user's.
        objective: What is better.
        costs: {device stage: what its batches cost}.
        search_seconds: Time for predicting.
        seed: Of the search.
        keep: Settings that stay as they are.

    Raises:
        HeadraceError: If the run cannot be replayed.
    """
    replay = diagnosis.replay(run)
    document: ProfileDocument = replay.document
    accounts = {account.name: account for account in document.stages}
    objective = _limit_memory(objective, document, run)
    curves = {stage: _curve(swept, replay) for stage, swept in costs.items()}
    variants = run.info.variants
    space = build_space(
        bench.pipeline.stages,
        bench.resolve(base_settings),
        accounts,
        Limits(
            cores=bench.cores,
            largest_batch={stage: max(curve) for stage, curve in curves.items() if curve},
            delivers=bench.deliver,
            limits_in_flight=objective.needs_latency and not objective.is_open,
            memory_is_short=_is_short(replay.plan, accounts, objective),
            has_model_threads=any(variant.get("engine") not in emulated_engines(variants) for variant in variants),
            keep=keep,
            decodes=any(stage.work == "decode" for stage in run.info.stages),
        ),
    )
    thread_costs = bench.sweep_threads() if THREADS in space.base else {}
    predictor = Predictor(
        replay,
        space,
        MeasuredRun(latencies=_latencies(document, objective), accounts=accounts),
        lambda settings: bench.resolve((*base_settings, *settings)),
        cost_curves={
            stage: curve
            for stage, curve in curves.items()
            if curve and curve.keys() - _find_known_batches(stage, replay)
        },
        goal=objective.slo,
        arrival_rate=objective.rate if objective.is_open else None,
        thread_curves=_curves_by_threads(thread_costs, space.base.get(THREADS), curves, replay),
    )
    view = Predictions(base_settings, replay, document, predictor, objective, costs)
    began = time.monotonic()

    def may_go_on() -> bool:
        # On a busy machine simulating takes longer; a search that ends too soon costs a measurement for nothing.
        factor = _PATIENCE if predictor.num_predicted < _FEWEST_PREDICTED else 1.0
        return time.monotonic() - began < search_seconds * factor

    view.found = search(predictor, objective, may_go_on=may_go_on, seed=seed, keeps_base=not base_settings)
    return view


def _limit_memory(objective: Objective, document: ProfileDocument, run: Run) -> Objective:
    """Return the objective with the memory that may be used beyond the run's, where both are known."""
    memory = run.info.hardware.memory_bytes
    used = [one.maximum for one in document.series if (one.scope, one.name) == ("processes", "rss_bytes")]
    if objective.memory_room_bytes is not None or memory is None or not used:
        return objective
    return replace(objective, memory_room_bytes=max(0.0, _MEMORY_SHARE * memory - used[0]))


def _is_short(plan: Plan, accounts: Mapping[str, StageAccount], objective: Objective) -> bool:
    """Return whether full queues would take much of the memory that is left."""
    queued, room = estimate_queued_bytes(plan, accounts), objective.memory_room_bytes
    return queued is not None and room is not None and queued > _MUCH * room


def _latencies(document: ProfileDocument, objective: Objective) -> dict[float, float | None]:
    """Return {percentile: seconds} of the run; a goal's own percentile is read between those that were measured."""
    known = {quantile.percent: quantile.value for quantile in document.latency.percentiles}
    if objective.slo is not None and objective.slo.percentile not in known:
        measured = [(percent, value) for percent, value in sorted(known.items()) if value is not None]
        wanted = objective.slo.percentile
        if measured and measured[0][0] <= wanted <= measured[-1][0]:
            percents, values = zip(*measured, strict=True)
            known[wanted] = float(np.interp(wanted, percents, values))
    return known


def _find_known_batches(stage: str, replay: Any) -> set[int]:
    """Return the batch sizes of which the run itself tells the cost, and those between."""
    cost = getattr(replay, "costs", {}).get(stage)
    return set() if cost is None else set(range(1, int(cost.largest) + 1))


def _curves_by_threads(
    costs: ThreadCosts, base: Value, curves: Mapping[str, Mapping[int, float]], replay: Any
) -> dict[Value, dict[str, dict[int, float]]]:
    """Return {threads: {device stage: its cost curve}} as the simulator takes one: it spreads the work of a call evenly."""
    found: dict[Value, dict[str, dict[int, float]]] = {}
    for stage, spread in getattr(replay, "spreads", {}).items():
        if not isinstance(base, int) or stage not in costs.get(base, {}) or not curves.get(stage):
            continue
        for threads, times in slowdowns_by_threads(costs, stage, base).items():
            if threads != base and times:
                evenly = spread.at(threads) / spread.at(base)
                # Beyond the largest that was measured, as there.
                nearest = {
                    size: max((one for one in times if one <= size), default=min(times)) for size in curves[stage]
                }
                found.setdefault(threads, {})[stage] = {
                    size: seconds * times[nearest[size]] * evenly for size, seconds in curves[stage].items()
                }
    return found


def _curve(costs: BatchCosts, replay: Any) -> dict[int, float]:
    """Return the device's costs at the level of the run; without a sweep those that the run itself tells."""
    cost = getattr(replay, "costs", {}).get(costs.stage)
    in_run = {} if cost is None else {int(size): float(cost.at(int(size))) for size in cost.sizes}
    if not costs.seconds:
        return in_run
    return scale_to_run(costs.seconds, in_run)
