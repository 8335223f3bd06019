"""What profiling costs: a span, CPU per item with profiling on against off, the sampler process, writing, and the report.

* `span_us`: what one span costs the worker that makes it (clock readings, sizes, the note itself), on work that keeps the core.
* `cpu_ratio_5ms`, `cpu_ratio_0_5ms`: CPU per item of all processes, `headrace.profile` over `headrace.run`, for items that take
  5 ms and 0.5 ms of CPU in two stages; paired blocks (on off off on ...), the paired ratios' middle with its 95 % interval.
* `sampler_core_share`: CPU of the sampler process, which samples resources and thread states, over wall time.
* `write_million_spans_s`: CPU seconds to write a million spans.
* `report_million_spans_s`: from `headrace report` on a run of a million spans to the first chart in a browser.

    python -m benchmarks.overhead [--quick] [--json] [--write]
"""

from __future__ import annotations

import hashlib
import math
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import headrace as hr
from benchmarks import measure, ours
from headrace.base.clock import SystemClock
from headrace.base.metering import Metering, process_cpu_seconds
from headrace.base.records import Job, Span
from headrace.compare.intervals import paired_interval
from headrace.pipeline.execute import run as run_plain
from headrace.pipeline.group import Group
from headrace.pipeline.item import Item
from headrace.pipeline.watching import RunInProgress
from headrace.profiler.profile import Profiler, ProfileSettings
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SpanWriter

#: Left out at the start of each block: starting threads and the sampler.
_SETTLE_SECONDS = 0.7
_BUFFER = bytes(range(256)) * 65_536


# --- one span


def span_microseconds(rounds: int) -> dict[str, float]:
    """Return what one span costs the worker, in microseconds: metered, and with wall times only."""
    stages = [hr.stage(f"stage{number}", _same) for number in range(6)]
    costs: dict[str, list[float]] = {"metered": [], "wall_only": []}
    for _ in range(rounds):
        for name, is_on in (("metered", True), ("wall_only", False)):
            group = Group(stages, [_same] * len(stages), SystemClock(), 1, Metering(on=is_on))
            costs[name].append(_seconds_per_span(group, len(stages)) * 1e6)
    return {name: statistics.median(values) for name, values in costs.items()}


def _same(value: Any) -> Any:
    return value


def _seconds_per_span(group: Group, num_stages: int, count: int = 4000) -> float:
    items = [Item(Job(str(number), b""), b"image", ()) for number in range(count)]
    bare = time.thread_time()
    for _ in items:
        for _ in range(num_stages):
            _same(b"image")
    began = time.thread_time()
    for item in items:
        group.run([item], None)
    ended = time.thread_time()
    return (ended - began - (began - bare)) / (count * num_stages)


# --- CPU per item


@dataclass
class Block:
    """What one run of the pipeline cost between its settling in and its end."""

    cpu_seconds: float
    items: int
    """Passages through stages."""
    seconds: float
    helper_seconds: float

    @property
    def cpu_per_item(self) -> float:
        """CPU seconds per item, all processes."""
        return self.cpu_seconds / self.items


