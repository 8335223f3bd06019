"""Whether the numbers can be believed: every check with its outcome, and what profiling itself cost."""

from __future__ import annotations

from headrace.report.markup import DASH, Html, join, note, sentence, table, tag
from headrace.report.numbers import digits, show_value
from headrace.report.section import Section
from headrace.runs.formats.profile import Check, ProfileDocument

#: In the order of reading: what matters first.
_STATUS = {"failed": "✗ failed", "warning": "! warning", "not_measured": f"{DASH} not measured", "ok": "✓ ok"}


def checks(document: ProfileDocument) -> Section | None:
    """Return all checks, failed ones first, and the window that numbers were taken from."""
    ordered = sorted(document.checks, key=lambda check: list(_STATUS).index(check.status))
    return Section(
        anchor="checks",
        title="Checks",
        parts=[
            note(tag("b", "Window. "), sentence(document.window.says)),
            *([table(["check", "what was found", "value", "limit"], map(_row, ordered), text_columns=2)] if ordered else []),
            *_overhead(document),
        ],
    )  # fmt: skip


def _row(check: Check) -> list[str | None]:
    outcome = tag("span", _STATUS[check.status], class_=f"badge {check.status.replace('_', '-')}")
    source = tag("small", check.source) if check.source else None
    value, limit = (None if number is None else digits(number) for number in (check.value, check.limit))
    name = join([check.name.replace("_", " "), tag("br"), outcome])
    return [name, join([check.says, tag("br") if source else None, source]), value, limit]


def _overhead(document: ProfileDocument) -> list[Html]:
    overhead = document.overhead
    if overhead is None:
        return []
    shares = [
        f"{name} {show_value(share, 'ratio')} of a core"
        for name, share in (
            ("Sampler process", overhead.helper_core_share),
            ("span writer", overhead.writer_core_share),
            ("profiler's thread", overhead.thread_core_share),
        )
        if share is not None
    ]
    return [note(tag("b", "Cost of profiling. "), f"{sentence(overhead.says)} {sentence(', '.join(shares))}")]
