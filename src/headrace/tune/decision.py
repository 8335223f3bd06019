"""Whether a measured Plan is better, for what the user wants. No measuring here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.base.formatting import pluralize
from headrace.base.statistics import samples_needed
from headrace.base.units import format_duration
from headrace.compare.comparison import METRICS, Question
from headrace.runs.formats.outcomes import Verdict
from headrace.runs.formats.profile import Estimate
from headrace.tune.objective import Objective
from headrace.tune.rounds import Entrant, Judged, Rounds

#: Is a Plan better than the base: as of every comparison, and why it cannot be taken whatever its speed.
PlanVerdict = Verdict | Literal["breaks the goal", "does not fit", "failed"]

#: So much more than allowed may be lost at the far end of the interval: what a few blocks can tell.
_SLACK = 0.03
#: A Plan that is to save must take so much less, as a share.
_SMALLER = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDecision:
    """What was found of one Plan."""

    verdict: PlanVerdict
    ratio: Estimate | None
    """Throughput over the base's, with its interval; None with too few rounds."""
    mid: float | None
    """The same without its interval; None if no round measured it."""
    gain: float
    """How much better, on the scale of the objective, as a ratio; 1 for the same."""
    why: str
    is_sure: bool
    """More rounds would not change the verdict."""


def decide(rounds: Rounds, entrant: Entrant, objective: Objective, size_ratio: float) -> PlanDecision:
    """Return whether a measured Plan is better than the base.

    Args:
        rounds: What was measured.
        entrant: The Plan.
        objective: What is better.
        size_ratio: Threads and processes that it takes over those of the base.
    """
    throughput = rounds.judged(entrant, Question(metric=METRICS["throughput"]))
    if entrant.failed or throughput is None:
        kind: PlanVerdict = (
            "does not fit" if entrant.is_out_of_memory else "failed" if entrant.failed else "underpowered"
        )
        kind = "worse" if entrant.was_outrun else kind
        return _decision(
            kind, throughput, 1.0, entrant.failed or "interrupted before it was measured", sure=bool(entrant.failed)
        )
    missed = _check_goal(entrant, objective)
    if missed is not None:
        return _decision("breaks the goal" if missed[1] else "underpowered", throughput, 1.0, missed[0], sure=missed[1])
    kept = _keeps_rate(rounds, throughput, objective)
    if kept is False:
        why = f"throughput x{throughput.mid:.3g} is less than what must be kept up"
        return _decision("breaks the goal", throughput, 1.0, why, sure=True)
    if misses_goal(rounds.base, objective):
        why = f"{objective.slo} is met, which the base misses"
        return _decision("better" if kept else "underpowered", throughput, throughput.mid, why, sure=bool(kept))
    if objective.name == "throughput":
        return _decide_by(throughput, throughput, "throughput")
    metric = "latency" if objective.name == "latency" else "cpu"
    found = rounds.judged(entrant, Question(metric=METRICS[metric]))
    if found is None:
        return _decision("underpowered", throughput, 1.0, f"{metric} was not measured", sure=False)
    decision = _decide_by(found, throughput, "median latency" if metric == "latency" else "CPU time per job")
    if decision.verdict == "better" and kept is None:
        return _decision(
            "underpowered",
            throughput,
            decision.gain,
            f"{decision.why}; whether the rate is kept is not sure",
            sure=False,
        )
    if (
        objective.name == "cost"
        and decision.verdict != "better"
        and found.mid < 1 + _SMALLER / 5
        and size_ratio < 1 - _SMALLER
    ):
        why = f"as fast with {1 - size_ratio:.0%} fewer threads and processes"
        return _decision("better" if kept else "underpowered", throughput, 1 / size_ratio, why, sure=bool(kept))
    return decision


def misses_goal(entrant: Entrant, objective: Objective) -> bool:
    """Return whether a measured Plan surely misses the latency goal."""
    missed = _check_goal(entrant, objective)
    return missed is not None and missed[1]


def _decide_by(found: Judged, throughput: Judged, what: str) -> PlanDecision:
    """Return the decision that one metric makes."""
    lower_is_better = what != "throughput"
    gain = 1 / found.mid if lower_is_better else found.mid
    verdict = found.judgement.verdict
    interval = ""
    if found.interval is not None:
        interval = f" (interval {found.interval.low:.3g} to {found.interval.high:.3g})"
    why = f"{what} x{found.mid:.3g}{interval}"
    return _decision(verdict, throughput, gain, why, sure=verdict != "underpowered")


def _keeps_rate(rounds: Rounds, throughput: Judged, objective: Objective) -> bool | None:
    """Return whether the rate that must be kept up is; None where it cannot be told."""
    base = rounds.base.throughput
    floor = objective.floor_measured(base) if base else 0.0
    if floor == 0.0:
        return True
    if throughput.interval is None:
        return None
    if throughput.interval.high < floor:
        return False
    return True if throughput.mid >= floor and throughput.interval.low >= floor - _SLACK else None


def _check_goal(entrant: Entrant, objective: Objective) -> tuple[str, bool] | None:
    """Return why the latency goal is not met and whether that is sure; None without a goal, or where it is met."""
    goal = objective.slo
    if goal is None:
        return None
    latency = entrant.latency(goal.percentile)
    if latency is None:
        needed = samples_needed(goal.percentile)
        return f"{goal}: {pluralize(len(entrant.latencies), 'job')} measured, {needed} needed to tell", False
    if latency > goal.seconds:
        return f"p{goal.percentile:g} is {format_duration(latency)}, wanted {goal}", True
    return None


def _decision(verdict: PlanVerdict, throughput: Judged | None, gain: float, why: str, *, sure: bool) -> PlanDecision:
    return PlanDecision(
        verdict=verdict,
        ratio=None if throughput is None else throughput.interval,
        mid=None if throughput is None else throughput.mid,
        gain=gain,
        why=why,
        is_sure=sure,
    )
