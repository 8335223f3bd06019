"""Joins simulation and rules: which proposal is the verdict, which the runner-up, and how sure that is.

How this works: a proposal's gain is that of the resource it explains, made 20 % faster in simulation, or what follows from
time that was seen to be lost, where that is more: a simulation does not know why threads stood still. What gains more comes
first; of what was doubled (a batch, a queue, jobs in flight), and of the cores that others took while some were left over,
what a fifth of that gains counts. Among gains that are alike, as those for one resource are, a cause that was seen (counted or
sampled) and takes three tenths of the time comes before one that was inferred, then the one that takes more of the time; any
special cause (from a tenth of the time on) comes before the resource's own work: removed altogether it gives at least a ninth
more. What would only give the run more of the cores comes last while somebody outside is seen to set the pace. Then, in this
order:

1. a run whose numbers cannot be believed, or that profiling slowed, is UNTRUSTED;
2. if nothing gains 3 %, and no two stages together do, it is ARRIVAL_LIMITED or HEALTHY, unless something costs latency; what
   gains and is explained by no rule is INCONCLUSIVE;
3. two stages whose gains are within 15 % of one another, or of which neither helps without the other, are a TIE;
4. a stage for whose own work two of three kinds of evidence do not speak is INCONCLUSIVE, with the experiment that would
   decide; a special cause was seen, and does not need them;
5. else the first proposal is the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.errors import SettingsError
from headrace.base.units import format_duration
from headrace.diagnose.replay import CannotReplay
from headrace.diagnose.replay.replay import UNDERSTOOD
from headrace.diagnose.verdict import (
    agreement,
    cores,
    database,
    device,
    flow,
    inputs,
    intake,
    model_cost,
    network,
    python,
    rate_limit,
    runtime,
    storage,
    streams,
    trust,
)
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.proposal import Advice, Proposal, line
from headrace.diagnose.verdict.remedies import remedies
from headrace.runs.formats.diagnosis import Candidate, Confidence, EvidenceLine, Finding, VerdictClass
from headrace.runs.formats.prediction import Change
from headrace.runs.rerun_command import profile_again

#: Gains below this are of no practical importance, and within what a simulation may err by.
WORTH_GAINING = 0.03
#: How much faster a candidate is made.
FASTER = 1.2
#: Below this a second candidate is not mentioned.
_WORTH_A_WORD = 0.01
#: What removing a cause altogether gains at least, to be named beside two others.
_WORTH_REMOVING = 0.06
_ALIKE = 0.85
#: Both together must give this share of what the best single candidate gives, and at least so much.
_TOGETHER, _TOGETHER_LEAST = 0.7, 0.10
#: Both over the better one alone, from which on neither helps much without the other: their limits are within a tenth.
_MORE_THAN_ONE = 2.2
_AT_LIMIT, _NEAR_LIMIT = 0.85, 0.75
_MOST_PARTNERS = 4
#: Candidates that a 20 % speed-up is a measure of; others are doubled or taken away.
_OWN = ("stage", "device", "cores", "gil")
_DOUBLED = ("queue", "in_flight", "batch")
_FIFTH_OF_DOUBLE = math.log(FASTER) / math.log(2)
#: Of a run's simulated and measured throughput: beyond it a verdict is less sure.
_KNOWN_WELL = 0.15
#: The runner-up's score over the first's, below which the first stands alone.
_CLEAR = 0.7
#: Share of the time that makes a special cause sure.
_LARGE_SHARE = 0.3
#: Latency that something other than a bottleneck takes, to be named before it.
_MOST_LATENCY = 0.5
#: Share of the run for which a stage's first item waits, from which on the run is mostly its beginning.
_LATE = 0.25

_FAMILIES = (
    cores,
    runtime,
    python,
    network,
    rate_limit,
    database,
    storage,
    device,
    model_cost,
    inputs,
    flow,
    streams,
    intake,
)
_NO_STAGE = (VerdictClass.ARRIVAL_LIMITED, VerdictClass.BROKER, VerdictClass.SOURCE, VerdictClass.STARVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a run comes to."""

    first: Finding
    runner_up: Finding | None
    next_bottleneck: Finding | None
    experiment: str = ""


