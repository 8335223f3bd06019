"""What an experiment measured outranks what was inferred: the verdict of a run whose pipeline was perturbed.

How this works: the conclusion of the experiment names a resource. Among all proposals the one that explains this resource, with
the largest share of its time, is the verdict: the experiment says where, the recording says why. Where no rule explains it, the
conclusion itself is the verdict. What the ranking said first becomes the runner-up, unless the experiment measured that its
resource has room: then it falls. A verdict that the figures cannot be believed, or that everything fails, stays.
"""

from __future__ import annotations

import msgspec

from headrace.diagnose.experimented import Conclusion, conclude, is_limit
from headrace.diagnose.verdict.facts import Facts
from headrace.diagnose.verdict.intake import has_backlog
from headrace.diagnose.verdict.proposal import Advice, Proposal
from headrace.diagnose.verdict.ranking import Ranking, all_proposals
from headrace.diagnose.verdict.remedies import remedies
from headrace.runs.formats.diagnosis import Candidate, EvidenceLine, Finding, Remedy, VerdictClass
from headrace.runs.formats.experiment import ExperimentDocument, Interval, Perturbation
from headrace.runs.formats.profile import Estimate

_STAY = (VerdictClass.UNTRUSTED, VerdictClass.FAILURES)
_SOURCE = "measured on the running pipeline; Coz, SOSP 2015"
_RULE = "an experiment on the running pipeline: the resource whose scarcity costs throughput is the limit"

_OF_LIMIT: dict[str, tuple[str, ...]] = {
    "native_threads": ("OVERSUBSCRIPTION",),
    "gil": ("GIL", "RUNTIME", "GC"),
    "cores": ("NEIGHBOUR", "QUOTA", "OVERSUBSCRIPTION", "CPU_SATURATION", "GC", "RUNTIME"),
    # Whatever gives a stage so much, however many of its workers ask: a service, a link, who reads its log, a disk, a lock.
    "beyond": ("RATE_LIMIT", "BANDWIDTH", "LOGGING", "DISK", "DATABASE", "LOCK"),
    "receiving": ("SOURCE", "BROKER"),
    "arrivals": ("STARVED", "ARRIVAL_LIMITED"),
}
"""{limit: the classes that explain it, the first for one that no rule explains}."""

#: {limit: kinds of perturbations that cost throughput, or gain it, where it is the limit}; of the others none does.
_COSTS = {
    "workers": ("delay", "fewer", "more"),
    "gil": ("gil",),
    "cores": ("cores", "gil"),
    "receiving": ("receiving",),
    "native_threads": ("native_threads",),
}
#: What else a stage's own work may be than preparing.
_ANY_STAGE = ("PREPROCESS", "DOWNLOAD_LATENCY", "RETRY", "GC", "LOCK")

#: What a remedy says or types that does what the perturbation `native_threads` tried.
_BY_ONE_THREAD = "OPENBLAS_NUM_THREADS=1"
_ADVICE = {
    "native_threads": f"let BLAS compute in the thread that calls it: set {_BY_ONE_THREAD} or MKL_NUM_THREADS=1",
    "gil": "give the stage that holds the GIL processes of its own (executor=process), or let it compute in a library that "
    "releases it",
    "cores": "use fewer CPU seconds per item, or more cores",
    "beyond": "ask the service for a higher limit, ask it less often (a cache, several items in a call), or leave it",
    "receiving": "ask the source for several jobs in one call, or with more receivers",
    "arrivals": "nothing to mend here: the pipeline does all that comes",
    "workers": "more workers, or less time for each item",
}


