"""The verdict of a gate for a terminal, for a comment, and as a JUnit test."""

from __future__ import annotations

import html

from headrace.base.formatting import pluralize, wrap_lines
from headrace.base.units import format_duration, format_number
from headrace.report.markup import plain
from headrace.runs.formats.comparison import ComparisonDocument
from headrace.runs.formats.gate import GateDocument, GateVerdict

_HEADS: dict[GateVerdict, str] = {
    "passed": "passed: NEW is not slower by more than {limit}",
    "failed": "failed: NEW is slower by more than {limit}",
    "cannot_tell": "cannot tell whether NEW is slower by more than {limit}",
}
_METRICS = {"throughput": "throughput", "latency_p50": "median latency", "cpu_per_item": "CPU time per item"}


def describe(verdict: GateVerdict, comparison: ComparisonDocument, max_slowdown: float) -> str:
    """Return the verdict as a sentence with its figure."""
    head = _HEADS[verdict].format(limit=f"{max_slowdown:.1%}".replace(".0%", "%"))
    interval = _interval(comparison)
    return f"{head}; {_METRICS[comparison.metric]} of NEW is {_change(comparison.ratio)}{interval}"


def as_text(document: GateDocument) -> str:
    """Return it for a terminal."""
    lines = [document.says, _how(document), *_advise(document)]
    lines += [f"warning: {warning}" for warning in document.comparison.warnings]
    return "\n".join(wrap_lines(lines)) + "\n"


def as_markdown(document: GateDocument) -> str:
    """Return it as Markdown; names are in code, so that they are no markup."""
    comparison = document.comparison
    rows = [
        ("", "BASE", "NEW", "change"),
        ("---", "---:", "---:", "---:"),
        ("pipeline", _code(comparison.a.name), _code(comparison.b.name), ""),
        ("Plan", _code(comparison.a.plan_id), _code(comparison.b.plan_id), ""),
        (
            f"**{_METRICS[comparison.metric]}**", _with_unit(comparison.a.median, comparison.unit),
            _with_unit(comparison.b.median, comparison.unit), f"{_change(comparison.ratio)}{_interval(comparison)}",
        ),
        *(
            (_METRICS[one.metric], _with_unit(one.a, one.unit), _with_unit(one.b, one.unit), _change(one.ratio))
            for one in comparison.beside
        ),
        *(
            (
                f"{_code(stage)}, per item", format_duration(comparison.a.stages.get(stage)),
                format_duration(comparison.b.stages.get(stage)), "",
            )
            for stage in dict.fromkeys((*comparison.a.stages, *comparison.b.stages))
        ),
    ]  # fmt: skip
    parts = [
        f"### headrace gate: {document.verdict.replace('_', ' ')}",
        _line(document.says),
        "\n".join(f"| {' | '.join(row)} |" for row in rows),
        _line(_how(document)),
        *_advise(document),
        *(f"- warning: {_line(warning)}" for warning in comparison.warnings),
    ]
    return "\n\n".join(parts) + "\n"


def as_junit(document: GateDocument) -> str:
    """Return it as a JUnit report of one test: failed if NEW is slower, skipped if it cannot be told."""
    says = html.escape(plain(document.says))
    inside = {"passed": "", "failed": f'<failure message="{says}"/>', "cannot_tell": f'<skipped message="{says}"/>'}
    counts = f'failures="{int(document.verdict == "failed")}" skipped="{int(document.verdict == "cannot_tell")}"'
    name = html.escape(plain(f"{document.comparison.b.name} against {document.comparison.a.name}"))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="headrace gate" tests="1" errors="0" {counts} time="{document.seconds:.3f}">'
        f'<testcase classname="headrace.gate" name="{name}" time="{document.seconds:.3f}">{inside[document.verdict]}'
        f"<system-out>{html.escape(plain(_how(document)))}</system-out></testcase></testsuite>\n"
    )


def error_as_markdown(error: str) -> str:
    """Return for a comment why nothing could be compared."""
    return f"### headrace gate: could not run\n\n{_line(error)}\n"


def error_as_junit(base: str, new: str, error: str, took: float) -> str:
    """Return a JUnit report of one test that could not run."""
    name = html.escape(plain(f"{new} against {base}"))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="headrace gate" tests="1" errors="1" failures="0" skipped="0" time="{took:.3f}">'
        f'<testcase classname="headrace.gate" name="{name}" time="{took:.3f}">'
        f'<error message="{html.escape(plain(error))}"/></testcase></testsuite>\n'
    )


def _how(document: GateDocument) -> str:
    """Say that it ran, and how much."""
    comparison = document.comparison
    if not comparison.paired:
        return "It compared what two run folders recorded, which were not made at the same time."
    items = comparison.environment.get("items_per_block", 0)
    stopped = " It was interrupted." if comparison.interrupted else ""
    return (
        f"It ran {pluralize(comparison.num_pairs, 'pair')} of blocks of {items:,} items in turn, for "
        f"{format_duration(document.seconds)}.{stopped}"
    )


def _advise(document: GateDocument) -> list[str]:
    """Return what would tell more, where it could not be told."""
    if document.verdict != "cannot_tell" or not document.comparison.paired:
        return []
    other = "; --metric cpu is disturbed less by other programs on the machine"
    return [f"A longer --time-limit would tell more{'' if document.comparison.metric == 'cpu_per_item' else other}."]


def _change(ratio: float | None) -> str:
    return "not known" if ratio is None else f"{100 * (ratio - 1):+z.1f} %"


def _interval(comparison: ComparisonDocument) -> str:
    if comparison.ratio_low is None or comparison.ratio_high is None:
        return ""
    confidence = 100 * comparison.environment.get("confidence", 0.95)
    return f" ({confidence:.4g} % interval {_change(comparison.ratio_low)} to {_change(comparison.ratio_high)})"


def _with_unit(value: float | None, unit: str) -> str:
    if unit.startswith("s"):
        return format_duration(value)
    return f"{format_number(value)} {unit}"


def _code(text: str) -> str:
    return f"`{_line(text).replace('`', chr(0x2019)).replace('|', '/')}`" if text else "-"


def _line(text: str) -> str:
    """Return text on one line, without what Markdown or a page would take for markup of its own."""
    return " ".join(plain(text).split()).replace("<", "&lt;").replace("|", "\\|")
