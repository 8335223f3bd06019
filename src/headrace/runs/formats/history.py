"""The history of runs, schema `headrace.history/1`: what `headrace history --json` prints.

Version 1: 2026-11, first; `yardstick` and `machine_taken_out` are optional, and came later.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "headrace.history/1"

LineKind = Literal["run", "incident", "restart"]
DriftVerdict = Literal["same", "slower", "faster", "cannot_tell"]

#: Stands for all stages together, where a verdict is not about one of them.
ALL_STAGES = "(all stages)"


class StageWindow(msgspec.Struct, frozen=True):
    """What the items of one window cost in one stage."""

    rows: int
    """Spans that were counted."""
    moments: tuple[float, ...]
    """Sums of products of (1, MB in, MB out, 1 / batch size, root of MB in, root of MB out, CPU ms) over the items: the upper
    triangle by rows, 28 numbers. They can be added, and give every regression of CPU time on size."""


class HistoryWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a run: the unit of comparison."""

    began_unix_seconds: float
    seconds: float
    delivered: int
    stages: dict[str, StageWindow] = {}
    yardstick: StageWindow | None = None
    """What the same small piece of work took each time that it was done beside the run; None: it was not measured."""


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run, an incident, or the moment from which on a pipeline is compared with a new baseline."""

    kind: LineKind
    began_unix_seconds: float
    ended_unix_seconds: float | None = None
    """None while it runs, or if it was killed."""
    id: str = ""
    """Such as `h12`, given by the history."""
    key: str = ""
    """The same for worker processes of one supervised run, which are one line; else of one run."""
    status: str = ""
    """`running`, `finished`, `interrupted` or `failed`; `running` long after: it was killed."""
    pipeline: str = ""
    plan_id: str = ""
    machine: str = ""
    """Fingerprint of the machine family: the processor, cores, quota and memory that the run could use."""
    machine_says: str = ""
    headrace_version: str = ""
    python: str = ""
    versions: dict[str, str] = {}
    """{package: version} of what can change what is measured."""
    module_sha256: str = ""
    """First 12 digits of the SHA-256 of the file that defines the pipeline; empty if it was not found."""
    delivered: int = 0
    failed: int = 0
    throughput: float | None = None
    """Items per second."""
    latency_p50: float | None = None
    """Seconds, as for the others."""
    latency_p90: float | None = None
    latency_p99: float | None = None
    cpu_per_item: dict[str, float] = {}
    """{stage: CPU seconds}; empty if CPU time was not measured."""
    bytes_per_item: dict[str, float] = {}
    """{stage: bytes that it takes}."""
    bottleneck: str = ""
    """The diagnosis's verdict, such as `DECODE`; empty if the run was not diagnosed."""
    efficiency: float | None = None
    """Throughput over the device's limit at the batch size used."""
    folder: str = ""
    says: str = ""
    """What an incident was, or why the baseline is new."""


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the ledger, to be read beside the runs of the same time."""

    at_unix_seconds: float
    id: str
    """In the ledger, such as `d3`."""
    says: str
    plan_id: str = ""
    """Of the Plan that it put in place; empty: none that can be read."""


class StageDrift(msgspec.Struct, frozen=True, kw_only=True):
    """What the newest windows of a baseline say about one stage's CPU time per item, at equal input."""

    stage: str
    """Or `(all stages)`: what all of them have in common, the machine's speed included."""
    verdict: DriftVerdict
    ratio: float | None = None
    """CPU time per item over the baseline's; None if no window can be compared."""
    low: float | None = None
    """95 % interval."""
    high: float | None = None
    since_unix_seconds: float | None = None
    """When it began, if it is slower."""
    evidence: float = 0.0
    """For a slowdown; it is called one from `limit` on."""
    limit: float = 0.0
    machine_taken_out: bool = False
    """Of `(all stages)`: the machine's speed, measured beside the run, is not in it."""
    says: str = ""


class BaselineVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The newest windows of one pipeline, Plan and machine family against the first of them."""

    pipeline: str
    plan_id: str
    machine: str
    machine_says: str = ""
    since_unix_seconds: float
    """When the baseline begins."""
    num_reference: int
    """Windows of the baseline."""
    num_compared: int
    num_unlike: int = 0
    """Windows that were left out because no input of the baseline was like theirs."""
    stages: tuple[StageDrift, ...] = ()
    changed: tuple[str, ...] = ()
    """What is otherwise now than in the baseline: versions, the module's file."""
    says: str = ""


class HistoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A history file: its lines, the newest first, and a verdict for each baseline."""

    schema: str = SCHEMA
    file: str
    lines: tuple[HistoryLine, ...] = ()
    baselines: tuple[BaselineVerdict, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    warnings: tuple[str, ...] = ()
