"""Run folders made by hand, whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.records import Counters
from headrace.base.statistics import samples_needed
from headrace.runs.formats import profiling
from headrace.runs.formats.profiling import ProfilingInfo
from headrace.runs.reader import Run, read_run
from headrace.runs.resource_files import RESOURCES_FILE, STATES_FILE, resource_schema, state_schema
from headrace.runs.run_folder import RunFolder, StageInfo
from headrace.runs.span_files import SPAN_SCHEMA

HOST = "h"
BEGIN_NS = 5_000_000_000
"""The first arrival of every run made here, on the run's clock."""
WARM_UP_NS = 2_000_000_000
"""How long before that the run began: models were warmed up meanwhile."""

_DEFAULTS: dict[str, Any] = {
    "unit": "item",
    "parent_id": None,
    "plan_id": "p1",
    "host": HOST,
    "process": 1,
    "rank": 0,
    "attempt": 1,
    "outcome": "ok",
    "cpu": None,
    "run_delay": None,
    "batch_id": None,
    "batch_size": None,
    "release_reason": None,
    "queue_depth": 0,
    "bytes_in": 10,
    "bytes_out": 20,
    "shape_key": None,
    "weight": 1,
}
_TIMES = ("arrived", "dequeued", "started", "ended", "put")


class RunBuilder:
    """Writes a run folder; times are given in seconds since the first arrival."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder.create(path, pipeline="app:pipeline", plans={"p1": {"run": {}}})
        # Waking threads costs nothing here unless a test says so: its answers must not depend on the machine.
        self.folder.update(
            host=HOST, clock_offsets_ns={HOST: 0}, started_monotonic_ns=BEGIN_NS - WARM_UP_NS, handoff=None
        )
        self.stages: list[StageInfo] = []
        self.tables: list[Any] = []
        self.samples: list[tuple[str, str, Any, Any]] = []
        self.states_table: Any = None

    def stage(self, name: str, **changes: Any) -> RunBuilder:
        """Add a stage; a `cpu` stage of one worker with a queue of its own unless told otherwise."""
        values: dict[str, Any] = {
            "kind": "cpu",
            "role": "deliver" if name == "deliver" else "map",
            "releases_gil": True,
            "executor": "thread",
            "station": name,
            "workers": 1,
            "queue_capacity": 16,
        }
        self.stages.append(StageInfo(name=name, **(values | changes)))
        return self

    def spans(self, stage: str, **columns: Any) -> RunBuilder:
        """Add rows of one stage; columns are arrays or one value for all, times (and cpu, run_delay) in seconds.

        What is not given: `dequeued`, `started` as `arrived`; `put` as `ended`; ids `job-0`, `job-1`, ...; thread `STAGE-0`.
        """
        count = len(columns["ended"])
        times = {"arrived": columns["arrived"]}
        for name in _TIMES[1:]:
            times[name] = columns.get(name, columns["ended"] if name == "put" else times["arrived"])
        times["ended"] = columns["ended"]
        values = _DEFAULTS | {"cached": None, "stage": stage, "thread": f"{stage}-0"} | columns
        values.setdefault("unit_id", [f"job-{number}" for number in range(count)])
        for name, seconds in times.items():
            values[name] = np.rint(np.asarray(seconds, float) * 1e9).astype(np.int64) + BEGIN_NS
        for name in ("cpu", "run_delay"):
            values[name] = _nanoseconds(values[name])
        arrays = [_array(values[field.name], count, field.type) for field in SPAN_SCHEMA]
        self.tables.append(pa.table(arrays, schema=SPAN_SCHEMA))
        return self

    def gauge(self, scope: str, name: str, seconds: Any, values: Any) -> RunBuilder:
        """Add samples of one gauge."""
        self.samples.append((scope, name, np.asarray(seconds, float), np.broadcast_to(values, np.shape(seconds))))
        return self

    def states(self, seconds: Any, thread: Any, state: Any, process: int = 1, has_gil: Any = False) -> RunBuilder:
        """Add samples of thread states."""
        count = len(seconds)
        times = np.rint(np.asarray(seconds, float) * 1e9).astype(np.int64) + BEGIN_NS
        columns = {
            "time": times,
            "process": [process] * count,
            "thread": [thread] * count if isinstance(thread, str) else thread,
            "state": [state] * count if isinstance(state, str) else state,
            "has_gil": [has_gil] * count if isinstance(has_gil, bool) else has_gil,
        }
        table = pa.table(columns).cast(state_schema())
        self.states_table = table if self.states_table is None else pa.concat_tables([self.states_table, table])
        return self

    def profiling(self, **fields: Any) -> RunBuilder:
        """Add profiling.json."""
        (self.folder.path / profiling.FILE).write_bytes(msgspec.json.encode(ProfilingInfo(**fields)))
        return self

    def finish(self, status: str = "finished", *, summary: bool = True, **changes: Any) -> Run:
        """Write everything and read it back.

        Args:
            status: Of run.json; `running` leaves it as it is while a run goes on.
            summary: Write exact counts, as they are in the spans.
            **changes: Other fields of run.json; `summary_changes` {stage: {key: value}} changes what is exact.
        """
        table = pa.concat_tables(self.tables) if self.tables else SPAN_SCHEMA.empty_table()
        if table.num_rows:
            pq.write_table(table, self.folder.spans / "h-1-000000.parquet")
        self._write_samples()
        was_sampled = self.samples or self.states_table is not None
        if summary and was_sampled and not (self.folder.path / profiling.FILE).exists():
            self.profiling()  # what a profiler sampled; it lived to write this
        summary_changes = changes.pop("summary_changes", {})
        fields: dict[str, Any] = {"stages": self.stages}
        if summary:
            counters = changes.pop("counters", None) or _counters(table)
            changes.setdefault("counters", counters)
            fields["summary"] = _summary(table, self.stages, counters, summary_changes)
        fields |= changes
        if status == "running":
            self.folder.update(**fields)
        else:
            self.folder.finish(status, **fields)  # type: ignore[arg-type]
            # Times are made up: the machine's clock must not count.
            elapsed = float((fields.get("summary") or {}).get("elapsed_seconds") or 0.0)
            self.folder.update(ended_monotonic_ns=BEGIN_NS + round((elapsed + 1.0) * 1e9))
        return read_run(self.folder.path)

    def _write_samples(self) -> None:
        if self.samples:
            columns: dict[str, list[Any]] = {"time": [], "scope": [], "name": [], "value": []}
            for scope, name, seconds, values in self.samples:
                columns["time"] += (np.rint(seconds * 1e9).astype(np.int64) + BEGIN_NS).tolist()
                columns["scope"] += [scope] * len(seconds)
                columns["name"] += [name] * len(seconds)
                columns["value"] += np.asarray(values, float).tolist()
            pq.write_table(pa.table(columns).cast(resource_schema()), self.folder.path / RESOURCES_FILE)
        if self.states_table is not None:
            pq.write_table(self.states_table, self.folder.path / STATES_FILE)


def _nanoseconds(seconds: Any) -> Any:
    if seconds is None:
        return None
    values = np.asarray(seconds, float) * 1e9
    return (
        pa.array(np.nan_to_num(np.rint(values)).astype(np.int64), mask=np.isnan(values)) if values.ndim else int(values)
    )


def _array(value: Any, count: int, kind: Any) -> Any:
    if isinstance(value, pa.Array):
        return value
    if value is None or np.ndim(value) == 0:
        value = [value] * count
    plain = pa.array(value, kind.value_type if pa.types.is_dictionary(kind) else kind)
    return plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain


def _counters(table: Any) -> Counters:
    rows = [row for row in table.select(["stage", "outcome", "unit_id"]).to_pylist() if row["stage"] == "deliver"]
    delivered = sum(row["outcome"] == "ok" for row in rows)
    jobs = len(set(table["unit_id"].filter(pa.compute.is_null(table["parent_id"])).to_pylist()))
    return Counters(received=jobs, delivered=delivered, dead_lettered=jobs - delivered)


def _summary(
    table: Any, stages: Sequence[StageInfo], counters: Counters, changes: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    seconds = {name: (table[name].to_numpy() - BEGIN_NS) / 1e9 for name in _TIMES}
    elapsed = float(seconds["put"].max()) if table.num_rows else 0.0
    names = np.array(table["stage"].to_pylist())
    ok = np.array(table["outcome"].to_pylist()) == "ok"
    size = table["batch_size"].fill_null(1).to_numpy()
    rows = []
    for stage in stages:
        own = names == stage.name
        service = seconds["ended"][own] - seconds["started"][own]
        busy = float((service / size[own]).sum())
        started = seconds["started"][own]
        batches = table.filter(pa.array(own))["batch_id"].drop_null() if own.any() else []
        row = {
            "name": stage.name,
            "workers": stage.workers,
            "items": int(own.sum()),
            "failed": int((own & ~ok).sum()),
            "busy_seconds": busy,
            "utilization_ratio": busy / elapsed / stage.workers if elapsed else None,
            "blocked_ratio": 0.0,
            "throughput_per_second": float((started < started.max()).sum() / np.ptp(started))
            if own.any() and np.ptp(started) > 0
            else None,
            "batches": {
                "count": len(batches.unique()),
                "mean_size": len(batches) / len(batches.unique()),
                "release_reasons": {},
            }
            if len(batches)
            else None,
            "service_seconds": _short(service),
            "queue_wait_seconds": _short(seconds["dequeued"][own] - seconds["arrived"][own]),
        }
        rows.append(row | changes.get(stage.name, {}))
    first: dict[str, float] = {}
    for unit, arrived in zip(table["unit_id"].to_pylist(), seconds["arrived"].tolist(), strict=True):
        first[unit] = min(arrived, first.get(unit, arrived))
    delivered = np.flatnonzero((names == "deliver") & ok) if len(names) else []
    latencies = [seconds["put"][row] - first[table["unit_id"][int(row)].as_py()] for row in delivered]
    return {
        "schema": "headrace.run/1",
        "complete": True,
        "elapsed_seconds": elapsed,
        "counters": msgspec.to_builtins(counters),
        "throughput_per_second": None,
        "latency_seconds": _short(np.array(latencies)),
        "stages": rows,
    }


def _short(values: Any) -> dict[str, Any]:
    count = len(values)
    return {
        "mean": float(values.mean()) if count else None,
        **{f"p{p}": float(np.percentile(values, p)) if count >= samples_needed(p) else None for p in (50, 90, 99)},
        "num_samples": count,
        "num_needed": {f"p{p}": samples_needed(p) for p in (50, 90, 99)},
    }


@pytest.fixture
def builder(tmp_path: Path) -> RunBuilder:
    """Makes one run folder."""
    return RunBuilder(tmp_path / "run")


@pytest.fixture
def single_server() -> Callable[..., RunBuilder]:
    """Fills a builder with one FIFO stage and a delivery that costs nothing, with gauges sampled from what really happened."""
    return fill_single_server


def fill_single_server(
    builder: RunBuilder,
    arrived: Any,
    service: Any,
    *,
    cpu_share: float = 1.0,
    sample_seconds: float = 0.1,
    queue_scale: float = 1.0,
    busy_scale: float = 1.0,
) -> RunBuilder:
    """See `single_server`.

    Args:
        builder: To fill.
        arrived: Seconds, growing, from 0.
        service: Seconds of each item.
        cpu_share: Of the service; the rest is blocked.
        sample_seconds: Between samples; 0 for no gauges.
        queue_scale: Falsifies the gauges of queues.
        busy_scale: Falsifies the gauge of busy workers.
    """
    arrived, service = np.asarray(arrived, float), np.asarray(service, float)
    ended = np.empty(len(arrived))
    last = 0.0
    for index, (at, cost) in enumerate(zip(arrived.tolist(), service.tolist(), strict=True)):
        last = max(at, last) + cost
        ended[index] = last
    started = ended - service
    builder.stage("work").stage("deliver", kind="io")
    builder.spans(
        "work",
        arrived=arrived,
        dequeued=started,
        started=started,
        ended=ended,
        cpu=service * cpu_share,
        run_delay=0.0 * service,
    )
    builder.spans("deliver", arrived=ended, ended=ended, put=ended, cpu=0.0 * ended, run_delay=0.0 * ended)
    if sample_seconds:
        at = np.arange(0.0, ended[-1], sample_seconds)

        def before(times: Any) -> Any:
            return np.searchsorted(np.sort(times), at, "right").astype(float)

        builder.gauge("stage:work", "queue_depth", at, queue_scale * (before(arrived) - before(started)))
        builder.gauge("stage:work", "busy_workers", at, busy_scale * (before(started) - before(ended)))
        builder.gauge("run", "in_flight", at, queue_scale * (before(arrived) - before(ended)))
        builder.gauge("run", "settled", at, before(ended))
        builder.gauge("run", "delivered", at, before(ended))
    return builder


@pytest.fixture
def busy_run(builder: RunBuilder) -> RunBuilder:
    """Twenty seconds of an M/M/1 queue at half load, filled in and not yet finished."""
    random = np.random.default_rng(7)
    arrived = np.cumsum(random.exponential(0.01, 2_000))
    return fill_single_server(builder, arrived - arrived[0], random.exponential(0.005, 2_000))
