"""Whether a run whose files were changed is still TRUSTED: kinds of tampering with a recorded run, and what is said of each.

    python -m benchmarks.tampering RUN [RUN ...]     # run folders of `headrace profile`, each of them TRUSTED as it is

How this works: each of the kinds changes one thing of a copy: rows are doubled, times are divided, counts are raised, a file
is taken away, as a program with a bug, a damaged disk or somebody who wants a better figure would. Nothing else is made to
agree with it. Of a run that computes, on a machine whose cores it uses, none of the copies may be TRUSTED; the table says
which checks refused each. Of one whose CPU time is next to nothing (an emulated device) some of it may be taken away
unnoticed: what is left out of a stage is then no more than what handing items on may cost.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.base.formatting import align_columns
from headrace.diagnose import profile_document
from headrace.runs.file_names import RUN_JSON, SPANS_FOLDER
from headrace.runs.formats import profiling
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.reader import read_run
from headrace.runs.resource_files import RESOURCES_FILE, STATES_FILE

_TIMES = ("arrived", "dequeued", "started", "ended", "put")


@dataclass(slots=True)
class Recording:
    """The files of a run folder, to be changed and written elsewhere."""

    info: dict[str, Any]
    """`run.json`."""
    profiling: dict[str, Any] | None
    """`profiling.json`; None: it is not written."""
    spans: Any
    """`pyarrow.Table`."""
    resources: Any
    """`pyarrow.Table`; None: it is not written."""
    states: Any
    """`pyarrow.Table`; None: it is not written."""

    @classmethod
    def read(cls, folder: Path) -> Recording:
        """Return what a run folder of a profiled run holds."""
        return cls(
            info=json.loads((folder / RUN_JSON).read_bytes()),
            profiling=json.loads((folder / profiling.FILE).read_bytes()),
            spans=read_run(folder).spans(),
            resources=pq.read_table(folder / RESOURCES_FILE),
            states=pq.read_table(folder / STATES_FILE),
        )

    def copy(self) -> Recording:
        """Return another that may be changed; tables never are."""
        info, profile = copy.deepcopy((self.info, self.profiling))
        return Recording(info, profile, self.spans, self.resources, self.states)

    def write(self, folder: Path) -> Path:
        """Write a new run folder and return it."""
        (folder / SPANS_FOLDER).mkdir(parents=True)
        (folder / RUN_JSON).write_text(json.dumps(self.info))
        pq.write_table(self.spans, folder / SPANS_FOLDER / f"{self.info['host']}-1-000000.parquet")
        if self.profiling is not None:
            (folder / profiling.FILE).write_text(json.dumps(self.profiling))
        for name, table in ((RESOURCES_FILE, self.resources), (STATES_FILE, self.states)):
            if table is not None:
                pq.write_table(table, folder / name)
        return folder

    @property
    def stage(self) -> str:
        """The stage that computes most."""
        cpu = np.nan_to_num(self.spans["cpu"].to_numpy(zero_copy_only=False).astype(float))
        names = np.array(self.spans["stage"].to_pylist())
        found: list[str] = sorted(set(names.tolist()))
        return max(found, key=lambda name: float(cpu[names == name].sum()))

    def rows_of(self, stage: str) -> Any:
        """Return the numbers of a stage's rows."""
        return np.flatnonzero(np.array(self.spans["stage"].to_pylist()) == stage)

    def column(self, name: str) -> Any:
        """Return a whole column as int64; what is not measured is 0."""
        return pc.fill_null(self.spans[name], 0).to_numpy().astype(np.int64)

    def set_column(self, name: str, values: Any, *, nulls: bool = True) -> None:
        """Replace a column of the spans.

        Args:
            name: Its name.
            values: Of all rows.
            nulls: Leave null what was null.
        """
        field = self.spans.schema.field(name)
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        new = pa.array(values).cast(plain)
        if nulls and self.spans[name].null_count:
            new = pc.if_else(pc.is_valid(self.spans[name].combine_chunks()), new, pa.scalar(None, plain))
        new = new.dictionary_encode() if pa.types.is_dictionary(field.type) else new
        self.spans = self.spans.set_column(self.spans.schema.get_field_index(name), field, new)

    def keep(self, rows: Any) -> None:
        """Keep some rows of the spans, in the order given."""
        self.spans = self.spans.take(pa.array(rows))

    def row(self, stage: str) -> dict[str, Any]:
        """Return a stage's row in the summary of `run.json`."""
        found: dict[str, Any] = next(one for one in self.info["summary"]["stages"] if one["name"] == stage)
        return found

    def scale_gauge(self, name: str, factor: float, scope: str = "") -> None:
        """Multiply the samples of a gauge."""
        names, scopes = self.resources["name"].to_pylist(), self.resources["scope"].to_pylist()
        hit = np.array([one == name and (not scope or of == scope) for one, of in zip(names, scopes, strict=True)])
        values = self.resources["value"].to_numpy()
        at = self.resources.schema.get_field_index("value")
        self.resources = self.resources.set_column(
            at, self.resources.schema.field(at), pa.array(np.where(hit, values * factor, values))
        )


