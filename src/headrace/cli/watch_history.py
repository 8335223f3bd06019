"""`--history FILE`: the run adds itself to a history, and each hour is compared with the baseline of its pipeline."""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.companions import BesideWorkers, Companion
from headrace.cli.pipeline_arguments import seconds
from headrace.cli.terminal import say

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.base.worker_slot import WorkerSlot
    from headrace.monitor.history.watching import Place
    from headrace.pipeline.definition import Pipeline
    from headrace.runs.formats.history import StageDrift


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_history_argument(parser)
    parser.add_argument(
        "--history-window", type=seconds, metavar="TIME",
        help="how long each part of the run is that is compared with others (default 1h)",
    )  # fmt: skip


def add_history_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the file."""
    parser.add_argument(
        "--history", metavar="FILE",
        help="add this run to a history, see `headrace history` (default: $HEADRACE_HISTORY, else none)",
    )  # fmt: skip


def open_companion(
    args: argparse.Namespace, pipeline: Pipeline, plan: Plan, slot: WorkerSlot | None
) -> Companion | None:
    """Return what counts the run; LedgerError if a file that was named is none that can be used."""
    place = _find_place(args)
    if place is None or not _can_be_used(args, place.file):
        return None
    from headrace.monitor.history.watching import HistoryWatch

    watch = HistoryWatch(place)
    return Companion(observers=[watch.counter], watch=watch.watch)


def open_beside_workers(args: argparse.Namespace) -> BesideWorkers | None:
    """Give the workers one name for the run, since they are one line of the history."""
    if find_history(args):
        args.history_began = time.time()
        output = getattr(args, "output", None)
        args.history_folder = str(Path(output).resolve()) if output else ""
    return None


def find_history(args: argparse.Namespace) -> str | None:
    """Return the history's file; None: the run is added to none."""
    return getattr(args, "history", None) or os.environ.get("HEADRACE_HISTORY") or None


def _find_place(args: argparse.Namespace) -> Place | None:
    file = find_history(args)
    if file is None:
        return None
    from headrace.monitor.history.watching import Place
    from headrace.monitor.history.windows import WINDOW_SECONDS

    output, began = getattr(args, "output", None), getattr(args, "history_began", None)
    return Place(
        file=Path(file),
        window_seconds=args.history_window or WINDOW_SECONDS,
        key=f"{os.uname().nodename} {began:.3f}" if began else "",
        began_unix_seconds=began,
        publish=_publish,
        folder=getattr(args, "history_folder", None) or (str(Path(output).resolve()) if output else ""),
    )


def _publish(drifts: Sequence[StageDrift]) -> None:
    """Leave the verdicts of the newest window for the run's metrics."""
    from headrace.monitor.published import publish

    for drift in drifts:
        if drift.ratio is not None:
            publish("headrace_performance_drift_ratio", drift.ratio, drift.stage)
            publish("headrace_performance_drift_alarm", float(drift.verdict == "slower"), drift.stage)


def _can_be_used(args: argparse.Namespace, file: Path) -> bool:
    """Open the file once, before the run begins; a disk is no reason not to run, nor is a file that the environment names."""
    from headrace.base.errors import LedgerError
    from headrace.ledger.database import may_pass
    from headrace.monitor.history.store import History

    try:
        History(file, busy_seconds=5.0).close()
    except LedgerError as error:
        if may_pass(error):
            says = f"headrace: this run is not in the history yet, and runs all the same; it tries again each minute: {error}"
            say(says, level=logging.WARNING)
            return True
        if args.history:
            raise
        say(f"headrace: this run is added to no history: {error}", level=logging.WARNING)
        return False
    return True


def remember_run(args: argparse.Namespace, folder: Path) -> None:
    """Add a run folder to the history, if there is one; what goes wrong is said, since the run itself is done."""
    file = find_history(args)
    if file is None:
        return
    from headrace.base.errors import HeadraceError
    from headrace.monitor.history.lines import add_run
    from headrace.monitor.history.store import History

    try:
        with History(file, busy_seconds=5.0) as history:
            add_run(history, folder)
    except (HeadraceError, OSError) as error:
        say(f"headrace: the run was not added to the history: {error}", level=logging.WARNING)
