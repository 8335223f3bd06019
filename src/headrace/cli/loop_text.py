"""A loop for a terminal: what came of it, each step with its command, and how to go back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, quote_arg, wrap_lines
from headrace.base.units import format_duration, format_rate
from headrace.runs.formats.profile import EMULATED

if TYPE_CHECKING:
    from headrace.loop.folder import LoopFolder
    from headrace.runs.formats.loop import LoopAsked, LoopDocument, StepKind


def as_text(document: LoopDocument) -> str:
    """Return the document as plain text."""
    emulated = [f"warning: {EMULATED}"] if document.is_emulated else []
    parts = [
        emulated,
        wrap_lines([*_result(document), *document.says]),
        _steps(document),
        _changed(document),
        _end(document),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _result(document: LoopDocument) -> list[str]:
    asked = document.asked
    goals = f"goal {', '.join(asked.goals)}: " if asked.goals else ""
    met = {True: "met", False: "not met", None: "not known whether met" if asked.goals else ""}[document.is_met]
    lines = [f"{asked.pipeline}: {goals}{met}".rstrip(": ")]
    before, after = document.throughput_before, document.throughput_after
    if before and after and document.plan_file:
        lines.append(f"throughput {format_rate(before)} -> {format_rate(after)}, by one profiled run each")
    if document.ratio is not None:
        what = "latency" if asked.slo else "throughput"
        ratio = document.ratio
        lines.append(f"{what} x{ratio.mid:.3g} (interval {ratio.low:.3g} to {ratio.high:.3g}), by blocks in turn")
    if not document.plan_file:
        lines.append("nothing was changed: no better Plan was proved")
    return lines


def _steps(document: LoopDocument) -> list[str]:
    if not document.steps:
        return []
    rows = [["step", "", "took", "outcome", "says"]]
    for step in document.steps:
        ratio = f"x{step.ratio.mid:.3g}" if step.ratio else ""
        rate = format_rate(step.throughput) if step.throughput else ""
        said = step.verdict or ratio or (step.says[0] if step.kind == "validate" and step.says else "")
        outcome = rate if step.kind == "diagnose" else step.outcome
        rows.append([str(step.number), step.kind, format_duration(step.seconds), outcome, said])
    table = align_columns(rows, num_left=5)
    return [*wrap_lines(table), "", "by hand", *(f"  {step.number}: {step.command}" for step in document.steps)]


def _changed(document: LoopDocument) -> list[str]:
    if not document.changed:
        return []
    return ["changed", *wrap_lines([f"  {setting}" for setting in document.changed])]


def _end(document: LoopDocument) -> list[str]:
    lines = [f"ledger: headrace ledger list --ledger {quote_arg(document.ledger)}"]
    if document.plan_file:
        plan = quote_arg(document.plan_file)
        before = quote_arg(Path(document.folder) / "before.toml")
        lines = [
            f"the new Plan: {document.plan_file}",
            f"use it: headrace run {quote_arg(document.asked.pipeline)} --plan {plan}",
            f"take the last change back: headrace ledger rollback {plan} --ledger {quote_arg(document.ledger)}",
            f"all of it: use {before}, or the Plan that you gave, which was not touched",
            *lines,
        ]
    return lines


def describe_dry_run(
    asked: LoopAsked, known: LoopDocument | None, budget_seconds: float | None, folder: LoopFolder
) -> str:
    """Return what a loop would do, and about how long it takes.

    Args:
        asked: What is asked for.
        known: A loop that would go on; None: it would begin.
        budget_seconds: None without one.
        folder: Where it would be.
    """
    from headrace.loop.policy import choose_next, expect_seconds, list_kept

    steps = known.steps if known else ()
    chosen = choose_next(asked, steps, budget_seconds)
    kept = list_kept(asked, steps)
    model = f"variants of {asked.model}, judged by {asked.golden}" if asked.golden and asked.model else ""
    table = [["step", "about", "does"]]
    does: dict[StepKind, str] = {
        "profile": "runs the pipeline and measures where time goes",
        "diagnose": "says what limits it, predicts what changes would gain, checks the goals",
        "tune": "predicts some hundred Plans, measures up to three in turn"
        + (f"; leaves {', '.join(kept)}" if kept else ""),
        "validate": f"compares answers on {asked.golden}, if the better Plan decodes otherwise" if asked.golden else "",
        "optimize": f"makes and judges {model}" if model else "",
        "compare": "measures the last Plan against the first",
    }
    about = {kind: expect_seconds(asked, kind, steps) for kind, says in does.items() if says}
    table += [[kind, format_duration(seconds), does[kind]] for kind, seconds in about.items()]
    once = sum(about.values())
    where = f"go on after step {len(steps)}" if steps else "begin"
    lines = [
        f"would {where} in {folder.path}; first: {chosen.kind or 'nothing'} ({chosen.why})",
        f"once around takes about {format_duration(once)}; it goes around until "
        + ("the goals are met, or " if asked.goals else "")
        + f"nothing is predicted to gain {asked.least_gain:.0%}"
        + (f", for {format_duration(budget_seconds)} at most" if budget_seconds else ""),
    ]
    if not asked.golden:
        lines.append("the model and decode.scale stay: without --golden nothing is changed that could change answers")
    return "\n".join([*wrap_lines(lines), "", *wrap_lines(align_columns(table, num_left=3))]) + "\n"