@dataclass(frozen=True, slots=True)
class _Scored:
    proposal: Proposal
    gain: float | None
    score: float
    alike: float = 0.0
    """The score for a fifth more of what it explains, like that of the others, where that was doubled."""


def rank(facts: Facts) -> Ranking:
    """Return the verdict of a run, the runner-up and what limits next."""
    ranked = _rank(facts)
    first, others = _first(facts, ranked)
    experiment = ""
    confidence = _confidence(facts, first, others)
    runner_up = _choose_runner_up(first, others)
    if first.proposal.verdict is VerdictClass.INCONCLUSIVE:
        experiment = next((advice.command for advice in first.proposal.advice if advice.command), "")
    return Ranking(
        first=_make_finding(facts, first, confidence),
        runner_up=_make_finding(facts, runner_up, "low") if runner_up else None,
        next_bottleneck=_choose_third(facts, first.proposal, runner_up.proposal if runner_up else None, others),
        experiment=experiment,
    )


def all_proposals(facts: Facts) -> list[Proposal]:
    """Return what every family of rules proposes."""
    return [proposal for family in _FAMILIES for proposal in family.rules(facts)]


def _rank(facts: Facts) -> list[_Scored]:
    scored = []
    for proposal in all_proposals(facts):
        gain = max(
            (one for one in (facts.gain(*proposal.resources), proposal.measured_gain) if one is not None), default=None
        )
        if proposal.is_latency:
            gain = None
        scored.append(_Scored(proposal, gain, (gain or 1.0) - 1, _score_alike(facts, proposal)))
    best: dict[tuple[str, str, str | None], _Scored] = {}
    for one in _in_order(scored):
        best.setdefault((one.proposal.verdict, one.proposal.cause, one.proposal.stage), one)
    return list(best.values())


def _score_alike(facts: Facts, proposal: Proposal) -> float:
    """Return what a fifth more gains: a batch twice as large is not to be compared with a stage a fifth faster."""
    if proposal.is_latency:
        return 0.0
    gains = [
        _per_fifth_of_neighbours(facts, one) if one.kind == "neighbours" and not proposal.share else _per_fifth(one)
        for one in facts.candidates
        if one.name in proposal.resources
    ]
    gains += [proposal.measured_gain] if proposal.measured_gain is not None else []
    return max(gains, default=1.0) - 1


def _in_order(scored: Sequence[_Scored]) -> list[_Scored]:
    """Return proposals with the largest gain first; of those alike, what was seen, then what takes more of the time."""
    left, ordered = sorted(scored, key=lambda one: -one.alike), []
    while left:
        alike = [one for one in left if one.alike >= min(left[0].alike, _ALIKE * left[0].alike)]
        ordered += sorted(alike, key=lambda one: _order_alike(one.proposal))
        left = left[len(alike) :]
    return ordered


def _order_alike(one: Proposal) -> tuple[bool, bool, float]:
    return not _was_seen(one), one.is_lesser, -one.share


def _was_seen(proposal: Proposal) -> bool:
    """Return whether a cause was seen, and takes enough of the time to be more than a part of what was inferred."""
    return proposal.is_seen and proposal.share >= _LARGE_SHARE


