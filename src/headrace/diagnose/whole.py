"""A run of several processes: each member by itself, what differs between them, and the diagnosis of the one in the middle.

A simulation is of one process: its workers, its GIL, its machine. So each member is diagnosed alone, and what only all of them
show is said beside: hosts that take longer for the same stage, members that end before others, and what fails in one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec
import numpy as np

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.budget import USUAL_SECONDS, Budget
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.trust import FEWEST_JOBS
from headrace.runs.formats.diagnosis import DiagnosisDocument, VerdictClass
from headrace.runs.formats.whole import Member, WholeDocument
from headrace.runs.reader import STILL_RUNNING
from headrace.runs.supervision import Supervision
from headrace.runs.whole_run import WholeRun

#: Members that are diagnosed at most, spread over their throughputs: a verdict takes a second or two of a core.
_MOST_DIAGNOSED = 8
#: Service of a stage, to the middle of the others, that is worth a sentence, and its share of a member's work.
_SLOWER, _SOME_WORK = 1.25, 0.1
#: Such sentences at most.
_MOST_SLOWER = 3
#: Share of the places at work that may stand empty.
_EMPTY = 0.1
#: Verdicts that name nothing.
_NOTHING_TOLD = (VerdictClass.INCONCLUSIVE.value, VerdictClass.UNTRUSTED.value)
#: Failed jobs that one member has of all, and how many there must be.
_MOST_OF, _SOME_FAILED = 0.8, 5


_NOT_PROFILED = (
    "none of them was profiled, so what limits them cannot be told: run the same once more with --profile and "
    "another -o"
)
_NOT_YET = (
    "none of them has ended, and what --profile measures is written at the end: until then what limits them is not told"
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One member with what is worked out of it."""

    analysis: Analysis
    member: Member


