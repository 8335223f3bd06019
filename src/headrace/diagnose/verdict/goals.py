"""Whether what the user asked for is met by the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.goals import LatencyGoal
from headrace.base.units import format_duration
from headrace.diagnose.estimates import PERCENTS
from headrace.runs.formats.diagnosis import GoalCheck
from headrace.runs.formats.profile import ProfileDocument


@dataclass(frozen=True, slots=True)
class RateGoal:
    """Jobs per second that must be done."""

    per_second: float

    def __str__(self) -> str:
        return f">= {self.per_second:.4g}/s"


Goal = LatencyGoal | RateGoal


def check_goals(goals: Sequence[Goal], document: ProfileDocument, *, is_arrival_limited: bool) -> tuple[GoalCheck, ...]:
    """Return for each goal whether the run met it.

    Args:
        goals: As given.
        document: The run's analysis.
        is_arrival_limited: No more jobs came: then the run does not show how many it could do.
    """
    return tuple(
        _latency(goal, document) if isinstance(goal, LatencyGoal) else _rate(goal, document, is_arrival_limited)
        for goal in goals
    )


def good_enough(checks: Sequence[GoalCheck]) -> bool | None:
    """Return whether all goals are met; None without goals or where that is open."""
    if not checks:
        return None
    if any(check.is_met is False for check in checks):
        return False
    return None if any(check.is_met is None for check in checks) else True


def _latency(goal: LatencyGoal, document: ProfileDocument) -> GoalCheck:
    found = next((one for one in document.latency.percentiles if one.percent == goal.percentile), None)
    if found is None:
        known = ", ".join(f"p{percent}" for percent in PERCENTS)
        return GoalCheck(says=str(goal), is_met=None, measured=None, why=f"a run tells {known}; ask for one of those")
    if found.value is None:
        why = f"{document.latency.num_samples:,} jobs were measured, {found.num_needed:,} are needed: profile a longer run"
        return GoalCheck(says=str(goal), is_met=None, measured=None, why=why)
    return GoalCheck(
        says=str(goal),
        is_met=found.value <= goal.seconds,
        measured=found.value,
        why=f"it is {format_duration(found.value)}",
    )


def _rate(goal: RateGoal, document: ProfileDocument, is_arrival_limited: bool) -> GoalCheck:
    done = document.throughput
    if done is None:
        why = document.not_measured.get("throughput", "the throughput was not measured")
        return GoalCheck(says=str(goal), is_met=None, measured=None, why=why)
    if done < goal.per_second and is_arrival_limited:
        why = f"only {done:.4g} jobs a second came in; headrace capacity says what more would need"
        return GoalCheck(says=str(goal), is_met=None, measured=done, why=why)
    return GoalCheck(says=str(goal), is_met=done >= goal.per_second, measured=done, why=f"it is {done:.4g}/s")