def _first(facts: Facts, ranked: list[_Scored]) -> tuple[_Scored, list[_Scored]]:
    """Return the verdict and what comes after it, best first."""
    if (distrusted := trust.propose_untrusted(facts.document)) is not None:
        return _Scored(distrusted, None, 0.0), ranked
    latency = [one for one in ranked if one.proposal.is_latency]
    throughput = [one for one in ranked if not one.proposal.is_latency]
    known = [one for one in throughput if one.score >= WORTH_GAINING]
    limited = sorted(known, key=lambda one: _comes_last(one, known))  # not sort(): the list is empty meanwhile
    by_latency = max(latency, key=lambda one: one.proposal.share, default=None)
    tie = _tie(facts, limited)
    if not limited and tie is None:
        well = _not_understood(facts, throughput) or _well(facts, throughput)
        return (by_latency, [well, *throughput]) if by_latency else (well, [*latency, *throughput])
    if limited and limited[0].proposal.verdict in _NO_STAGE and by_latency:
        return by_latency, limited
    if by_latency and by_latency.proposal.share >= _MOST_LATENCY:
        return by_latency, limited
    if tie is not None:
        return tie, [*throughput, *latency]
    doubt = _doubt(facts, limited[0], throughput)
    if doubt is not None:
        return doubt, [*limited, *latency]
    return limited[0], [*(one for one in throughput if one is not limited[0]), *latency]


def _not_understood(facts: Facts, ranked: Sequence[_Scored]) -> _Scored | None:
    """Return what facts alone say of a run that the simulation misses by far; None where it does not.

    The simulation leaves out waiting for the GIL and for locks, which it makes anew from who holds them; where it cannot find
    the holder, the run as simulated is much faster than it was.
    """
    far = _misfit(facts)
    if far is None or far <= UNDERSTOOD:
        return None
    by_facts = _by_facts(facts, ranked)
    if by_facts is not None:
        return by_facts
    return _Scored(_inconclusive(facts, _describe_misfit(facts, far), None), None, 0.0)


def _describe_misfit(facts: Facts, far: float) -> str:
    """Return that a run is not understood, and why, where that can be seen."""
    says = f"the simulation of the run as it was is {far:.0%} off what was measured: the run is not understood"
    late = _find_late_stage(facts)
    if late is None:
        return says
    name, seconds = late
    return (
        f"{says}; {name} served its first item {format_duration(seconds)} after it came, of "
        f"{format_duration(facts.evidence.elapsed_seconds)} in all, as a model does that is loaded meanwhile: most of what was "
        "recorded is that beginning, so profile a longer run"
    )


def _find_late_stage(facts: Facts) -> tuple[str, float] | None:
    """Return the stage whose first item waited longest for it, and for how long; None if that was no large part of the run."""
    spans, waits = facts.evidence.spans, []
    for view in facts.stages:
        own = facts.evidence.stage_rows(view.name)
        if own.stop > own.start:
            waits.append((float(spans.started[own].min() - spans.arrived[own].min()) / 1e9, view.name))
    seconds, name = max(waits, default=(0.0, ""))
    return (name, seconds) if seconds >= _LATE * max(facts.evidence.elapsed_seconds, 1e-9) else None


def _by_facts(facts: Facts, ranked: Sequence[_Scored]) -> _Scored | None:
    """Return the special cause with the largest share in a stage that evidence shows to be the bottleneck; None without.

    What is around the pipeline needs no stage to speak for it; what was seen comes before what was inferred.
    """
    found = []
    for one in ranked:
        view = facts.stage(one.proposal.stage)
        if _comes_last(one, ranked) or one.proposal.share < _LARGE_SHARE:
            continue
        is_around = one.proposal.stage is None and one.proposal.is_seen
        if is_around or (view is not None and _count_agreeing(facts, view) >= 2):
            found.append(_Scored(one.proposal, None, 0.0))
    return max(found, key=lambda one: (_was_seen(one.proposal), one.proposal.share), default=None)


def _comes_last(one: _Scored, ranked: Sequence[_Scored]) -> bool:
    return _gains_less(one, ranked) or _is_outpaced(one, ranked)


def _gains_less(one: _Scored, ranked: Sequence[_Scored]) -> bool:
    """Return whether something else surely gains more than calls that are dear for no known reason, or work done again.

    Both are seen wherever calls are held up, too. Locks and the GIL are not among them: a simulation knows nothing of them
    before it finds who holds them.
    """
    proposal = one.proposal
    if proposal.cause != "anomaly" and proposal.verdict is not VerdictClass.RETRY:
        return False
    others = [other for other in ranked if not other.proposal.is_latency and _is_another(other.proposal, proposal)]
    return max((other.gain or 1.0 for other in others), default=1.0) - (one.gain or 1.0) > WORTH_GAINING


