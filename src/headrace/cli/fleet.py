"""Look at all workers of all machines: what they do, and whether what was changed on some of them does worse.

    headrace run jobs.py:pipeline --source redis://cache/0 --fleet /mnt/shared/fleet     on each machine
    headrace fleet status /mnt/shared/fleet
    headrace fleet compare /mnt/shared/fleet --for 10m

Workers leave heartbeats in a folder that all machines see, or at a Redis server (`redis://cache/0`), every five seconds.
Nothing else is needed: no server of headrace's own, and no port.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
from headrace.cli.canary import EXIT_INCONCLUSIVE
from headrace.cli.pipeline_arguments import points, seconds
from headrace.cli.terminal import speaker, write, write_answer, write_json
from headrace.cli.watch_fleet import VARIABLE

if TYPE_CHECKING:
    from headrace.monitor.fleet.place import Place
    from headrace.runs.formats.fleet import FleetComparison, FleetDocument, FleetWorker

_STATUS = """Show all workers of all machines: what they do, under which Plan, and which of them are silent or stuck, or
ended by an error.

Exit status: 0 all well; 1 there is such a worker, or none is there; 2 misuse; 3 the place cannot be read.
"""
_COMPARE = """Tell whether what was changed on some machines, a Plan or the version of headrace, does worse than the others.

    for host in a b c d; do
        ssh $host systemctl restart jobs
        headrace fleet compare /mnt/shared/fleet --for 10m && ssh $host systemctl is-active jobs || break
    done

Compared are failures and speed of workers of one pipeline in the same minutes: at their rates where all are full, else by how
long a job is in a worker. A worker counts after half a minute, and after as long as a job takes. A new one that falls silent
or ends by an error while no other does is worse at once. It ends as soon as it is known.
Machines of different speeds, or with another --supervise, cannot be told from Plans of different speeds.

Exit status: 0 no worse; 1 worse; 4 not known when the time is up; 2 misuse, or all run the same; 3 the place cannot be read.
"""
_say = speaker("fleet", is_news=True)
_TELL_SECONDS = 30.0
#: Workers that are shown one by one; --json has all.
_SHOWN = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the topics."""
    topics = parser.add_subparsers(title="topics", metavar="TOPIC", required=True)
    status = topics.add_parser("status", help="show all workers", description=_STATUS)
    compare = topics.add_parser("compare", help="tell whether a change on some machines is worse", description=_COMPARE)
    for topic in (status, compare):
        topic.formatter_class = argparse.RawDescriptionHelpFormatter
        topic.add_argument(
            "place", metavar="FOLDER|redis://HOST", nargs="?", help=f"where the heartbeats are (default: ${VARIABLE})"
        )
    status.set_defaults(topic=_run_status)
    compare.set_defaults(topic=_run_compare)
    status.add_argument(
        "--stuck", type=seconds, metavar="TIME",
        help="a worker is stuck that has jobs and delivers none for so long (default 60s)",
    )  # fmt: skip
    status.add_argument("--json", action="store_true", help="print JSON (schema headrace.fleet/1)")
    compare.add_argument(
        "--for", type=seconds, default=600.0, metavar="TIME", dest="time",
        help="how long they are looked at, at most (default 10m)",
    )  # fmt: skip
    compare.add_argument(
        "--new", metavar="ID", help="how the new Plan's id, or version, begins (default: what began last)"
    )
    compare.add_argument(
        "--max-more-failures", type=points, default=0.005, metavar="SHARE",
        help="by how much more of its jobs may fail: 0.5%% (default) or 0.005",
    )  # fmt: skip
    compare.add_argument(
        "--max-slowdown",
        type=points,
        default=0.25,
        metavar="SHARE",
        help="by how much it may be slower: 25%% (default)",
    )
    compare.add_argument("--json", action="store_true", help="print JSON (schema headrace.fleet_comparison/1)")


def run(args: argparse.Namespace) -> int:
    """Read the heartbeats, and print what they say."""
    from headrace.base.errors import SettingsError
    from headrace.monitor.fleet.place import open_place

    address = args.place or os.environ.get(VARIABLE)
    if not address:
        raise SettingsError(f"say where the heartbeats are: a folder, redis://HOST, or {VARIABLE} in the environment")
    status: int = args.topic(args, open_place(address))
    return status


def _run_compare(args: argparse.Namespace, place: Place) -> int:
    from headrace.base.policies.canary import CanaryPolicy
    from headrace.monitor.fleet.comparing import compare_fleet

    policy = CanaryPolicy(max_more_failures=args.max_more_failures, max_slowdown=args.max_slowdown)
    tell_at = time.monotonic() + _TELL_SECONDS

    def tell(says: str) -> None:
        nonlocal tell_at
        if time.monotonic() >= tell_at:
            tell_at += _TELL_SECONDS
            _say(says)

    found = compare_fleet(place, args.time, args.new, policy, say=_say, tell=tell)
    write_answer(found, _comparison_as_text, as_json=args.json)
    return {"no worse": EXIT_DONE, "worse": EXIT_NEGATIVE, "open": EXIT_INCONCLUSIVE}[found.verdict]


def _comparison_as_text(found: FleetComparison) -> str:
    from headrace.base.formatting import showable, wrap_lines
    from headrace.base.units import format_duration

    known = {"worse": "The new workers are worse.", "no worse": "The new workers are no worse.", "open": "Not known."}
    heading = f"{known[found.verdict]} {found.pipeline} was looked at for {format_duration(found.seconds)}."
    return "\n".join([*wrap_lines([showable(line) for line in (heading, *found.says)]), ""])


def _run_status(args: argparse.Namespace, place: Place) -> int:
    from headrace.monitor.fleet.status import STUCK_SECONDS, read_fleet

    document = read_fleet(place, stuck_seconds=args.stuck or STUCK_SECONDS)
    if args.json:
        write_json(document, indented=True)
    else:
        write(as_text(document))
    states = {worker.state for worker in document.workers}
    return EXIT_NEGATIVE if states & {"silent", "failed", "stuck"} or not states - {"replaced", "ended"} else EXIT_DONE


def as_text(document: FleetDocument) -> str:
    """Return the document for a terminal."""
    from headrace.base.formatting import align_columns, showable, wrap_lines

    workers = [worker for worker in document.workers if worker.state not in ("replaced", "ended")]
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
