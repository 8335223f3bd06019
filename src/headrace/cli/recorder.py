"""`--recorder`, `--incidents`, `--goal` and `--baseline` of `run` and `serve`: the flight recorder."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.companions import BesideWorkers, Companion
from headrace.cli.pipeline_arguments import points
from headrace.cli.watch_history import find_history

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.base.worker_slot import WorkerSlot
    from headrace.monitor.recorder.recorder import RecorderSettings
    from headrace.pipeline.definition import Pipeline
    from headrace.pipeline.supervisor import DeathNote

_OFF = "off"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("flight recorder (guide: incidents)")
    group.add_argument(
        "--recorder", metavar="SIZE",
        help="keep the last minutes in so much memory of each process, such as 16MB (default with --incidents: 8MB), or off",
    )  # fmt: skip
    group.add_argument(
        "--incidents", metavar="DIR",
        help="write there what was recorded, and why it was slow, when a goal is missed, jobs stall, a canary is rolled back, "
        "a worker dies, or on SIGUSR2",
    )  # fmt: skip
    group.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="GOAL",
        help="a latency whose breach is an incident, such as p99=500ms",
    )
    group.add_argument(
        "--slo-failed",
        type=points,
        metavar="SHARE",
        help="share of failed deliveries above which there is one: 1%% or 0.01",
    )
    group.add_argument(
        "--baseline", metavar="RUN", help="run folder that incidents are compared with (default: the time before)"
    )


def open_companion(
    args: argparse.Namespace, pipeline: Pipeline, plan: Plan, slot: WorkerSlot | None
) -> Companion | None:
    """Return the recorder; None where none is wanted."""
    settings = _make_settings(args)
    if settings is None:
        return None
    from headrace.monitor.recorder.recorder import Recorder

    _outlive_sigusr2()
    has_supervisor = slot is not None and slot.connection is not None
    recorder = Recorder(
        settings, supervisor=os.getppid() if has_supervisor else 0, worker=slot.number if slot is not None else 0
    )
    return Companion(observers=[recorder], watch=recorder.watch)


def open_beside_workers(args: argparse.Namespace) -> BesideWorkers | None:
    """Return what writes an incident when a worker dies, or when the supervisor gets SIGUSR2."""
    settings = _make_settings(args)
    if settings is None:
        return None
    from headrace.base.log_events import event_fields
    from headrace.monitor.published import count
    from headrace.monitor.recorder.recorder import start_incident
    from headrace.monitor.recorder.triggers import Trigger

    supervisor, asked = os.getpid(), list[Any]()

    def note_death(death: DeathNote) -> None:
        if settings.incidents is not None:
            says = _describe(death)
            start_incident(settings, str(death.pid), Trigger("death", says), is_dead=True)
            event = event_fields("incident", code="death")
            logging.getLogger("headrace").warning(
                "incident: %s; it is being written to %s", says, settings.incidents, extra=event
            )
            count("headrace_recorder_incidents_total", "death")

    def note_signal(*_: Any) -> None:
        if os.getpid() != supervisor or settings.incidents is None or any(one and one.poll() is None for one in asked):
            return  # one after the other: each takes a core and some 100 MB
        # Not counted: a handler may run between any two lines, also where the lock of the counts is held.
        asked[:] = [start_incident(settings, str(supervisor), Trigger("signal", "SIGUSR2"))]

    _outlive_sigusr2()
    previous = signal.signal(signal.SIGUSR2, note_signal)
    return BesideWorkers(note_death=note_death, close=lambda: signal.signal(signal.SIGUSR2, previous))


def _describe(death: DeathNote) -> str:
    """Return in words who died, why, and with what in hand."""
    named = ", ".join(death.in_work)
    more = death.num_in_work - len(death.in_work)
    jobs = f"in work: {named}{f' and {more} more' if more else ''}" if named else "no job was in work"
    return (
        f"worker {death.worker} (process {death.pid}) died after {death.lived_seconds:.0f} s: {death.cause}; {jobs}; "
        f"{death.num_waiting} waited"
    )


def _outlive_sigusr2() -> None:
    """Ignore the signal where nobody takes it, while the run begins and ends: its default is to end the process."""
    from headrace.base.early_signal import is_taken, take_noted

    if threading.current_thread() is threading.main_thread() and not is_taken():
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if take_noted():
        logging.getLogger("headrace").warning(
            "SIGUSR2 came before anything was recorded; for an incident send it again"
        )


def _make_settings(args: argparse.Namespace) -> RecorderSettings | None:
    """Return what is recorded; None: nothing.

    Raises:
        SettingsError: If an option is none.
    """
    if args.recorder == _OFF or not (args.recorder or args.incidents or args.slo or args.slo_failed):
        return None
    from headrace.base.errors import SettingsError
    from headrace.base.goals import parse_slo
    from headrace.base.units import parse_size
    from headrace.monitor.recorder.recorder import DEFAULT_BYTES, RecorderSettings
    from headrace.monitor.recorder.ring import LEAST_SIZE
    from headrace.monitor.recorder.store import IncidentStore
    from headrace.runs.reader import read_run

    try:
        size = parse_size(args.recorder) if args.recorder else DEFAULT_BYTES
        goals = tuple(parse_slo(text) for text in args.slo)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if size < LEAST_SIZE:
        raise SettingsError(f"--recorder {args.recorder}: expected at least 1MB, or off")
    if (args.slo or args.slo_failed) and not args.incidents:
        raise SettingsError("--slo and --slo-failed say when an incident is written; say where with --incidents DIR")
    if args.incidents:
        IncidentStore(Path(args.incidents))
    if args.baseline:
        read_run(args.baseline)
    return RecorderSettings(
        most_bytes=size,
        incidents=Path(args.incidents).absolute() if args.incidents else None,
        goals=goals,
        most_failed=args.slo_failed,
        baseline=Path(args.baseline).absolute() if args.baseline else None,
        canary=Path(args.canary) if getattr(args, "canary", None) else None,
        history=Path(history).absolute() if (history := find_history(args)) else None,
        log_format=args.log_format,
    )