def _is_outpaced(one: _Scored, ranked: Sequence[_Scored]) -> bool:
    """Return whether it gives the run more of the cores, while somebody outside sets the pace of what limits."""
    proposal = one.proposal
    if proposal.stage is not None or proposal.verdict in _NO_STAGE:
        return False
    return any(other.proposal.sets_pace and _was_seen(other.proposal) for other in ranked)


def _count_agreeing(facts: Facts, view: StageView) -> int:
    return sum(one.supports is True for one in agreement.lines(facts, view))


def _well(facts: Facts, ranked: Sequence[_Scored]) -> _Scored:
    """Return the verdict of a run in which nothing limits."""
    arrivals = next((one for one in ranked if one.proposal.verdict is VerdictClass.ARRIVAL_LIMITED), None)
    if arrivals is not None:
        return arrivals
    more = facts.gain("arrivals")
    if more is not None and more - 1 >= WORTH_GAINING:
        return _Scored(intake.arrivals(facts, facts.receiving), more, more - 1)
    unexplained = next((one for one in facts.candidates if _per_fifth(one) - 1 >= WORTH_GAINING), None)
    if unexplained is not None:
        return _Scored(_without_rule(facts, unexplained), unexplained.gain, 0.0)
    if not facts.candidates:
        says = "nothing could be simulated in the time that the diagnosis may take, so what limits is not known"
        return _Scored(_inconclusive(facts, f"{says}; give it longer with --budget-seconds", None), None, 0.0)
    top = facts.candidates[0]
    gain = top.gain
    found = f"the best, {top.name}, gives x{top.gain:.3f}"
    proposal = Proposal(
        verdict=VerdictClass.HEALTHY,
        stage=None,
        says=f"no single resource limits this run: made 20 % faster, {found}",
        rule=f"no candidate made 20 % faster gains {WORTH_GAINING:.0%}",
        resources=(),
        share=0.0,
        evidence=(
            line(
                "largest_gain",
                found,
                _per_fifth(top) - 1,
                WORTH_GAINING,
                True,
            ),
            *intake.idle_lines(facts),
        ),
        advice=(Advice(says="nothing to mend"),),
    )
    return _Scored(proposal, gain, 0.0)


def _per_fifth(candidate: Candidate) -> float:
    """Return a candidate's gain for a fifth more of it, like that of the others, where it was doubled."""
    return candidate.gain**_FIFTH_OF_DOUBLE if candidate.kind in _DOUBLED else candidate.gain


def _per_fifth_of_neighbours(facts: Facts, candidate: Candidate) -> float:
    """Return what a fifth more cores for this run give, of those that others would leave to it.

    Where cores are left over, others may go without any gain: that is compared with what a fifth of anything else gives.
    """
    others, own = facts.other_cores, facts.own_cores
    if not others or not own or others < (FASTER - 1) * own:
        return candidate.gain
    return float(candidate.gain ** (math.log(FASTER) / math.log(1 + others / own)))


def _without_rule(facts: Facts, candidate: Candidate) -> Proposal:
    """Return that something gains and no rule says why, so that the run is neither healthy nor understood."""
    return Proposal(
        verdict=VerdictClass.INCONCLUSIVE,
        stage=candidate.stage,
        says=f"the simulation finds a gain that no rule explains: {candidate.says} gives x{candidate.gain:.2f}",
        rule=f"a candidate gains {WORTH_GAINING:.0%}, for a fifth more of it, and no rule explains that",
        resources=(candidate.name,),
        share=0.0,
        evidence=tuple(intake.idle_lines(facts)),
        advice=(_decide(facts),),
    )


