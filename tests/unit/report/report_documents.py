"""Documents with everything filled in, as a run of the demo's shape would give them; every test of the report draws these.

Loaded by path from the `conftest.py` of the unit and of the integration tests: test folders are not packages.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.base.plan import Plan
from headrace.runs.formats.comparison import ComparisonDocument, Side
from headrace.runs.formats.diagnosis import (
    Bound,
    Candidate,
    DiagnosisDocument,
    EvidenceLine,
    Finding,
    GoalCheck,
    Remedy,
    VerdictClass,
)
from headrace.runs.formats.experiment import ExperimentDocument, Interval, Perturbation, Stretch
from headrace.runs.formats.isolation import CurvePoint, IsolationDocument, StageAlone, Variation
from headrace.runs.formats.layers import Ceilings, Layer, LayersDocument
from headrace.runs.formats.profile import (
    Batches,
    BlockedSplit,
    Check,
    CpuAccount,
    CpuLine,
    Distribution,
    Environment,
    Estimate,
    ItemPath,
    MemoryGrowth,
    PathSpan,
    Point,
    ProfileDocument,
    Quantile,
    RuntimeCost,
    Series,
    StageAccount,
    StreamAccount,
    Window,
)
from headrace.runs.formats.profiling import OverheadEstimate

ELAPSED = 42.7
WARM_UP = 4.1


def full_document(*, num_cores: int = 4, num_layers: int = 42, num_points: int = 300) -> ProfileDocument:
    """Return a trusted profile in which everything was measured."""
    plan = Plan().with_settings(["fetch.workers=16", "process.batch=8"])
    return ProfileDocument(
        run="first",
        headrace_version="0.1.0",
        status="finished",
        pipeline="headrace.demo.scenes:pipeline",
        plan_id=plan.plan_id,
        plan=plan.as_table(),
        started_unix_seconds=1_795_250_000.0,
        elapsed_seconds=ELAPSED,
        is_emulated=True,
        trusted=True,
        distrust=(),
        counters={"received": 1210, "delivered": 1187, "rejected": 21, "dead_lettered": 2, "retried": 5, "lost": 0},
        window=Window(
            from_seconds=WARM_UP, to_seconds=41.2, warm_up_seconds=WARM_UP, is_steady=True,
            says="Steady from 4.1 s to 41.2 s; the two halves differ by 0.8 %.",
        ),
        throughput=28.4,
        latency=latency_sample(),
        stages=stage_accounts(),
        streams=stream_accounts(),
        cpu=CpuAccount(
            total_seconds=92.4, elapsed_seconds=ELAPSED, num_cores=float(num_cores), explained_share=0.943,
            lines=(
                CpuLine(name="decode", kind="stage", seconds=51.2, share=0.554),
                CpuLine(name="preprocess", kind="stage", seconds=17.9, share=0.194),
                CpuLine(name="fetch", kind="stage", seconds=6.3, share=0.068),
                CpuLine(name="receiving", kind="headrace", seconds=2.9, share=0.031),
                CpuLine(name="bookkeeping", kind="headrace", seconds=4.1, share=0.044),
                CpuLine(name="native threads", kind="native", seconds=4.8, share=0.052),
                CpuLine(name="unattributed", kind="unattributed", seconds=5.2, share=0.057),
            ),
        ),
        runtime=RuntimeCost(
            seconds=7.0, seconds_per_item=0.0059, share=0.076, core_share=0.021,
            parts={"bookkeeping": 0.0035, "receiving": 0.0024},
            voluntary_switches_per_item=4.2, involuntary_switches_per_item=0.7, says="5.90 ms of CPU time per item",
        ),
        series=all_series(num_cores, num_points),
        not_measured={"gpu": "no NVIDIA driver on this machine", "cgroup throttling": "no cpu.stat in this control group"},
        memory_growth=MemoryGrowth(
            bytes_per_1000_items=Estimate(-3.1e5, 1.2e5, 5.4e5), verdict="flat",
            reason="The interval holds 0, and 0.12 MB per 1,000 items is less than the noise of 0.6 MB.",
        ),
        slow_item=slow_path(),
        checks=all_checks(),
        environment=Environment(
            grade="B", reasons=("0.31 cores were used by others.", "Run delay was 6.2 % of the service of CPU stages."),
            run_delay_share=0.062, other_cpu_cores=0.31, cpu_pressure=0.083, steal_share=0.004, throttled_share=None,
            page_cache="warm",
        ),
        overhead=OverheadEstimate(
            low=0.996, mid=1.004, high=1.012, num_pairs=18,
            says="CPU per item with the profiler's clocks on was 1.004 times that with them off (0.996 to 1.012, 18 pairs).",
            helper_core_share=0.013, writer_core_share=0.006,
        ),
        layers=layers_document(num_layers),
        isolation=isolation_document(),
        hot_spots={"decode": "hot_spots/decode.speedscope.json"},
        versions={"numpy": "2.3.1", "onnxruntime": "1.23.0", "pyarrow": "21.0.0"},
        hardware={"cpu_model": "AMD EPYC 7B13", "num_cores": num_cores, "cpu_quota": None, "memory_bytes": 16_700_000_000,
                  "kernel": "6.1.0", "python": "3.11.9", "accelerators": []},
        variants=({"artifact": "scenes.onnx", "engine": "emulated", "threads": 1, "sha256": "9f2c" * 16},),
        warnings=("decode asks for 6 workers, and the machine has 4 cores.",),
        problems=(),
    )  # fmt: skip


def bare_document() -> ProfileDocument:
    """Return what `headrace run` alone leaves: spans, and nothing of the profiler."""
    full = full_document()
    stages = tuple(
        msgspec.structs.replace(
            stage, cpu=None, run_delay=None, blocked=None, blocked_split=None, cpu_demand=None, utilization=None,
            queue_depth_mean=None, queue_depth_max=None, batches=None, shapes={},
        )
        for stage in full.stages
    )  # fmt: skip
    few = Distribution(
        num_samples=9, mean=0.4, minimum=0.3, maximum=0.5,
        percentiles=tuple(Quantile(percent, None, needed) for percent, needed in ((50, 11), (90, 64), (99, 662))),
    )  # fmt: skip
    return msgspec.structs.replace(
        full, is_emulated=False, trusted=False, distrust=("sample_counts: 9 items are too few for any percentile.",),
        latency=few, stages=stages, cpu=None, series=(), memory_growth=None, slow_item=None, overhead=None, layers=None,
        isolation=None, hot_spots={}, variants=(), warnings=(), hardware={}, versions={}, counters={}, throughput=None,
        environment=Environment(
            grade=None, reasons=(), run_delay_share=None, other_cpu_cores=None, cpu_pressure=None, steal_share=None,
            throttled_share=None, page_cache=None,
        ),
        window=Window(from_seconds=0, to_seconds=ELAPSED, warm_up_seconds=0, is_steady=None, says="Too short to tell."),
        checks=(), not_measured={},
    )  # fmt: skip


def comparison_document() -> ComparisonDocument:
    """Return a comparison that found B better."""
    noise = random.Random(7)
    a = tuple(21.0 * noise.gauss(1, 0.02) for _ in range(12))
    return ComparisonDocument(
        a=Side(name="before", pipeline="demo:pipeline", plan_id="aaaaaaaaaaaa", values=a, median=sorted(a)[6],
               stages={"fetch": 0.224, "decode": 0.029, "preprocess": 0.034, "process": 0.306}),
        b=Side(name="after", pipeline="demo:pipeline", plan_id="bbbbbbbbbbbb", values=tuple(1.31 * value for value in a),
               median=1.31 * sorted(a)[6], stages={"fetch": 0.221, "decode": 0.021, "process": 0.285, "deliver": 0.012}),
        metric="throughput", unit="items/s", higher_is_better=True, paired=True, num_pairs=12, ratio=1.31, ratio_low=1.27,
        ratio_high=1.34, margin=0.02, budget=0.05, verdict="better", is_regression=False, pairs_needed=None,
        says=("B settles 31 % more items per second.",),
    )  # fmt: skip


def latency_sample() -> Distribution:
    """Return a skewed histogram with logarithmic bins."""
    edges = tuple(0.18 * 1.06**index for index in range(41))
    counts = tuple(round(120 * math.exp(-(((index - 14) / 7) ** 2)) + (2 if index > 25 else 0)) for index in range(40))
    return Distribution(
        num_samples=sum(counts), mean=0.462, minimum=0.183, maximum=1.79, bin_edges=edges, bin_counts=counts,
        percentiles=(Quantile(50, 0.417, 11), Quantile(90, 0.713, 64), Quantile(99, 1.512, 662)),
    )  # fmt: skip


def stream_accounts() -> tuple[StreamAccount, ...]:
    """Return an urgent camera that came all the time, one that stood still, and one that never came."""
    gate = StreamAccount(
        name="gate", is_urgent=True, seconds=42.0, came=1050, wanted=210, answered=208, came_per_second=25.0,
        wanted_per_second=5.0, answered_per_second=4.952, skipped={"fps": 840}, dropped={"newer": 1, "end": 1}, failed={},
        connections=1, age_p50_seconds=0.0931, age_p99_seconds=0.1537, jitter_p50_seconds=0.0011, jitter_p99_seconds=0.0123,
        stalls=0, stalled_seconds=0.0, longest_stall_seconds=0.0,
    )  # fmt: skip
    yard = msgspec.structs.replace(
        gate, name="yard", is_urgent=False, answered=121, failed={"deadline.passed": 7}, stalls=2, stalled_seconds=17.3,
        longest_stall_seconds=11.9, connections=3,
    )  # fmt: skip
    roof = msgspec.structs.replace(
        yard, name="roof", came=0, wanted=0, answered=0, came_per_second=0.0, wanted_per_second=0.0, answered_per_second=0.0,
        skipped={}, dropped={}, failed={}, connections=0, age_p50_seconds=None, age_p99_seconds=None,
        jitter_p50_seconds=None, jitter_p99_seconds=None, stalls=1, stalled_seconds=42.7, longest_stall_seconds=42.7,
    )  # fmt: skip
    return gate, yard, roof


def stage_accounts() -> tuple[StageAccount, ...]:
    """Return five stages, among them one with batches and one that is fused into another."""
    return (
        _stage("fetch", "io", 16, 0.224, cpu=0.0053, run_delay=0.0009, wait=0.118,
               split=_split(0.2178, network=0.211, gil=0.004)),
        _stage("decode", "cpu", 3, 0.0291, cpu=0.0212, run_delay=0.0041, wait=0.046, split=_split(0.0038, gil=0.0031)),
        _stage("preprocess", "cpu", 3, 0.0343, cpu=0.0151, run_delay=0.0022, wait=0.0112, station="decode",
               split=_split(0.017, gil=0.0149, lock=0.0011)),
        _stage("process", "device", 1, 0.2856, cpu=0.0014, run_delay=0.0001, wait=0.0713, split=_split(0.2841, sleep=0.2839),
               batches=Batches(num_batches=152, mean_size=7.81, sizes={8: 143, 7: 4, 5: 2, 3: 2, 1: 1},
                               release_reasons={"full": 143, "idle": 8, "drain": 1},
                               cost_curve={1: 0.0476, 2: 0.0816, 4: 0.1496, 8: 0.2856})),
        _stage("deliver", "io", 4, 0.0121, cpu=0.0008, run_delay=0.0, wait=0.0004, split=_split(0.0113, network=0.0109)),
    )  # fmt: skip


def _split(blocked: float, **parts: float) -> BlockedSplit:
    return BlockedSplit(**parts, unknown=blocked - sum(parts.values()), num_samples=812)


def _stage(
    name: str, kind: str, workers: int, service: float, *, cpu: float, run_delay: float, wait: float, split: BlockedSplit,
    station: str | None = None, batches: Batches | None = None,
) -> StageAccount:  # fmt: skip
    def around(mean: float) -> Distribution:
        percentiles = (Quantile(50, 0.94 * mean, 11), Quantile(90, 1.4 * mean, 64), Quantile(99, 2.2 * mean, 662))
        return Distribution(num_samples=1150, mean=mean, minimum=0.6 * mean, maximum=3 * mean, percentiles=percentiles)

    return StageAccount(
        name=name, kind=kind, executor="inline" if station else "thread", station=station or name, workers=workers, items=1187,
        failed=2, num_spans=1187, service=around(service), queue_wait=around(wait), setup=0.0004, blocked_put=0.0062, cpu=cpu,
        run_delay=run_delay, blocked=service - cpu - run_delay, blocked_split=split, cpu_demand=cpu / 8 if batches else cpu,
        busy_seconds=1187 * service / (8 if batches else 1), utilization=0.83, throughput=28.4, bytes_in=184_213.0,
        bytes_out=602_112.0, queue_depth_mean=5.2, queue_depth_max=16, queue_capacity=32, batches=batches,
        shapes={"uint8 (1080, 1620, 3)": 811, "uint8 (720, 1080, 3)": 376} if name == "decode" else {},
    )  # fmt: skip


def all_series(num_cores: int, num_points: int) -> tuple[Series, ...]:
    """Return what the sampler gives on a machine with a GPU."""
    noise = random.Random(3)

    def made(scope: str, name: str, unit: str, shape: Callable[[float], float]) -> Series:
        times = [ELAPSED * index / num_points for index in range(num_points)]
        values = [max(0.0, shape(at) * noise.gauss(1, 0.06)) for at in times]
        points = tuple(Point(at, value) for at, value in zip(times, values, strict=True))
        return Series(
            scope=scope, name=name, unit=unit, mean=sum(values) / num_points, maximum=max(values), points=points
        )

    def ramp(top: float) -> Callable[[float], float]:
        return lambda at: top * min(1.0, at / WARM_UP)

    told: list[tuple[str, str, str, Callable[[float], float]]] = [
        ("run", "throughput", "items/s", ramp(28.4)),
        ("run", "in_flight", "items", ramp(31)),
        *((f"stage:{stage}", "queue_depth", "items", ramp(depth)) for stage, depth in
          (("fetch", 3), ("decode", 14), ("process", 7), ("deliver", 0.4))),
        *((f"stage:{stage}", "busy_workers", "count", ramp(busy)) for stage, busy in
          (("fetch", 13), ("decode", 2.6), ("process", 0.97))),
        *((f"cpu{core}", "busy_ratio", "ratio", ramp(0.9 - 0.6 * core / num_cores)) for core in range(num_cores)),
        ("machine", "cpu_busy_cores", "count", ramp(2.6)),
        ("processes", "cpu_cores", "count", ramp(2.2)),
        ("machine", "other_cpu_cores", "count", ramp(0.31)),
        ("processes", "involuntary_switches_per_second", "1/s", ramp(211)),
        ("processes", "threads", "count", lambda at: 41),
        ("disk:sda", "busy_ratio", "ratio", ramp(0.12)),
        ("machine", "cpu_pressure_ratio", "ratio", ramp(0.08)),
        ("machine", "io_pressure_ratio", "ratio", ramp(0.01)),
        ("machine", "cpu_steal_ratio", "ratio", ramp(0.004)),
        ("processes", "rss_bytes", "bytes", lambda at: 4.1e8 + 2e6 * at),
        ("machine", "memory_available_bytes", "bytes", lambda at: 9.3e9),
        ("disk:sda", "read_bytes_per_second", "bytes/s", ramp(3.1e6)),
        ("disk:sda", "write_bytes_per_second", "bytes/s", ramp(8.2e5)),
        ("network:eth0", "receive_bytes_per_second", "bytes/s", ramp(5.2e6)),
        ("network:eth0", "send_bytes_per_second", "bytes/s", ramp(2.1e5)),
        ("gpu0", "utilization_ratio", "ratio", ramp(0.93)),
        ("gpu0", "memory_bytes", "bytes", ramp(2.1e9)),
        ("gpu0", "sm_clock_hertz", "hertz", lambda at: 1.59e9),
        ("gpu0", "power_watts", "watts", ramp(68)),
        ("gpu0", "temperature_celsius", "celsius", lambda at: 52 + 0.3 * at),
    ]  # fmt: skip
    return tuple(made(*one) for one in told)


def slow_path() -> ItemPath:
    """Return an item that waited long before decode, with a try that failed."""
    times = (
        ("fetch", 0.0, 0.002, 0.002, 0.31, 0.32, "failed"),
        ("fetch", 0.32, 0.33, 0.33, 0.61, 0.62, "ok"),
        ("decode", 0.62, 1.05, 1.05, 1.09, 1.09, "ok"),
        ("preprocess", 1.09, 1.09, 1.09, 1.13, 1.17, "ok"),
        ("process", 1.17, 1.19, 1.2, 1.49, 1.49, "ok"),
        ("deliver", 1.49, 1.491, 1.491, 1.512, 1.512, "ok"),
    )
    spans = tuple(
        PathSpan(
            stage=stage, unit_id="images/0412.jpg", worker=f"{stage}-2", process=4711, arrived=arrived, dequeued=dequeued,
            started=started, ended=ended, put=put, cpu=0.6 * (ended - started), run_delay=0.001, outcome=outcome,
            batch_size=8 if stage == "process" else None,
        )
        for stage, arrived, dequeued, started, ended, put, outcome in times
    )  # fmt: skip
    return ItemPath(unit_id="images/0412.jpg", latency=1.512, percentile=99.0, spans=spans)


def all_checks() -> tuple[Check, ...]:
    """Return one check of each status and some more."""
    return (
        Check(name="littles_law", status="ok", value=0.013, limit=0.05, source="Little, 1961",
              says="Items in flight by the gauges, 13.1, and by throughput times latency, 13.3, differ by 1.3 %."),
        Check(name="utilization_law", status="ok", value=0.021, limit=0.05, source="Denning and Buzen, 1978",
              says="Busy time and throughput times service agree within 2.1 %."),
        Check(name="explained_cpu", status="ok", value=0.943, limit=0.85, says="94.3 % of the CPU time has a name."),
        Check(name="steady_state", status="warning", value=0.061, limit=0.05,
              says="The second half was 6.1 % slower than the first: run longer, or look at the clocks of the machine."),
        Check(name="clock_order", status="not_measured", value=None, limit=None, says="Only one process wrote spans."),
        Check(name="span_identity", status="ok", value=0.0004, limit=0.05,
              says="CPU and run delay are within the service in all but 0.04 % of spans."),
    )  # fmt: skip


def isolation_document() -> IsolationDocument:
    """Return two concurrency curves and all variations, one of which could not be run."""

    def curve(best: float, knee: int, batch_size: int | None = None) -> tuple[CurvePoint, ...]:
        return tuple(
            CurvePoint(
                workers=workers, batch_size=batch_size, throughput=best * min(1, workers / knee),
                throughput_low=0.96 * best * min(1, workers / knee), throughput_high=1.03 * best * min(1, workers / knee),
                cpu=0.0211, run_delay=0.0003 * workers, blocked=0.0004, service=workers / best, num_items=200,
            )
            for workers in (1, 2, 3, 4, 6, 8)
        )  # fmt: skip

    return IsolationDocument(
        pipeline="headrace.demo.scenes:pipeline", plan_id="d1d2d3d4d5d6", num_items=200,
        stages=(
            StageAlone(name="decode", kind="cpu", executor="thread", cpu_demand=0.0209, wait_demand=0.0002, curve=curve(186, 4),
                       knee_workers=4, best_throughput=186.0, says="Scales to the four cores, then no further."),
            StageAlone(name="process", kind="device", executor="thread", cpu_demand=0.0002, wait_demand=0.035,
                       curve=(*curve(21, 1, 1), *curve(28, 1, 8)), knee_workers=1, best_throughput=28.0),
            StageAlone(name="deliver", kind="io", executor="thread", cpu_demand=None, wait_demand=None, curve=(),
                       knee_workers=None, best_throughput=None, says="Not run alone: it would call the receiver."),
        ),
        variations=(
            Variation(name="as_is", throughput=27.6, throughput_low=27.1, throughput_high=27.9, ratio=1.0,
                      says="The pipeline."),
            Variation(name="cached_items", throughput=28.1, throughput_low=28.0, throughput_high=28.2, ratio=1.018,
                      says="The device, fed from memory."),
            Variation(name="cold_files", throughput=None, says="Not run: dropping the page cache needs root."),
        ),
        device_ceiling=28.1, feeding_headroom=1.018, says=("The device is fed almost perfectly.",),
    )  # fmt: skip


def layers_document(num_layers: int) -> LayersDocument:
    """Return layers from memory-bound to compute-bound."""
    pick = random.Random(11)
    raw = [pick.paretovariate(1.2) for _ in range(num_layers)]
    latency, peak, bandwidth = 0.0082, 9.1e10, 1.9e10
    made = []
    for index, weight in enumerate(raw):
        share = weight / sum(raw)
        intensity = 10 ** pick.uniform(-0.7, 2.2)
        of_ceiling = pick.uniform(0.04, 0.92)
        speed = of_ceiling * min(peak, intensity * bandwidth)
        flops = speed * share * latency
        made.append(Layer(
            name=f"/features/features.{index}/Conv", operator=pick.choice(["FusedConv", "Conv", "Gemm", "ReorderOutput"]),
            provider="CPUExecutionProvider", seconds=share * latency, share=share, raw_seconds=1.1 * share * latency,
            flops=flops, num_bytes=flops / intensity, intensity=intensity, flops_per_second=speed,
            bound="overhead" if of_ceiling < 0.1 else "compute" if intensity > peak / bandwidth else "memory",
            of_ceiling=of_ceiling, output_shape="1x64x56x56", precision="float32",
        ))  # fmt: skip
    return LayersDocument(
        engine="onnxruntime 1.23.0", artifact="scenes.onnx", batch_size=8, threads=2, num_calls=40, num_dropped=5,
        latency_seconds=latency, profiled_latency_seconds=1.1 * latency, inflation=1.1, layers=tuple(made),
        total_flops=sum(layer.flops or 0 for layer in made), flops_cross_check=3.1e8,
        ceilings=Ceilings(flops_per_second=peak, bytes_per_second=bandwidth, threads=2,
                          method="Best of 20 products of 1024 x 1024."),
    )  # fmt: skip


def diagnosis_document() -> DiagnosisDocument:
    """Return what limits the full document's run, with each kind of evidence, remedy and bound."""
    return DiagnosisDocument(
        run="first",
        headrace_version="0.1.0",
        pipeline="headrace.demo.scenes:pipeline",
        plan_id="f00d",
        throughput=28.4,
        first=Finding(
            verdict=VerdictClass.DECODE,
            stage="decode",
            cause="cpu",
            says="decode computes 43.1 ms of CPU per item, more than any stage has to spare",
            rule="at least 50% of the service is CPU, or waiting for a core or the GIL to use it",
            confidence="medium",
            gain=1.1873,
            evidence=(
                EvidenceLine(name="gain", says="decode 20 % faster: x1.19", value=0.1873, threshold=0.03, supports=True,
                             source="Coz, SOSP 2015"),
                EvidenceLine(name="queue_gradient", says="the way into decode is 12% full", value=0.12, threshold=0.25,
                             supports=False, source="wPerf, OSDI 2018"),
                EvidenceLine(name="cores", says="cores at work: not measured", value=None, threshold=0.85, supports=None),
                EvidenceLine(name="samples", says="from 312 samples of blocked threads", value=312.0, threshold=10.0,
                             supports=None),
            ),
            remedies=(
                Remedy(says="decode no more pixels than the model needs", settings=("decode.scale=auto",),
                       ratio=Estimate(1.6241, 1.7112, 1.8053),
                       command="headrace whatif runs/first --set decode.scale=auto"),
                Remedy(says="store images nearer to the model's size"),
            ),
        ),
        runner_up=Finding(
            verdict=VerdictClass.CPU_SATURATION, stage=None, cause="", says="all cores are at work", rule="cores gain most",
            confidence="low", gain=1.09, evidence=(), remedies=(),
        ),
        next_bottleneck=Finding(
            verdict=VerdictClass.DEVICE_COMPUTE, stage="process", cause="", says="then process limits", rule="it gains most",
            confidence="low", gain=1.15, evidence=(), remedies=(),
        ),
        candidates=tuple(
            Candidate(name=name, kind=kind, stage=stage, says=f"{name} 20 % faster", gain=gain, utilization=utilization)
            for name, kind, stage, gain, utilization in (
                ("stage:decode", "stage", "decode", 1.1873, 0.91), ("cores", "cores", None, 1.0917, 0.88),
                ("device:process", "device", "process", 1.0211, 0.64), ("queue:decode", "queue", "decode", 0.9962, None),
            )
        ),
        bounds=(
            Bound(name="workers:decode", stage="decode", throughput=30.17, says="2 workers / 66.3 ms = 30.2/s"),
            Bound(name="cores", stage=None, throughput=33.92, says="4 cores / 118 ms of CPU per item = 33.9/s"),
        ),
        simulated_throughput=28.91,
        goals=(GoalCheck(says="p99 <= 2 s", is_met=True, measured=1.51, why="it is 1.51 s"),),
        good_enough=True,
        experiment="headrace profile headrace.demo.scenes:pipeline --isolate",
        warnings=("the run was not steady: it slowed",),
    )  # fmt: skip


