"""What `headrace doctor` found, for a terminal: what matters with its reason and remedy, then the rest in short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import wrap_lines

if TYPE_CHECKING:
    from headrace.runs.formats.doctor import DoctorDocument, Finding


def as_text(document: DoctorDocument, *, explain_all: bool = False) -> str:
    """Return the document as plain text.

    Args:
        document: What was found.
        explain_all: Also explain what is as it should be.
    """
    explained = [one for one in document.findings if explain_all or one.status in ("matters", "note")]
    parts = [wrap_lines([document.says])]
    parts += [_explain(one) for one in explained]
    if not explain_all:
        parts.append(_list("not known", [one for one in document.findings if one.status == "unknown"]))
        parts.append(_list("as it should be", [one for one in document.findings if one.status == "ok"]))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _explain(finding: Finding) -> list[str]:
    against = f" ({finding.compared_with})" if finding.compared_with else ""
    expected = f"; expected {finding.expected}{against}" if finding.expected else ""
    lines = [f"{_MARKS[finding.status]}{finding.title}: {finding.seen}{expected}"]
    lines += [f"   why: {finding.why}"] if finding.why else []
    return wrap_lines([*lines, *([f"   do: {finding.do}"] if finding.do and finding.status != "ok" else [])])


_MARKS = {"matters": "MATTERS  ", "note": "note  ", "unknown": "not known  ", "ok": "ok  "}


def _list(heading: str, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    lines = [f"   {one.title}: {one.seen}" + _missed(one) for one in findings]
    return [heading, *wrap_lines(lines)]


def _missed(finding: Finding) -> str:
    """Return what would have been compared, where this was not known."""
    if finding.status != "unknown" or not finding.expected:
        return ""
    return f"; expected {finding.expected} ({finding.compared_with})"
