"""Every series that headrace gives: name, type, unit, labels, meaning, and what it is for. Nothing else defines one.

How this works: what counts asks `SERIES` how a series is kept and how the values of several workers become one; the exporter
writes what stands here; docs/reference/metrics.md, the dashboard and the alert rules are made of it. Tests compare it with
scrapes of real runs, both ways.

Names follow Prometheus: prefix `headrace_`, base units, `_total` for counters. Labels come from closed sets. Where the set is
the pipeline's own (stages, tasks) or open (codes of a user's module), the first `Label.most` values keep their name, and the
rest count as `other`; so nobody who sends jobs can make series.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.base.records import OutcomeKind

#: What a label says beyond the first `Label.most` values.
OTHER = "other"
#: Values of any label that have a name of their own.
MOST_VALUES = 200
_NAME = re.compile(r"headrace(_[a-z0-9]+)+")


class Kind(StrEnum):
    """Of a series, as Prometheus calls it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """How the values of several workers become one."""

    SUM = "sum"
    MAX = "max"
    """Each worker sees the same, or the largest is what matters."""
    MIN = "min"
    """The smallest is what matters."""


class Given(StrEnum):
    """Which runs give a series."""

    ALWAYS = "every run and service"
    DEVICE = "pipelines with a stage that takes batches"
    BACKLOG = "a source that tells what waits: queues, `serve`"
    QUEUE = "queues that lend their messages: SQLite, SQS, Redis"
    SERVERS = "stages that download, deliveries that call back"
    SERVE = "`headrace serve`"
    CANARY = "`--canary`, once a canary was started"
    SUPERVISED = "`--supervise`, once a worker died"
    MODEL = "pipelines with a model file"
    FAILURES = "once something failed"
    DRIFT = "a run that watches for drift"
    HISTORY = "a run that is compared with its history"
    PROVED = "`--plan` with a Plan that says where it was measured"
    RECORDER = "a run with a flight recorder"


