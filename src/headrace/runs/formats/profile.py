"""The analysis of one run, schema `headrace.profile/1`: what `headrace profile --json` prints and the report draws.

Computed from a run folder by `headrace.diagnose.profile_document`. Times are seconds; `*_at_seconds` count from the start of
the run's work (the first arrival). None means not measured, and `not_measured` or a check says why. Version 1: 2026-11, first.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import msgspec

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration
from headrace.runs.formats.experiment import ExperimentDocument
from headrace.runs.formats.isolation import IsolationDocument
from headrace.runs.formats.layers import LayersDocument
from headrace.runs.formats.profiling import OverheadEstimate

SCHEMA = "headrace.profile/1"

#: What every output says of figures from an emulated device.
EMULATED = "The device was emulated: its times are settings, not measurements."

CheckStatus = Literal["ok", "warning", "failed", "not_measured"]
Grade = Literal["A", "B", "C"]


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95 % interval."""

    low: float
    mid: float
    high: float

    def __format__(self, digits: str) -> str:
        """Return value and interval, each number as `digits` says: `f"{estimate:.2f}"` gives `1.46 (1.38 to 1.52)`."""
        return f"{self.mid:{digits}} ({self.interval(digits)})"

    def interval(self, digits: str) -> str:
        """Return the interval alone: `1.38 to 1.52`."""
        return f"{self.low:{digits}} to {self.high:{digits}}"

    def scaled(self, factor: float) -> Estimate:
        """Return this times a factor; below 0 the ends change places."""
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(low, factor * self.mid, high)


class Quantile(msgspec.Struct, frozen=True):
    """One percentile, or what is missing to quote it."""

    percent: float
    value: float | None
    """None when the sample is too small."""
    num_needed: int
    """Samples needed; see `base.statistics.samples_needed`."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of times, sizes or the like."""

    num_samples: int
    mean: float | None
    minimum: float | None
    maximum: float | None
    percentiles: tuple[Quantile, ...]
    """p50, p90 and p99."""
    bin_edges: tuple[float, ...] = ()
    """Histogram: n + 1 edges, growing; empty where nobody asked for one."""
    bin_counts: tuple[int, ...] = ()

    def percentile(self, percent: float) -> float | None:
        """Return one of `percentiles`; None if the sample is too small to quote it, or it is none of them."""
        return next((one.value for one in self.percentiles if one.percent == percent), None)


class BlockedSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Where the blocked part of a stage's service went, in mean seconds per item; sums to `blocked` of its stage.

    Known from sampling the threads' system calls, so it carries the number of samples. `unknown` is what was not sampled.
    """

    gil: float = 0.0
    """Waiting for Python's global interpreter lock."""
    lock: float = 0.0
    """Waiting for another lock, a condition or a native pool."""
    network: float = 0.0
    """Sockets and pipes."""
    disk: float = 0.0
    """Files, and pages that had to be read."""
    sleep: float = 0.0
    process: float = 0.0
    """Waiting for another process."""
    output: float = 0.0
    """Writing to a pipe or a terminal whose other end does not read, as logs do."""
    other: float = 0.0
    """Any other system call."""
    unknown: float = 0.0
    """Not sampled."""
    num_samples: int = 0
    """Samples of blocked threads within this stage's service."""


