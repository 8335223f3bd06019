"""The diagnosis of one run, schema `headrace.diagnosis/1`: what `headrace diagnose --json` prints and the report draws.

Made from a run folder and nothing else by `headrace.diagnose.diagnosis_document`. Version 1: 2026-11, first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from headrace.runs.formats.profile import Estimate, StreamAccount

SCHEMA = "headrace.diagnosis/1"

#: Cause of NEIGHBOUR where the others are processes of the same run.
SIBLINGS = "siblings"

Confidence = Literal["high", "medium", "low"]
CandidateKind = Literal[
    "stage", "workers", "queue", "batch", "device", "cores", "gil", "neighbours", "arrivals", "receiving", "in_flight",
    "order", "retries",
]  # fmt: skip

LatencyPartKind = Literal["request", "workers", "device", "batch", "work", "room", "between"]


class VerdictClass(StrEnum):
    """Everything that a diagnosis can come to; a closed list, each with a page in `diagnose/explain`."""

    HEALTHY = "HEALTHY"
    ARRIVAL_LIMITED = "ARRIVAL_LIMITED"
    TIE = "TIE"
    INCONCLUSIVE = "INCONCLUSIVE"
    UNTRUSTED = "UNTRUSTED"
    FAILURES = "FAILURES"
    STARVED = "STARVED"
    """The source is waited for, and nothing tells whether it is slow or no job is there."""
    SOURCE = "SOURCE"
    BROKER = "BROKER"
    DOWNLOAD_LATENCY = "DOWNLOAD_LATENCY"
    BANDWIDTH = "BANDWIDTH"
    RATE_LIMIT = "RATE_LIMIT"
    """The other side answers only so many requests a second, however many are under way."""
    DISK = "DISK"
    DECODE = "DECODE"
    PREPROCESS = "PREPROCESS"
    GIL = "GIL"
    CPU_SATURATION = "CPU_SATURATION"
    OVERSUBSCRIPTION = "OVERSUBSCRIPTION"
    RUNTIME = "RUNTIME"
    """The runtime itself: handing items on costs more than what is done with them."""
    NEIGHBOUR = "NEIGHBOUR"
    QUOTA = "QUOTA"
    BATCH_UNDERFILL = "BATCH_UNDERFILL"
    BATCH_DELAY = "BATCH_DELAY"
    DEVICE_COMPUTE = "DEVICE_COMPUTE"
    DEVICE_MEMBW = "DEVICE_MEMBW"
    LAUNCH = "LAUNCH"
    """Launching calls and the framework around them (`LAUNCH/FRAMEWORK`)."""
    SYNC = "SYNC"
    POSTPROCESS = "POSTPROCESS"
    SERIALIZATION = "SERIALIZATION"
    CALLBACK = "CALLBACK"
    DATABASE = "DATABASE"
    """Results wait for the database that they go to."""
    ORDERING = "ORDERING"
    LOCK = "LOCK"
    GC = "GC"
    MEMORY_PRESSURE = "MEMORY_PRESSURE"
    WARMUP = "WARMUP"
    """Warming up or compiling again for new shapes (`WARMUP/RECOMPILE`)."""
    THERMAL = "THERMAL"
    INPUT_SKEW = "INPUT_SKEW"
    RETRY = "RETRY"
    """Work done again: retries and duplicate deliveries (`RETRY/DUP`)."""
    LOGGING = "LOGGING"
    LOADING = "LOADING"
    """A training waits for its batches."""
    TRANSFER = "TRANSFER"
    """A training brings its batches to the device."""
    OPTIMIZER = "OPTIMIZER"
    CHECKPOINT = "CHECKPOINT"
    VALIDATION = "VALIDATION"
    """A training stops to validate."""
    STRAGGLER = "STRAGGLER"
    """Ranks of a training wait for one of them."""
    COMMUNICATION = "COMMUNICATION"
    """Ranks of a training exchange their gradients."""
    DUPLICATED_DATA = "DUPLICATED_DATA"
    """Ranks of a training get the same batches."""


class EvidenceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One fact for or against a finding."""

    name: str
    """`utilization`, `queue_before`, `starved_after`, `cores`, `run_delay`, `gil_wait`, ..."""
    says: str
    """One sentence with the numbers."""
    value: float | None
    threshold: float | None
    """What it was held against; None where there is none."""
    supports: bool | None
    """True speaks for the finding, False against it, None: not measured."""
    source: str = ""
    """Law, paper or article behind the threshold."""


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do about it."""

    says: str
    settings: tuple[str, ...] = ()
    """Changes of the Plan that headrace can apply, `KEY=VALUE`; empty for advice about code, data or machine."""
    ratio: Estimate | None = None
    """Predicted throughput over that of the run; None where it cannot be predicted."""
    command: str = ""
    """The next command to type."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A bottleneck: where, why, how sure, and what to do."""

    verdict: VerdictClass
    stage: str | None
    """None where it is not a stage: cores, neighbours, arrivals."""
    cause: str
    """Within the class, such as `tail`, `set-up`, `anomaly`; empty where there is one only."""
    says: str
    """In words, with the numbers."""
    rule: str
    """The rule that decided, with its thresholds."""
    confidence: Confidence
    gain: float | None
    """Throughput ratio if this were 20 % faster: by simulation, or from time that was seen to be lost, where that is more."""
    evidence: tuple[EvidenceLine, ...]
    remedies: tuple[Remedy, ...]

    @property
    def title(self) -> str:
        """Class, cause and stage: `DOWNLOAD_LATENCY (tail) in fetch`."""
        cause = f" ({self.cause})" if self.cause else ""
        return f"{self.verdict}{cause}" + (f" in {self.stage}" if self.stage else "")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A resource, and what making it 20 % faster would give."""

    name: str
    """`stage:NAME`, `workers:NAME`, `queue:NAME`, `batch:NAME`, `device:NAME`, `cores`, `gil`, `neighbours`, `arrivals`,
    `receiving`, `in_flight`, `order`, `retries`."""
    kind: CandidateKind
    stage: str | None
    says: str
    """What was changed in the simulation."""
    gain: float
    """Throughput ratio, 1.0 for none."""
    utilization: float | None
    """Of this resource, in the run as simulated."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """One upper limit of the throughput that can be worked out by hand."""

    name: str
    """`cores`, `gil`, `workers:STATION`, `device:STAGE`, `receiving`, `arrivals`."""
    stage: str | None
    throughput: float
    """Items per second at most."""
    says: str
    """The calculation in words: `2 cores / 11.4 ms of CPU per item = 175/s`."""


class LatencyPart(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a job's latency is made of."""

    stage: str | None
    """None where it is in no stage."""
    kind: LatencyPartKind
    """`request`: it is read, and let in; `workers`: waits for a worker; `device`: waits while the device works on others;
    `batch`: waits for its batch to begin, the device being free; `work`: is worked on; `room`: waits for room in the next
    queue; `between`: waits for what was cut from it, or for its turn in the order."""
    seconds: float
    """Mean of the jobs delivered while the run was steady."""
    share: float
    """Of their latency, 0 to 1; a request's latency counts from its first byte."""
    slow_seconds: float
    """The same of the slowest tenth."""
    slow_share: float

    @property
    def says(self) -> str:
        """In words: `waits for workers of decode`."""
        return _LATENCY_WORDS[self.kind].format(self.stage)