def decide(ranking: Ranking, facts: Facts) -> Ranking:
    """Return the ranking of a run as the experiment in its folder bears it out, or turns it round."""
    document = facts.document.experiment
    if document is None or ranking.first.verdict in _STAY:
        return ranking
    found = conclude(document)
    evidence = list_evidence(document, found)
    if found is None:
        first = ranking.first
        answered = _answer_by_recording(first, facts)
        if answered:
            first = msgspec.structs.replace(first, says=f"{first.says}. {answered}")
        first = msgspec.structs.replace(first, evidence=(*first.evidence, *evidence))
        return Ranking(
            first=first,
            runner_up=ranking.runner_up,
            next_bottleneck=ranking.next_bottleneck,
            experiment=ranking.experiment,
        )
    if explains(found, ranking.first.verdict, ranking.first.stage):
        first, runner_up = ranking.first, ranking.runner_up
    else:
        first, runner_up = _finding(found, ranking, facts), ranking.first
    if runner_up is not None and _is_ruled_out(runner_up, found, document):
        runner_up = None
    is_answered = _is_answered(found, facts)
    offered = () if is_answered else first.remedies
    kept = tuple(one for one in (_measured(remedy, found, document) for remedy in offered) if one is not None)
    first = msgspec.structs.replace(
        first,
        says=found.says if is_answered or first.says == found.says else f"{found.says}; {first.says}",
        rule=_RULE,
        confidence="high",
        evidence=(*evidence, *first.evidence),
        remedies=kept or (Remedy(says=_ADVICE[found.limit]),),
    )
    is_next = ranking.next_bottleneck if first.verdict is ranking.first.verdict else None
    return Ranking(first=first, runner_up=runner_up, next_bottleneck=is_next)


def _answer_by_recording(first: Finding, facts: Facts) -> str:
    """Return what the recording saw of stages that share the GIL, which delays in them hardly tell apart; empty if nothing.

    A delay in one of them leaves the GIL to the others, so each of them costs about half of what it would alone.
    """
    holders = facts.gil_holders
    if first.verdict is not VerdictClass.GIL or first.stage is None or holders is None or holders.errors is None:
        return ""
    if holders.alike == (first.stage,):
        return f"The experiment left that open, and the recording did not: {holders.describe(first.stage)}"
    if first.stage in holders.alike:
        says = (
            f"Neither the experiment nor {holders.num_moments:,} looks at who has the GIL tell {holders.alike[0]} from"
        )
        return f"{says} {holders.alike[1]}"
    return ""


def correct_candidates(candidates: tuple[Candidate, ...], facts: Facts) -> tuple[Candidate, ...]:
    """Return what each resource would give, largest first, without the gains of those that were measured to have room."""
    document = facts.document.experiment
    if document is None:
        return candidates
    corrected = [
        msgspec.structs.replace(one, gain=1.0, says=f"{one.says}: by experiment it is not the limit")
        if one.gain > 1 and _is_without_limit(_questions(one.name, one.stage, document), document)
        else one
        for one in candidates
    ]
    return tuple(sorted(corrected, key=lambda one: -one.gain))


def explains(found: Conclusion, verdict: VerdictClass, stage: str | None) -> bool:
    """Return whether a verdict says why this resource is the limit."""
    if found.limit == "workers":
        others = {name for names in _OF_LIMIT.values() for name in names} - set(_ANY_STAGE)
        return stage in found.stages and verdict.value not in others and verdict is not VerdictClass.INCONCLUSIVE
    if found.limit == "beyond" and stage not in found.stages:
        return False
    return verdict.value in _OF_LIMIT[found.limit]


def list_evidence(document: ExperimentDocument, found: Conclusion | None) -> tuple[EvidenceLine, ...]:
    """Return each perturbation that was made as a fact for or against a conclusion."""
    limit = set(_COSTS.get(found.limit, ()) if found is not None else ())
    lines = []
    for one in document.perturbations:
        if one.sensitivity is not None:
            says = f"{one.name}: {one.says}: sensitivity {one.sensitivity}" + ("" if one.decided else ", not decided")
            lines.append(_line(one, says, one.sensitivity.mid, 0.5, None if found is None else one.kind in limit))
        elif one.ratio is not None:
            says = f"{one.name}: {one.says}: throughput x{one.ratio}"
            lines.append(_line(one, says, one.ratio.mid, 1.0, None if found is None else one.kind in limit))
    return tuple(lines)


def _line(one: Perturbation, says: str, value: float, threshold: float, is_expected: bool | None) -> EvidenceLine:
    """Return one fact; `is_expected`: whether it should be above the threshold, None where nothing is concluded."""
    supports = (value > threshold) == is_expected if one.decided and is_expected is not None else None
    return EvidenceLine(
        name=f"experiment.{one.name}", says=says, value=value, threshold=threshold, supports=supports, source=_SOURCE
    )


