"""Says why ranks that train together wait for each other: one that is always late, whoever loads slowest, or the exchange.

A rank is named if it makes the others wait in nearly all steps, by more than clocks may disagree and more than a small share of
the step, if chance does not explain the count, if the steps that happened to be recorded do not explain the lead (a bootstrap
of blocks of steps), and if its own work explains it: where an exchange does not end at once for all ranks, one may come last
and leave last, and nobody waits for it. Two ranks that are equally fast are each last in half of the steps; eighteen of twenty
happens by chance in less than one run of a thousand.

On a busy machine it is chance which rank is refused a core, and that can hide a rank that is late by itself. So the same is
asked of the work without the time in which a rank could run and had no core: who would come last on a machine of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.diagnose.training.ranks import Meetings, select_steps, sum_by_step
from headrace.diagnose.training.steps import Array, RankSteps
from headrace.runs.formats.training_ranks import Finding, RanksJudged, RankTime, Reason, Straggler
from headrace.runs.training_phases import Phase

__all__ = ["LAST_SHARE", "LEAD_SHARE", "Finding", "RanksJudged", "Reason", "Straggler", "judge_ranks"]

#: A rank is named if it is last in this share of the steps.
LAST_SHARE = 0.8
#: ... and makes the others wait for this share of the step.
LEAD_SHARE = 0.02
#: ... and a fair draw gives one rank such a count in fewer runs than this.
MAX_CHANCE = 0.001
#: ... and blocks of steps, drawn so often, make the others wait for that share in 39 of 40 draws.
_DRAWS = 500
#: ... and its own work is longer than the others' by this part of that.
_EXPLAINED = 0.5
#: ... or, in a trace, which has few steps, fewer than this, and the others wait for this share of the step.
MAX_CHANCE_TRACED, LEAD_SHARE_TRACED = 0.07, 0.1
#: Waiting or transfer that is worth a sentence, as a share of the step.
WORTH_SHARE = 0.1

#: Phases after a step's last exchange: what is late in them shows in the next step's.
_AFTER_EXCHANGE = (Phase.BEFORE_UPDATE, Phase.OPTIMIZER, Phase.AFTER)


def judge_ranks(ranks: Sequence[RankSteps], meetings: Meetings, *, is_traced: bool = False) -> RanksJudged | None:
    """Say why ranks wait; None if no plain step is common to them.

    Args:
        ranks: Those of the meetings, in their order.
        meetings: All exchanges.
        is_traced: They are of a trace, which has few steps.
    """
    meetings = select_steps(ranks, meetings)
    if not len(meetings.step):
        return None
    steps = np.unique(meetings.step)
    step_seconds = float(np.mean([_values(one, steps, one.steps.wall) for one in ranks]))
    lateness = _lateness(meetings)
    wait, rest = sum_by_step(meetings, meetings.wait), sum_by_step(meetings, meetings.rest)
    wait_share, rest_share = wait.mean() / step_seconds, rest.min(axis=1).mean() / step_seconds
    straggler, is_doubtful = _find_straggler(ranks, meetings, steps, lateness, step_seconds, is_traced)
    moving = None
    if straggler is not None:
        finding = Finding.STRAGGLER
    elif is_doubtful:
        finding = Finding.NOT_TOLD_APART
    elif rest_share >= WORTH_SHARE and rest_share >= wait_share:
        finding = Finding.COMMUNICATION
    elif wait_share >= WORTH_SHARE:
        finding, moving = Finding.MOVING, _moving_phase(ranks, steps, lateness)
    else:
        finding = Finding.BALANCED
    last = np.argmax(lateness, axis=1)
    return RanksJudged(
        finding=finding,
        num_steps=len(steps),
        step_seconds=step_seconds,
        wait_share=float(wait_share),
        rest_share=float(rest_share),
        uncertainty_seconds=meetings.uncertainty,
        rows=tuple(
            RankTime(
                rank=rank,
                own_seconds=float(np.mean(_values(one, steps, one.steps.wall) - wait[:, column] - rest[:, column])),
                wait_seconds=float(wait[:, column].mean()),
                rest_seconds=float(rest[:, column].mean()),
                share_last=float(np.mean(last == column)),
            )
            for column, (rank, one) in enumerate(zip(meetings.ranks, ranks, strict=True))
        ),
        straggler=straggler,
        moving_phase=moving,
        moves_with_cores=finding is Finding.MOVING and _wait_alone(ranks, steps) < wait_share * step_seconds / 2,
    )


def _lateness(meetings: Meetings) -> Array:
    """Return seconds, (steps, ranks): by how much each rank alone delayed the meetings of the step."""
    caused = np.zeros_like(meetings.wait)
    caused[np.arange(len(caused)), meetings.last] = meetings.lead
    return sum_by_step(meetings, caused)


def _find_straggler(
    ranks: Sequence[RankSteps],
    meetings: Meetings,
    steps: Array,
    lateness: Array,
    step_seconds: float,
    is_traced: bool,
) -> tuple[Straggler | None, bool]:
    """Return the rank to name, if any, and whether there would be one but for clocks or the number of steps."""
    straggler, is_doubtful = _name_last(ranks, meetings, steps, lateness, step_seconds, is_traced=is_traced)
    if straggler is None:
        alone = _lateness_alone(ranks, steps)
        if alone is not None:
            straggler, _ = _name_last(ranks, meetings, steps, alone, step_seconds, had_cores=True)
    return straggler, is_doubtful


def _name_last(
    ranks: Sequence[RankSteps],
    meetings: Meetings,
    steps: Array,
    lateness: Array,
    step_seconds: float,
    *,
    had_cores: bool = False,
    is_traced: bool = False,
) -> tuple[Straggler | None, bool]:
    last = np.argmax(lateness, axis=1)
    counts = np.bincount(last, minlength=len(ranks))
    column = int(np.argmax(counts))
    others = np.delete(lateness, column, axis=1).max(axis=1)
    leads = lateness[:, column] - others
    lead = float(np.median(leads[last == column]))
    if counts[column] < LAST_SHARE * len(steps) or lead < LEAD_SHARE * step_seconds:
        return None, False
    is_clear = is_traced and lead >= LEAD_SHARE_TRACED * step_seconds
    if not is_clear and _least(leads) < LEAD_SHARE * step_seconds:
        return None, False
    most = MAX_CHANCE_TRACED if is_clear else MAX_CHANCE
    if lead <= meetings.uncertainty or _chance(int(counts[column]), len(steps), len(ranks)) > most:
        return None, True
    excess = {phase: _excess(ranks, column, steps, phase, "wall") for phase in _phases(ranks)}
    if not is_traced and float(np.median(sum(excess.values(), np.zeros(len(steps))))) < _EXPLAINED * lead:
        return None, False  # it comes later and leaves later: nobody waits for it
    if had_cores:
        excess = {
            phase: values - np.nan_to_num(_excess(ranks, column, steps, phase, "run_delay"))
            for phase, values in excess.items()
        }
    phase = max(excess, key=lambda one: float(np.median(excess[one])))
    straggler = Straggler(
        rank=meetings.ranks[column],
        share_last=float(counts[column] / len(steps)),
        lead_seconds=lead,
        lead_share=lead / step_seconds,
        phase=phase,
        phase_seconds=float(np.median(excess[phase])),
        reason=_reason(ranks, column, steps, phase, had_cores=had_cores),
        had_cores=had_cores,
    )
    return straggler, False


def _least(leads: Array) -> float:
    """Return seconds that the rank is later than the next one at least: what 39 of 40 such runs have in their middle.

    Steps that follow each other share what the machine does meanwhile, so blocks of them are drawn again, not steps.
    """
    count = len(leads)
    length = max(1, round(count ** (1 / 3)))
    random = np.random.default_rng(0)
    begins = random.integers(0, count, (_DRAWS, -(-count // length)))
    drawn = (begins[:, :, None] + np.arange(length)).reshape(_DRAWS, -1)[:, :count] % count
    return float(np.percentile(np.median(leads[drawn], axis=1), 2.5))


def _lateness_alone(ranks: Sequence[RankSteps], steps: Array) -> Array | None:
    """Return seconds, (steps, ranks): the lead of the rank with the most work, without waiting for a core; None: not known."""
    work = _work_alone(ranks, steps)
    if work is None:
        return None
    lead = np.diff(np.partition(work, len(ranks) - 2, axis=1)[:, -2:], axis=1)[:, 0]
    caused = np.zeros_like(work)
    caused[np.arange(len(work)), np.argmax(work, axis=1)] = lead
    return caused


def _wait_alone(ranks: Sequence[RankSteps], steps: Array) -> float:
    """Return seconds of a step that ranks would wait for the last one if none had to wait for a core; NaN: not known."""
    work = _work_alone(ranks, steps)
    return math.nan if work is None else float(np.mean(work.max(axis=1, keepdims=True) - work))


def _work_alone(ranks: Sequence[RankSteps], steps: Array) -> Array | None:
    """Return seconds, (steps, ranks): work up to the last exchange, without run delay; None where that was not measured."""
    work = np.zeros((len(steps), len(ranks)))
    for column, rank in enumerate(ranks):
        for phase, times in rank.steps.phases.items():
            if phase is not Phase.EXCHANGE:
                values = _values(rank, steps, times.wall - times.run_delay)
                work[:, column] += _late_by_then(phase, values)
    return None if np.isnan(work).any() else work


def _chance(count: int, num_steps: int, num_ranks: int) -> float:
    """Return how likely any of equally fast ranks is last in that many steps or more: an upper bound."""
    fair = 1 / num_ranks
    tail = sum(math.comb(num_steps, k) * fair**k * (1 - fair) ** (num_steps - k) for k in range(count, num_steps + 1))
    return min(num_ranks * tail, 1.0)


def _reason(ranks: Sequence[RankSteps], column: int, steps: Array, phase: Phase, *, had_cores: bool) -> Reason:
    parts = {
        Reason.COMPUTES: float(np.median(_excess(ranks, column, steps, phase, "cpu"))),
        Reason.REFUSED_CORE: float(np.median(_excess(ranks, column, steps, phase, "run_delay"))),
        Reason.BLOCKED: float(np.median(_excess(ranks, column, steps, phase, "blocked"))),
    }
    if any(math.isnan(value) for value in parts.values()):
        return Reason.UNKNOWN
    if had_cores:
        del parts[Reason.REFUSED_CORE]
    return max(parts, key=lambda one: parts[one])


def _moving_phase(ranks: Sequence[RankSteps], steps: Array, lateness: Array) -> Phase | None:
    """Return the phase that explains the most lateness of whichever rank came last."""
    weight: dict[Phase, float] = defaultdict(float)
    last = np.argmax(lateness, axis=1)
    for column in range(len(ranks)):
        rows = np.flatnonzero(last == column)
        if not len(rows):
            continue
        excess: Mapping[Phase, Array] = {
            phase: _late_by_then(phase, _excess(ranks, column, steps, phase, "wall"))[rows] for phase in _phases(ranks)
        }
        names = list(excess)
        largest = np.argmax(np.stack([excess[name] for name in names]), axis=0)
        for row, place in zip(rows, largest, strict=True):
            weight[names[place]] += float(lateness[row, column])
    return max(weight, key=lambda one: weight[one], default=None)


def _late_by_then(phase: Phase, excess: Array) -> Array:
    return np.concatenate([[0.0], excess[:-1]]) if phase in _AFTER_EXCHANGE else excess


def _phases(ranks: Sequence[RankSteps]) -> list[Phase]:
    """Return the phases in which ranks work; in the exchange they meet."""
    known = {phase for one in ranks for phase in one.steps.phases}
    return [phase for phase in Phase if phase in known and phase is not Phase.EXCHANGE]


def _excess(ranks: Sequence[RankSteps], column: int, steps: Array, phase: Phase, part: str) -> Array:
    """Return seconds, (steps,): what one rank took in a phase, less the middle one of the others."""
    values = np.stack(
        [
            _values(one, steps, getattr(one.steps.phases[phase], part))
            if phase in one.steps.phases
            else np.zeros(len(steps))
            for one in ranks
        ]
    )
    return np.asarray(values[column] - np.median(np.delete(values, column, axis=0), axis=0))


def _values(rank: RankSteps, steps: Array, values: Array) -> Array:
    """Return the values of these steps, which the rank has."""
    return np.asarray(values[np.searchsorted(rank.steps.number, steps)])