def whole_document(whole: WholeRun, budget_seconds: float | None = None) -> WholeDocument:
    """Return what the members of a run did, and what limits them.

    Args:
        whole: The run.
        budget_seconds: Of a core, for simulating each of the members that are diagnosed; None: as for a run of one process.
    """
    seen = _on_one_clock(whole)
    by_rate = sorted(seen, key=lambda one: (one.member.status == "running", -(one.member.throughput or 0.0)))
    have_rate = [one for one in by_rate if one.member.throughput]
    known = [one for one in have_rate if one.member.status != "running"] or have_rate or by_rate
    middle = known[len(known) // 2]
    is_profiled = any(one.analysis.evidence.profiling is not None for one in seen)
    chosen = _spread(known, middle) if is_profiled else [middle]
    verdicts = {
        one.member.name: diagnosis_document(one.analysis, (), Budget(budget_seconds or USUAL_SECONDS)) for one in chosen
    }
    causes = whole.supervision.causes() if whole.supervision else {}
    members = tuple(
        _complete(one.member, verdicts.get(one.member.name), causes.get(one.member.name, "")) for one in seen
    )
    most, mean = _at_work(members)
    ends = [member.to_seconds for member in members if member.to_seconds is not None]
    delivered, elapsed = sum(member.delivered for member in members), max(ends, default=None)
    return WholeDocument(
        run=str(whole.path),
        pipeline=whole.info.pipeline,
        hosts=tuple(sorted({member.host for member in members})),
        members=members,
        delivered=delivered,
        failed=sum(member.failed for member in members),
        elapsed_seconds=elapsed,
        throughput=delivered / elapsed if elapsed else None,
        most_at_work=most,
        mean_at_work=mean,
        notes=(
            *_unseen(delivered, whole.supervision),
            _limits(members, len(verdicts)) if is_profiled else _why_not_profiled(members),
            *_slower(members),
            *(_hosts_apart(members) or _empty_places(members, most, mean)),
            *_failing(members),
            *_killed(members, whole.supervision),
        ),
        problems=tuple(_problems(whole, seen)),
        middle=middle.member.name,
        diagnosis=verdicts[middle.member.name],
    )


def _on_one_clock(whole: WholeRun) -> list[_Seen]:
    """Return each member with its times since the first arrival of all."""
    analyses = [Analysis(run) for run in whole.members]
    begins = [one.evidence.spans.origin_ns + whole.shift_ns(one.run) for one in analyses]
    origin = min((begin for begin, one in zip(begins, analyses, strict=True) if len(one.evidence.spans)), default=0)
    times = [(begin - origin) / 1e9 for begin in begins]
    _note_siblings(analyses, times)
    return [_look(one, begin) for one, begin in zip(analyses, times, strict=True)]


def _note_siblings(analyses: Sequence[Analysis], begins: Sequence[float]) -> None:
    """Tell each member what the others on its host used of the cores while it was at work."""
    stretches = [(begin, begin + one.evidence.elapsed_seconds) for one, begin in zip(analyses, begins, strict=True)]
    for number, (begin, end) in enumerate(stretches):
        used = 0.0
        for other, (from_seconds, to_seconds) in enumerate(stretches):
            together = min(end, to_seconds) - max(begin, from_seconds)
            if other != number and together > 0 and analyses[other].run.info.host == analyses[number].run.info.host:
                used += _cores(analyses[other]) * together / (end - begin)
        analyses[number].sibling_cores = used


def _cores(analysis: Analysis) -> float:
    """Return how many cores a member used; 0 where it was not measured."""
    profiling = analysis.evidence.profiling
    if profiling is None or not profiling.elapsed_seconds or profiling.process_cpu_seconds is None:
        return 0.0
    return profiling.process_cpu_seconds / profiling.elapsed_seconds


def _look(analysis: Analysis, from_seconds: float) -> _Seen:
    profile, info, spans, jobs = analysis.profile, analysis.run.info, analysis.evidence.spans, analysis.evidence.jobs
    stages = [stage for stage in profile.stages if stage.busy_seconds is not None and stage.items]
    member = Member(
        name=analysis.run.path.name,
        host=info.host,
        status=info.status,
        delivered=info.counters.delivered if info.status != "running" else int(jobs.weight[jobs.is_delivered].sum()),
        failed=info.counters.rejected + info.counters.dead_lettered,
        from_seconds=from_seconds if len(spans) else None,
        to_seconds=from_seconds + float(spans.put.max()) / 1e9 if len(spans) else None,
        throughput=profile.throughput,
        service={stage.name: (stage.busy_seconds or 0.0) / stage.items for stage in stages},
        trust=profile.trust,
        verdict="",
    )
    return _Seen(analysis, member)


def _spread(known: Sequence[_Seen], middle: _Seen) -> list[_Seen]:
    """Return the members that are diagnosed: the fastest, the slowest, the middle, and some between them."""
    places = np.unique(np.linspace(0, len(known) - 1, min(_MOST_DIAGNOSED, len(known))).round().astype(int))
    return list({one.member.name: one for one in (middle, *(known[place] for place in places))}.values())


def _complete(member: Member, found: DiagnosisDocument | None, death: str) -> Member:
    return msgspec.structs.replace(member, verdict=found.first.title if found else "", death=death)


def _at_work(members: Iterable[Member]) -> tuple[int, float | None]:
    """Return how many members worked at the same time, at most and in the mean, from the first arrival to the last outcome."""
    times = [(member.from_seconds, member.to_seconds) for member in members]
    stretches = [(begin, end) for begin, end in times if begin is not None and end is not None]
    if not stretches:
        return 0, None
    changes = sorted([(begin, 1) for begin, _ in stretches] + [(end, -1) for _, end in stretches])
    most = max(np.cumsum([change for _, change in changes]))
    length = max(end for _, end in stretches)
    return int(most), sum(end - begin for begin, end in stretches) / length if length > 0 else None


# --- what only all members together show


def _why_not_profiled(members: Sequence[Member]) -> str:
    return _NOT_YET if all(member.status == "running" for member in members) else _NOT_PROFILED


def _problems(whole: WholeRun, seen: Sequence[_Seen]) -> list[str]:
    """Return what is missing of the whole, and of each member what its analysis missed."""
    of: dict[str, list[str]] = {}
    for one in seen:
        for problem in one.analysis.evidence.problems:
            of.setdefault(problem, []).append(one.member.name)
    of.pop(STILL_RUNNING, None)  # see `_killed`
    return [*whole.missing, *(f"{_list(names)}: {problem}" for problem, names in of.items())]


def _limits(members: Sequence[Member], num_diagnosed: int) -> str:
    told = Counter(member.verdict for member in members if member.verdict).most_common()
    if all(title.startswith(_NOTHING_TOLD) for title, _ in told):
        return "what limits them cannot be told; the one in the middle says why"
    said = ", ".join(f"{title} in {count}" for title, count in told)
    says = f"what limits them: {said}" if len(told) > 1 else f"all are limited by the same: {told[0][0]}"
    return says + (f" ({num_diagnosed} of {len(members)} were diagnosed)" if num_diagnosed < len(members) else "")


def _slower(members: Sequence[Member]) -> list[str]:
    """Return hosts that take longer than the others for the same stage; on one host, members differ by who has the cores."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        if member.delivered >= FEWEST_JOBS and member.service:
            groups.setdefault(member.host, []).append(member)
    found = []
    for name, group in groups.items():
        others = [member for other, rest in groups.items() if other != name for member in rest]
        found += [(mine / theirs, name, stage, mine, theirs) for stage, mine, theirs in _slow_stages(group, others)]
    return [
        f"host {name} takes {ratio:.1f} times as long as the others for an item in {stage}: "
        f"{format_duration(mine)}, and {format_duration(theirs)} in the middle of the others"
        for ratio, name, stage, mine, theirs in sorted(found, reverse=True)[:_MOST_SLOWER]
    ]


def _slow_stages(group: Sequence[Member], others: Sequence[Member]) -> Iterable[tuple[str, float, float]]:
    """Return each stage that takes a group longer, with the seconds of its middle and of the middle of the others."""
    work = sum(group[0].service.values())
    for stage in group[0].service:
        mine, theirs = (
            [member.service[stage] for member in side if stage in member.service] for side in (group, others)
        )
        if not theirs or median(mine) < max(_SOME_WORK * work, _SLOWER * median(theirs)) or median(theirs) <= 0:
            continue
        yield stage, median(mine), median(theirs)


def _hosts_apart(members: Sequence[Member]) -> list[str]:
    """Return hosts of which one began when all of another had ended: that also is how clocks that differ look."""
    stretches: dict[str, list[float]] = {}
    for member in members:
        if member.from_seconds is not None and member.to_seconds is not None:
            stretches.setdefault(member.host, []).extend((member.from_seconds, member.to_seconds))
    ordered = sorted((min(times), max(times), host) for host, times in stretches.items())
    end, before = 0.0, ""
    for begins, ends, host in ordered:
        if before and begins > end:
            says = f"host {host} began {format_duration(begins - end)} after {before} had ended: one after the other, or the"
            says += " clocks of these hosts differ by that or more (compare what `date` says there)"
            return [f"{says}; the rate is of all that time"]
        if ends >= end:
            end, before = ends, host
    return []


def _empty_places(members: Sequence[Member], most: int, mean: float | None) -> list[str]:
    """Return how many of those that could have worked did not, and for how long at the end."""
    ends = sorted((member.to_seconds, member.name) for member in members if member.to_seconds is not None)
    if mean is None or len(ends) < 2:
        return []
    if most < 2:
        return ["no two of them were at work at the same time: the rate is of all that time"]
    if mean >= (1 - _EMPTY) * most:
        return []
    (before, _), (end, last) = ends[-2:]
    says = f"in the mean {mean:.1f} of {most} were at work from the first job to the last"
    if end - before >= _EMPTY * end:
        says += f"; {last} was alone for the last {format_duration(end - before)}"
        says += ": more and smaller portions end together" if last.startswith("shard-") else ""
    return [says]


def _failing(members: Sequence[Member]) -> list[str]:
    failed = sum(member.failed for member in members)
    worst = max(members, key=lambda member: member.failed)
    if len(members) < 2 or failed < _SOME_FAILED or worst.failed < _MOST_OF * failed:
        return []
    return [f"{worst.failed:,} of {pluralize(failed, 'failed job')} are those of {worst.name} on {worst.host}"]


def _unseen(delivered: int, supervision: Supervision | None) -> list[str]:
    """Return how much of what was counted has spans: rates and times are of that alone."""
    if supervision is None or supervision.delivered <= delivered:
        return []
    says = f"the supervisor counted {supervision.delivered:,} delivered, and {delivered:,} are seen here"
    return [f"{says}, of which rates and times are: what a process has not yet written when it dies is lost"]


def _killed(members: Sequence[Member], supervision: Supervision | None) -> list[str]:
    """Return who did not end orderly, and of what those died that somebody saw."""
    found = [deaths] if supervision and (deaths := supervision.describe_deaths()) else []
    names = [member.name for member in members if member.status == "running" and not member.death]
    if names:
        found.append(
            f"{_list(names)}: still at work, or killed; what was rotated by then counts, which may lack the last seconds"
        )
    return found


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