def _tie(facts: Facts, limited: Sequence[_Scored]) -> _Scored | None:
    """Return a TIE if the two best stages limit together; None if one does alone, or something that is no stage."""
    if limited and (limited[0].proposal.share > 0 or limited[0].proposal.stage is None):
        return None
    first = _first_stage(facts)
    if first is None:
        return None
    pairs = [(_both(facts, first, one), one) for one in _partners(facts, first)]
    together, second = max(pairs, key=lambda pair: pair[0], default=(1.0, first))
    single = max(first.gain, second.gain)
    best = max((one.gain for one in facts.candidates if one.kind in _OWN), default=1.0) - 1
    if together - 1 < max(_TOGETHER_LEAST, _TOGETHER * best, 1.3 * (single - 1)):
        return None  # or one of the two does nearly all of it
    if second.gain - 1 < _ALIKE * (first.gain - 1) and together - 1 < _MORE_THAN_ONE * (single - 1):
        return None
    proposal = Proposal(
        verdict=VerdictClass.TIE,
        stage=first.stage,
        says=(
            f"{first.stage} and {second.stage} limit together: 20 % faster, one alone gives x{single:.2f} at most, both "
            f"x{together:.2f}"
        ),
        rule=(
            f"the gains of two stages are within {1 - _ALIKE:.0%} of one another, or both together give {_MORE_THAN_ONE:g} "
            f"times what the better one does; together at least {_TOGETHER_LEAST:.0%}, and {_TOGETHER:.0%} of the largest "
            "single gain"
        ),
        resources=(first.name, second.name),
        share=0.0,
        evidence=(
            line("first_gain", f"{first.stage} 20 % faster: x{first.gain:.3f}", first.gain, None, True),
            line("second_gain", f"{second.stage} 20 % faster: x{second.gain:.3f}", second.gain, None, True),
            line("both_gain", f"both 20 % faster: x{together:.3f}", together, 1 + _TOGETHER_LEAST, True),
        ),
        advice=(
            Advice(
                says=f"make {first.stage} and {second.stage} faster together; a single fix gives at most x{single:.2f}",
                change=Change(speedups={str(first.stage): FASTER, str(second.stage): FASTER}),
            ),
            Advice(says=f"{first.stage} alone", change=Change(speedups={str(first.stage): FASTER})),
            Advice(says=f"{second.stage} alone", change=Change(speedups={str(second.stage): FASTER})),
        ),
        removal=Change(speedups={str(first.stage): 4.0, str(second.stage): 4.0}),
    )
    return _Scored(proposal, single, single - 1)


def _first_stage(facts: Facts) -> Candidate | None:
    """Return the stage that gains most, or the busiest where none gains much; None if none is busy."""
    known = _stage_candidates(facts)
    if not known:
        return None
    top = max(known, key=lambda one: one.gain)
    if top.gain - 1 >= WORTH_GAINING:
        return top
    busiest = max(known, key=lambda one: _busy_of(facts, one))
    return busiest if _busy_of(facts, busiest) >= _AT_LIMIT else None


def _partners(facts: Facts, first: Candidate) -> list[Candidate]:
    """Return the stages of other stations that may limit together with the first: alike in gain, or as good as always busy."""
    view = facts.stage(first.stage)
    others = [
        one
        for one in _stage_candidates(facts)
        if (other := facts.stage(one.stage)) and view and other.account.station != view.account.station
    ]
    if first.gain - 1 > 1 / _MORE_THAN_ONE * (FASTER - 1):
        return [one for one in others if one.gain - 1 >= _ALIKE * (first.gain - 1)]
    alike = [one for one in others if one.gain - 1 >= _ALIKE * (first.gain - 1) or _busy_of(facts, one) >= _NEAR_LIMIT]
    return sorted(alike, key=lambda one: -_busy_of(facts, one))[:_MOST_PARTNERS]


def _stage_candidates(facts: Facts) -> list[Candidate]:
    return [one for one in facts.candidates if one.kind in ("stage", "device")]