def with_text(value: Any, text: str) -> Any:
    """Return a document in which every text that a run can choose is `text`; its form stays valid.

    Texts of a fixed list (verdicts, grades, units of series, statuses) are kept, as are the names by which series are grouped.
    """
    kept = {"schema", "status", "verdict", "grade", "bound", "unit", "scope", "metric"}
    if isinstance(value, msgspec.Struct):
        fixed = (
            kept
            | ({"name"} if isinstance(value, Series) else set())
            | ({"kind"} if isinstance(value, CpuLine) else set())
        )
        changed = {
            field: with_text(getattr(value, field), text) for field in value.__struct_fields__ if field not in fixed
        }
        return msgspec.structs.replace(value, **changed)
    if isinstance(value, dict):
        return {
            with_text(key, f"{text}{index}"): with_text(part, text) for index, (key, part) in enumerate(value.items())
        }
    if isinstance(value, tuple | list):
        return type(value)(with_text(part, text) for part in value)
    return text if isinstance(value, str) else value


def experiment_document(low: float = 0.81, mid: float = 0.98, high: float = 1.12) -> ExperimentDocument:
    """Return one with a sensitivity that was measured, and one that was not."""
    known = Perturbation(
        name="delay:fetch", kind="delay", station="fetch", says="each worker sleeps", amount=0.5, num_pairs=4,
        ratio=Interval(low=0.64, mid=0.67, high=0.71), sensitivity=Interval(low=low, mid=mid, high=high), latency=None,
        service=1.0, decided=True,
    )  # fmt: skip
    unknown = msgspec.structs.replace(
        known, name="gil", kind="gil", station=None, num_pairs=0, ratio=None, sensitivity=None, decided=False
    )
    return ExperimentDocument(
        headrace_version="0", pipeline="p", plan_id="1", delivered=True, budget_seconds=60, seconds=30, ended="decided",
        throughput=60.0, cost=0.013, stations=(), perturbations=(known, unknown),
        stretches=(Stretch(name="", began=1.0, seconds=1.0, throughput=60.0),
                   Stretch(name="delay:fetch", began=2.0, seconds=1.0, throughput=None)),
        conclusion="The experiment shows that the 8 workers of fetch are the limit.",
    )  # fmt: skip
