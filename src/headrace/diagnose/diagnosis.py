"""The diagnosis of one run: what limits it, how sure that is, and what to do. Made from the run folder and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.diagnose.analysis import Analysis
from headrace.diagnose.bounds import find_bounds
from headrace.diagnose.budget import USUAL_SECONDS, Budget
from headrace.diagnose.candidates import find_candidates
from headrace.diagnose.latency_parts import find_latency_parts
from headrace.diagnose.replay import CannotReplay
from headrace.diagnose.trust import FEWEST_JOBS
from headrace.diagnose.verdict.facts import Facts
from headrace.diagnose.verdict.failures import failures, note_of_failures
from headrace.diagnose.verdict.goals import Goal, RateGoal, check_goals, good_enough
from headrace.diagnose.verdict.measured import correct_candidates, decide
from headrace.diagnose.verdict.proposal import line
from headrace.diagnose.verdict.ranking import Ranking, rank
from headrace.diagnose.verdict.trust import propose_untrusted
from headrace.runs.formats.diagnosis import (
    Bound,
    Candidate,
    DiagnosisDocument,
    Finding,
    LatencyPart,
    Remedy,
    VerdictClass,
)
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.reader import Run
from headrace.runs.rerun_command import profile_again

__all__ = ["Goal", "RateGoal", "diagnosis_document"]


def diagnosis_document(
    analysis: Analysis, goals: Sequence[Goal] = (), budget: Budget | None = None
) -> DiagnosisDocument:
    """Return what limits a run and what to do about it.

    A run that cannot be diagnosed gives a document too: its verdict is INCONCLUSIVE or UNTRUSTED, with the reason and the next
    command.

    Args:
        analysis: Of a run that was profiled, by `headrace profile`.
        goals: What the user asks for: `headrace.base.goals.LatencyGoal`, `RateGoal`.
        budget: How long it may simulate; None: for `USUAL_SECONDS` of a core. `left_out` names what that was too short for.
    """
    budget = budget or Budget(USUAL_SECONDS)
    run = analysis.run
    try:
        replay = analysis.replay
    except CannotReplay as reason:
        return _refuse(analysis, goals, str(reason))
    replay.budget = budget
    candidates, bounds = tuple(find_candidates(replay)), tuple(find_bounds(replay))
    facts = Facts.of(replay, candidates, bounds)
    ranking = decide(rank(facts), facts)
    candidates = correct_candidates(candidates, facts)
    failed = failures(run)
    if failed is not None and ranking.first.verdict is not VerdictClass.UNTRUSTED:
        ranking = Ranking(first=failed.as_finding(), runner_up=ranking.first, next_bottleneck=None)
    simulated = replay.simulate(Change()).throughput
    parts = facts.latency_parts
    document = _document(run, replay.document, goals, ranking, candidates, bounds, simulated, parts)
    return msgspec.structs.replace(document, left_out=tuple(budget.left_out), budget_seconds=budget.seconds)


def _refuse(analysis: Analysis, goals: Sequence[Goal], reason: str) -> DiagnosisDocument:
    """Return the document of a run that cannot be simulated."""
    run, document = analysis.run, analysis.profile
    distrusted, failed = propose_untrusted(document), failures(run)
    command = "" if failed is not None else profile_again(document, "-o", f"{run.path}-profiled", longer=True)
    first = Finding(
        verdict=VerdictClass.INCONCLUSIVE,
        stage=None,
        cause="",
        says=reason,
        rule="a verdict needs a profiled run with enough jobs to be simulated",
        confidence="low",
        gain=None,
        evidence=(
            line("jobs", f"{document.latency.num_samples:,} jobs", document.latency.num_samples, FEWEST_JOBS, None),
        ),
        remedies=(Remedy(says="profile the pipeline again, with more items", command=command),),
    )
    if failed is not None:
        first = failed.as_finding()
    if distrusted is not None:
        remedies = (Remedy(says="profile the pipeline again", command=command),)
        first = distrusted.as_finding(stage=None, says=f"{distrusted.says}; and {reason}", remedies=remedies)
    ranking = Ranking(first=first, runner_up=None, next_bottleneck=None, experiment=command)
    return _document(
        run, document, goals, ranking, (), (), None, find_latency_parts(analysis.evidence, analysis.profile.window)
    )


def _document(
    run: Run,
    profile: ProfileDocument,
    goals: Sequence[Goal],
    ranking: Ranking,
    candidates: tuple[Candidate, ...],
    bounds: tuple[Bound, ...],
    simulated: float | None,
    parts: tuple[LatencyPart, ...],
) -> DiagnosisDocument:
    is_arrival_limited = ranking.first.verdict is VerdictClass.ARRIVAL_LIMITED
    checks = check_goals(goals, profile, is_arrival_limited=is_arrival_limited)
    return DiagnosisDocument(
        run=profile.run,
        headrace_version=profile.headrace_version,
        pipeline=profile.pipeline,
        plan_id=profile.plan_id,
        throughput=profile.throughput,
        first=ranking.first,
        runner_up=ranking.runner_up,
        next_bottleneck=ranking.next_bottleneck,
        candidates=candidates,
        bounds=bounds,
        simulated_throughput=simulated,
        latency_parts=parts,
        streams=profile.streams,
        goals=checks,
        good_enough=good_enough(checks),
        experiment=ranking.experiment,
        trusted=profile.trusted,
        distrust=profile.distrust,
        unchecked=profile.unchecked,
        is_emulated=profile.is_emulated,
        warnings=_warnings(run, profile, ranking.first),
        details={},
    )


def _warnings(run: Run, profile: ProfileDocument, first: Finding) -> tuple[str, ...]:
    """Return what makes the answer less sure without making it wrong, and what else went wrong."""
    found = [*profile.warnings, *profile.problems]
    if first.verdict is not VerdictClass.FAILURES and (failed := note_of_failures(run)):
        found.append(failed)
    if profile.unchecked:
        found.append(f"whether the run's figures are right could not be checked: {'; '.join(profile.unchecked)}")
    found += [one.says for one in profile.checks if one.name == "explained_cpu" and one.status == "warning"]
    environment = profile.environment
    if environment.grade == "C":
        found.append(
            f"the machine was noisy ({'; '.join(environment.reasons)}): gains hold for such a machine, and latencies cannot be "
            "predicted; profile again on a quiet one"
        )
    if profile.window.is_steady is False:
        found.append(f"the run was not steady: {profile.window.says}")
    return tuple(found)
