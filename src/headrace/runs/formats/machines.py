"""What more machines bring, and where that ends: `headrace.machines/1`. Version 1: 2026-11, first."""

from __future__ import annotations

import msgspec

from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate

SCHEMA = "headrace.machines/1"


class SharedLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Something that all machines use, and how much of it there is."""

    name: str
    """`queue`, `store`, `network`, `receiver`, or a name of the user's."""
    per_second: float
    """In `unit`s, of all machines together."""
    unit: str
    """`calls` or `bytes`."""
    per_job: float
    """What one job uses of it."""
    jobs_per_second: float
    """What that does for."""
    says: str
    """Where the two numbers come from."""


class MachinesRow(msgspec.Struct, frozen=True, kw_only=True):
    """So many machines for an hour, simulated."""

    machines: int
    jobs_per_second: float
    """Over the hour, with the time in which machines start."""
    efficiency: float
    """That over so many times what one machine does that nothing interrupts, 0 to 1."""
    limited_by: str
    """The shared limit that is the busiest, where machines wait for it; empty where they hardly do."""
    busy: dict[str, float]
    """{limit: share of the time}."""
    held_share: float
    """Of the machines' time: waiting for what is shared."""
    starting_share: float
    """Of the machines' time: starting, or started again."""
    again_share: float
    """Jobs that interruptions made the machines do again, of those that were done."""
    interruptions: int
    cost_per_million: float | None
    """In the price's unit."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine could still do, by a change that costs nothing but the change."""

    name: str
    change: Change
    ratio: float
    """Predicted throughput over that of the run."""


class MachinesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to: should I scale out?"""

    schema: str = SCHEMA
    run: str
    headrace_version: str
    pipeline: str
    plan_id: str
    one: Estimate
    """Jobs per second of one machine at full load that nothing shared holds up."""
    in_flight: float
    """Jobs in one machine, on an average."""
    spread: float
    """Standard deviation of the jobs that the run did in a second, over their mean."""
    start_seconds: float
    """From wanting a machine until its first job."""
    interruptions_per_hour: float = 0.0
    """Of one machine."""
    price_per_hour: float | None
    """Of one machine."""
    seconds: float
    """That were simulated."""
    limits: tuple[SharedLimit, ...]
    rows: tuple[MachinesRow, ...]
    linear_up_to: float | None
    """Machines at which the smallest limit is reached; None: no limit is known."""
    left: tuple[Left, ...]
    """What is still left on one machine, the most first."""
    says: tuple[str, ...]
    """The result in words."""
    warnings: tuple[str, ...] = ()
    is_emulated: bool = False
