"""Compares what two run folders recorded: stretches of time within each run's steady part.

The runs did not take place at the same time, so the machine may have been faster for one of them: shared machines drift by some
percent between minutes. No statistics can take that out again; what is left is to allow for it (`DRIFT`).

References:
    MSER, the rule that finds the warm-up: K. P. White, "An effective truncation heuristic for bias reduction in simulation
    output", 1997.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow.compute as pc

from headrace.base.documents import decode_document
from headrace.base.errors import RunFolderError
from headrace.base.page_cache import State, state_of
from headrace.pipeline.definition import DELIVER
from headrace.runs.contained_files import own_file
from headrace.runs.emulation import emulated_engines
from headrace.runs.formats import profiling
from headrace.runs.reader import Run

#: By how much two runs may differ because the machine did: a share. Throughput of the same work on a shared machine was seen
#: to move by a tenth within minutes.
DRIFT = 0.10

_MOST_STRETCHES = 60
_FEWEST_STRETCHES = 10
#: Results per stretch, on average: enough for a median.
_RESULTS_PER_STRETCH = 12
#: Share of the stretches at the end in which the pipeline drains.
_DRAINING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What one run folder tells of one metric."""

    values: tuple[float, ...]
    """One for each stretch of time of the steady part, in order."""
    stretch_seconds: float
    warm_up_seconds: float
    """Left out at the beginning."""
    stages: Mapping[str, float]
    """{stage: mean service seconds per item, a batch's divided among its items}."""
    delivered: int
    failed: int
    """Both 0 of a run that did not end, as one that was killed: it did not get to count."""
    is_emulated: bool
    warnings: tuple[str, ...]