def _both(facts: Facts, first: Candidate, second: Candidate) -> float:
    """Return the gain of two stages made faster together."""
    return _ratio(facts, Change(speedups={str(first.stage): FASTER, str(second.stage): FASTER})) or 1.0


def _busy_of(facts: Facts, candidate: Candidate) -> float:
    view = facts.stage(candidate.stage)
    return (agreement.lines(facts, view)[0].value or 0.0) if view else 0.0


def _ratio(facts: Facts, change: Change) -> float | None:
    try:
        return facts.replay.ratio(change)
    except (CannotReplay, SettingsError):
        return None


def _gain(facts: Facts, change: Change, base: Change) -> float | None:
    try:
        return facts.replay.ratio(change, base)
    except (CannotReplay, SettingsError):
        return None


def _doubt(facts: Facts, best: _Scored, ranked: Sequence[_Scored]) -> _Scored | None:
    """Return what to say instead if the evidence does not bear out the simulation; None if it does."""
    proposal = best.proposal
    far = _misfit(facts)
    is_far = far is not None and far > UNDERSTOOD
    by_facts = _by_facts(facts, ranked) if is_far else None
    if by_facts is not None and by_facts.proposal.share > proposal.share:
        return by_facts
    if proposal.share > 0:
        return None
    view = facts.stage(proposal.stage)
    reasons = []
    if view is not None:
        known = [one for one in agreement.lines(facts, view) if one.supports is not None]
        if len(known) >= 2 and sum(bool(one.supports) for one in known) < 2:
            against = "; ".join(one.says for one in known if not one.supports)
            reasons.append(f"the simulation finds {view.name}, but what was measured does not bear it out: {against}")
    if is_far:
        reasons.append(_describe_misfit(facts, far or 0.0))
    if not reasons:
        return None
    says = f"{'; '.join(reasons)}. Nearest: {proposal.verdict}"
    return _Scored(_inconclusive(facts, says, proposal), best.gain, best.score)


def _inconclusive(facts: Facts, says: str, nearest: Proposal | None) -> Proposal:
    view = facts.stage(nearest.stage) if nearest else None
    return Proposal(
        verdict=VerdictClass.INCONCLUSIVE,
        stage=nearest.stage if nearest else None,
        says=says,
        rule=(
            "two of three kinds of evidence (busy, queue gradient, critical path) must agree with the simulation, and that "
            f"with the measured throughput within {UNDERSTOOD:.0%}"
        ),
        resources=nearest.resources if nearest else (),
        share=0.0,
        evidence=((*agreement.lines(facts, view),) if view else ()) + (nearest.evidence if nearest else ()),
        advice=(
            _decide(facts),
            *(nearest.advice if nearest else ()),
        ),
        removal=nearest.removal if nearest else None,
    )


def _decide(facts: Facts) -> Advice:
    """Return what would decide.

    A longer run, if this one is mostly its beginning; stages alone, which the jobs of a queue cannot be given to; else more of
    the same.
    """
    run = facts.evidence.run.path
    if _find_late_stage(facts) is not None:
        return Advice(
            says="profile a longer run, so that its beginning is a small part of it",
            command=profile_again(facts.info, "-o", f"{run}-again", longer=True),
        )
    if not facts.reads_queue and not facts.info.served:
        return Advice(
            says="run each stage alone, and the pipeline with parts replaced: that decides",
            command=profile_again(facts.info, "--isolate", "-o", f"{run}-isolated"),
        )
    return Advice(
        says="profile a longer run on a quiet machine; or run each stage alone, over a folder of such items (--isolate)",
        command=profile_again(facts.info, "-o", f"{run}-again", longer=True),
    )


def _misfit(facts: Facts) -> float | None:
    """Return by how much the simulation of the run as it was misses the measured throughput, as a share."""
    try:
        return abs(facts.replay.misfit) if facts.throughput > 0 else None
    except (CannotReplay, SettingsError):
        return None


