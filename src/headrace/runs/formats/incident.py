"""One incident, schema `headrace.incident/1`: `incident.json` of the run folder that a flight recorder leaves.

    INCIDENT/             an ordinary run folder of the time in which it was slow
      incident.json       this document
      baseline/           an ordinary run folder of the time before

Version 1: 2026-11, first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

SCHEMA = "headrace.incident/1"
FILE = "incident.json"
BASELINE_FOLDER = "baseline"

TriggerKind = Literal["slo", "errors", "stall", "rollback", "death", "signal", "failed", "asked"]


class ChangeKind(StrEnum):
    """What can have changed; a closed list, each with a heading in the guide on incidents."""

    ARRIVALS = "arrivals"
    """More jobs come."""
    INPUT_SIZE = "input_size"
    """Items have more bytes or pixels."""
    INPUT_FAILURES = "input_failures"
    """Items that cannot be used."""
    MODEL = "model"
    PLAN = "plan"
    ENVIRONMENT = "environment"
    """Versions or the machine."""
    CORES = "cores"
    """Fewer cores may be used."""
    QUOTA = "quota"
    """A control group stops the run."""
    NEIGHBOUR = "neighbour"
    """Other programs, or other guests of the host."""
    CLOCK = "clock"
    """Cores run at a lower frequency."""
    DISK = "disk"
    MEMORY = "memory"
    DOWNLOAD = "download"
    """Servers that items come from."""
    RECEIVER = "receiver"
    """Who takes the results."""
    REMOTE = "remote"
    """Another service that a stage asks."""
    LOCK = "lock"
    GIL = "gil"
    GC = "gc"
    BATCHING = "batching"
    WORKERS = "workers"
    """Fewer workers: one hangs, or died."""
    CODE = "code"
    """A stage takes longer for the same input."""
    DEVICE = "device"
    """The device takes longer for the same batch."""


class IncidentTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """Why it was written."""

    kind: TriggerKind
    says: str


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time, and how the run was in it."""

    from_unix_seconds: float
    to_unix_seconds: float
    jobs: int
    """Recorded, each standing for `weight` of them."""
    rate: float | None
    """Jobs delivered per second."""
    latency: float | None
    """Mean, seconds; None without a job that went all the way."""
    p99: float | None
    """None if the sample is too small to quote it."""
    failed_share: float | None


class IncidentChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something that changed, and what it explains."""

    kind: ChangeKind
    stage: str | None
    """Where it shows; None for the whole run or the machine."""
    says: str
    """With the figures of before and after."""
    before: float | None
    after: float | None
    unit: str
    """Of both: `seconds`, `bytes`, `1/s`, `cores`, `ratio`, `items`; empty where they are not numbers."""
    explains_seconds: float
    """Of the mean latency's growth; 0 where it explains failures, or nothing."""
    explains_share: float
    """0 to 1, of the growth of the latency, or of the failures."""
    to_do: str
    """The next step."""


class IncidentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, what limited the run, and what had changed."""

    schema: str = SCHEMA
    id: str
    """The folder's name."""
    pipeline: str
    plan_id: str
    host: str
    process: int
    headrace_version: str
    is_emulated: bool = False
    trigger: IncidentTrigger
    written_unix_seconds: float
    incident: Stretch
    baseline: Stretch | None
    """None: there was nothing to compare with."""
    baseline_source: str
    """`earlier part of the recording`, or the run folder."""
    says: str
    """The answer in one or two sentences."""
    bottleneck: str
    """What limited the run meanwhile: the verdict of `headrace diagnose`, in words."""
    changes: tuple[IncidentChange, ...]
    """That which explains most first."""
    unchanged: tuple[str, ...]
    """What was compared and did not change."""
    not_compared: tuple[str, ...] = ()
    """What could not be compared, and why."""
    events: tuple[str, ...] = ()
    """What the recorder noted meanwhile: each different line once, with how often it came if that is not once."""
    damaged_bytes: int = 0
    """Of the recording, left out because a checksum was wrong."""


class IncidentsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `headrace snapshot --json` prints: an incident of each process that records, schema `headrace.incidents/1`."""

    schema: str = "headrace.incidents/1"
    folders: tuple[str, ...]
    """Of the incidents, in their order; empty where there was such an incident shortly before."""
    incidents: tuple[IncidentDocument, ...]


class RecordingLine(msgspec.Struct, frozen=True, kw_only=True):
    """One recording of a flight recorder on this machine."""

    process: int
    supervisor: int | None
    """Process id; None: there is none."""
    pipeline: str
    since_unix_seconds: float
    runs: bool
    """Whether the process is there; else it was killed, and `headrace snapshot FOLDER` reads what it left."""
    folder: str


class RecordingsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `headrace snapshot --list --json` prints, schema `headrace.recordings/1`."""

    schema: str = "headrace.recordings/1"
    recordings: tuple[RecordingLine, ...]
    unread: tuple[str, ...]
    """Why other recordings cannot be read, one sentence each."""
