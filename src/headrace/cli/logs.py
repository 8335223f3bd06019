"""How a run or service logs: `--log-format` and `--log-level`."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.cli.terminal import set_log

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.base.worker_slot import WorkerSlot
    from headrace.cli.companions import BesideWorkers, Companion
    from headrace.monitor.log.json_log import JsonLog
    from headrace.pipeline.definition import Pipeline

_LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text",
        help="how lines on stderr look: for people (default), or one JSON object per event, for programs",
    )  # fmt: skip
    parser.add_argument(
        "--log-level", choices=tuple(_LEVELS), metavar="LEVEL",
        help=f"least level that is logged: {', '.join(_LEVELS)} (default: warning; info for json; error with --quiet)",
    )  # fmt: skip


@contextlib.contextmanager
def open_log(args: argparse.Namespace, level: int) -> Iterator[int]:
    """Log as the options say, and give the level, for as long as the command runs.

    Args:
        args: As parsed; the log is left there for `open_companion`.
        level: Of the text, as the general options say.
    """
    if args.log_level:
        level = _LEVELS[args.log_level]
    args.log = None
    if args.log_format == "text":
        yield level
        return
    from headrace.monitor.log.json_log import JsonLog

    if not args.log_level and not args.quiet:
        level = logging.INFO
    # A supervisor has one thread: it forks.
    args.log = JsonLog(level, has_thread=not getattr(args, "supervise", None))
    set_log(args.log)
    try:
        yield level
    finally:
        set_log(None)
        args.log.close()


def open_companion(
    args: argparse.Namespace, pipeline: Pipeline, plan: Plan, slot: WorkerSlot | None
) -> Companion | None:
    """Return what logs a run's events; None where people read the log."""
    from headrace.cli.companions import Companion
    from headrace.monitor.log.job_events import JobEvents, log_run

    log: JsonLog | None = getattr(args, "log", None)
    if log is None:
        return None
    if slot is not None:
        log.become_worker(slot.number)
    return Companion(observers=[JobEvents()], watch=log_run)


def open_beside_workers(args: argparse.Namespace) -> BesideWorkers | None:
    """Make nothing: each process writes its own lines."""
    return None
