"""Makes ordinary run folders of a recording: of the time of an incident, and of the time before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq

from headrace.base.documents import encode_document
from headrace.base.errors import RunFolderError
from headrace.base.records import SCHEMA_VERSION, Counters, Span
from headrace.monitor.recorder.recording import Recording, Sample
from headrace.runs.earlier_run import explain_unwritable
from headrace.runs.file_names import ERRORS_FILE, RUN_JSON, SPANS_FOLDER
from headrace.runs.formats import profiling
from headrace.runs.formats.profiling import ProfilingInfo, SamplingChange
from headrace.runs.resource_files import ResourceWriter, StateWriter, seal
from headrace.runs.run_folder import replace_file
from headrace.runs.span_files import spans_to_batch

#: Jobs of the first seconds meet a model that warms up.
_SETTLING_SECONDS = 3.0
#: Least length of the time before and of the incident.
_LEAST_BEFORE, _LEAST_AFTER = 5.0, 3.0
#: Change in standard errors from which on it is one, and the least noise of a second.
_SIGNIFICANT, _LEAST_NOISE = 6.0, 0.05


@dataclass(frozen=True, slots=True)
class Split:
    """Where a recording is divided, ns of the host's monotonic clock."""

    from_ns: int
    at_ns: int
    to_ns: int
    is_found: bool
    """Whether something got worse there; else it is divided in the middle."""


def find_split(recording: Recording) -> Split | None:
    """Return when it got worse; None if there is too little to compare.

    Of every second it takes the mean of the logarithm of the jobs' latencies, the logarithm of how many were done, and the
    share that failed. It divides where, summed over these, the time after is worse than the time before by most standard
    errors.
    """
    seconds, table = _by_second(recording)
    if len(seconds) < _LEAST_BEFORE + _LEAST_AFTER:
        return None
    best, best_score = len(seconds) // 2, 0.0
    for at in range(int(_LEAST_BEFORE), len(seconds) - int(_LEAST_AFTER) + 1):
        score = sum(_worse(column[:at], column[at:]) for column in table)
        if score > best_score:
            best, best_score = at, score
    if best_score < _SIGNIFICANT:
        best = len(seconds) // 2
    origin = recording.from_ns
    first = origin + int(seconds[0]) * 1_000_000_000
    return Split(first, origin + int(seconds[best]) * 1_000_000_000, recording.to_ns + 1, best_score >= _SIGNIFICANT)


def _worse(before: np.ndarray, after: np.ndarray) -> float:
    """Return by how many standard errors the mean grew; 0 if it did not."""
    before, after = before[np.isfinite(before)], after[np.isfinite(after)]
    if len(before) < 2 or len(after) < 2:
        return 0.0
    noise = max(
        float(np.sqrt((before.var() * len(before) + after.var() * len(after)) / (len(before) + len(after)))),
        _LEAST_NOISE,
    )
    return max(0.0, float(after.mean() - before.mean()) / (noise * math.sqrt(1 / len(before) + 1 / len(after))))


def _by_second(recording: Recording) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the seconds since the beginning, and of each: log latency, minus the log of the rate, and the failed share."""
    ended, latency, weight, failed = _job_ends(recording)
    last = max((ended.max(initial=0.0), (recording.to_ns - recording.from_ns) / 1e9))
    begin = 0
    if recording.identity.info.started_monotonic_ns > recording.from_ns - 30_000_000_000:
        first = float(ended.min(initial=0.0))
        begin = int(first + min(_SETTLING_SECONDS, (last - first) / 10))
    num = int(last)  # the last second is not whole
    seconds = np.arange(begin, max(begin, num))
    cells = ended.astype(np.int64)
    done = np.bincount(cells, weight * ~failed, minlength=num + 2)
    bad = np.bincount(cells, weight * failed, minlength=num + 2)
    logs = np.bincount(cells, np.log(np.maximum(latency, 1e-6)) * weight * ~failed, minlength=num + 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        columns = [logs / done, -np.log(np.maximum(done, 0.5)), bad / (done + bad)]
    return seconds, [column[begin : max(begin, num)] for column in columns]


def _job_ends(recording: Recording) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return of each job that ended: seconds since the beginning, latency, weight, and whether it failed."""
    stages = recording.identity.info.stages
    last = next(
        (stage.name for stage in reversed(stages) if stage.role == "deliver"), stages[-1].name if stages else ""
    )
    roots, begins = root_arrivals(recording.spans), recording.from_ns
    rows = [
        ((span.put - begins) / 1e9, (span.put - roots[root][0]) / 1e9, span.weight, span.outcome != "ok")
        for span in recording.spans
        if (span.stage == last or span.outcome != "ok") and (root := _root_of(span, roots)) in roots
    ]
    table = np.array(rows or np.zeros((0, 4)), np.float64)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3] > 0