@dataclass(frozen=True, slots=True)
class Label:
    """One label of a series."""

    name: str
    values: tuple[str, ...] = ()
    """The closed set; empty: `bound` says where the values come from."""
    bound: str = ""
    """Why there are not many: whose names these are."""
    most: int = MOST_VALUES
    """Values that keep their name; the rest is `other`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of the table."""

    name: str
    kind: Kind
    meaning: str
    unit: str = ""
    """`seconds`, `bytes`, or what is counted; empty: a ratio or a state, which `meaning` explains."""
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without +Inf."""
    merge: Merge = Merge.SUM
    given: Given = Given.ALWAYS
    use: str = "debugging"
    """`panel: ...` or `rule: ...`, the dashboard's panel or the alerts that need it; or `debugging`."""

    def __post_init__(self) -> None:
        """Check that it is one."""
        assert _NAME.fullmatch(self.name), self.name
        assert self.name.endswith("_total") == (self.kind is Kind.COUNTER), self.name
        assert bool(self.buckets) == (self.kind is Kind.HISTOGRAM), self.name
        assert list(self.buckets) == sorted(set(self.buckets)), self.name
        assert all(label.values or label.bound for label in self.labels), self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of its labels, in order."""
        return tuple(label.name for label in self.labels)


def _grow(first: float, factor: float, num: int) -> tuple[float, ...]:
    """Return buckets whose bounds grow by a factor, rounded to two digits: people read them."""
    return tuple(float(f"{first * factor**i:.2g}") for i in range(num))


#: 0.1 ms to 58 s. A quantile that is read from them is off by a fifth at most, where times are above the first.
SERVICE_BUCKETS = _grow(0.0001, 1.5, 34)
#: 1 ms to 90 s, for times that people wait for.
LATENCY_BUCKETS = _grow(0.001, 1.5, 29)
#: 0.1 ms to 68 s by factors of 2.5: whether there is a wait matters, and not its third digit.
WAIT_BUCKETS = _grow(0.0001, 2.5, 16)
SIZE_BUCKETS = tuple(float(2**power) for power in range(11))

TASK = Label("task", bound="the pipeline's modules, `other` for a job that names none; empty for a pipeline of one")
STAGE = Label("stage", bound="the pipeline's stages")
OUTCOME = Label("outcome", tuple(OutcomeKind))
CODE = Label("code", bound="codes of reasons, as in errors.jsonl: ours, and those of the user's modules", most=100)
WORKER = Label("worker", bound="numbers of `--supervise`; 0 without it")
ARM = Label("arm", ("canary", "stable"))
REFUSAL = Label("code", bound="codes of `headrace serve`, such as serve.busy", most=50)
SIDE = Label("side", ("fetch", "delivery"))
FEATURE = Label("feature", bound="statistics of the drift monitor", most=50)
#: Why a worker died, from `DeathNote.cause`.
DEATH_CAUSES = ("out_of_memory", "killed", "silent", "signal", "exit")
#: Why so many workers are wanted.
WANTED_REASONS = ("arrivals", "backlog", "least")
CANARY_STATES = ("none", "running", "promoted", "rolled_back")
STATUSES = ("200", "202", "400", "404", "413", "422", "424", "429", "499", "500", "503", "504", OTHER)
RELEASE_REASONS = ("full", "idle", "max_wait", "shape", "drain", "split")

_JOBS = (
    Series(
        name="headrace_jobs_received_total", kind=Kind.COUNTER, unit="jobs",
        meaning="Jobs that came from the source, those that came again included.", use="panel: throughput",
    ),
    Series(
        name="headrace_jobs_total", kind=Kind.COUNTER, unit="deliveries of jobs", labels=(TASK, OUTCOME),
        meaning="Deliveries of jobs that ended, by how.", use="rule: burn rates, QueueStalled; panel: throughput",
    ),
    Series(
        name="headrace_job_failures_total", kind=Kind.COUNTER, unit="deliveries of jobs", labels=(CODE, OUTCOME),
        meaning="Deliveries that did not succeed, by the code of the reason.", given=Given.FAILURES, use="panel: failures",
    ),
    Series(
        name="headrace_job_latency_seconds", kind=Kind.HISTOGRAM, unit="seconds", labels=(TASK,), buckets=LATENCY_BUCKETS,
        meaning="From receiving a job to its being delivered and settled; an exemplar names a job.",
        use="rule: burn rates of latency; panel: latency",
    ),
    Series(
        name="headrace_jobs_redelivered_total", kind=Kind.COUNTER, unit="jobs",
        meaning="Jobs that came for at least the second time: retries, lost acks, dead workers.", use="panel: retries",
    ),
    Series(
        name="headrace_jobs_in_flight", kind=Kind.GAUGE, unit="jobs", meaning="Jobs received and not settled.",
        use="rule: NothingDelivered; panel: queue",
    ),
    Series(
        name="headrace_job_slots", kind=Kind.GAUGE, unit="jobs",
        meaning="Jobs that may be received and not settled: what the queues of the stages hold, or `source.max_in_flight`.",
        use="panel: workers",
    ),
    Series(
        name="headrace_utilization_ratio", kind=Kind.GAUGE, merge=Merge.MAX, given=Given.BACKLOG,
        meaning="Jobs in flight and jobs that wait at the source, over `headrace_job_slots`: above 1 there is more than the "
        "workers can take in. It tells at once what `headrace_wanted_workers` needs ten seconds for.",
        use="panel: workers",
    ),
    Series(
        name="headrace_throughput_jobs_per_second", kind=Kind.GAUGE, unit="jobs per second",
        meaning="Jobs delivered per second, over the last ten seconds.", use="panel: throughput",
    ),
    Series(
        name="headrace_capacity_jobs_per_second", kind=Kind.GAUGE, unit="jobs per second",
        meaning="Jobs per second that the busiest stage could do: the throughput over its utilization, over the last ten "
        "seconds. Absent while nothing is delivered.",
        use="panel: throughput",
    ),
    Series(
        name="headrace_last_success_timestamp_seconds", kind=Kind.GAUGE, unit="seconds", merge=Merge.MAX,
        meaning="When a job was last delivered, Unix time; absent before the first.", use="rule: NothingDelivered",
    ),
    Series(
        name="headrace_undelivered_total", kind=Kind.COUNTER, unit="deliveries of jobs",
        meaning="Results that the receiver did not accept; they stay with their jobs and are delivered later.",
        given=Given.SERVERS, use="panel: delivery",
    ),
)  # fmt: skip

_STAGES = (
    Series(
        name="headrace_stage_items_total", kind=Kind.COUNTER, unit="items", labels=(STAGE, Label("result", ("ok", "failed"))),
        meaning="Items that went through a stage.", use="panel: stages",
    ),
    Series(
        name="headrace_stage_service_seconds", kind=Kind.HISTOGRAM, unit="seconds", labels=(STAGE,), buckets=SERVICE_BUCKETS,
        meaning="Service time of an item in a stage; in a batch that of the batch.", use="panel: stages",
    ),
    Series(
        name="headrace_stage_queue_wait_seconds", kind=Kind.HISTOGRAM, unit="seconds", labels=(STAGE,), buckets=WAIT_BUCKETS,
        meaning="Time of an item in the queue before a stage.", use="panel: stages",
    ),
    Series(
        name="headrace_stage_busy_seconds_total", kind=Kind.COUNTER, unit="seconds", labels=(STAGE,),
        meaning="Service time summed over workers, a batch once. Over `headrace_stage_workers` it is the utilization.",
        use="panel: utilization",
    ),
    Series(
        name="headrace_stage_blocked_seconds_total", kind=Kind.COUNTER, unit="seconds", labels=(STAGE,),
        meaning="Time in which workers of a stage, their work done, waited for room in the next queue.",
        use="panel: utilization",
    ),
    Series(
        name="headrace_stage_queue_depth", kind=Kind.GAUGE, unit="items", labels=(STAGE,),
        meaning="Items in the queue before a stage.", use="panel: queue",
    ),
    Series(
        name="headrace_stage_queue_capacity", kind=Kind.GAUGE, unit="items", labels=(STAGE,),
        meaning="Items that the queue before a stage takes.", use="panel: queue",
    ),
    Series(
        name="headrace_stage_workers", kind=Kind.GAUGE, unit="workers", labels=(STAGE,), meaning="Workers of a stage.",
        use="panel: utilization",
    ),
    Series(
        name="headrace_stage_workers_busy", kind=Kind.GAUGE, unit="workers", labels=(STAGE,),
        meaning="Workers of a stage that are in service now.", use="panel: utilization",
    ),
    Series(
        name="headrace_batch_size_items", kind=Kind.HISTOGRAM, unit="items", labels=(STAGE,), buckets=SIZE_BUCKETS,
        meaning="Items of a batch.", given=Given.DEVICE, use="panel: batches",
    ),
    Series(
        name="headrace_batch_wait_seconds", kind=Kind.HISTOGRAM, unit="seconds", labels=(STAGE,), buckets=WAIT_BUCKETS,
        meaning="Time that the oldest item of a batch waited for it.", given=Given.DEVICE, use="panel: batches",
    ),
    Series(
        name="headrace_batches_total", kind=Kind.COUNTER, unit="batches", labels=(STAGE, Label("reason", RELEASE_REASONS)),
        meaning="Batches, by why they were released.", given=Given.DEVICE, use="panel: batches",
    ),
)  # fmt: skip

_SOURCE = (
    Series(
        name="headrace_source_jobs", kind=Kind.GAUGE, unit="jobs", merge=Merge.MAX, given=Given.BACKLOG,
        labels=(Label("state", ("visible", "in_flight", "delayed", "dead")),),
        meaning="Jobs of the source, for all of its consumers: waiting, received by somebody, held back, in the dead-letter "
        "queue. Asked for every 10 seconds.",
        use="rule: QueueStalled, DLQGrowing; panel: queue",
    ),
    Series(
        name="headrace_source_oldest_age_seconds", kind=Kind.GAUGE, unit="seconds", merge=Merge.MAX, given=Given.QUEUE,
        meaning="Age of the oldest job that waits; 0 when none waits. Absent where the service does not tell.",
        use="rule: QueueLate; panel: queue",
    ),
    Series(
        name="headrace_source_errors_total", kind=Kind.COUNTER, unit="calls", given=Given.QUEUE,
        meaning="Calls that the queue service did not answer.", use="rule: SourceUnreachable; panel: leases",
    ),
    Series(
        name="headrace_leases_total", kind=Kind.COUNTER, unit="loans", given=Given.QUEUE,
        labels=(Label("event", ("renewed", "lost", "late")),),
        meaning="Loans of messages that were extended, that ran out (another worker may do the job again), or whose outcome "
        "came too late for the service.",
        use="rule: LeaseLost; panel: leases",
    ),
    Series(
        name="headrace_lease_remaining_seconds", kind=Kind.GAUGE, unit="seconds", merge=Merge.MIN, given=Given.QUEUE,
        meaning="Time until the first loan of a message runs out unless it is extended, which is done when half of it is used: "
        "much less than half of the visibility timeout means that extending is late. Absent while nothing is on loan.",
        use="panel: leases",
    ),
    Series(
        name="headrace_brake_on", kind=Kind.GAUGE, merge=Merge.MAX,
        meaning="1 while nothing succeeds and the run receives only a few jobs to try; else 0.", use="rule: BrakeOn",
    ),
    Series(
        name="headrace_brakes_total", kind=Kind.COUNTER, unit="times", meaning="How often a brake was put on.",
        use="panel: failures",
    ),
    Series(
        name="headrace_breakers_open", kind=Kind.GAUGE, unit="servers", labels=(SIDE,), given=Given.SERVERS,
        meaning="Servers, paths and addresses that are not called now, because they failed several times in a row.",
        use="rule: BreakerOpen; panel: delivery",
    ),
    Series(
        name="headrace_breakers_opened_total", kind=Kind.COUNTER, unit="times", labels=(SIDE,), given=Given.SERVERS,
        meaning="How often one of them was given up.", use="panel: delivery",
    ),
)  # fmt: skip

_SERVE = (
    Series(
        name="headrace_requests_total", kind=Kind.COUNTER, unit="requests", labels=(Label("status", STATUSES),),
        given=Given.SERVE, use="rule: burn rates of serve; panel: requests",
        meaning="Pieces of work that requests brought, by the HTTP status that says how they ended; 499: the client went away.",
    ),
    Series(
        name="headrace_requests_refused_total", kind=Kind.COUNTER, unit="requests", labels=(REFUSAL,),
        meaning="Requests that were not let in, by why.", given=Given.SERVE, use="panel: requests",
    ),
    Series(
        name="headrace_requests_waiting", kind=Kind.GAUGE, unit="requests",
        meaning="Work that was let in and has no answer yet.", given=Given.SERVE, use="panel: requests",
    ),
    Series(
        name="headrace_request_latency_seconds", kind=Kind.HISTOGRAM, unit="seconds", buckets=LATENCY_BUCKETS,
        meaning="From the first byte of a request to its answer, good or bad; what was refused is not in it.",
        given=Given.SERVE,
        use="rule: burn rates of latency; panel: requests",
    ),
)  # fmt: skip

_MODELS = (
    Series(
        name="headrace_run_info", kind=Kind.GAUGE, merge=Merge.MAX,
        labels=(
            Label("pipeline", bound="the pipeline's name; of `serve --queue` the queue's"),
            Label("version", bound="headrace's version"),
        ),
        meaning="Always 1: which pipeline runs, in which headrace.", use="rule: MetricsAbsent; panel: what runs",
    ),
    Series(
        name="headrace_run_start_timestamp_seconds", kind=Kind.GAUGE, unit="seconds", merge=Merge.MAX,
        meaning="When the run of the youngest worker began, Unix time.", use="panel: what runs",
    ),
    Series(
        name="headrace_plan_info", kind=Kind.GAUGE,
        labels=(Label("plan_id", bound="Plans in force, and those that were", most=50),),
        meaning="Workers in which this Plan is in force; 0 for one that was.", use="panel: what runs",
    ),
    Series(
        name="headrace_model_info", kind=Kind.GAUGE, given=Given.MODEL, merge=Merge.MAX,
        labels=(
            Label("model", bound="names of model files", most=50),
            Label("sha256", bound="first digits of their contents' digests", most=50),
            Label("engine", bound="names of engines"),
        ),
        meaning="Always 1: the model files that were opened.", use="panel: what runs",
    ),
    Series(
        name="headrace_canary_state", kind=Kind.GAUGE, merge=Merge.MAX, labels=(Label("state", CANARY_STATES),),
        meaning="1 for the state of the present or last canary.", given=Given.CANARY, use="rule: CanaryWorse; panel: canary",
    ),
    Series(
        name="headrace_canary_share_ratio", kind=Kind.GAUGE, merge=Merge.MAX, given=Given.CANARY,
        meaning="Share of the jobs that the canary answers.", use="panel: canary",
    ),
    Series(
        name="headrace_canary_jobs_total", kind=Kind.COUNTER, unit="jobs", given=Given.CANARY,
        labels=(ARM, Label("result", ("good", "bad"))),
        meaning="First deliveries of jobs that a model answered while a canary ran.",
        use="panel: canary",
    ),
)  # fmt: skip

_PROCESSES = (
    Series(
        name="headrace_workers", kind=Kind.GAUGE, unit="processes", merge=Merge.MAX,
        meaning="Worker processes that should be there.", use="rule: RestartLoop, WorkersMissing; panel: workers",
    ),
    Series(
        name="headrace_workers_alive", kind=Kind.GAUGE, unit="processes",
        meaning="Worker processes that run and gave a sign of life in the last 5 seconds.",
        use="rule: WorkersMissing; panel: workers",
    ),
    Series(
        name="headrace_worker_starts_total", kind=Kind.COUNTER, unit="processes", meaning="Runs begun by worker processes.",
        use="panel: workers",
    ),
    Series(
        name="headrace_worker_deaths_total", kind=Kind.COUNTER, unit="processes", labels=(Label("cause", DEATH_CAUSES),),
        meaning="Worker processes that died, and were started again: killed by the kernel for memory; by somebody else; by the "
        "supervisor because it gave no sign of life; by a signal such as SIGSEGV; ended by themselves in the middle.",
        given=Given.SUPERVISED, use="rule: RestartLoop; panel: workers",
    ),
    Series(
        name="headrace_wanted_workers", kind=Kind.GAUGE, unit="processes", merge=Merge.MAX, given=Given.BACKLOG,
        meaning="Worker processes that would do what comes now at four fifths of their utilization, and what waits within five "
        "minutes. Of the workers of one scrape: for a fleet, `headrace monitor rules` records `headrace:wanted_workers`. "
        "Absent until jobs were delivered for ten seconds.",
        use="panel: workers",
    ),
    Series(
        name="headrace_wanted_workers_reason", kind=Kind.GAUGE, merge=Merge.MAX, given=Given.BACKLOG,
        labels=(Label("reason", WANTED_REASONS),),
        meaning="1 for why so many are wanted, else 0: `arrivals`, for what comes; `backlog`, more than that for what waits; "
        "`least`, less than one would do.",
        use="panel: workers",
    ),
    Series(
        name="headrace_process_cpu_seconds_total", kind=Kind.COUNTER, unit="seconds", labels=(WORKER,),
        meaning="CPU time of a worker process, without that of its children.", use="panel: machine",
    ),
    Series(
        name="headrace_process_resident_memory_bytes", kind=Kind.GAUGE, unit="bytes", labels=(WORKER,),
        meaning="Resident memory of a worker process.", use="rule: MemoryGrows; panel: machine",
    ),
    Series(
        name="headrace_process_open_fds", kind=Kind.GAUGE, unit="files", labels=(WORKER,),
        meaning="Open files and sockets of a worker process.", use="panel: machine",
    ),
    Series(
        name="headrace_scrape_seconds", kind=Kind.GAUGE, unit="seconds", merge=Merge.MAX,
        meaning="What the scrape before this one took to answer.", use="debugging",
    ),
    Series(name="headrace_scrapes_total", kind=Kind.COUNTER, unit="scrapes", meaning="Scrapes answered.", use="debugging"),
    Series(
        name="headrace_metrics_dropped_total", kind=Kind.COUNTER, unit="observations",
        labels=(Label("reason", ("label", "room", "error")),),
        meaning="Observations that are missing above, or stand under `other`: a label had too many values, there was no room "
        "for more series, or a value could not be read.",
        use="rule: MetricsDropped",
    ),
)  # fmt: skip

_EVIDENCE = (
    Series(
        name="headrace_drift_score", kind=Kind.GAUGE, merge=Merge.MAX, labels=(FEATURE,), given=Given.DRIFT,
        meaning="Evidence that a statistic of the input or of the predictions has moved: 1 is the alarm's threshold.",
        use="panel: drift",
    ),
    Series(
        name="headrace_drift_alarm", kind=Kind.GAUGE, merge=Merge.MAX, labels=(FEATURE,), given=Given.DRIFT,
        meaning="1 while the evidence is above the threshold; else 0.", use="rule: DriftSustained; panel: drift",
    ),
    Series(
        name="headrace_drift_decode_failure_ratio", kind=Kind.GAUGE, merge=Merge.MAX, given=Given.DRIFT,
        meaning="Share of the items of the last window that could not be decoded.", use="panel: drift",
    ),
    Series(
        name="headrace_performance_drift_ratio", kind=Kind.GAUGE, merge=Merge.MAX, labels=(STAGE,), given=Given.HISTORY,
        meaning="CPU time of a stage for items of equal size over that of the baseline: 1.1 is 10 % slower.",
        use="panel: drift",
    ),
    Series(
        name="headrace_performance_drift_alarm", kind=Kind.GAUGE, merge=Merge.MAX, labels=(STAGE,), given=Given.HISTORY,
        meaning="1 while the sequential test says that the stage is slower than its baseline; else 0.", use="rule: PerfDrift",
    ),
    Series(
        name="headrace_environment_changed", kind=Kind.GAUGE, merge=Merge.MAX,
        meaning="Number of things of this machine that matter and differ from where the Plan was proved; 0: none.",
        given=Given.PROVED, use="rule: EnvChanged",
    ),
    Series(
        name="headrace_recorder_incidents_total", kind=Kind.COUNTER, unit="incidents", given=Given.RECORDER,
        labels=(Label("cause", ("slo", "errors", "stall", "rollback", "death", "signal", "failed", OTHER)),),
        meaning="Incidents that the flight recorder began to write, by what set it off, without those of `headrace snapshot`.",
        use="rule: RecorderIncident; panel: drift",
    ),
)  # fmt: skip

#: Sections of the table, for people.
GROUPS: dict[str, tuple[Series, ...]] = {
    "Jobs": _JOBS,
    "Stages and batches": _STAGES,
    "Source, loans, servers": _SOURCE,
    "Requests of a service": _SERVE,
    "What runs": _MODELS,
    "Processes and the exporter": _PROCESSES,
    "Drift, history, incidents": _EVIDENCE,
}
SERIES: dict[str, Series] = {series.name: series for group in GROUPS.values() for series in group}


def sample_names(series: Series) -> Sequence[str]:
    """Return the names under which a scrape has the values of a series."""
    if series.kind is Kind.HISTOGRAM:
        return [f"{series.name}_{part}" for part in ("bucket", "sum", "count")]
    return [series.name]