@dataclass
class _Meter:
    """Reads counters and CPU clocks while a run goes on."""

    progress: RunInProgress
    readings: list[tuple[float, int, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stopping.wait(0.05):
            sampler = sum(process_cpu_seconds(child) or 0.0 for child in _children())
            done = sum(self.progress.summary.progress().passages.values())
            self.readings.append((time.monotonic(), done, time.process_time(), sampler))

    def block(self) -> Block:
        """Return what was done from a while after the start to the last reading in full swing."""
        first = next(reading for reading in self.readings if reading[0] >= self.readings[0][0] + _SETTLE_SECONDS)
        most = self.readings[-1][1]
        last = [reading for reading in self.readings if reading[1] < 0.98 * most][-1]
        sampler = last[3] - first[3]
        return Block(last[2] - first[2] + sampler, last[1] - first[1], last[0] - first[0], sampler)


def _children() -> list[int]:
    found: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        found += [int(text) for text in file.read_text().split()]
    return found


class _Both:
    """The profiler, and the meter beside it."""

    def __init__(self, meter: _Meter, profiler: Profiler) -> None:
        self._parts: list[AbstractContextManager[Any]] = [profiler, meter]

    def __enter__(self) -> None:
        for part in self._parts:
            part.__enter__()

    def __exit__(self, *error: Any) -> None:
        for part in reversed(self._parts):
            part.__exit__(*error)


def run_block(item_seconds: float, block_seconds: float, *, profiled: bool, hash_rate: float) -> Block:
    """Run the two stages for about `block_seconds` and return what it cost.

    Args:
        item_seconds: CPU time of one item, half in each stage.
        block_seconds: About how long, on two cores.
        profiled: With the profiler, or as a plain run.
        hash_rate: Bytes per second that one core hashes.
    """
    work = _BUFFER[: max(2048, int(item_seconds / 2 * hash_rate))]

    def first(value: Any) -> Any:
        hashlib.sha256(work)
        return value

    def second(values: Any) -> list[int]:
        for _ in values:
            hashlib.sha256(work)
        return [0] * len(values)

    count = int(block_seconds / item_seconds * 2)
    stages = [hr.stage("first", first, releases_gil=True), hr.stage("second", second, kind="device")]
    pipeline = hr.Pipeline(ours.Listed([(str(number), b"x") for number in range(count)]), stages=stages)
    plan = hr.Plan().with_settings(["first.workers=1", "second.workers=1", "run.warm_up=false"])
    meters: list[_Meter] = []

    def watch(progress: RunInProgress) -> AbstractContextManager[Any]:
        meters.append(_Meter(progress))
        if not profiled:
            return meters[0]
        return _Both(meters[0], Profiler(progress, ProfileSettings(measure_overhead=False)))

    with tempfile.TemporaryDirectory() as folder:
        result = run_plain(pipeline, plan, output=Path(folder, "run") if profiled else None, watch=watch)
    if result.counters.delivered != count:
        raise RuntimeError(f"{result.counters.delivered} of {count} items were delivered")
    return meters[0].block()


def hash_bytes_per_second() -> float:
    """Return how many bytes one core hashes in a second of CPU time."""
    work = _BUFFER[:4_000_000]
    rates = []
    for _ in range(9):
        began = time.thread_time()
        hashlib.sha256(work)
        rates.append(len(work) / (time.thread_time() - began))
    return statistics.median(rates)


def cpu_ratio(item_seconds: float, pairs: int, block_seconds: float) -> dict[str, Any]:
    """Return the ratio of CPU per item, profiled over plain, of interleaved blocks."""
    rate = hash_bytes_per_second()
    blocks: dict[bool, list[Block]] = {True: [], False: []}
    for pair in range(pairs):
        for profiled in (True, False) if pair % 2 == 0 else (False, True):
            blocks[profiled].append(run_block(item_seconds, block_seconds, profiled=profiled, hash_rate=rate))
        on, off = blocks[True][-1], blocks[False][-1]
        _say(f"{item_seconds * 1e3:g} ms items, pair {pair + 1}: {on.cpu_per_item / off.cpu_per_item:.4f}")
    on_values = [block.cpu_per_item for block in blocks[True]]
    off_values = [block.cpu_per_item for block in blocks[False]]
    ratios = [on / off for on, off in zip(on_values, off_values, strict=True)]
    interval = paired_interval([math.log(ratio) for ratio in ratios])
    return {
        # Of too few pairs for 95 %: their range.
        "interval": [math.exp(value) for value in (interval.low, interval.mid, interval.high)]
        if interval
        else [min(ratios), statistics.median(ratios), max(ratios)],
        "pairs": ratios,
        # An item passes two stages and the delivery.
        "items_per_second": statistics.median(block.items / 3 / block.seconds for block in blocks[True]),
        "helper_core_share": statistics.median(block.helper_seconds / block.seconds for block in blocks[True]),
    }


# --- a million spans


def a_million_spans(folder: Path, count: int) -> tuple[RunFolder, float]:
    """Write so many spans of a made-up run and return its folder and the CPU seconds per million."""
    run = RunFolder.create(folder, pipeline="benchmarks.overhead")
    run.update(host="host", clock_offsets_ns={"host": 0})  # else the order of clocks is not checked, which takes time
    chunks = _spans(run.info.started_monotonic_ns, count)
    writer = SpanWriter(run.spans)
    began = time.process_time()
    for spans in chunks:
        while writer.waiting > 100_000:
            time.sleep(0.01)
        writer.stage_finished(spans)
    writer.close()
    seconds = time.process_time() - began
    if writer.written_spans != count:
        raise RuntimeError(f"{writer.written_spans} of {count} spans were written")
    run.finish("finished")
    return run, seconds / count * 1e6


def _spans(start: int, count: int) -> list[list[Span]]:
    stages = ("fetch", "decode", "preprocess", "process", "deliver")
    made: list[Span] = []
    for number in range(count):
        job, stage = divmod(number, len(stages))
        arrived = start + job * 300_000 + stage * 2_000_000
        began = arrived + 300_000 + number % 977 * 100
        ended = began + 1_000_000 + number % 1231 * 300
        made.append(
            Span(
                "item", f"job-{job:07d}", None, stages[stage], "plan12345678", "host", 4711, f"{stages[stage]}-{job % 4}",
                0, 1, "ok", arrived, began - 5_000, began, ended, ended + 2_000, ended - began - 30_000, 10_000 + number % 97,
                None, None, None, number % 17, 150_528, 602_112, "uint8[224x224x3]",
            )
        )  # fmt: skip
    return [made[first : first + 48] for first in range(0, count, 48)]


# --- all of it


def measure_all(quick: bool) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    from benchmarks.report_opening import seconds_to_first_chart

    span = span_microseconds(3 if quick else 15)
    _say(f"one span: {span['metered']:.2f} us on the worker ({span['wall_only']:.2f} with wall times only)")
    pairs, seconds = (2, 2.0) if quick else (16, 5.0)
    long_items = cpu_ratio(0.005, pairs, seconds)
    short_items = cpu_ratio(0.0005, pairs, seconds)
    count = 200_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as temporary:
        run, write_seconds = a_million_spans(Path(temporary, "run"), count)
        _say(f"writing: {write_seconds:.2f} s of CPU a million")
        opening = seconds_to_first_chart(run.path, 1 if quick else 3)
    _say(f"report of {count:,} spans: made in {opening.making:.2f} s, first chart {opening.drawing:.2f} s later")
    return {
        "span_us": span["metered"],
        "cpu_ratio_5ms": long_items["interval"],
        "cpu_ratio_0_5ms": short_items["interval"],
        "sampler_core_share": long_items["helper_core_share"],
        "write_million_spans_s": write_seconds,
        "report_million_spans_s": opening.making + opening.drawing,
        "span_wall_only_us": span["wall_only"],
        "pairs_5ms": long_items["pairs"],
        "pairs_0_5ms": short_items["pairs"],
        "items_per_second": [long_items["items_per_second"], short_items["items_per_second"]],
        "report_making_s": opening.making,
        "report_drawing_s": opening.drawing,
        "report_spans": count,
        "quick": quick,
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    return "\n".join(
        [
            "# What profiling costs",
            "",
            "| what | measured | goal |",
            "|---|---|---|",
            (
                f"| one span, on the worker | {result['span_us']:.2f} us ({result['span_wall_only_us']:.2f} with wall times "
                "only) | 2 us |"
            ),
            f"| CPU per item, 5 ms items, profiled / plain | {_interval(result['cpu_ratio_5ms'])} | 1.01 |",
            f"| CPU per item, 0.5 ms items, profiled / plain | {_interval(result['cpu_ratio_0_5ms'])} | 1.03 |",
            f"| sampler process (resources, thread states, GIL) | {result['sampler_core_share']:.2%} of a core | 1 % |",
            f"| writing a million spans | {result['write_million_spans_s']:.2f} s of CPU | 2 s |",
            (
                f"| report of {result['report_spans']:,} spans to its first chart | {result['report_million_spans_s']:.2f} s "
                f"(made in {result['report_making_s']:.2f} s, drawn {result['report_drawing_s']:.2f} s later) | 3 s |"
            ),
            "",
            (
                f"Ratios of {len(result['pairs_5ms'])} paired blocks with their 95 % interval; CPU of all processes, the "
                f"sampler's included, at {result['items_per_second'][0]:.0f} and {result['items_per_second'][1]:.0f} items/s."
            ),
        ]
    )


def _interval(values: Sequence[float]) -> str:
    return f"{values[1]:.4f} [{values[0]:.4f}, {values[2]:.4f}]"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark from the command line."""
    measure.run_benchmark("overhead", __doc__.splitlines()[0], measure_all, as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
