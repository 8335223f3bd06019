"""Reads what was found, each into a `Record`; quick, since a board may show thousands: spans are not read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from headrace.base.documents import decode_document
from headrace.base.errors import RunFolderError
from headrace.ledger.ledger import Ledger
from headrace.monitor.board.records import LedgerRow, Record, RunRow, State
from headrace.monitor.history.document import make_document
from headrace.monitor.history.store import History
from headrace.runs.canary_folder import CanaryFolder
from headrace.runs.emulation import emulated_engines
from headrace.runs.file_names import SPANS_FOLDER
from headrace.runs.formats.drift import DriftDocument
from headrace.runs.formats.incident import FILE as INCIDENT_FILE
from headrace.runs.formats.incident import IncidentDocument
from headrace.runs.formats.loop import LoopDocument
from headrace.runs.reader import read_info
from headrace.runs.run_folder import RunInfo

#: Of a loop's folder.
LOOP_FILE = "loop.json"
#: Of a document; larger ones were not written by headrace.
_MOST_BYTES = 16 * 2**20
#: A run that says that it goes on, on a file system without locks, and has written nothing for so long, was killed.
_SILENT_SECONDS = 60.0
#: Newest decisions, attempts and predictions of a ledger.
_MOST_ENTRIES = 50


def read_run_record(path: Path, name: str) -> Record:
    """Return a run."""
    info = read_info(path)
    return Record(kind="run", path=path, name=name, at=info.started_unix_seconds, run=_as_row(path, info))


def read_incident(path: Path, name: str) -> Record:
    """Return an incident of a flight recorder, which is a run too."""
    document = _decode(path / INCIDENT_FILE, IncidentDocument)
    return Record(kind="incident", path=path, name=name, at=document.written_unix_seconds, incident=document)


def read_ledger(path: Path, name: str) -> Record:
    """Return the newest of what a ledger holds."""
    with Ledger.open(path, must_exist=True) as ledger:
        row = LedgerRow(
            decisions=tuple(ledger.attempts.decisions(last=_MOST_ENTRIES)),
            attempts=tuple(ledger.attempts.attempts(last=_MOST_ENTRIES)),
            predictions=tuple(ledger.predictions(last=_MOST_ENTRIES)),
        )
    dates = [one.created_unix_seconds for one in row.decisions[:1]]
    dates += [one.created_unix_seconds for one in row.attempts[:1]]
    return Record(kind="ledger", path=path, name=name, at=max(dates, default=path.stat().st_mtime), ledger=row)


def read_canary(path: Path, name: str) -> Record:
    """Return a canary."""
    state = CanaryFolder(path, must_exist=True).read()
    if state is None:
        raise RunFolderError(f"{path} holds no canary")
    facts = {
        "state": state.status,
        "share of the jobs": f"{state.share:.0%}",
        "because": state.reason or "it was started",
    }
    return Record(kind="canary", path=path, name=name, at=state.steps[-1].at_unix_seconds, facts=facts)


def read_loop(path: Path, name: str) -> Record:
    """Return a loop that was unattended."""
    found = _decode(path / LOOP_FILE, LoopDocument)
    facts = {"asked for": ", ".join(found.asked.goals) or "as much as can be gained"}
    if found.throughput_before is not None and found.throughput_after is not None:
        facts["throughput"] = f"{found.throughput_before:.3g}/s before, {found.throughput_after:.3g}/s after"
    facts["stopped"] = found.stopped or "not yet"
    facts["steps"] = f"{len(found.steps):,}"
    return Record(kind="loop", path=path, name=name, at=(path / LOOP_FILE).stat().st_mtime, facts=facts)


def read_drift(path: Path, name: str) -> Record:
    """Return how a drift monitor's folder stands."""
    scores = path / "scores.json"
    if not scores.exists():
        return Record(
            kind="drift", path=path, name=name, at=path.stat().st_mtime, facts={"says": "nothing was compared yet"}
        )
    found = _decode(scores, DriftDocument)
    alarms = found.says[:2] if found.verdict == "drift" else ()
    facts = {"verdict": found.verdict, "windows": f"{found.windows:,}", "says": " ".join(found.says[:2])}
    return Record(kind="drift", path=path, name=name, at=scores.stat().st_mtime, alarms=alarms, facts=facts)


def read_history(path: Path, name: str) -> Record:
    """Return what a history says of its newest runs."""
    with History(path, must_exist=True) as history:
        document = make_document(history)
    slower = [one for one in document.baselines if any(stage.verdict == "slower" for stage in one.stages)]
    alarms = tuple(f"{one.pipeline}: {one.says}" for one in slower)
    facts = {
        "lines": f"{len(document.lines):,}",
        "slower than their baseline": f"{len(slower)} of {len(document.baselines)}",
    }
    at = document.lines[0].began_unix_seconds if document.lines else path.stat().st_mtime
    return Record(kind="history", path=path, name=name, at=at, alarms=alarms, facts=facts)


def read_plain(kind: str) -> Callable[[Path, str], Record]:
    """Return what reads a kind of which the board shows only that it is there."""

    def read(path: Path, name: str) -> Record:
        return Record(kind=kind, path=path, name=name, at=path.stat().st_mtime)

    return read


def count_delivered(path: Path) -> int:
    """Return the deliveries of a run that goes on, from the spans that it has written."""
    delivered = 0
    for file in filter(Path.is_file, (path / SPANS_FOLDER).glob("*.parquet")):
        with contextlib.suppress(Exception):  # it may be written, or damaged; the next look counts it
            table = pq.read_table(file, columns=["stage", "outcome", "weight"])
            last = [
                weight
                for stage, outcome, weight in zip(
                    *(table[name].to_pylist() for name in table.column_names), strict=True
                )
                if stage.rpartition(".")[2] == "deliver" and outcome == "ok"
            ]
            delivered += sum(last)
    return delivered


def _as_row(path: Path, info: RunInfo) -> RunRow:
    state: State = info.status if info.status != "running" else "runs" if _is_alive(path) else "killed"
    if info.served and state == "interrupted":
        state = "finished"  # nothing else ends a service
    counters, summary = info.counters, info.summary or {}
    latency: Mapping[str, Any] = summary.get("latency_seconds") or {}
    is_over = info.status != "running"
    return RunRow(
        pipeline=info.pipeline,
        plan_id=next(iter(info.plans), ""),
        state=state,
        began=info.started_unix_seconds,
        ended=info.ended_unix_seconds,
        host=info.host,
        delivered=counters.delivered if is_over else count_delivered(path),
        failed=counters.rejected + counters.dead_lettered,
        retried=counters.retried,
        throughput=_number(summary.get("throughput_per_second")),
        latency_p50=_number(latency.get("p50")),
        latency_p99=_number(latency.get("p99")),
        is_emulated=bool(emulated_engines(info.variants)),
        is_worker=path.name.startswith("worker-"),
        warnings=tuple(info.warnings),
    )


def _is_alive(path: Path) -> bool:
    """Return whether the process that writes a run folder lives: it holds a lock on the folder."""
    try:
        place = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(place, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return time.time() - _changed(path / SPANS_FOLDER, path) < _SILENT_SECONDS
    finally:
        os.close(place)
    return False


def _changed(*paths: Path) -> float:
    """Return when the first of these that exists was changed."""
    for path in paths:
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, float | int) else None


def _decode(file: Path, kind: Any) -> Any:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise RunFolderError(f"{file} has more than {_MOST_BYTES:,} bytes; headrace writes no such file")
        return decode_document(file.read_bytes(), kind)
    except msgspec.DecodeError as error:
        raise RunFolderError(f"{file} is damaged ({error})") from None
