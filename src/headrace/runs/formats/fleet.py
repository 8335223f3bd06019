"""All workers of a fleet in one view: `headrace.fleet/1`. Version 1: 2026-11, first.

And whether what was changed on some of them does worse: `headrace.fleet_comparison/1`. Version 1: 2026-11, first.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.base.policies.canary import Finding
from headrace.runs.formats.heartbeat import Heartbeat

SCHEMA = "headrace.fleet/1"
COMPARISON_SCHEMA = "headrace.fleet_comparison/1"

WorkerState = Literal["works", "idle", "stuck", "silent", "failed", "replaced", "ended"]
"""replaced: it was silent or failed, and another began in its place since."""
Verdict = Literal["worse", "no worse", "open"]


class FleetWorker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process."""

    name: str
    """Of its heartbeat: host, process and when it began."""
    state: WorkerState
    says: str
    """Why it is stuck or silent or failed, or what is odd about it; empty for nothing."""
    age_seconds: float
    """Of its newest heartbeat, by the clock of the place where that was left."""
    clock_ahead_seconds: float = 0.0
    """Of its machine's clock beside the place's, to some seconds; below 0 it is behind."""
    beat: Heartbeat


class FleetDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to: what do my machines do?"""

    schema: str = SCHEMA
    at_unix_seconds: float
    workers: tuple[FleetWorker, ...]
    """Those that need a look first."""
    rate: float
    """Jobs delivered per second, of those that are there."""
    in_flight: int
    slots: int
    plans: dict[str, int]
    """{plan_id: workers that are there}."""
    versions: dict[str, int]
    """{version of headrace: workers that are there}."""
    pipelines: dict[str, int]
    unreadable: int = 0
    """Files or keys that are no heartbeats."""
    says: tuple[str, ...]
    """The result in words."""


class FleetArm(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that run the same."""

    runs: tuple[str, ...]
    """Plans, or versions of headrace where the Plans are the same."""
    workers: int
    """That were seen at work."""
    gone: int
    """That fell silent, or ended by an error, meanwhile."""
    jobs: int
    """That ended while they were looked at."""
    failed: int
    """Of these: rejected, dead-lettered or to be tried again."""
    rate: float
    """Jobs ended per second and worker."""
    seconds_per_job: float | None
    """For which a job is in a worker, by the jobs themselves or else by Little's law; None: none ended."""


class FleetComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to: may the other machines be changed as well?"""

    schema: str = COMPARISON_SCHEMA
    verdict: Verdict
    pipeline: str
    seconds: float
    """For how long they were looked at."""
    new: FleetArm
    others: FleetArm
    findings: tuple[Finding, ...]
    """Of `failures` and `speed`."""
    says: tuple[str, ...]
    """The result in words."""
