"""The page of an unattended loop: whether the goals are met, and each step with what it found and its command."""

from __future__ import annotations

from headrace.base.formatting import quote_arg
from headrace.base.units import format_duration
from headrace.report.frame import make_page
from headrace.report.markup import DASH, Html, bullets, join, note, sentence, table, tag
from headrace.report.numbers import moment, rate
from headrace.report.section import Section
from headrace.runs.formats.loop import LoopDocument, LoopStep
from headrace.runs.run_folder import headrace_version


def render_loop(document: LoopDocument, says: str) -> str:
    """Return the page as an HTML document.

    Args:
        document: The loop, as far as it has come.
        says: How it stands, in a sentence.
    """
    overview = tag(
        "header",
        tag("p", "headrace \u00b7 loop ", tag("b", document.folder), class_="kicker"),
        tag("h1", _headline(document)),
        tag("p", says),
    )
    sections = [_steps(document), _changed(document)]
    footer = f"Made by headrace {headrace_version()}. A dash ({DASH}) means not measured, never zero."
    return make_page(f"Loop {document.folder}", overview, [one for one in sections if one is not None], footer)


def _headline(document: LoopDocument) -> str:
    if not document.stopped:
        return "The loop has not ended"
    if document.asked.goals:
        return {True: "The goals are met", False: "The goals are not met"}.get(
            document.is_met, "Whether the goals are met is not known"  # type: ignore[arg-type]
        )  # fmt: skip
    return "A better Plan was found" if document.plan_file else "Nothing better was found"


def _steps(document: LoopDocument) -> Section | None:
    if not document.steps:
        return None
    head = ["", "step", "began", "took", "outcome", "what it found", "by hand"]
    rows = table(head, map(_row, document.steps), text_columns=7, caption="Steps, in order")
    shown = tag("div", rows, class_="stacked")
    told = note("Each step can be repeated, or gone on from, with its command.")
    return Section(anchor="steps", title="Steps", parts=[told, shown])


def _row(step: LoopStep) -> list[str | None]:
    ratio = f"x{step.ratio.mid:.2f} ({step.ratio.low:.2f} to {step.ratio.high:.2f}). " if step.ratio else None
    measured = join([rate(step.throughput), ". "]) if step.throughput else None
    found = join([ratio, measured, *(part for line in step.says for part in (sentence(line), " "))])
    return [
        str(step.number), step.kind, moment(step.began_unix_seconds), tag("time", format_duration(step.seconds)),
        step.outcome, found, tag("code", step.command),
    ]  # fmt: skip


def _changed(document: LoopDocument) -> Section | None:
    if not document.plan_file:
        return None
    parts: list[Html] = [bullets(document.changed)] if document.changed else []
    plan = quote_arg(document.plan_file)
    use = f"headrace run {quote_arg(document.asked.pipeline)} --plan {plan}"
    back = f"headrace ledger rollback {plan} --ledger {quote_arg(document.ledger)}"
    parts.append(tag("p", "Use the new Plan: ", tag("code", use)))
    parts.append(tag("p", "Take the last change back: ", tag("code", back)))
    return Section(anchor="changed", title="What it changed", parts=parts)
