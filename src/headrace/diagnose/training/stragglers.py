"""Says why ranks that train together wait for each other: one that is always late, whoever loads slowest, or the exchange.

A rank is named if it makes the others wait in nearly all steps, by more than clocks may disagree and more than a small share of
the step, if chance does not explain the count, if the steps that happened to be recorded do not explain the lead (a bootstrap
of blocks of steps), and if its own work explains it: where an exchange does not end at once for all ranks, one may come last
and leave last, and nobody waits for it. Two ranks that are equally fast are each last in half of the steps; eighteen of twenty
happens by chance in less than one run of a thousand.

On a busy machine it is chance which rank is refused a core, and which one has the slower core: one that other programs heat,
or whose twin computes for them. That hides a rank that is late by itself, and lets another one come last for seconds. So the
same is asked of the work without the time in which a rank could run and had no core, as if all cores were equally fast: who
would come last on a machine of its own. A slower core takes longer in all phases alike, while a cause of the rank's own lies
in one, or is a larger batch. Where ranks share a host, what its cores do is named only if it goes on for `LASTS_SECONDS`.
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
#: A rank may be refused a core, or have a slower one, for as long by chance: the kernel moves processes seldom.
LASTS_SECONDS = 20.0
#: Steps in which a core is taken for equally fast.
_LIKE_STEPS = 5
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
    if _work_alone(ranks, steps) is None:
        return straggler, is_doubtful
    by_itself = _name_by_itself(ranks, meetings, steps, step_seconds)
    if straggler is None:
        return by_itself, is_doubtful
    is_same = by_itself is not None and (by_itself.rank, by_itself.phase) == (straggler.rank, straggler.phase)
    if is_same or len({one.host for one in ranks}) > 1 or len(steps) * step_seconds >= LASTS_SECONDS:
        return straggler, is_doubtful
    return by_itself, True


def _name_by_itself(
    ranks: Sequence[RankSteps], meetings: Meetings, steps: Array, step_seconds: float
) -> Straggler | None:
    """Return the rank that would come last if all had cores alike: by all of its work, or else by that of one phase."""
    work = _work_of_phases(ranks, steps)
    late = [_late_by_then(phase, values).T for phase, values in work.items()]
    for values in (np.sum(late, axis=0), *late):
        straggler, _ = _name_last(ranks, meetings, steps, _leads(values), step_seconds, work=work)
        if straggler is not None:
            return straggler
    return None


def _name_last(
    ranks: Sequence[RankSteps],
    meetings: Meetings,
    steps: Array,
    lateness: Array,
    step_seconds: float,
    *,
    work: Mapping[Phase, Array] | None = None,
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
    if work is None:
        excess = {phase: _excess(ranks, column, steps, phase, "wall") for phase in _phases(ranks)}
    else:
        excess = {phase: _over_others(values, column) for phase, values in work.items()}
    if not is_traced and _explained(excess, is_alone=work is not None) < _EXPLAINED * lead:
        return None, False  # it comes later and leaves later, or is quicker in other phases: nobody waits for it
    phase = max(excess, key=lambda one: float(np.median(excess[one])))
    straggler = Straggler(
        rank=meetings.ranks[column],
        share_last=float(counts[column] / len(steps)),
        lead_seconds=lead,
        lead_share=lead / step_seconds,
        phase=phase,
        phase_seconds=float(np.median(excess[phase])),
        reason=_reason(ranks, column, steps, phase, had_cores=work is not None),
        had_cores=work is not None,
    )
    return straggler, False


def _explained(excess: Mapping[Phase, Array], *, is_alone: bool) -> float:
    """Return by how many seconds a rank's own work is longer in the middle step.

    Args:
        excess: {phase: seconds that it takes longer than the others, (steps,)}.
        is_alone: Without what cores do: what a phase takes less by chance hides nothing then.
    """
    if not is_alone:
        return float(np.median(sum(excess.values())))
    sure = [
        values for values in excess.values() if np.mean(values > 0) >= LAST_SHARE or np.mean(values < 0) >= LAST_SHARE
    ]
    return float(sum(np.median(values) for values in sure))


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


def _leads(work: Array) -> Array:
    """Return seconds, (steps, ranks): the lead of the rank with the most work over the next one; 0 of the others."""
    caused = np.zeros_like(work)
    caused[np.arange(len(work)), np.argmax(work, axis=1)] = np.diff(np.partition(work, -2, axis=1)[:, -2:], axis=1)[
        :, 0
    ]
    return caused


def _work_of_phases(ranks: Sequence[RankSteps], steps: Array) -> dict[Phase, Array]:
    """Return {phase: seconds, (ranks, steps)}: what each rank works, without waiting for a core, on cores of equal speed."""
    parts = {
        phase: [
            (_part(one, steps, phase, "wall") - _part(one, steps, phase, "run_delay"), _part(one, steps, phase, "cpu"))
            for one in ranks
        ]
        for phase in _phases(ranks)
    }
    work = {phase: np.array(rows) for phase, rows in parts.items()}  # (ranks, 2, steps)
    samples = {tuple(_values(one, steps, one.steps.samples).tolist()) for one in ranks}
    if len(samples) > 1 or not any(next(iter(samples))):  # more of them take longer in all phases, too
        return {phase: rows[:, 0] for phase, rows in work.items()}
    for block in np.array_split(np.arange(len(steps)), max(1, len(steps) // _LIKE_STEPS)):
        slowness = _slowness_of_cores({phase: np.median(rows[:, 1, block], axis=1) for phase, rows in work.items()})
        for rows in work.values():
            rows[:, 0, block] -= rows[:, 1, block] * (1 - 1 / slowness)[:, None]
    return {phase: rows[:, 0] for phase, rows in work.items()}


def _slowness_of_cores(computed: Mapping[Phase, Array]) -> Array:
    """Return by what factor each rank computes for longer than the middle one, in all phases alike.

    Args:
        computed: {phase: CPU seconds of the middle step, (ranks,)}.
    """
    ratios = {phase: values / np.median(values) for phase, values in computed.items() if (values > 0).all()}
    weights = {phase: math.sqrt(np.median(computed[phase])) for phase in ratios}
    count = len(next(iter(computed.values())))
    return np.array([_middle([(ratios[one][rank], weights[one]) for one in ratios]) for rank in range(count)])


def _middle(values: Sequence[tuple[float, float]]) -> float:
    """Return the median of values with weights; 1 if there are none."""
    half, total = sum(weight for _, weight in values) / 2, 0.0
    for value, weight in sorted(values):
        total += weight
        if total >= half:
            return value
    return 1.0


def _part(rank: RankSteps, steps: Array, phase: Phase, part: str) -> Array:
    times = rank.steps.phases.get(phase)
    return np.zeros(len(steps)) if times is None else _values(rank, steps, getattr(times, part))


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
    if phase not in _AFTER_EXCHANGE:
        return excess
    shifted = np.zeros_like(excess)
    shifted[..., 1:] = excess[..., :-1]
    return shifted


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
    return _over_others(values, column)


def _over_others(values: Array, column: int) -> Array:
    """Return by how much one row lies above the middle one of the others."""
    return np.asarray(values[column] - np.median(np.delete(values, column, axis=0), axis=0))


def _values(rank: RankSteps, steps: Array, values: Array) -> Array:
    """Return the values of these steps, which the rank has."""
    return np.asarray(values[np.searchsorted(rank.steps.number, steps)])
