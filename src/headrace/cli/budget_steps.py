"""What a run's budget made of it, for the ledger: an event for each step down its ladder and up again."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError
from headrace.base.units import format_time
from headrace.cli.canary_place import find_ledger

if TYPE_CHECKING:
    from headrace.pipeline.execute import Result

#: Events of one run; the last one says how many steps there were beyond.
_MOST_EVENTS = 100


def record_budget_steps(args: argparse.Namespace, result: Result, say: Callable[[object], None]) -> None:
    """Write the steps of a run to the ledger that was named, if there are any; a ledger that fails is told, and fails nothing.

    Args:
        args: With `ledger`.
        result: Of the run.
        say: Tells people.
    """
    ledger, report = find_ledger(args), result.budget
    if not ledger or report is None or not report.steps:
        return
    from headrace.ledger.ledger import Ledger, hardware_fingerprint
    from headrace.runs.formats.events import Event
    from headrace.runs.hardware import find_hardware

    hardware, steps = hardware_fingerprint(find_hardware()), report.steps[:_MOST_EVENTS]
    num_more = result.counters.notes.get("budget.down", 0) + result.counters.notes.get("budget.up", 0) - len(steps)
    try:
        with Ledger.open(ledger) as opened:
            for step in steps:
                rung = f"rung {step.rung} of {report.num_rungs}, Plan {step.plan_id}"
                more = f"; {num_more} more steps followed" if step is steps[-1] and num_more else ""
                opened.events.write(
                    Event(
                        kind="budget",
                        verdict="down" if step.is_down else "up",
                        hardware=hardware,
                        says=f"{format_time(step.at_unix_seconds)}, {rung}: {step.why}{more}",
                    )
                )
    except (HeadraceError, OSError) as error:
        say(f"the steps of the run's budget are not in the ledger {ledger}: {error}")