_LATENCY_WORDS: dict[LatencyPartKind, str] = {
    "request": "is read as a request, and let in",
    "workers": "waits for workers of {}",
    "device": "waits while {} works on others",
    "batch": "waits for its batch to begin in {}",
    "work": "is worked on in {}",
    "room": "waits for room after {}",
    "between": "waits for its parts, or for its turn",
}


class GoalCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A goal that the user gave."""

    says: str
    """`p99 <= 200 ms`, `>= 100/s`."""
    is_met: bool | None
    """None: it could not be told, and `why` says so."""
    measured: float | None
    why: str = ""

    @property
    def outcome(self) -> str:
        """What came of it: `MISSED: p99 <= 200 ms: it is 400 ms`."""
        word = {True: "met", False: "MISSED", None: "open"}[self.is_met]
        return f"{word}: {self.says}" + (f": {self.why}" if self.why else "")


class DiagnosisDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What limits a run, how sure that is, and what to do."""

    schema: str = SCHEMA
    run: str
    """The folder's name."""
    headrace_version: str
    pipeline: str
    plan_id: str
    throughput: float | None
    first: Finding
    """The verdict."""
    runner_up: Finding | None
    next_bottleneck: Finding | None
    """What limits once the first is out of the way; where nothing does, or `runner_up` again, another cause that was seen."""
    candidates: tuple[Candidate, ...]
    """Largest gain first."""
    bounds: tuple[Bound, ...]
    """Tightest first."""
    simulated_throughput: float | None
    """Of the run as recorded, by the simulator, before calibration: far off means that the run is not understood."""
    latency_parts: tuple[LatencyPart, ...] = ()
    """Where the time of a job goes, the largest part first."""
    streams: tuple[StreamAccount, ...] = ()
    """Live ones; empty where the source has none."""
    goals: tuple[GoalCheck, ...] = ()
    good_enough: bool | None = None
    """All goals given are met; None without goals, or if one could not be told."""
    experiment: str = ""
    """What would decide, when the verdict is INCONCLUSIVE: a command."""
    trusted: bool = True
    distrust: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    """As of the run: `trusted` needs both to be empty."""
    is_emulated: bool = False
    warnings: tuple[str, ...] = ()
    budget_seconds: float | None = None
    """Seconds of a core that it could simulate for; None where nothing was simulated."""
    left_out: tuple[str, ...] = ()
    """What these were too short for, the most important first."""
    details: dict[str, Any] = {}