def root_arrivals(spans: Sequence[Span]) -> dict[str, tuple[int, str]]:
    """Return {unit: (when its job arrived, the job's id)}."""
    parents = {span.unit_id: span.parent_id for span in spans}
    first: dict[str, int] = {}
    for span in spans:
        root = _find_root(span.unit_id, parents)
        first[root] = min(first.get(root, span.arrived), span.arrived)
    return {unit: (first[root], root) for unit in parents if (root := _find_root(unit, parents)) in first}


def _find_root(unit: str, parents: dict[str, str | None]) -> str:
    for _ in range(8):
        parent = parents.get(unit)
        if parent is None:
            break
        unit = parent
    return unit


def _root_of(span: Span, roots: dict[str, tuple[int, str]]) -> str:
    return roots[span.unit_id][1] if span.unit_id in roots else span.unit_id


def write_window(recording: Recording, path: Path, from_ns: int, to_ns: int) -> None:
    """Write the jobs that arrived in a time, and what was measured in it, as a run folder.

    Args:
        recording: Of which it is a part.
        path: New or empty folder.
        from_ns: On the host's monotonic clock, as `to_ns`, which is not included.
        to_ns: See there.

    Raises:
        RunFolderError: If it cannot be written.
    """
    try:
        _write_window(recording, path, from_ns, to_ns)
    except OSError as error:
        raise explain_unwritable(path, error) from error


def _write_window(recording: Recording, path: Path, from_ns: int, to_ns: int) -> None:
    (path / SPANS_FOLDER).mkdir(parents=True, exist_ok=True)
    roots = root_arrivals(recording.spans)
    spans = [span for span in recording.spans if from_ns <= roots[span.unit_id][0] < to_ns]
    if spans:
        table = spans_to_batch(spans)
        name = f"{spans[0].host}-{recording.identity.process}-000000.parquet".replace("/", "_")
        _write_parquet(table, path / SPANS_FOLDER / name)
    samples = [sample for sample in recording.samples if from_ns <= sample.at_ns < to_ns]
    _write_samples(recording, path, samples, from_ns, to_ns)
    info = recording.identity.info
    begun = info.started_unix_seconds - info.started_monotonic_ns / 1e9
    lines = [line for line in recording.errors if from_ns <= (line.settled_unix_seconds - begun) * 1e9 < to_ns]
    (path / ERRORS_FILE).write_bytes(b"".join(encode_document(line) + b"\n" for line in lines))
    elapsed = (to_ns - from_ns) / 1e9
    weights = sorted({span.weight for span in spans}) or [1]
    watched = ProfilingInfo(
        sampling=[SamplingChange(at_ns=from_ns, every=weights[-1])],
        elapsed_seconds=elapsed,
        not_measured={"overhead": "a flight recorder does not switch itself off to measure what it costs"},
    )
    replace_file(path / profiling.FILE, encode_document(watched, indent=True) + b"\n")
    changed = msgspec.structs.replace(
        info,
        schema_version=SCHEMA_VERSION,  # the recording may be of an older one
        ended_unix_seconds=begun + to_ns / 1e9,
        ended_monotonic_ns=to_ns,
        counters=_counters(samples),
        lost_spans=0,
        streams=info.streams
        if to_ns > recording.to_ns
        else [],  # of the whole run up to its end, and not of the time before
        summary=None,
        receiving=None,
        tending=None,
        window=f"{elapsed:.1f} s of a run, from a flight recorder",
    )
    replace_file(path / RUN_JSON, encode_document(changed, indent=True, or_text=True) + b"\n")


def _write_parquet(batch: object, file: Path) -> None:
    import pyarrow as pa

    temporary = file.with_name(f".{file.name}.tmp")
    pq.write_table(pa.Table.from_batches([batch]), temporary, compression="zstd")
    temporary.replace(file)


def _write_samples(recording: Recording, path: Path, samples: Sequence[Sample], from_ns: int, to_ns: int) -> None:
    resources = ResourceWriter(path, "recorder")
    for sample in samples:
        resources.write(sample.at_ns, sample.values)
    resources.close()
    states = StateWriter(path, "recorder")
    named = None
    for threads, look in recording.states:
        if from_ns <= look.at_ns < to_ns:
            if threads is not named:
                states.name_threads(threads.threads)
                named = threads
            states.write(look.at_ns, look.letters)
    states.close()
    if resources.lost_ticks or states.lost_lines:
        raise RunFolderError(f"{path} cannot be written whole: the disk is full; free space, or name another folder")
    for problem in seal(path):
        raise RunFolderError(f"{path}: {problem}")


def _counters(samples: Sequence[Sample]) -> Counters:
    runs = [sample.values["run"] for sample in samples if "run" in sample.values]
    if len(runs) < 2:
        return Counters()
    grown = {name: int(runs[-1].get(name, 0) - runs[0].get(name, 0)) for name in ("received", "delivered", "failed")}
    return Counters(received=grown["received"], delivered=grown["delivered"], rejected=grown["failed"])
