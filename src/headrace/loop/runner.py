"""Takes the steps of a loop, writes each down as it ends, and ends in time.

How this works: `policy` says what comes next; `take` does it and returns the step. The document is written after each step, so
that a loop that was killed goes on with the step that it was in. Ctrl-C ends the loop after what its step has kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headrace.base.errors import HeadraceError, Interrupted, JobsFail
from headrace.base.formatting import pluralize
from headrace.base.plan import Plan
from headrace.base.plan_changes import list_changed_settings
from headrace.base.units import format_duration
from headrace.loop.folder import LoopFolder
from headrace.loop.policy import Next, choose_next, choose_proof, has_changed, is_unvalidated
from headrace.runs.formats.loop import LoopDocument, LoopStep, Stop

Take = Callable[[Next, LoopDocument], LoopStep]
"""Takes a step, given what is to be done and the loop so far; returns it, its times left open.
Raises HeadraceError if it fails, Interrupted or KeyboardInterrupt if the user stopped it with nothing known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Who is told, and the clock."""

    say: Callable[[str], object]
    now: Callable[[], float] = time.time


def run_loop(folder: LoopFolder, document: LoopDocument, take: Take, watched: Watched) -> LoopDocument:
    """Take steps until the goals are met, nothing is left to gain, or the budget is used up; return the loop.

    Args:
        folder: Where it is written down.
        document: The loop so far.
        take: Takes a step.
        watched: Who is told.

    Raises:
        HeadraceError: If the very first step fails otherwise than by its jobs: nothing was measured, and nothing could be.
    """
    stop: Stop = ""
    why = ""
    while not stop:
        chosen = choose_next(document.asked, document.steps, _find_left(document))
        if chosen.kind is None:
            stop, why = chosen.stop, chosen.why
            break
        watched.say(f"step {len(document.steps) + 1}, {chosen.kind}: {chosen.why}")
        document, stop, why = _take(folder, document, take, chosen, watched)
    is_proved = bool(document.steps) and document.steps[-1].kind == "compare"
    if has_changed(document.steps) and not is_proved and stop not in ("interrupted", "failed"):
        prove = choose_proof(document.asked, document.steps, _find_left(document))
        if prove.kind is None:
            why = f"{why}; {prove.why}"
        else:
            watched.say("last step, compare: the Plan at the end against the one at the beginning")
            document, problem, _ = _take(folder, document, take, prove, watched)
            stop = problem or stop
    document = _conclude(folder, document, stop, why)
    folder.save(document)
    return document


def _find_left(document: LoopDocument) -> float | None:
    """Return what is left of the budget, in seconds; None without one."""
    budget = document.budget_seconds
    return None if budget is None else budget - sum(step.seconds for step in document.steps)


def _take(
    folder: LoopFolder, document: LoopDocument, take: Take, chosen: Next, watched: Watched
) -> tuple[LoopDocument, Stop, str]:
    """Take one step and write it down; return the loop, and why it must end, if it must."""
    began, before = watched.now(), folder.read_plan_sha256()
    try:
        step = take(chosen, document)
    except (KeyboardInterrupt, Interrupted):
        return document, "interrupted", f"interrupted in {chosen.kind}"
    except JobsFail as error:
        return document, "jobs fail", f"jobs fail: {error}"
    except HeadraceError as error:
        if not document.steps:
            folder.save(msgspec.structs.replace(document, stopped="failed", says=(f"{chosen.kind} failed: {error}",)))
            raise
        return document, "failed", f"{chosen.kind} failed: {error}"
    step = msgspec.structs.replace(
        step, number=len(document.steps) + 1, began_unix_seconds=began, seconds=max(0.0, watched.now() - began),
        plan_before=before, plan_after=folder.read_plan_sha256(),
    )  # fmt: skip
    document = msgspec.structs.replace(document, steps=(*document.steps, step))
    folder.save(document)
    for line in step.says:
        watched.say(f"   {line}")
    if step.outcome == "interrupted":
        return document, "interrupted", f"interrupted in {chosen.kind}"
    if step.outcome == "out of time":
        return document, "budget", "; ".join(step.says)
    return document, "", ""


def _conclude(files: LoopFolder, document: LoopDocument, stop: Stop, why: str) -> LoopDocument:
    looks = [step for step in document.steps if step.kind == "diagnose"]
    compared = [step for step in document.steps if step.kind == "compare"]
    # A diagnosis is of the Plan that it ran with; a later one was not measured against the goals.
    is_current = bool(looks) and looks[-1].plan_before == document.steps[-1].plan_after
    spent = sum(step.seconds for step in document.steps)
    doubt = (
        "; its answers were not compared with those before: it decodes otherwise"
        if is_unvalidated(document.steps)
        else ""
    )
    return msgspec.structs.replace(
        document,
        stopped=stop,
        is_met=looks[-1].is_met if is_current else None,
        throughput_before=looks[0].throughput if looks else None,
        throughput_after=looks[-1].throughput if is_current else None,
        ratio=compared[-1].ratio if compared else None,
        plan_file=str(files.plan) if has_changed(document.steps) else "",
        changed=list_changed_settings(Plan.load(files.before), Plan.load(files.plan)),
        is_emulated=any(look.is_emulated for look in looks),
        says=(
            f"{why}{doubt}; {pluralize(len(document.steps), 'step')} in {format_duration(spent)}"
            if document.steps
            else why,
        ),
    )