def _finding(found: Conclusion, ranking: Ranking, facts: Facts) -> Finding:
    """Return the verdict that explains a limit."""
    other = ranking.runner_up
    if other is not None and explains(found, other.verdict, other.stage):
        return other
    # Not the next bottleneck: what that says is of a run without the first.
    fit = [one for one in all_proposals(facts) if explains(found, one.verdict, one.stage) and not one.is_latency]
    best = max(fit, key=lambda one: one.share, default=None)
    if best is not None:
        return best.as_finding(remedies=remedies(facts.replay, best.advice))
    advice = (Advice(says=_ADVICE[found.limit]),)
    names = (*_OF_LIMIT.get(found.limit, ()), *_ANY_STAGE)
    verdict = next(VerdictClass(name) for name in names if name in VerdictClass.__members__)
    return Proposal(
        verdict=verdict, stage=found.station, says=found.says, rule=_RULE, resources=(), share=0.0, advice=advice
    ).as_finding()


def _is_answered(found: Conclusion, facts: Facts) -> bool:
    """Return whether the experiment answers all that was left open: whether jobs were there that the source did not tell of."""
    was_open = facts.receiving is not None and has_backlog(facts) is None and facts.info.source_work is None
    return was_open and found.limit in ("receiving", "arrivals")


def _is_ruled_out(finding: Finding, found: Conclusion, document: ExperimentDocument) -> bool:
    """Return whether nothing is left of what a recording alone put first or second."""
    has_jobs = found.limit == "receiving" and finding.verdict.value in _OF_LIMIT["arrivals"]
    return has_jobs or finding.verdict is VerdictClass.INCONCLUSIVE or _has_room(finding, document)


def _has_room(finding: Finding, document: ExperimentDocument) -> bool:
    """Return whether the experiment measured that the resource of a finding is not the limit."""
    resource = {"GIL": "gil", "CPU_SATURATION": "cores", "SOURCE": "receiving"}.get(finding.verdict.value, "")
    return _is_without_limit(_questions(resource, finding.stage, document), document)


def _questions(resource: str, stage: str | None, document: ExperimentDocument) -> list[str]:
    """Return the names of the perturbations that ask for a resource: a stage's workers, where it is none of the others."""
    if resource in ("gil", "cores", "receiving"):
        return [resource]
    station = next((state.name for state in document.stations if stage in state.stages), None)
    return [f"delay:{station}", f"fewer:{station}"]


def _is_without_limit(names: list[str], document: ExperimentDocument) -> bool:
    """Return whether these perturbations say that their resource has room."""
    made = {one.name: one for one in document.perturbations}
    answers = [is_limit(made.get(name)) for name in names]
    return False in answers and True not in answers


def _measured(remedy: Remedy, found: Conclusion, document: ExperimentDocument) -> Remedy | None:
    """Return a remedy with what was measured in the place of what was predicted; None if it was measured to be none."""
    if found.limit == "native_threads" and _BY_ONE_THREAD in f"{remedy.says} {remedy.command}":
        tried = next((one.ratio for one in document.perturbations if one.kind == "native_threads"), None)
        return remedy if tried is None else msgspec.structs.replace(remedy, ratio=_as_estimate(tried))
    asked = next((one for one in remedy.settings if one.split("=")[0] == f"{found.station}.workers"), None)
    if asked is None:
        return remedy
    if found.limit == "beyond":
        return None
    more = found.more
    if more is None or more.ratio is None or remedy.ratio is None or remedy.ratio.mid < 1:
        return remedy
    if more.ratio.high >= remedy.ratio.mid:
        return remedy
    # Half as many workers more gave less than was predicted for more of them yet: no more than that is promised.
    return msgspec.structs.replace(remedy, ratio=_as_estimate(more.ratio))


def _as_estimate(ratio: Interval) -> Estimate:
    return Estimate(mid=ratio.mid, low=ratio.low, high=ratio.high)
