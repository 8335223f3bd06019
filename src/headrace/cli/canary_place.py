"""`--canary DIR`: where canaries are started for a run, and the ledger that keeps what became of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import SettingsError

if TYPE_CHECKING:
    from headrace.pipeline.canary import CanaryPlace
    from headrace.runs.formats.canary import CanaryState


def add_canary_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the folder."""
    parser.add_argument(
        "--canary", metavar="DIR", help="the folder in which `headrace canary start` may try another Plan's model"
    )


def make_canary_place(
    args: argparse.Namespace, say: Callable[[object], None], *, has_budget: bool = False
) -> CanaryPlace | None:
    """Return where canaries are started; None without `--canary`.

    Args:
        args: As parsed.
        say: Told of each step.
        has_budget: Whether the run has a budget, whose steps are for the ledger as well.

    Raises:
        SettingsError: If a ledger is named and nothing would be written there.
        RunFolderError: If the folder cannot be made.
        LedgerError: If the ledger that was named cannot be used: when a canary has ended it would be too late to say so.
    """
    if not args.canary:
        if getattr(args, "ledger", None) and not getattr(args, "shadow", None) and not has_budget:
            raise SettingsError(
                f"--ledger {args.ledger} keeps what becomes of a candidate, and none can be tried: give --canary DIR too"
            )
        return None
    from headrace.pipeline.canary import CanaryPlace
    from headrace.runs.canary_folder import CanaryFolder
    from headrace.validate.canary import make_judges

    CanaryFolder(Path(args.canary))
    ledger = find_ledger(args)
    if ledger:
        from headrace.ledger.ledger import Ledger

        Ledger.open(ledger).close()
    return CanaryPlace(
        folder=Path(args.canary), judges=make_judges(), record=lambda state: record_step(ledger, state), say=say
    )


def find_ledger(args: argparse.Namespace) -> str | None:
    """Return the ledger that keeps what becomes of canaries; None: none does."""
    return getattr(args, "ledger", None) or os.environ.get("HEADRACE_LEDGER")


def record_step(ledger: str | None, state: CanaryState) -> None:
    """Write the last thing that was done with a canary to a ledger, as an event."""
    if not ledger:
        return
    from headrace.ledger.ledger import Ledger, hardware_fingerprint
    from headrace.runs.formats.events import Event
    from headrace.runs.hardware import find_hardware

    step = state.steps[-1]
    plans = f"Plan {state.plan_id or 'not opened'} beside {state.stable_plan_id or 'not known'}"
    event = Event(
        kind="canary", verdict=step.act, hardware=hardware_fingerprint(find_hardware()),
        says=f"{state.id}, {plans}, {step.share:.0%} of the jobs, by {step.by}: {step.reason or 'no reason given'}",
    )  # fmt: skip
    with Ledger.open(ledger) as opened:
        opened.events.write(event)
