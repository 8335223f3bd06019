"""Reads what was found, each into a `Record`; quick, since a board may show thousands: spans are not read."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.base.documents import decode_document
from headrace.base.errors import RunFolderError
from headrace.base.formatting import pluralize, quote_arg
from headrace.base.in_flight import read_regular
from headrace.ledger.ledger import Ledger
from headrace.monitor.board.records import LedgerRow, Record, RunRow, State
from headrace.monitor.history.document import make_document
from headrace.monitor.history.store import History
from headrace.monitor.review.reviewing import Review
from headrace.monitor.review.store import read_samples
from headrace.runs.canary_folder import CanaryFolder
from headrace.runs.emulation import emulated_engines
from headrace.runs.file_names import SPANS_FOLDER
from headrace.runs.formats.comparison import ComparisonDocument
from headrace.runs.formats.drift import DriftDocument
from headrace.runs.formats.gate import SCHEMA as GATE
from headrace.runs.formats.gate import GateDocument
from headrace.runs.formats.incident import FILE as INCIDENT_FILE
from headrace.runs.formats.incident import IncidentDocument
from headrace.runs.formats.loop import LoopDocument
from headrace.runs.member_folders import is_member_name
from headrace.runs.reader import read_info
from headrace.runs.run_folder import RunInfo
from headrace.runs.supervision import read_supervision

#: Of a loop's folder.
LOOP_FILE = "loop.json"
#: Of a document; larger ones were not written by headrace.
_MOST_BYTES = 16 * 2**20
#: A run that says that it goes on, on a file system without locks, and has written nothing for so long, was killed.
_SILENT_SECONDS = 60.0
#: Reviewed items after which `headrace review` calls a round done.
_ROUND_ITEMS = 100
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
    return Record(
        kind="loop", path=path, name=name, at=(path / LOOP_FILE).stat().st_mtime, facts={"says": describe_loop(found)}
    )


def describe_loop(found: LoopDocument) -> str:
    """Return how far a loop has come, in a sentence."""
    asked = f"asked for {', '.join(found.asked.goals)}" if found.asked.goals else "asked for as much as can be gained"
    met = {True: ": met", False: ": not met", None: ""}[found.is_met if found.asked.goals else None]
    parts = [f"{found.asked.pipeline}, {asked}{met}"]
    if found.throughput_before is not None and found.throughput_after is not None and found.plan_file:
        parts.append(f"{found.throughput_before:.3g}/s before, {found.throughput_after:.3g}/s after")
    if found.ratio is not None:
        parts.append(f"x{found.ratio.mid:.2f} ({found.ratio.low:.2f} to {found.ratio.high:.2f}) by blocks in turn")
    if not found.stopped:
        last = f", the last: {found.steps[-1].kind}" if found.steps else ""
        parts.append(f"not ended yet, {pluralize(len(found.steps), 'step')} done{last}")
    return "; ".join([*parts, *found.says])


def read_comparison(path: Path, name: str) -> Record:
    """Return what `headrace compare -o` or `headrace gate -o` has written."""
    found = _decode(path, _Schema)
    document = _decode(path, GateDocument).comparison if found.schema == GATE else _decode(path, ComparisonDocument)
    return Record(kind="comparison", path=path, name=name, at=path.stat().st_mtime, comparison=document)


def read_review(path: Path, name: str) -> Record:
    """Return how far a review is, and what is known of the accuracy."""
    samples, _ = read_samples(path)
    kept, answers = (
        sum(len(one.items) for one in samples),
        sum(cell.num_answers for one in samples for cell in one.cells),
    )
    said = f"{kept:,} of {pluralize(answers, 'answer')} are kept with their pictures"
    command = f"headrace review {quote_arg(name_for_people(path))}"
    if not any((path / "rounds").glob("*.json")):  # a first round is begun by whoever reviews
        ask = command if kept else ""
        return Record(
            kind="review", path=path, name=name, at=_changed(path / "samples", path), command=ask,
            facts={"says": f"{said}; nobody has looked at them yet"},
        )  # fmt: skip
    review = Review(path)
    reviewed, found = review.count_reviewed(), review.estimate()
    of = min(_ROUND_ITEMS, len(review.round.draws))
    facts = {"says": f"{reviewed} of {of} reviewed; {found.says}"}
    at = _changed(path / "verdicts.jsonl", path / "rounds", path)
    return Record(
        kind="review", path=path, name=name, at=at, facts=facts, command=command if reviewed < of else ""
    )  # fmt: skip


def name_for_people(path: Path) -> str:
    """Return a path as it is typed where the board was started."""
    near = os.path.relpath(path)
    return str(path) if near.startswith("..") else near


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
    held = f"{pluralize(len(document.lines), 'line')} of runs and incidents, of {pluralize(len(document.baselines), 'Plan')}"
    found = (
        f"stages of {len(slower)} are slower than they were" if slower else "no stage is known to be slower than it was"
    )
    facts = {"says": f"{held}; {found}"}
    at = document.lines[0].began_unix_seconds if document.lines else path.stat().st_mtime
    return Record(kind="history", path=path, name=name, at=at, alarms=alarms, facts=facts)


def read_workers(path: Path, name: str) -> Record:
    """Return what those who watched over several workers counted; each worker is a run of its own."""
    found = read_supervision(path)
    if found is None:
        says, deaths = "several worker processes of one run; each is in the table of runs", ""
    else:
        says, deaths = f"{found.delivered:,} delivered by several worker processes", found.describe_deaths()
    said = {"says": f"{says}; {deaths}" if deaths else says}
    alarms = (deaths,) if deaths else ()
    return Record(kind="workers", path=path, name=name, at=path.stat().st_mtime, facts=said, alarms=alarms)


def count_delivered(path: Path) -> int:
    """Return the deliveries of a run that goes on, from the spans that it has written."""
    delivered = 0
    for file in filter(Path.is_file, (path / SPANS_FOLDER).glob("*.parquet")):
        with contextlib.suppress(Exception):  # it may be damaged, or just be removed
            status = file.stat()
            delivered += _count_in_file(file, status.st_mtime_ns, status.st_size)
    return delivered


@functools.lru_cache(maxsize=100_000)
def _count_in_file(file: Path, changed_ns: int, num_bytes: int) -> int:
    """Return the deliveries in a file of spans. There is another one every five seconds, and none is written to again."""
    table = pq.read_table(file, columns=["stage", "outcome", "weight"])
    stages, outcomes = (table[name].cast(pa.string()) for name in ("stage", "outcome"))
    is_last = pc.or_(pc.equal(stages, "deliver"), pc.ends_with(stages, ".deliver"))
    weights = pc.filter(table["weight"], pc.and_(is_last, pc.equal(outcomes, "ok")))
    return int(pc.sum(weights).as_py() or 0)


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
        is_worker=is_member_name(path.name),
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


class _Schema(msgspec.Struct):
    schema: str = ""


def _decode(file: Path, kind: Any) -> Any:
    try:
        return decode_document(read_regular(file, _MOST_BYTES), kind)
    except msgspec.DecodeError as error:
        raise RunFolderError(f"{file} is damaged ({error})") from None
