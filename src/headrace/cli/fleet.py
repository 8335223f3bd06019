"""Show all workers of all machines: what they do, under which Plan, and which of them are silent or stuck.

    headrace run jobs.py:pipeline --source redis://cache/0 --fleet /mnt/shared/fleet     on each machine
    headrace fleet status /mnt/shared/fleet

Workers leave heartbeats in a folder that all machines see, or at a Redis server (`redis://cache/0`), every five seconds.
Nothing else is needed: no server of headrace's own, and no port.

Exit status: 0 all well; 1 a worker is silent or stuck, or none is there; 2 misuse; 3 the place cannot be read.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
from headrace.cli.pipeline_arguments import seconds
from headrace.cli.terminal import write, write_json
from headrace.cli.watch_fleet import VARIABLE

if TYPE_CHECKING:
    from headrace.runs.formats.fleet import FleetDocument, FleetWorker

#: Workers that are shown one by one; --json has all.
_SHOWN = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the topics."""
    topics = parser.add_subparsers(title="topics", metavar="TOPIC", required=True)
    status = topics.add_parser("status", help="show all workers", description=__doc__)
    status.formatter_class = argparse.RawDescriptionHelpFormatter
    status.add_argument(
        "place", metavar="FOLDER|redis://HOST", nargs="?", help=f"where the heartbeats are (default: ${VARIABLE})"
    )
    status.add_argument(
        "--stuck", type=seconds, metavar="TIME",
        help="a worker is stuck that has jobs and delivers none for so long (default 60s)",
    )  # fmt: skip
    status.add_argument("--json", action="store_true", help="print JSON (schema headrace.fleet/1)")


def run(args: argparse.Namespace) -> int:
    """Read the heartbeats and print them."""
    from headrace.base.errors import SettingsError
    from headrace.monitor.fleet.place import open_place
    from headrace.monitor.fleet.status import STUCK_SECONDS, read_fleet

    address = args.place or os.environ.get(VARIABLE)
    if not address:
        raise SettingsError(f"say where the heartbeats are: a folder, redis://HOST, or {VARIABLE} in the environment")
    document = read_fleet(open_place(address), stuck_seconds=args.stuck or STUCK_SECONDS)
    if args.json:
        write_json(document, indented=True)
    else:
        write(as_text(document))
    states = {worker.state for worker in document.workers}
    return EXIT_NEGATIVE if states & {"silent", "stuck"} or not states - {"ended"} else EXIT_DONE


def as_text(document: FleetDocument) -> str:
    """Return the document for a terminal."""
    from headrace.base.formatting import align_columns, showable, wrap_lines

    workers = [worker for worker in document.workers if worker.state != "ended"]
    heading = ["worker", "state", "jobs/s", "in flight", "plan", "version", "pipeline"]
    lines = wrap_lines([showable(line) for line in document.says])
    if workers:
        rows = [heading, *(_row(worker) for worker in workers[:_SHOWN])]
        lines += ["", *(showable(line) for line in align_columns(rows))]
    lines += ["", f"and {len(workers) - _SHOWN:,} more; --json has all"] if len(workers) > _SHOWN else []
    notes = [f"{_name(worker)}: {worker.says}" for worker in workers if worker.says][:_SHOWN]
    return "\n".join([*lines, *([""] if notes else []), *wrap_lines([showable(note) for note in notes])])


def _row(worker: FleetWorker) -> list[str]:
    from headrace.base.units import format_number

    beat = worker.beat
    held = f"{beat.in_flight:,}/{beat.slots:,}"
    short = [_one_line(text)[:20] for text in (beat.plan_id, beat.headrace_version, beat.pipeline)]
    return [_name(worker), worker.state, format_number(beat.rate), held, *short]


def _name(worker: FleetWorker) -> str:
    return f"{_one_line(worker.beat.host)[:30]}:{worker.beat.process}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