def _confidence(facts: Facts, first: _Scored, others: Sequence[_Scored]) -> Confidence:
    """Return how sure a verdict is: how many of the reasons to doubt it hold."""
    proposal, doubts = first.proposal, 0
    if proposal.verdict is VerdictClass.INCONCLUSIVE:
        return "low"
    if proposal.verdict is VerdictClass.UNTRUSTED:
        return "high"
    rival = next((one for one in others if _is_another(one.proposal, proposal)), None)
    doubts += rival is not None and first.score > 0 and _weigh(rival) > _CLEAR * _weigh(first)
    far = _misfit(facts)
    doubts += far is None or far > _KNOWN_WELL
    doubts += facts.document.environment.grade == "C" and proposal.verdict is not VerdictClass.NEIGHBOUR
    view = facts.stage(proposal.stage)
    if view is not None and proposal.share < _LARGE_SHARE:
        known = [one for one in agreement.lines(facts, view) if one.supports is not None]
        doubts += sum(bool(one.supports) for one in known) < len(known) or len(known) < 2
    doubts += facts.document.window.is_steady is False
    return "high" if not doubts else "medium" if doubts == 1 else "low"


def _weigh(one: _Scored) -> float:
    """Return the gain, the more the larger the share of the time that the cause takes."""
    return one.score * (1 + one.proposal.share)


def _choose_runner_up(first: _Scored, others: Sequence[_Scored]) -> _Scored | None:
    """Return the next best; before what is inferred of the same resource, what was seen or is of another and gains as much.

    A stage that is named already is not named again for its own work where anything else is worth finding.
    """
    known = [one for one in others if _is_runner_up(one, first.proposal)]
    own = set(first.proposal.resources)
    more = [one for one in known if one.score >= WORTH_GAINING and not _is_said(one.proposal, first.proposal)]
    apart = [one for one in more if one.proposal.is_seen or not own & set(one.proposal.resources)]
    elsewhere = [one for one in apart if one.score > _CLEAR * first.score > 0]
    return next(iter([*elsewhere, *more, *known]), None)


def _is_said(one: Proposal, first: Proposal) -> bool:
    """Return whether a finding adds nothing to a decided first but that its stage works: that was said."""
    is_decided = first.verdict is not VerdictClass.INCONCLUSIVE
    return is_decided and one.share == 0 and one.stage is not None and one.stage == first.stage


def _is_runner_up(one: _Scored, first: Proposal) -> bool:
    """Return whether something else is worth a word: it gains something, costs latency, or is work done in vain."""
    if not _is_another(one.proposal, first):
        return False
    is_hidden_cost = one.proposal.is_latency or one.proposal.verdict is VerdictClass.RETRY
    return is_hidden_cost or one.score >= _WORTH_A_WORD


def _is_another(one: Proposal, first: Proposal) -> bool:
    return (one.verdict, one.stage) != (first.verdict, first.stage)


def _make_finding(facts: Facts, scored: _Scored, confidence: Confidence) -> Finding:
    proposal = scored.proposal
    view = facts.stage(proposal.stage)
    evidence = list(proposal.evidence)
    if view is not None and scored.gain is not None:
        known = {one.name for one in evidence}
        evidence += [one for one in agreement.lines(facts, view) if one.name not in known]
    if scored.gain is not None:
        evidence.insert(0, _gain_line(facts, proposal, scored.gain))
    return proposal.as_finding(
        confidence=confidence,
        gain=scored.gain,
        evidence=tuple(evidence),
        remedies=remedies(facts.replay, proposal.advice),
    )


def _gain_line(facts: Facts, proposal: Proposal, gain: float) -> EvidenceLine:
    best = facts.best(*proposal.resources)
    says, source = (
        f"{best.says if best else '20 % faster'}: x{gain:.2f} of the throughput, by simulation",
        "Coz, SOSP 2015",
    )
    if proposal.measured_gain == gain:
        says, source = f"20 % more of it: up to x{gain:.2f} of the throughput, by the time that was seen to be lost", ""
    return line("gain", says, gain - 1, WORTH_GAINING, gain - 1 >= WORTH_GAINING, source)


