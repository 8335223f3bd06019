"""A worker's sign of life for whoever looks at many machines: `headrace.heartbeat/1`. Version 1: 2026-11, first."""

from __future__ import annotations

import msgspec

SCHEMA = "headrace.heartbeat/1"
#: Names of what is not as usual.
MOST_DRIFTING = 10


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process says of itself every few seconds."""

    schema: str = SCHEMA
    host: str
    process: int
    slot: int = 0
    """Of `--supervise`."""
    pipeline: str
    plan_id: str
    headrace_version: str
    started_unix_seconds: float
    at_unix_seconds: float
    lasted_seconds: float | None = None
    """Since its start, by a clock that nobody sets; the other may have been wrong then. None before 2026-11-30."""
    every_seconds: float
    """The next one is due after so long."""
    has_ended: bool = False
    """The last one: it ended by itself."""
    error: str = ""
    """By which it ended; empty: it ended orderly, or has not."""
    received: int = 0
    delivered: int = 0
    failed: int = 0
    """Rejected, dead-lettered or to be tried again."""
    rate: float = 0.0
    """Jobs delivered per second since the heartbeat before."""
    in_flight: int = 0
    slots: int = 0
    """Jobs that it may have in flight."""
    longest_call_seconds: float = 0.0
    """Of a stage, by now."""
    idle_seconds: float = 0.0
    """Since a job last ended, or there was none in it."""
    open_breakers: int = 0
    """Servers and addresses that it does not call now."""
    is_braked: bool = False
    """Nothing succeeds, and it tries only a few jobs."""
    drifting: tuple[str, ...] = ()
    """What of its input, answers or stages is not as usual, where it runs with `--drift` or `--history`."""
    timed: int = 0
    """Jobs delivered of which it is known how long they were in it. Not in heartbeats of before 2026-11-30."""
    timed_seconds: float = 0.0
    """For how long these were, summed."""
