"""`--fleet PLACE`: the run leaves heartbeats where all machines do, for `headrace fleet status`, and what kills workers."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from headrace.cli.companions import BesideWorkers, Companion

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.base.worker_slot import WorkerSlot
    from headrace.pipeline.definition import Pipeline

#: Names the place where the option does not.
VARIABLE = "HEADRACE_FLEET"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--fleet", metavar="FOLDER|redis://HOST",
        help="leave heartbeats there, for headrace fleet status, and tell the others of jobs that kill workers (default: "
        "$HEADRACE_FLEET, else none)",
    )  # fmt: skip


def open_companion(
    args: argparse.Namespace, pipeline: Pipeline, plan: Plan, slot: WorkerSlot | None
) -> Companion | None:
    """Return what leaves heartbeats; None where no place is named."""
    address = getattr(args, "fleet", None) or os.environ.get(VARIABLE)
    if not address:
        return None
    from headrace.monitor.fleet.beating import FleetWatch
    from headrace.monitor.fleet.place import open_place

    number = slot.number if slot else 0
    return Companion(watch=FleetWatch(open_place(address), number, suspects=open_place(address, "suspects")))


def open_beside_workers(args: argparse.Namespace) -> BesideWorkers | None:
    """Nothing: each worker beats for itself."""
    return None
