"""A diagnosis for a terminal of 80 columns: the verdict in words first, then why, then what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, wrap_lines
from headrace.base.units import format_duration
from headrace.cli.streams_text import streams_text
from headrace.runs.formats.diagnosis import SIBLINGS
from headrace.runs.formats.profile import EMULATED

if TYPE_CHECKING:
    from headrace.runs.formats.diagnosis import (
        Bound,
        Candidate,
        DiagnosisDocument,
        EvidenceLine,
        Finding,
        LatencyPart,
        Remedy,
    )

_SIGNS = {True: "for", False: "against", None: "-"}
#: Candidates and bounds beyond these say little.
_MOST_CANDIDATES, _MOST_BOUNDS, _MOST_PARTS = 6, 5, 8
_IN_THE_TRAINING = "If they cannot be stopped, about the runner-up:"
_OWN_HANDS = "If they cannot be stopped, in the pipeline itself:"
_OF_SIBLINGS = "In the pipeline itself:"
#: Gains below this are no advice.
_WORTH_A_LINE = 1.03


def as_text(document: DiagnosisDocument) -> str:
    """Return the document as plain text."""
    parts = [
        _goals(document),
        _verdict(document),
        _evidence(document.first),
        _remedies(document.first.remedies),
        _in_own_hands(document),
        _others(document),
        _latency(document.latency_parts),
        streams_text(document.streams),
        _candidates(document.candidates),
        _bounds(document),
        _left_out(document),
        [f"warning: {text}" for text in document.warnings],
    ]
    return "\n\n".join("\n".join(wrapped_part(part)) for part in parts if part) + "\n"


def wrapped_part(lines: Sequence[str]) -> list[str]:
    """Return lines of at most 80 columns; commands to type stay whole."""
    found: list[str] = []
    for line in lines:
        found += [line] if line.lstrip().startswith("headrace ") else wrap_lines([line])
    return found


def _goals(document: DiagnosisDocument) -> list[str]:
    if not document.goals:
        return []
    lines = [goal.outcome for goal in document.goals]
    if document.good_enough:
        what = "goal given is" if len(document.goals) == 1 else "goals given are"
        lines.insert(0, f"Good enough: the {what} met; stop here. What limits it all the same:")
    return lines


def _verdict(document: DiagnosisDocument) -> list[str]:
    first = document.first
    is_verdict = first.verdict != "UNTRUSTED"  # how sure one can be of nothing is no question
    sure = f"   [confidence: {first.confidence}]" if is_verdict else ""
    lines = [f"{first.title}{sure}", f"  {first.says}"]
    if document.is_emulated:
        lines.append(f"  {EMULATED}")
    if document.experiment:
        lines += ["  What would decide:", f"    {document.experiment}"]
    return lines


def _evidence(finding: Finding) -> list[str]:
    if not finding.evidence:
        return [f"Rule: {finding.rule}"]
    lines = ["Evidence (for, against, - says nothing or was not measured):"]
    lines += [_line(one) for one in finding.evidence]
    return [*lines, f"Rule: {finding.rule}"]


def _line(one: EvidenceLine) -> str:
    source = f" [{one.source}]" if one.source else ""
    return f"  {_SIGNS[one.supports]:<8}{one.says}{source}"


def _in_own_hands(document: DiagnosisDocument) -> list[str]:
    """Return the best that can be done in the pipeline, where what limits it first is other programs."""
    if document.first.verdict != "NEIGHBOUR":
        return []
    remedies = document.runner_up.remedies if document.runner_up else ()
    if document.details.get("unit") == "step":  # nothing of a training is simulated here
        return _remedies(remedies, _IN_THE_TRAINING)
    own_hands = _OF_SIBLINGS if document.first.cause == SIBLINGS else _OWN_HANDS
    known = [one for one in remedies if one.ratio is not None and not _is_of_the_machine(one)]
    best = max(known, key=lambda one: one.ratio.mid if one.ratio else 0.0, default=None)
    if best is not None:
        return _remedies([best], own_hands)
    own = [one for one in document.candidates if one.kind == "stage"]
    top = max(own, key=lambda one: one.gain, default=None)
    if top is None or top.gain < _WORTH_A_LINE:
        return []
    return [own_hands, f"  - {top.says}: x{top.gain:.2f} of the throughput, by simulation"]


def _is_of_the_machine(remedy: Remedy) -> bool:
    return any(option in remedy.command for option in (" --cores ", " --devices ", " --quiet-machine"))


def _remedies(remedies: Sequence[Remedy], head: str = "What to do, and what it would buy:") -> list[str]:
    if not remedies:
        return []
    lines = [head]
    for remedy in remedies:
        gain = ""
        if remedy.ratio is not None:
            gain = f": x{remedy.ratio:.2f} of the throughput"
        lines.append(f"  - {remedy.says}{gain}")
        if remedy.command:
            lines.append(f"      {remedy.command}")
    return lines


def _others(document: DiagnosisDocument) -> list[str]:
    lines = []
    if document.runner_up is not None:
        lines.append(f"Runner-up: {document.runner_up.title}{_gain(document.runner_up)}: {document.runner_up.says}")
    if document.next_bottleneck is not None:
        lines.append(f"Next: {document.next_bottleneck.title}: {document.next_bottleneck.says}")
    return lines


def _gain(finding: Finding) -> str:
    if finding.gain is None:
        return ""
    line = next((one for one in finding.evidence if one.name == "gain"), None)
    how = "by simulation" if line is None or line.source else "by the time that was seen to be lost"
    return f", x{finding.gain:.2f} {how}"


def _latency(parts: Sequence[LatencyPart]) -> list[str]:
    if not parts:
        return []
    rows = [
        (
            one.says,
            format_duration(one.seconds),
            f"{one.share:.0%}",
            format_duration(one.slow_seconds),
            f"{one.slow_share:.0%}",
        )
        for one in parts[:_MOST_PARTS]
    ]
    head = ("a job", "mean", "", "slowest tenth", "")
    return ["Where a job's time goes:", *_indented(align_columns([head, *rows]))]


def _candidates(candidates: Sequence[Candidate]) -> list[str]:
    if not candidates:
        return []
    rows = [
        (one.says, f"x{one.gain:.3f}", "-" if one.utilization is None else f"{one.utilization:.0%}")
        for one in candidates[:_MOST_CANDIDATES]
    ]
    return ["By simulation:", *_indented(align_columns([("change", "throughput", "in use"), *rows]))]


def _bounds(document: DiagnosisDocument) -> list[str]:
    if document.throughput is None:
        return []
    ranks = document.details.get("ranks", 1)
    whose = f" on each of {ranks} ranks" if ranks > 1 else ""
    lines = [f"Measured {document.throughput:.4g}/s{whose}" + _simulated(document) + _tightest(document.bounds)]
    lines += [f"  {bound.says}" for bound in document.bounds[:_MOST_BOUNDS]]
    return lines


def _left_out(document: DiagnosisDocument) -> list[str]:
    """Return what was not simulated, and how it would be."""
    if not document.left_out:
        return []
    shown, count = document.left_out[:_MOST_CANDIDATES], len(document.left_out)
    within = f"{document.budget_seconds:g} s of computing"
    lines = [f"Not simulated within {within}: {count:,}, the most important first (more: --budget-seconds):"]
    lines += [f"  {one}" for one in shown]
    return lines + ([f"  and {count - len(shown):,} more"] if count > len(shown) else [])


def _tightest(bounds: Sequence[Bound]) -> str:
    return "; by hand it cannot be more than:" if bounds else ""


def _simulated(document: DiagnosisDocument) -> str:
    if document.simulated_throughput is None:
        return ""
    return f", simulated {document.simulated_throughput:.4g}/s"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
