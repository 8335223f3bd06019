"""What limits the run: the verdict in words, what speaks for and against it, what to do, and the bounds to redo by hand."""

from __future__ import annotations

import math

from headrace.report.charts import Chart, horizontal_bars
from headrace.report.markup import DASH, Html, bullets, fold, join, note, sentence, table, tag
from headrace.report.numbers import digits, rate, ratio
from headrace.report.section import Section
from headrace.runs.formats.diagnosis import Candidate, DiagnosisDocument, EvidenceLine, Finding, Remedy, VerdictClass
from headrace.runs.formats.profile import ProfileDocument

#: Candidates that are drawn; all are in the table.
_MOST_BARS = 10
#: A chart of gains below this would show the noise of the arithmetic.
_LEAST_BAR = 0.001
_NOTHING_GAINS = "By simulation nothing inside the pipeline gives more throughput."
_FINE = frozenset({VerdictClass.HEALTHY, VerdictClass.ARRIVAL_LIMITED})
_OPEN = frozenset({VerdictClass.INCONCLUSIVE, VerdictClass.UNTRUSTED, VerdictClass.STARVED})
_WEIGHTS = {True: ("✓ for", "ok"), False: ("✗ against", "failed")}


def diagnosis(found: DiagnosisDocument | str | None, document: ProfileDocument | None) -> Section | None:
    """Return what limits the run.

    Args:
        found: What was diagnosed; a text: why that failed; None: it was not asked for.
        document: The analysis of the same run; what its header tells is not told again. None: of a training, whose header tells
            none of it.
    """
    if found is None:
        return None
    if isinstance(found, str):
        return Section(anchor="diagnosis", title="Diagnosis", parts=[_show_failure(found)])
    chart = _gains(found.candidates)
    return Section(
        anchor="diagnosis",
        title="Diagnosis",
        parts=[
            _verdict(found),
            *_warnings(found, document),
            *([chart.element()] if chart else [note(_NOTHING_GAINS)] if found.candidates else []),
            *_remedies(found.first),
            *_evidence(found.first),
            *_others(found),
            *_bounds(found),
            *_candidates(found.candidates),
        ],
        charts=[chart] if chart else [],
    )


def _show_failure(reason: str) -> Html:
    says = "This run could not be diagnosed; the rest of the page does not depend on it."
    return tag("div", tag("p", says), tag("p", sentence(reason)), class_="callout")


def _verdict(found: DiagnosisDocument) -> Html:
    first = found.first
    kind = "ok" if first.verdict in _FINE else "open" if first.verdict in _OPEN else "found"
    sure = tag("span", f"confidence: {first.confidence}", class_="badge plain") if first.verdict != "UNTRUSTED" else ""
    parts = [
        tag("p", tag("span", first.title, class_="verdict"), " ", sure),
        tag("p", sentence(first.says)),
    ]  # fmt: skip
    if found.experiment:
        parts.append(tag("p", "What would decide: ", tag("code", found.experiment)))
    parts.append(tag("p", "What this verdict means: ", tag("code", f"headrace explain {first.verdict}"), class_="note"))
    return tag("div", *parts, class_=f"finding {kind}")


def _warnings(found: DiagnosisDocument, document: ProfileDocument | None) -> list[Html]:
    told = set() if document is None else {*document.warnings, *document.problems}
    listed = [*(goal.outcome for goal in found.goals), *(sentence(text) for text in found.warnings if text not in told)]
    return [bullets(listed)] if listed else []


def _gains(candidates: tuple[Candidate, ...]) -> Chart | None:
    shown = candidates[:_MOST_BARS]
    if not any(abs(one.gain - 1) >= _LEAST_BAR for one in shown):
        return None
    return horizontal_bars(
        "gains",
        "What each would give, changed as the table says",
        "throughput gained in percent, by simulation, for each resource",
        [one.name for one in shown],
        {"throughput": ("var(--c1)", [(one.gain - 1) * 100 for one in shown])},
        "%",
        axis_name="% more throughput, by simulation",
    )


def _remedies(first: Finding) -> list[Html]:
    if not first.remedies:
        return []
    return [
        tag("h3", "What to do, and what it would buy"),
        table(["what to do", "throughput", "least", "most"], map(_remedy, first.remedies)),
        note("Predicted throughput over that of this run; a dash: not predicted, which does not mean that it gives nothing."),
    ]  # fmt: skip


def _remedy(remedy: Remedy) -> list[str | None]:
    typed = [remedy.command] if remedy.command else remedy.settings
    says = join([sentence(remedy.says), *(part for text in typed for part in (tag("br"), tag("code", text)))])
    if remedy.ratio is None:
        return [says, None, None, None]
    return [says, *(_times(value) for value in (remedy.ratio.mid, remedy.ratio.low, remedy.ratio.high))]


def _times(value: float | None) -> Html | None:
    if value is None or not math.isfinite(value):
        return None
    return tag("data", f"x{digits(value)}", value=repr(value))


def _evidence(first: Finding) -> list[Html]:
    rows = [[_weight(one), _fact(one)] for one in first.evidence]
    rule = note(tag("b", "Rule. "), sentence(first.rule))
    if not rows:
        return [rule]
    return [tag("h3", "Evidence"), table(["", "what was found"], rows, text_columns=2), rule]


def _weight(one: EvidenceLine) -> Html:
    if one.supports is None:
        word = f"{DASH} not measured" if one.value is None else "says nothing"
        return tag("span", word, class_="badge not-measured")
    word, kind = _WEIGHTS[one.supports]
    return tag("span", word, class_=f"badge {kind}")


def _fact(one: EvidenceLine) -> Html:
    return join([sentence(one.says), *([tag("br"), tag("small", one.source)] if one.source else [])])


def _others(found: DiagnosisDocument) -> list[Html]:
    listed = [
        tag("p", tag("b", f"{what}: {finding.title}. "), sentence(finding.says))
        for what, finding in (("Runner-up", found.runner_up), ("Next, once this is mended", found.next_bottleneck))
        if finding is not None
    ]
    return [tag("h3", "What comes after it"), *listed] if listed else []


def _bounds(found: DiagnosisDocument) -> list[Html]:
    if not found.bounds:
        return []
    rows = [[bound.name, bound.says, rate(bound.throughput)] for bound in found.bounds]
    return [
        tag("h3", "Upper bounds, to redo by hand"),
        note("Measured ", rate(found.throughput) or DASH, ", simulated ", rate(found.simulated_throughput) or DASH,
             ". No change elsewhere lifts the throughput above the tightest bound."),
        table(["resource", "calculation", "at most"], rows, text_columns=2),
    ]  # fmt: skip


def _candidates(candidates: tuple[Candidate, ...]) -> list[Html]:
    if not candidates:
        return []
    rows = [[one.name, one.says, _times(one.gain), ratio(one.utilization)] for one in candidates]
    return [fold("The gains as a table", table(["resource", "changed", "throughput", "in use"], rows, text_columns=2))]