def _next(facts: Facts, first: Proposal) -> Finding | None:
    """Return what limits once the first is out of the way; None if nothing does, or that cannot be simulated."""
    if first.removal is None:
        return None
    fixed = _ratio(facts, first.removal)
    if fixed is None or fixed <= 0:
        return None
    gains = []
    for view in sorted(facts.stages, key=lambda view: -(view.account.utilization or 0.0)):
        if not facts.replay.budget.has_left():
            facts.replay.budget.leave_out(f"whether {view.name} limits next")
            continue
        speedups = dict(first.removal.speedups)
        speedups[view.name] = speedups.get(view.name, 1.0) * FASTER
        more = _gain(facts, _with_speedups(first.removal, speedups), first.removal)
        if more is not None:
            gains.append((more, view))
    if not gains:
        return None
    gain, view = max(gains, key=lambda pair: pair[0])
    if gain - 1 < WORTH_GAINING:
        return None
    own = [one for one in all_proposals(facts) if one.stage == view.name and not one.is_latency]
    special = [one for one in own if one.share > 0 and one.verdict is not first.verdict]
    found = min(special, key=_order_alike, default=next((one for one in own if one.share == 0), None))
    if found is None or not _is_another(found, first):
        return None  # its own stage again, only faster
    begin = "on a quiet machine" if first.removal.quiet else "with the first out of the way"
    says = f"{begin} the run does x{fixed:.2f}; then {view.name} limits: {found.says}"
    return found.as_finding(
        stage=view.name,
        says=says,
        confidence="low",
        gain=gain,
        evidence=(line("gain", f"20 % faster gives x{gain:.2f} then", gain - 1, WORTH_GAINING, True),),
        remedies=(),
    )


def _choose_third(facts: Facts, first: Proposal, second: Proposal | None, others: Sequence[_Scored]) -> Finding | None:
    """Return what limits next; where that is none, or the second again, another cause that was seen."""
    found = _next(facts, first)
    if found is not None and (second is None or (found.verdict, found.stage) != (second.verdict, second.stage)):
        return found
    return _name_another(facts, first, second, others) or found


def _name_another(facts: Facts, first: Proposal, second: Proposal | None, others: Sequence[_Scored]) -> Finding | None:
    """Return a cause that was seen beside the two that are named; None without one that gains enough by being removed.

    A fifth less of what takes a tenth of the time gains nothing worth a word. To be rid of it does.
    """
    if first.removal is None:
        return None
    for one in (one.proposal for one in others):
        is_named = not _is_another(one, first) or (second is not None and not _is_another(one, second))
        if is_named or one.removal is None or not one.is_seen:
            continue
        if not facts.replay.budget.has_left():
            facts.replay.budget.leave_out(f"what {one.verdict} costs beside the others")
            continue
        gain = _gain(facts, _together(first.removal, one.removal), first.removal)
        if gain is not None and gain - 1 >= _WORTH_REMOVING:
            return one.as_finding(
                says=f"out of the way as well, it gives x{gain:.2f}: {one.says}",
                confidence="low",
                gain=gain,
                evidence=(line("gain", f"out of the way as well: x{gain:.2f}", gain - 1, _WORTH_REMOVING, True),),
                remedies=(),
            )
    return None


def _together(first: Change, second: Change) -> Change:
    """Return two bottlenecks out of the way."""
    return Change(
        settings=(*first.settings, *second.settings),
        speedups={**first.speedups, **second.speedups},
        cores=second.cores or first.cores,
        devices=first.devices,
        quiet=first.quiet or second.quiet,
    )


def _with_speedups(change: Change, speedups: dict[str, float]) -> Change:
    return Change(
        settings=change.settings,
        speedups=speedups,
        cores=change.cores,
        devices=change.devices,
        quiet=change.quiet,
    )