@dataclass(frozen=True, slots=True)
class Tampering:
    """One way to change a run."""

    name: str
    apply: Callable[[Recording], object]


KINDS: list[Tampering] = []


def _kind(name: str) -> Callable[[Callable[[Recording], object]], Callable[[Recording], object]]:
    def add(apply: Callable[[Recording], object]) -> Callable[[Recording], object]:
        KINDS.append(Tampering(name, apply))
        return apply

    return add


# Rows of the spans.


@_kind("every tenth span twice")
def _double_rows(run: Recording) -> None:
    rows = np.arange(len(run.spans))
    run.keep(np.concatenate([rows, rows[::10]]))


@_kind("all spans twice")
def _all_twice(run: Recording) -> None:
    run.keep(np.tile(np.arange(len(run.spans)), 2))


@_kind("weights x 2")
def _weights(run: Recording) -> None:
    run.set_column("weight", run.column("weight") * 2)


@_kind("3 % of the spans gone")
def _few_gone(run: Recording) -> None:
    run.keep(np.flatnonzero(np.arange(len(run.spans)) % 33 > 0))


@_kind("half of the spans gone")
def _half_gone(run: Recording) -> None:
    run.keep(np.arange(len(run.spans) // 2))


@_kind("30 % of the jobs gone")
def _jobs_gone(run: Recording) -> None:
    ids = run.spans["unit_id"].to_pylist()
    number = {name: at for at, name in enumerate(dict.fromkeys(ids))}
    run.keep([row for row, name in enumerate(ids) if number[name] % 10 > 2])


@_kind("60 % of one stage gone")
def _stage_gone(run: Recording) -> None:
    own = run.rows_of(run.stage)
    run.keep(np.setdiff1d(np.arange(len(run.spans)), own[np.arange(len(own)) % 5 < 3]))


@_kind("20 % of the spans failed")
def _failed(run: Recording) -> None:
    outcome = run.spans["outcome"].to_pylist()
    run.set_column("outcome", ["error" if row % 5 == 0 else one for row, one in enumerate(outcome)])


@_kind("every span's stage is another's")
def _swapped(run: Recording) -> None:
    names = sorted(set(run.spans["stage"].to_pylist()))
    other = dict(zip(names, [*names[1:], names[0]], strict=True))
    run.set_column("stage", [other[name] for name in run.spans["stage"].to_pylist()])


@_kind("a Plan that the run did not have")
def _other_plan(run: Recording) -> None:
    run.set_column("plan_id", ["0123456789ab"] * len(run.spans))


@_kind("batches of twice the size")
def _batch_size(run: Recording) -> None:
    run.set_column("batch_size", run.column("batch_size") * 2)


@_kind("half of a stage's spans by other workers")
def _other_threads(run: Recording) -> None:
    own = set(run.rows_of(run.stage)[::2].tolist())
    threads = run.spans["thread"].to_pylist()
    run.set_column("thread", [f"{name}-x" if row in own else name for row, name in enumerate(threads)])


@_kind("one worker did all that a stage's workers did")
def _one_thread(run: Recording) -> None:
    names = {one["name"]: one["workers"] for one in run.info["stages"] if one["executor"] == "thread"}
    own = set(run.rows_of(max(names, key=lambda name: names[name])).tolist())
    threads = run.spans["thread"].to_pylist()
    first = threads[min(own)]
    run.set_column("thread", [first if row in own else name for row, name in enumerate(threads)])


# Times of the spans.


def _scale_service(run: Recording, factor: float) -> None:
    own = run.rows_of(run.stage)
    started, ended = run.column("started"), run.column("ended")
    ended[own] = started[own] + ((ended[own] - started[own]) * factor).astype(np.int64)
    run.set_column("ended", ended)


@_kind("service of a stage / 3")
def _service(run: Recording) -> None:
    _scale_service(run, 1 / 3)


@_kind("service of a stage x 0.8")
def _service_less(run: Recording) -> None:
    _scale_service(run, 0.8)


def _scale_times(run: Recording, factor: float) -> None:
    first = int(run.column("arrived").min())
    for name in _TIMES:
        run.set_column(name, first + ((run.column(name) - first) * factor).astype(np.int64))


@_kind("all times x 0.5")
def _times_half(run: Recording) -> None:
    _scale_times(run, 0.5)


@_kind("all times x 1.2")
def _times_more(run: Recording) -> None:
    _scale_times(run, 1.2)


@_kind("0.05 % of the spans end before they start")
def _few_backwards(run: Recording) -> None:
    _turn_back(run, max(1, round(len(run.spans) * 0.0005)))


@_kind("5 % of the spans end before they start")
def _many_backwards(run: Recording) -> None:
    _turn_back(run, len(run.spans) // 20)


def _turn_back(run: Recording, count: int) -> None:
    own = np.linspace(0, len(run.spans) - 1, count).astype(int)
    started, ended = run.column("started"), run.column("ended")
    started[own], ended[own] = ended[own] + 1000, started[own]
    run.set_column("started", started)
    run.set_column("ended", ended)


@_kind("a stage 50 ms early")
def _early(run: Recording) -> None:
    own = run.rows_of(run.stage)
    for name in _TIMES:
        values = run.column(name)
        values[own] -= 50_000_000
        run.set_column(name, values)


@_kind("no waits in a stage's queue")
def _no_waits(run: Recording) -> None:
    own = run.rows_of(run.stage)
    arrived, dequeued = run.column("arrived"), run.column("dequeued")
    arrived[own] = dequeued[own]
    run.set_column("arrived", arrived)


# CPU time of the spans.


def _scale_cpu(run: Recording, factor: float, column: str = "cpu", stage: str | None = None) -> None:
    own = run.rows_of(stage) if stage else np.arange(len(run.spans))
    values = run.column(column)
    values[own] = (values[own] * factor).astype(np.int64)
    run.set_column(column, values)


@_kind("CPU time of a stage x 0.2")
def _cpu_of_stage(run: Recording) -> None:
    _scale_cpu(run, 0.2, stage=run.stage)


@_kind("CPU time of all stages x 0.5")
def _cpu_half(run: Recording) -> None:
    _scale_cpu(run, 0.5)


@_kind("CPU time of all stages x 2")
def _cpu_twice(run: Recording) -> None:
    _scale_cpu(run, 2.0)


@_kind("run delay of all stages x 10")
def _delay(run: Recording) -> None:
    _scale_cpu(run, 10.0, "run_delay")


# Counts and settings of run.json.


@_kind("workers of a stage x 4")
def _workers(run: Recording) -> None:
    for one in run.info["stages"]:
        if one["name"] == run.stage:
            one["workers"] *= 4
            one["most_workers"] = one["workers"]


@_kind("workers of a stage x 4 wherever they stand")
def _workers_everywhere(run: Recording) -> None:
    _workers(run)
    row = run.row(run.stage)
    row["workers"] *= 4
    row["utilization_ratio"] /= 4
    row["blocked_ratio"] /= 4
    for plan in run.info["plans"].values():
        plan["stages"][run.stage]["workers"] *= 4


@_kind("four times the cores")
def _cores(run: Recording) -> None:
    run.info["hardware"]["num_cores"] *= 4


@_kind("a third of the cores by quota")
def _quota(run: Recording) -> None:
    run.info["hardware"]["cpu_quota"] = run.info["hardware"]["num_cores"] / 3


@_kind("rate of the summary x 2")
def _rate(run: Recording) -> None:
    run.info["summary"]["throughput_per_second"] *= 2


@_kind("time of the summary x 0.5")
def _elapsed(run: Recording) -> None:
    run.info["summary"]["elapsed_seconds"] /= 2


@_kind("time and rates of the summary as if in half the time")
def _elapsed_and_rates(run: Recording) -> None:
    summary = run.info["summary"]
    summary["elapsed_seconds"] /= 2
    summary["throughput_per_second"] *= 2
    for row in summary["stages"]:
        for name in ("throughput_per_second", "utilization_ratio", "blocked_ratio"):
            row[name] = None if row[name] is None else row[name] * 2


@_kind("begin and end of the run closer")
def _clock(run: Recording) -> None:
    begin, end = run.info["started_monotonic_ns"], run.info["ended_monotonic_ns"]
    run.info["ended_monotonic_ns"] = begin + (end - begin) // 2


@_kind("a tenth more jobs received and delivered")
def _more_jobs(run: Recording) -> None:
    for counters in (run.info["counters"], run.info["summary"]["counters"]):
        more = counters["delivered"] // 10
        counters["received"] += more
        counters["delivered"] += more


@_kind("a twentieth of the jobs rejected, not delivered")
def _rejected(run: Recording) -> None:
    for counters in (run.info["counters"], run.info["summary"]["counters"]):
        some = counters["delivered"] // 20
        counters["rejected"] += some
        counters["delivered"] -= some


@_kind("a twentieth of the jobs without outcome")
def _no_outcome(run: Recording) -> None:
    for counters in (run.info["counters"], run.info["summary"]["counters"]):
        counters["received"] += counters["delivered"] // 20


@_kind("other counts in the summary than beside it")
def _two_counts(run: Recording) -> None:
    counters = run.info["summary"]["counters"]
    counters["received"] *= 2
    counters["delivered"] *= 2


@_kind("latencies of the summary halved")
def _latency(run: Recording) -> None:
    _scale_distribution(run.info["summary"]["latency_seconds"], 0.5)


@_kind("waits of a stage in the summary halved")
def _waits(run: Recording) -> None:
    _scale_distribution(run.row(run.stage)["queue_wait_seconds"], 0.5)


@_kind("service of a stage in the summary halved")
def _service_in_summary(run: Recording) -> None:
    _scale_distribution(run.row(run.stage)["service_seconds"], 0.5)


def _scale_distribution(known: dict[str, Any], factor: float) -> None:
    for name in ("mean", "p50", "p90", "p99"):
        known[name] = None if known[name] is None else known[name] * factor


@_kind("busy time of a stage x 2")
def _busy(run: Recording) -> None:
    run.row(run.stage)["busy_seconds"] *= 2


@_kind("utilization of a stage halved")
def _utilization(run: Recording) -> None:
    run.row(run.stage)["utilization_ratio"] /= 2


@_kind("passages of a stage x 1.1")
def _passages(run: Recording) -> None:
    run.row(run.stage)["items"] = round(run.row(run.stage)["items"] * 1.1)


@_kind("half as many batches")
def _batches(run: Recording) -> None:
    for row in run.info["summary"]["stages"]:
        if row["batches"]:
            row["batches"]["count"] //= 2
            row["batches"]["mean_size"] *= 2


@_kind("cost curve / 10")
def _curve_down(run: Recording) -> None:
    _scale_curve(run, 0.1)


@_kind("cost curve x 10")
def _curve_up(run: Recording) -> None:
    _scale_curve(run, 10.0)


def _scale_curve(run: Recording, factor: float) -> None:
    for curve in run.info["cost_curves"].values():
        for size in curve:
            curve[size] = [seconds * factor for seconds in curve[size]]


@_kind("stages of run.json in another order")
def _order(run: Recording) -> None:
    names = [one["name"] for one in run.info["stages"]]
    for one, name in zip(run.info["stages"], [*names[1:], names[0]], strict=True):
        one["name"] = name


@_kind("the run's own clock off by a second")
def _offset(run: Recording) -> None:
    run.info["clock_offsets_ns"] = {run.info["host"]: 1_000_000_000}


# What was measured beside the spans.


@_kind("profiling.json gone")
def _no_profiling(run: Recording) -> None:
    run.profiling = None


@_kind("resources.parquet gone")
def _no_resources(run: Recording) -> None:
    run.resources = None


@_kind("states.parquet gone")
def _no_states(run: Recording) -> None:
    run.states = None


def _of(run: Recording) -> dict[str, Any]:
    assert run.profiling is not None
    return run.profiling


@_kind("CPU time of the processes x 0.5")
def _process_cpu(run: Recording) -> None:
    _of(run)["process_cpu_seconds"] *= 0.5


@_kind("CPU time of the processes x 3")
def _process_cpu_more(run: Recording) -> None:
    _of(run)["process_cpu_seconds"] *= 3


@_kind("CPU time of the workers' threads x 0.5")
def _thread_cpu(run: Recording) -> None:
    _of(run)["thread_cpu_seconds"]["workers"] *= 0.5


@_kind("time that was profiled x 2")
def _profiled(run: Recording) -> None:
    _of(run)["elapsed_seconds"] *= 2


@_kind("queues twice as deep")
def _depth(run: Recording) -> None:
    run.scale_gauge("queue_depth", 2.0)
    run.scale_gauge("in_flight", 2.0)


@_kind("workers seen busy a third as often")
def _busy_gauge(run: Recording) -> None:
    run.scale_gauge("busy_workers", 0.33)


@_kind("twice as many seen delivered")
def _delivered_gauge(run: Recording) -> None:
    run.scale_gauge("delivered", 2.0)
    run.scale_gauge("settled", 2.0)


@_kind("the neighbours' cores taken out")
def _neighbours(run: Recording) -> None:
    run.scale_gauge("other_cpu_cores", 0.0)


@_kind("the second half of the samples gone")
def _half_sampled(run: Recording) -> None:
    times = run.resources["time"]
    middle = (pc.min(times).as_py() + pc.max(times).as_py()) // 2
    run.resources = run.resources.filter(pc.less(times, middle))


@_kind("samples of another run")
def _other_samples(run: Recording) -> None:
    at = run.resources.schema.get_field_index("time")
    moved = pc.add(run.resources["time"], 3_600_000_000_000)
    run.resources = run.resources.set_column(at, run.resources.schema.field(at), moved)


def _set_states(run: Recording, state: str) -> None:
    at = run.states.schema.get_field_index("state")
    field = run.states.schema.field(at)
    values = pa.array([state] * len(run.states)).dictionary_encode().cast(field.type)
    run.states = run.states.set_column(at, field, values)


@_kind("all threads running all the time")
def _all_running(run: Recording) -> None:
    _set_states(run, "running")


@_kind("all threads waiting for the network all the time")
def _all_waiting(run: Recording) -> None:
    _set_states(run, "network")


@_kind("thread states of another run")
def _other_states(run: Recording) -> None:
    at = run.states.schema.get_field_index("time")
    moved = pc.add(run.states["time"], 3_600_000_000_000)
    run.states = run.states.set_column(at, run.states.schema.field(at), moved)


def judge(run: Recording, tampering: Tampering | None = None) -> ProfileDocument:
    """Return the analysis of a recording, changed if asked for."""
    changed = run.copy()
    if tampering is not None:
        tampering.apply(changed)
    with tempfile.TemporaryDirectory() as folder:
        return profile_document(read_run(changed.write(Path(folder) / "run")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is said of each kind, and return how many are TRUSTED; of a run that is not trusted as it is, nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tampering", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="run folder of headrace profile")
    missed = 0
    for folder in parser.parse_args(arguments).runs:
        run = Recording.read(folder)
        plain = judge(run)
        if not plain.trusted:
            print(f"{folder} is {plain.trust} as it is: {'; '.join(plain.doubts)}", file=sys.stderr)
            continue
        documents = {kind.name: judge(run, kind) for kind in KINDS}
        rows = [("tampering", "is", "because of")]
        for name, found in documents.items():
            refused = ", ".join(dict.fromkeys(one.partition(":")[0] for one in found.doubts))
            rows.append((name, found.trust, refused if len(refused) < 60 else f"{refused[:57]}..."))
        trusted = sum(found.trusted for found in documents.values())
        missed += trusted
        print(f"{folder.name}: {trusted} of {len(documents)} are TRUSTED\n")
        print("\n".join(align_columns(rows)), end="\n\n")
    return missed


if __name__ == "__main__":
    sys.exit(min(1, main()))
