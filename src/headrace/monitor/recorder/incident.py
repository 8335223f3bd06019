"""Writes an incident: the run folders of the time when it was slow and of the time before, and the document that joins them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from headrace.base.documents import encode_document
from headrace.base.errors import HeadraceError
from headrace.base.units import format_duration
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.budget import Budget
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.monitor.recorder.changes import Comparison
from headrace.monitor.recorder.death import explain_death
from headrace.monitor.recorder.log_lines import join_repeated
from headrace.monitor.recorder.recording import Recording
from headrace.monitor.recorder.state import RunState
from headrace.monitor.recorder.triggers import Trigger
from headrace.monitor.recorder.window import Split, find_split, write_window
from headrace.runs.emulation import emulated_engines
from headrace.runs.formats.incident import (
    BASELINE_FOLDER,
    FILE,
    IncidentChange,
    IncidentDocument,
    IncidentTrigger,
    Stretch,
)
from headrace.runs.reader import Run, read_run
from headrace.runs.run_folder import replace_file

#: Seconds of a core for the verdict: the run goes on beside it.
BUDGET_SECONDS = 4.0
_EARLIER = "earlier part of the recording"


def write_incident(
    recording: Recording,
    folder: Path,
    trigger: Trigger,
    *,
    name: str,
    baseline: Path | None = None,
    budget_seconds: float = BUDGET_SECONDS,
) -> IncidentDocument:
    """Write an incident of a recording into an empty folder, and return its document.

    Args:
        recording: Of the run.
        folder: Where to.
        trigger: Why.
        name: Of the incident.
        baseline: Run folder to compare with; None: the earlier part of the recording.
        budget_seconds: Seconds of a core for the verdict on the incident; 0: without one.

    Raises:
        RunFolderError: If the folder cannot be written, or the baseline not be read.
    """
    split = find_split(recording)
    from_ns, to_ns = recording.from_ns, recording.to_ns + 1
    is_divided = split is not None and (split.is_found or trigger.kind != "asked" or baseline is None)
    if split is not None and is_divided:
        from_ns = split.at_ns
        if baseline is None:
            write_window(recording, folder / BASELINE_FOLDER, split.from_ns, split.at_ns)
    write_window(recording, folder, from_ns, to_ns)
    compared = folder / BASELINE_FOLDER if baseline is None and split is not None else baseline
    document = make_document(
        read_run(folder),
        read_run(compared) if compared is not None else None,
        recording,
        trigger,
        name=name,
        source=str(baseline) if baseline is not None else _EARLIER,
        split=split,
        budget_seconds=budget_seconds,
    )
    document = explain_death(document, recording)
    replace_file(folder / FILE, encode_document(document, indent=True) + b"\n")
    return document


def make_document(
    run: Run,
    baseline: Run | None,
    recording: Recording,
    trigger: Trigger,
    *,
    name: str,
    source: str,
    split: Split | None = None,
    budget_seconds: float = BUDGET_SECONDS,
) -> IncidentDocument:
    """Return what two run folders, and the recording that they come from, say about an incident."""
    after = RunState(Analysis(run))
    before = RunState(Analysis(baseline)) if baseline is not None else None
    comparison = Comparison(before, after) if before is not None and before.stages else None
    changes = tuple(comparison.changes()) if comparison is not None else ()
    identity = recording.identity
    return IncidentDocument(
        id=name,
        pipeline=identity.info.pipeline,
        plan_id=after.profile.plan_id,
        host=identity.info.host,
        process=identity.process,
        headrace_version=identity.info.headrace_version,
        is_emulated=bool(emulated_engines(identity.info.variants)),
        trigger=IncidentTrigger(kind=trigger.kind, says=trigger.says),  # type: ignore[arg-type]
        written_unix_seconds=time.time(),
        incident=_stretch(after),
        baseline=_stretch(before) if before is not None else None,
        baseline_source=source if before is not None else "",
        says=_answer(before, after, changes, is_found=split is None or split.is_found),
        bottleneck=_bottleneck(after, budget_seconds),
        changes=changes,
        unchanged=tuple(comparison.facts.unchanged()) if comparison is not None else (),
        not_compared=_not_compared(before, after, recording),
        events=tuple(join_repeated([f"{event.kind}: {event.says}" for event in recording.events])),
        damaged_bytes=recording.damaged_bytes,
    )


def _stretch(state: RunState) -> Stretch:
    info = state.info
    origin = info.started_unix_seconds - info.started_monotonic_ns / 1e9
    spans = state.evidence.spans
    first = origin + spans.origin_ns / 1e9 if len(spans) else info.started_unix_seconds
    return Stretch(
        from_unix_seconds=first,
        to_unix_seconds=info.ended_unix_seconds or first + state.seconds,
        jobs=state.num_jobs,
        rate=state.slope("run", "delivered") or state.profile.throughput,
        latency=state.latency,
        p99=state.profile.latency.percentile(99),
        failed_share=state.failed_share,
    )


def _answer(before: RunState | None, after: RunState, changes: tuple[IncidentChange, ...], *, is_found: bool) -> str:
    """Return why it was slow, in one or two sentences."""
    if before is None:
        return "There is nothing to compare with: the recording is too short. Name a run with --baseline RUN."
    seen = f" Seen beside it: {changes[0].says}." if changes else ""
    if before.latency is not None and after.latency is not None and _is_no_worse(before, after):
        now, then = format_duration(after.latency), format_duration(before.latency)
        return f"Nothing got slower: a job took {now} on average, and {then} before.{seen}"
    how = _how_much(before, after)
    telling = [change for change in changes if change.explains_share >= 0.1]
    if not telling:
        kept = "" if is_found else " No moment stands out at which it got worse."
        return f"{how} Nothing that was compared explains it.{kept}{seen}"
    first = telling[0]
    others = "".join(f" Also: {change.says} ({change.explains_share:.0%})." for change in telling[1:3])
    what = "of that" if first.explains_seconds or not after.failed_share else "of the failures"
    return f"{how} {first.explains_share:.0%} {what} is explained by one change: {first.says}.{others}"


def _is_no_worse(before: RunState, after: RunState) -> bool:
    """Return whether jobs took no longer and failed no more, which is usual where somebody just asked."""
    return (after.latency or 0.0) <= (before.latency or 0.0) and after.failed_share <= before.failed_share


def _how_much(before: RunState, after: RunState) -> str:
    if before.latency is not None and after.latency is not None:
        return f"A job took {format_duration(after.latency)} instead of {format_duration(before.latency)} on average."
    if after.latency is None:
        return "No job went all the way any more."
    return f"A job took {format_duration(after.latency)} on average."


def _bottleneck(after: RunState, budget_seconds: float) -> str:
    """Return the verdict on the incident in words."""
    if not budget_seconds:
        return "not diagnosed: not asked for"
    try:
        finding = diagnosis_document(after.analysis, budget=Budget(budget_seconds)).first
    except HeadraceError as error:
        return f"not diagnosed: {error}"
    return f"{finding.title}: {finding.says}"


def _not_compared(before: RunState | None, after: RunState, recording: Recording) -> tuple[str, ...]:
    found = []
    if before is None:
        found.append("everything: there is no baseline")
    elif before.num_jobs < 30 or after.num_jobs < 30:
        found.append(f"means are uncertain: {before.num_jobs} jobs before and {after.num_jobs} after were recorded")
    for scope, name, what in (
        ("machine", "other_cpu_cores", "other programs"),
        ("machine", "throttled_ratio", "CPU quota"),
        ("processes", "rss_bytes", "memory"),
    ):
        if after.mean(scope, name) is None:
            found.append(f"{what}: not measured")
    if recording.unreadable_blocks:
        found.append(f"{recording.unreadable_blocks} blocks of the recording are of another version of headrace")
    return tuple(found)


def remove_incident(folder: Path) -> None:
    """Remove an incident's folder."""
    shutil.rmtree(folder, ignore_errors=True)
