"""Write the last minutes of a run that records, and say why it is, or was, slow; also after it was killed.

    headrace snapshot                      every run of yours that goes on; if none does, the one that was killed last
    headrace snapshot 4711                 the run, or the supervisor, of this process
    headrace snapshot --list               what there is
    headrace snapshot --baseline runs/good     compared with a run that was fast

A run records with --recorder SIZE or --incidents DIR. The recording is in memory (/dev/shm), outlives every kill of the run and
its supervisor, and is removed when the run ends orderly. The incident is an ordinary run folder of the time in which it was
slow, with one of the time before in `baseline`; `headrace diagnose`, `report` and `compare` read both.

Exit status: 0 done; 2 there is no such recording, or the folder cannot be written.
"""

from __future__ import annotations

import argparse
import os
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.logs import add_arguments as add_log_arguments
from headrace.cli.terminal import speaker, write, write_json
from headrace.cli.watch_history import add_history_argument, remember_run

if TYPE_CHECKING:
    from headrace.monitor.recorder.triggers import Trigger
    from headrace.runs.formats.incident import IncidentDocument

_say = speaker("snapshot")
#: Triggers of which a second one within `WINDOW_SECONDS` is another incident: somebody asked.
_ASKED = ("asked", "signal")
#: Of words on stdin.
_MOST_WAIT_SECONDS, _MOST_BYTES = 30.0, 65_536
_KINDS = ("slo", "errors", "stall", "rollback", "death", "signal", "failed", "asked")
#: Where all cores are busy, it gets a tenth of one. At 19 it got a seventieth, and most incidents happen on busy machines: the
#: evidence came minutes later, or never where the machine was taken away.
_NICE = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "recording",
        nargs="?",
        metavar="PID|FOLDER",
        help="process of a run or supervisor, or the folder of a recording",
    )
    parser.add_argument(
        "--incidents", metavar="DIR", help="folder that keeps incidents (default: that of the run, else incidents)"
    )
    parser.add_argument("--baseline", metavar="RUN", help="run folder to compare with (default: the time before)")
    parser.add_argument(
        "--list", action="store_true", help="list the recordings of this machine and user, and do nothing else"
    )
    parser.add_argument(
        "--remove", action="store_true", help="remove the recording of a run that was killed, once written"
    )
    parser.add_argument(
        "--because", choices=_KINDS, default="asked", help="what the incident is called after (default asked)"
    )
    parser.add_argument(
        "--says",
        default="headrace snapshot",
        metavar="TEXT",
        help="why it is written, for its readers; -: read from stdin, and written once that ends",
    )
    add_history_argument(parser)
    add_log_arguments(parser)
    parser.add_argument("--nice", action="store_true", help="at a low priority, so that the run hardly feels it")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON (schema headrace.incidents/1; headrace.recordings/1 with --list)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the incidents and print them."""
    from headrace.cli import EXIT_DONE
    from headrace.cli.incident_text import as_text
    from headrace.monitor.recorder.places import find_recordings, is_running
    from headrace.monitor.recorder.ring import remove_recording
    from headrace.monitor.recorder.triggers import Trigger
    from headrace.runs.formats.incident import IncidentsDocument

    if args.nice:
        with suppress(OSError):
            os.nice(_NICE)
    if args.list:
        return _list(as_json=args.json)
    written: list[tuple[Path, IncidentDocument]] = []
    says = _read_words() if args.says == "-" else args.says
    for folder, identity in find_recordings(args.recording):
        place = Path(args.incidents or identity.incidents or "incidents")
        one = _write(folder, place, Trigger(args.because, says), args.baseline)
        written += [one] if one is not None else []
        if one is not None:
            remember_run(args, one[0])
        if args.remove and not is_running(identity):
            remove_recording(folder)
    if args.json:
        folders, documents = tuple(str(path) for path, _ in written), tuple(document for _, document in written)
        write_json(IncidentsDocument(folders=folders, incidents=documents))
    else:
        write("\n".join(as_text(document, path) for path, document in written), end="")
    return EXIT_DONE


def _read_words() -> str:
    """Return what stands on stdin, once that is closed, or has not been for a while: who wrote may be dead."""
    ends, found = time.monotonic() + _MOST_WAIT_SECONDS, b""
    while (left := ends - time.monotonic()) > 0 and select.select([0], [], [], left)[0]:
        part = os.read(0, _MOST_BYTES)
        if not part or len(found) > _MOST_BYTES:
            break
        found += part
    return found.decode(errors="replace").strip()


def _write(
    recording: Path, place: Path, trigger: Trigger, baseline: str | None
) -> tuple[Path, IncidentDocument] | None:
    """Write an incident; None if there was such a one shortly before."""
    from headrace.monitor.recorder.incident import write_incident
    from headrace.monitor.recorder.recorder import WINDOW_SECONDS
    from headrace.monitor.recorder.recording import read_recording
    from headrace.monitor.recorder.store import IncidentStore

    window = 0.0 if trigger.kind in _ASKED else WINDOW_SECONDS
    found = read_recording(recording)  # first: the run goes on, and what is oldest is overwritten
    _say(f"{len(found.spans):,} spans of process {found.identity.process} are read")
    with IncidentStore(place).new(trigger.kind, window_seconds=window) as folder:
        if folder is None:
            _say(f"there was an incident of this kind in the last {window / 60:g} minutes; no other is written")
            return None
        name = folder.name.removeprefix(".")
        document = write_incident(
            found, folder, trigger, name=name, baseline=Path(baseline) if baseline is not None else None
        )
    return place / name, document


def _list(*, as_json: bool) -> int:
    from headrace.base.formatting import align_columns
    from headrace.base.units import format_time
    from headrace.cli import EXIT_DONE
    from headrace.monitor.recorder.places import is_running, list_recordings, list_unread
    from headrace.runs.formats.incident import RecordingLine, RecordingsDocument

    known, unread = list_recordings(), list_unread()
    if as_json:
        recordings = tuple(
            RecordingLine(
                process=one.process, supervisor=one.supervisor or None, pipeline=one.info.pipeline,
                since_unix_seconds=one.info.started_unix_seconds, runs=is_running(one), folder=str(folder),
            )
            for folder, one in known
        )  # fmt: skip
        write_json(RecordingsDocument(recordings=recordings, unread=tuple(unread)))
        return EXIT_DONE
    rows = [("process", "supervisor", "pipeline", "since", "runs", "folder")]
    rows += [
        (
            str(one.process), str(one.supervisor or "-"), one.info.pipeline, format_time(one.info.started_unix_seconds),
            "yes" if is_running(one) else "no", str(folder),
        )
        for folder, one in known
    ]  # fmt: skip
    nothing = [] if unread else ["no run records; start one with --recorder 8MB or --incidents DIR"]
    write("\n".join([*(align_columns(rows) if known else nothing), *unread]))
    return EXIT_DONE