def read_recording(run: Run, metric: str) -> RecordedRun:
    """Return the stretches of a run's steady part.

    Args:
        run: The run folder.
        metric: `throughput`, `latency_p50` or `cpu_per_item`.

    Raises:
        RunFolderError: If the run is too short, of a training, or did not measure this.
    """
    if run.info.unit == "step":
        raise RunFolderError(
            f"{run.path} is of a training, and recorded trainings are not compared; `headrace train compare A.py B.py` runs "
            "both in turn and compares these"
        )
    spans = _Spans(run)
    settled, _ = spans.results()
    count = min(_MOST_STRETCHES, len(settled) // _RESULTS_PER_STRETCH)
    if count < _FEWEST_STRETCHES or settled.max() <= settled.min():
        raise RunFolderError(
            f"{run.path} holds {len(settled)} results with spans, and comparing what was recorded needs "
            f"{_FEWEST_STRETCHES * _RESULTS_PER_STRETCH} or more, spread over time; run longer, or both again with --measure"
        )
    edges = np.linspace(settled.min(), settled.max(), count + 1)
    values = _values(spans, metric, edges)
    values = values[: count - max(1, round(count * _DRAINING))]
    warm_up = warm_up_length(values)
    steady = values[warm_up:]
    steady = steady[np.isfinite(steady) & (steady > 0)]
    if len(steady) < _FEWEST_STRETCHES // 2:
        raise RunFolderError(
            f"{run.path} has no steady part: of {len(values)} stretches of time {len(steady)} can be used; run longer, or run "
            "both again with --measure"
        )
    return _recorded(run, spans, steady, edges, warm_up)


def read_side_by_side(a: Run, b: Run, metric: str) -> tuple[RecordedRun, RecordedRun] | None:
    """Return the same stretches of time of two that ran at the same time on one machine: a value of each in every stretch.

    None: they did not, or for too few results. The first and the last stretch are left out, as one of the two began or ended.
    """
    sides = (_Spans(a), _Spans(b))
    settled = [side.results()[0] for side in sides]
    if not all(map(len, settled)):
        return None
    low, high = max(times.min() for times in settled), min(times.max() for times in settled)
    together = min(int(((times >= low) & (times <= high)).sum()) for times in settled)
    count = min(_MOST_STRETCHES, together // _RESULTS_PER_STRETCH)
    if count < _FEWEST_STRETCHES or high <= low:
        return None
    edges = np.linspace(low, high, count + 1)
    values = np.array([_values(side, metric, edges) for side in sides])[:, 1:-1]
    values = values[:, (np.isfinite(values) & (values > 0)).all(axis=0)]
    if values.shape[1] < _FEWEST_STRETCHES // 2:
        return None
    told = [_recorded(run, side, row, edges, 0) for run, side, row in zip((a, b), sides, values, strict=True)]
    return told[0], told[1]


def _recorded(run: Run, spans: _Spans, values: np.ndarray, edges: np.ndarray, warm_up: int) -> RecordedRun:
    stretch_seconds = (edges[1] - edges[0]) / 1e9
    counters = run.info.counters
    return RecordedRun(
        values=tuple(map(float, values)),
        stretch_seconds=float(stretch_seconds),
        warm_up_seconds=float(warm_up * stretch_seconds),
        stages=spans.mean_service(),
        delivered=counters.delivered,
        failed=counters.rejected + counters.dead_lettered,
        is_emulated=bool(emulated_engines(run.info.variants)),
        warnings=tuple(f"{run.path}: {problem}" for problem in run.problems),
    )


def page_cache_of(run: Run) -> State | None:
    """Return whether a profiled run's input files were in memory when it began; None: it is not known, or there were none."""
    try:
        told = decode_document(own_file(run.path, run.path / profiling.FILE).read_bytes(), profiling.ProfilingInfo)
    except (OSError, msgspec.DecodeError):
        return None
    return state_of(told.page_cache_share)


def warm_up_length(values: np.ndarray) -> int:
    """Return how many of the first values to leave out: those whose loss makes the mean of the rest surest (MSER).

    Args:
        values: float, (stretches,); at most the first half is left out. What is not finite counts as the mean.
    """
    known = np.where(np.isfinite(values), values, np.nanmean(values))
    errors = [known[start:].var() / (len(known) - start) for start in range(len(known) // 2 + 1)]
    return int(np.argmin(errors))


class _Spans:
    """The spans of a run as arrays: times in ns of the run's clock."""

    def __init__(self, run: Run) -> None:
        table = run.spans()
        self._table = table
        self._path = run.path
        offsets: dict[str, int] = run.info.clock_offsets_ns
        hosts = table.column("host").to_pylist() if len(offsets) > 1 else []
        self._offset: Any = np.array([offsets.get(str(host), 0) for host in hosts], np.int64) if hosts else 0
        self._is_result = np.asarray(
            pc.and_(pc.equal(table.column("stage"), DELIVER), pc.equal(table.column("outcome"), "ok"))
        )

    def column(self, name: str) -> np.ndarray:
        """Return a column of numbers: float64, (spans,), NaN where empty."""
        return np.asarray(pc.cast(self._table.column(name), "float64"))

    def times(self, name: str) -> np.ndarray:
        """Return a column of times on the run's clock: int64, (spans,)."""
        times: np.ndarray = np.asarray(self._table.column(name)) + self._offset
        return times

    def results(self) -> tuple[np.ndarray, np.ndarray]:
        """Return when each result was delivered, ns, and for how many it stands."""
        return self.times("put")[self._is_result], self.column("weight")[self._is_result]

    def latencies(self) -> np.ndarray:
        """Return for each result the ns since its delivery of the job arrived, in the order of `results`."""
        table = self._table.append_column("at", [self.times("arrived")])
        first = table.group_by(["unit_id", "attempt"]).aggregate([("at", "min")])
        keys = zip(first.column("unit_id").to_pylist(), first.column("attempt").to_pylist(), strict=True)
        arrived = dict(zip(keys, first.column("at_min").to_pylist(), strict=True))
        results = table.filter(self._is_result)
        ids = zip(results.column("unit_id").to_pylist(), results.column("attempt").to_pylist(), strict=True)
        since: np.ndarray = self.results()[0] - np.array([arrived[key] for key in ids], dtype=np.int64)
        return since

    def cpu(self) -> np.ndarray:
        """Return CPU ns of each span, a batch's divided among its items, times the items that the span stands for.

        Raises:
            RunFolderError: If it was not measured.
        """
        cpu = self.column("cpu") / self._batch_sizes()
        if np.isnan(cpu).all():
            raise RunFolderError(
                f"{self._path} has no CPU times; `headrace profile` records them, or run both again with --measure"
            )
        seconds: np.ndarray = np.nan_to_num(cpu) * self.column("weight")
        return seconds

    def mean_service(self) -> dict[str, float]:
        """Return {stage: mean service seconds per item}, in the order of first work."""
        service = (self.column("ended") - self.column("started")) / self._batch_sizes() / 1e9
        stages = pc.dictionary_encode(self._table.column("stage")).combine_chunks()  # numbers: text would take seconds
        which, weights, started = np.asarray(stages.indices), self.column("weight"), self.times("started")
        rows = [(str(name), which == number) for number, name in enumerate(stages.dictionary.to_pylist())]
        found = sorted((int(started[row].min()), name, row) for name, row in rows if row.any())
        return {name: float(np.average(service[row], weights=weights[row])) for _, name, row in found}

    def _batch_sizes(self) -> np.ndarray:
        sizes = self.column("batch_size")
        return np.where(np.isnan(sizes), 1.0, sizes)


def _values(spans: _Spans, metric: str, edges: np.ndarray) -> np.ndarray:
    """Return the metric of each stretch."""
    settled, weights = spans.results()
    read = {"throughput": _throughput, "latency_p50": _latency, "cpu_per_item": _cpu}[metric]
    return read(spans, settled, weights, edges)


def _throughput(spans: _Spans, settled: np.ndarray, weights: np.ndarray, edges: np.ndarray) -> np.ndarray:
    counts = np.histogram(settled, edges, weights=weights)[0]
    rates: np.ndarray = counts / np.diff(edges) * 1e9
    return rates


def _latency(spans: _Spans, settled: np.ndarray, weights: np.ndarray, edges: np.ndarray) -> np.ndarray:
    latencies, where = spans.latencies() / 1e9, _stretch_of(settled, edges)
    return np.array([_median(latencies[where == number]) for number in range(len(edges) - 1)])


def _cpu(spans: _Spans, settled: np.ndarray, weights: np.ndarray, edges: np.ndarray) -> np.ndarray:
    used = np.histogram(spans.times("ended"), edges, weights=spans.cpu())[0] / 1e9
    counts = np.histogram(settled, edges, weights=weights)[0]
    per_item: np.ndarray = np.divide(used, counts, out=np.full(len(used), np.nan), where=counts > 0)
    return per_item


def _stretch_of(times: np.ndarray, edges: np.ndarray) -> np.ndarray:
    places: np.ndarray = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(edges) - 2)
    return places


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else float("nan")
