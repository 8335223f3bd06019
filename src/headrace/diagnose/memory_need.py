"""How much memory a pipeline needs under another Plan: what it took, and what queues, workers and processes hold more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.base.plan import Plan
from headrace.runs.formats.prediction import Change, PredictedMetric
from headrace.runs.formats.profile import Estimate, StageAccount

if TYPE_CHECKING:
    from headrace.diagnose.replay import Replay

#: Resident memory of a worker process with an interpreter and what a pipeline imports.
PROCESS_BYTES = 150e6
#: What two runs of one pipeline differ by: allocators keep what they once had.
_NOISE = 0.05


def predict_memory(replay: Replay, change: Change) -> PredictedMetric:
    """Return the peak of the resident memory of all processes, in bytes.

    The peak is the measured one and what the changed Plan holds more on an average, as simulated. It may be as much as queues
    hold when they are full. Weights of a model that another worker opens count nothing: engines share them within a process.
    """
    gauge = replay.evidence.gauges.get("processes", "rss_bytes")
    if gauge is None or not len(gauge.values):
        return _refuse(None, "memory was not sampled; profile a longer run with headrace profile")
    peak = float(gauge.values.max())
    plan, accounts = replay.change_plan(change), {stage.name: stage for stage in replay.document.stages}
    full, now = (estimate_queued_bytes(one, accounts) for one in (plan, replay.plan))
    if full is None or now is None:
        return _refuse(peak, "the sizes of items were not measured; profile again with headrace profile")
    processes = PROCESS_BYTES * (count_processes(plan) - count_processes(replay.plan))
    held = _held_bytes(replay, change, plan, accounts) - _held_bytes(replay, Change(), replay.plan, accounts)
    mid = max(0.5 * peak, peak + processes + held)
    ends = mid, peak + processes + full - now
    return PredictedMetric(
        base=peak,
        predicted=Estimate((1 - _NOISE) * min(ends), mid, (1 + _NOISE) * max(ends)),
        ratio=None
        if peak <= 0
        else Estimate((1 - _NOISE) * min(ends) / peak, mid / peak, (1 + _NOISE) * max(ends) / peak),
    )


def estimate_queued_bytes(plan: Plan, accounts: Mapping[str, StageAccount]) -> float | None:
    """Return the most that full queues and busy workers hold; None where the sizes of items were not measured."""
    total = 0.0
    for name, stage in plan.stages.items():
        account = accounts.get(name)
        if account is None or account.bytes_in is None or account.bytes_out is None:
            return None
        if stage.executor != "inline":
            queued = (stage.queue_items or 0) * account.bytes_in
            total += min(queued, stage.queue_bytes or queued)
        total += (stage.workers or 1) * (stage.batch or 1) * (account.bytes_in + account.bytes_out)
    return total


def count_processes(plan: Plan) -> int:
    """Return the worker processes of a resolved Plan."""
    return sum(stage.workers or 1 for stage in plan.stages.values() if stage.executor == "process")


def _held_bytes(replay: Replay, change: Change, plan: Plan, accounts: Mapping[str, StageAccount]) -> float:
    """Return what queues and workers hold on an average, as simulated."""
    simulated = replay.simulate(change)
    total = 0.0
    for name, stage in plan.stages.items():
        account = accounts[name]
        coming, going = account.bytes_in or 0.0, account.bytes_out or 0.0
        total += simulated.queue_mean.get(name, 0.0) * coming
        busy = simulated.utilization.get(f"workers:{name}", 1.0)
        total += busy * (stage.workers or 1) * (stage.batch or 1) * (coming + going)
    return total


def _refuse(base: float | None, why: str) -> PredictedMetric:
    return PredictedMetric(base=base, predicted=None, ratio=None, refused=why)
