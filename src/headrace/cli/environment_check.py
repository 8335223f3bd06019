"""Whether this machine is like the one that proved the Plan: said once at the start, and a metric. It has no options."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import quote_arg
from headrace.base.log_events import event_fields
from headrace.cli.companions import BesideWorkers, Companion

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.base.worker_slot import WorkerSlot
    from headrace.pipeline.definition import Pipeline
    from headrace.runs.formats.doctor import Finding

_logger = logging.getLogger("headrace")
#: Findings that the line names; `headrace doctor` has them all.
_NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare nothing: `--plan` names what is looked at."""


def open_companion(
    args: argparse.Namespace, pipeline: Pipeline, plan: Plan, slot: WorkerSlot | None
) -> Companion | None:
    """Compare the machine with the one that the Plan's comments name; return None: nothing is added to the run."""
    from headrace.monitor.doctor.change import list_changes
    from headrace.monitor.published import publish

    if not args.plan:
        return None
    try:
        changes = list_changes(args.plan)
    except Exception as error:  # what looks at a run never ends it
        _logger.info("whether this machine is like the one that proved the Plan is not known: %s", error)
        return None
    if changes is None:
        return None
    publish("headrace_environment_changed", len(changes))
    if changes and (slot is None or (slot.number, slot.generation) == (0, 1)):
        _logger.warning("%s", _say(changes, args.plan), extra=event_fields("environment_changed"))
    return None


def open_beside_workers(args: argparse.Namespace) -> BesideWorkers | None:
    """Return None: each worker looks for itself."""
    return None


def _say(changes: Sequence[Finding], plan: str) -> str:
    named = [f"{one.title}: {one.seen}, expected {one.expected}" for one in changes[:_NAMED]]
    more = f"; and {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
    return (
        f"this machine is not what the Plan was proved on ({'; '.join(named)}{more}): "
        f"`headrace doctor --plan {quote_arg(plan)}` says why it matters"
    )