class Batches(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of a device stage."""

    num_batches: int
    mean_size: float
    sizes: dict[int, int]
    """{batch size: batches of it}."""
    release_reasons: dict[str, int]
    cost_curve: dict[int, float] = {}
    """{batch size: seconds}, measured at warm-up."""


class CacheAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache of a stage's results did; counts are exact, of the whole run."""

    hits: int
    misses: int
    kept: int
    full: int
    """Results that were not kept for want of room."""
    waits: int
    """Items that waited for another one that made the same."""
    unversioned: int
    """Items of which nothing tells the version."""
    unfit: int
    """Results that are neither bytes nor arrays of numpy's own dtypes."""
    hit_seconds: float | None
    """Mean service of the stages up to this one, added up, of an item that was found; None: no span has one."""
    miss_seconds: float | None
    """The same of an item that was not."""

    @property
    def hit_ratio(self) -> float:
        """Items that were found, of those that were looked up, 0 to 1."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def says(self) -> str:
        """All of it in a sentence."""
        looked_up = self.hits + self.misses
        parts = [f"{self.hits:,} of {looked_up:,} items found ({self.hit_ratio:.0%})"]
        times = {"hit": self.hit_seconds, "miss": self.miss_seconds}
        parts += [f"a {kind} takes {format_duration(time)}" for kind, time in times.items() if time is not None]
        parts.append(f"{self.kept:,} kept")
        more = {
            "not kept for want of room": self.full,
            "waited for another that made the same": self.waits,
            "without a version": self.unversioned,
            "of a kind that cannot be kept": self.unfit,
        }
        return ", ".join([*parts, *(f"{number:,} {what}" for what, number in more.items() if number)])


class Keepable(msgspec.Struct, frozen=True, kw_only=True):
    """What keeping a stage's results would save if the same items came again; see `[stages.NAME] cache`."""

    stage: str
    saved_seconds: float
    """Mean service of the stages up to this one, added up, less what a hit in memory costs."""
    saved_cpu_seconds: float | None
    item_bytes: float
    total_bytes: float
    """Of all items of the run."""
    seconds_per_gigabyte: float
    """Of service saved each time that all items of a gigabyte come again: where room is short, the most is best."""


class StageAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: what it cost, and where its items' time went.

    service = cpu + run_delay + blocked, mean seconds per item; for a batching stage the service of an item is its batch's, and
    `cpu_demand` divides it.
    """

    name: str
    kind: str
    """io, cpu or device."""
    executor: str
    station: str
    """The stage whose queue and workers it uses; itself, unless it is inline."""
    work: str = ""
    """What it does, as far as headrace knows: `download`, `decode`, `resize`, `preprocess`, `model`, `postprocess`, `deliver`;
    empty for a user's own stage."""
    workers: int | None
    items: int
    """Exact: passages through the stage."""
    failed: int
    num_spans: int
    """Spans that this account is made of (sampled, written, readable)."""
    service: Distribution
    queue_wait: Distribution
    """Between arrival in the stage's queue and being taken by a worker."""
    setup: float | None
    """Mean seconds between being taken and beginning (waiting for the others taken with it)."""
    blocked_put: float | None
    """Mean seconds per item, finished but the next queue was full."""
    cpu: float | None
    run_delay: float | None
    """Mean seconds runnable but not running."""
    blocked: float | None
    """Mean seconds neither running nor runnable: service - cpu - run_delay."""
    blocked_split: BlockedSplit | None
    cpu_demand: float | None
    """CPU seconds per item, a batch's divided among its items."""
    busy_seconds: float | None
    """Exact: service summed over workers; a batch counts once."""
    utilization: float | None
    throughput: float | None
    """Items per second in the window."""
    bytes_in: float | None
    """Mean per item."""
    bytes_out: float | None
    queue_depth_mean: float | None
    queue_depth_max: float | None
    queue_capacity: int | None
    batches: Batches | None = None
    shapes: dict[str, int] = {}
    """{shape key: items}, the most frequent ones."""
    cache: CacheAccount | None = None
    """None: the Plan keeps none of its results."""


class StreamAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One live stream, exact and of the whole run: what came, what was to be answered of it, and what was."""

    name: str
    is_urgent: bool
    seconds: float
    """From its first frame, or from the beginning where none came, until no more was read."""
    came: int
    """Frames that were decoded."""
    wanted: int
    """Those that were to be answered: all but `skipped`."""
    answered: int
    came_per_second: float | None
    wanted_per_second: float | None
    answered_per_second: float | None
    skipped: dict[str, int]
    """Frames that were left out as the source was told, by reason: `every`, `fps`, `still`, `plan`, `opening`."""
    dropped: dict[str, int]
    """Wanted and not worked on: `newer` came, `late`, at the `end` of the run."""
    failed: dict[str, int]
    """Given to the pipeline and not answered, by the code of the reason."""
    connections: int
    """That brought frames: each but the first followed one that broke off."""
    age_p50_seconds: float | None
    """From a frame's last packet to its delivery; None: too few were delivered to say."""
    age_p99_seconds: float | None
    jitter_p50_seconds: float | None
    """By how much the time between two frames differed from what the stream's own clock says lies between them; None: it says
    nothing, or too few came. What this machine was late to read is in it."""
    jitter_p99_seconds: float | None
    stalls: int
    """Pauses of 1 s and more, and of five times what usually lies between two of its frames."""
    stalled_seconds: float
    """All of them together; of a stream that never came the whole run."""
    longest_stall_seconds: float

    @property
    def stalled_share(self) -> float:
        """Of its time, 0 to 1."""
        return min(1.0, self.stalled_seconds / self.seconds) if self.seconds > 0 else 0.0


class CpuLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the account of the process's CPU time."""

    name: str
    """A stage, or what else used CPU: `receiving`, `bookkeeping`, `native threads`, `unattributed`, ..."""
    kind: Literal["stage", "headrace", "native", "unattributed"]
    seconds: float
    share: float
    """Of the process's CPU time, 0 to 1; unattributed may be negative when more was explained than used."""


class CpuAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Where the CPU time of all processes of the run went."""

    total_seconds: float
    elapsed_seconds: float
    num_cores: float
    lines: tuple[CpuLine, ...]
    explained_share: float
    """Lines that say what the time was for: neither workers outside stages nor `unattributed`."""
    uncertain_share: float = 0.0
    """By how much the stages' lines may be too high, because not every passage was measured, or the clocks were read late."""
    unread_seconds: float = 0.0
    """How much more the stages' `cpu_demand` times `items` comes to than their lines and that of the clocks: the clocks are not
    read in every passage."""


class RuntimeCost(msgspec.Struct, frozen=True, kw_only=True):
    """What headrace itself used: CPU time that went into no stage, without profiling, progress view and warm-up."""

    seconds: float
    """CPU time of the run."""
    seconds_per_item: float
    """The same per job received."""
    share: float
    """Of the CPU time of all processes, 0 to 1."""
    core_share: float
    """Of the cores that the run may use, 0 to 1."""
    parts: dict[str, float]
    """{line of the CPU account: seconds per item}, the largest first."""
    voluntary_switches_per_item: float | None
    """How often a thread of the run's process went to sleep, stages included; None in profiles of before 2026-11-23."""
    involuntary_switches_per_item: float | None
    """How often one lost its core while it had work."""
    handoff_cpu_seconds: float | None = None
    """What waking a thread that sleeps costs on the machine; None in profiles of before 2026-11-23."""
    says: str
    """One sentence."""


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One value of a series."""

    at_seconds: float
    value: float


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Something sampled over time, thinned to a few hundred points."""

    scope: str
    """`machine`, `cpu0`, `processes`, `stage:NAME`, `disk:NAME`, `network:NAME`, `gpu0`, `run`."""
    name: str
    unit: str
    """`ratio`, `bytes`, `items`, `items/s`, `bytes/s`, `1/s`, `seconds`, `celsius`, `watts`, `hertz`, `count`."""
    mean: float
    maximum: float
    points: tuple[Point, ...]


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """How memory grew with the items done after warm-up."""

    bytes_per_1000_items: Estimate
    verdict: Literal["flat", "growing", "unclear"]
    """growing: the whole interval lies above 0 and the growth is more than noise."""
    reason: str


class PathSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one item's path; seconds since the item's arrival."""

    stage: str
    unit_id: str
    worker: str
    process: int
    arrived: float
    dequeued: float
    started: float
    ended: float
    put: float
    cpu: float | None
    run_delay: float | None
    outcome: str
    batch_size: int | None


class ItemPath(msgspec.Struct, frozen=True, kw_only=True):
    """One slow item on its way."""

    unit_id: str
    latency: float
    percentile: float
    """Where it stands among all items, percent."""
    spans: tuple[PathSpan, ...]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One test of whether the numbers can be believed."""

    name: str
    """`littles_law`, `utilization_law`, `flow_balance`, `forced_flow`, `cores_law`, `explained_cpu`, `clock_order`,
    `steady_state`, `sample_counts`, `span_identity`, `lost_spans`, `exact_counters`, `summary`, `samples`, `thread_states`,
    `run_folder`, `overhead`."""
    status: CheckStatus
    value: float | None
    """What was found, in the unit that `says` names."""
    limit: float | None
    says: str
    """One sentence with numbers; for a failed one also what to do next."""
    source: str = ""
    """The law or article behind it."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """How quiet the machine was."""

    grade: Grade | None
    """A quiet, B some noise, C comparisons are doubtful; None if it could not be told."""
    reasons: tuple[str, ...]
    run_delay_share: float | None
    """Run-queue delay over service, of CPU work."""
    other_cpu_cores: float | None
    """Mean cores used by others."""
    sibling_cpu_cores: float | None = None
    """Those of them that other processes of the same run used; None: it is not known that there are any."""
    cpu_pressure: float | None
    """PSI: share of time in which something runnable waited."""
    steal_share: float | None
    throttled_share: float | None
    page_cache: str | None
    """Of the input files when the run began: `warm`, `cold`, `mixed`, or None where the source is not files."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The steady part of the run that rates and distributions are taken from."""

    from_seconds: float
    to_seconds: float
    warm_up_seconds: float
    """Found, not guessed; 0 if the run was steady from the start."""
    is_steady: bool | None
    """None if the run was too short to tell."""
    says: str


class PlanStage(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage took under one Plan."""

    service: float
    """Mean seconds per item, a batch's divided among its items."""
    mean_batch: float
    """1 outside batches."""


class PlanAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What one of several Plans did."""

    plan_id: str
    share: float
    """Of the passages through stages."""
    delivered: int
    failed: int
    """Deliveries of jobs that ended without a result, under this Plan at last."""
    latency: Distribution
    """Of those that were delivered."""
    stages: dict[str, PlanStage]


class ProfileDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a report of one run shows."""

    schema: str = SCHEMA
    run: str
    """The folder's name."""
    headrace_version: str
    status: str
    pipeline: str
    options: tuple[str, ...] = ()
    """Options of the command line that chose Plan, settings and source."""
    served: bool = False
    """Its jobs were requests to `headrace serve`."""
    plan_id: str
    """Of the Plan under which most was done."""
    plan: dict[str, Any]
    plan_shares: dict[str, float] = {}
    """{Plan: share of the passages through stages that it answered}, where there were several (--follow, --canary)."""
    plan_accounts: tuple[PlanAccount, ...] = ()
    """What each of these did, in the same order."""
    started_unix_seconds: float
    elapsed_seconds: float
    """From the first arrival to the last outcome."""
    is_emulated: bool
    """The device was emulated: its times are made up."""
    trusted: bool
    """The laws were checked, and no check failed; else `distrust` or `unchecked` says why."""
    distrust: tuple[str, ...]
    """Checks that failed: the run is UNTRUSTED."""
    unchecked: tuple[str, ...] = ()
    """Laws that could not be checked, where trust needs them: without `distrust` the run is NOT CHECKED."""
    counters: dict[str, Any]
    window: Window
    throughput: float | None
    """Jobs delivered per second in the window."""
    latency: Distribution
    """Arrival of a job to its settlement."""
    stages: tuple[StageAccount, ...]
    cpu: CpuAccount | None
    runtime: RuntimeCost | None = None
    series: tuple[Series, ...]
    not_measured: dict[str, str]
    """{what: why}."""
    memory_growth: MemoryGrowth | None
    slow_item: ItemPath | None
    checks: tuple[Check, ...]
    environment: Environment
    overhead: OverheadEstimate | None
    layers: LayersDocument | None = None
    isolation: IsolationDocument | None = None
    experiment: ExperimentDocument | None = None
    keepable: tuple[Keepable, ...] = ()
    """Stages whose results are worth keeping, the most seconds a gigabyte first; empty in a run with a cache."""
    unit: str = "item"
    """What a job is: `item`, or `frame` of video."""
    streams: tuple[StreamAccount, ...] = ()
    """Live ones; empty where the source has none."""
    hot_spots: dict[str, str] = {}
    """{stage: file in the run folder}."""
    versions: dict[str, str] = {}
    hardware: dict[str, Any] = {}
    fused: tuple[str, ...] = ()
    """Which stages ran in the workers of another although the Plan does not say so, and why."""
    variants: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What is missing from the run folder."""

    @property
    def trust(self) -> str:
        """Whether its figures can be believed: `TRUSTED`, `UNTRUSTED` or `NOT CHECKED`."""
        if self.trusted:
            return "TRUSTED"
        return "NOT CHECKED" if self.unchecked and not self.distrust else "UNTRUSTED"

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why they cannot; empty where they can."""
        if self.trusted:
            return ()
        return self.distrust or self.unchecked or ("no reason was given",)

    @property
    def checks_in_words(self) -> str:
        """How many checks came to what: `8 checks passed, 0 failed, 1 warning, 4 not measured`."""
        count = Counter(check.status for check in self.checks)
        warnings = pluralize(count["warning"], "warning")
        passed = pluralize(count["ok"], "check")
        return f"{passed} passed, {count['failed']} failed, {warnings}, {count['not_measured']} not measured"
