"""How many workers and machines a rate needs, and what that costs: `headrace.capacity/1`. Version 1: 2026-11, first."""

from __future__ import annotations

import msgspec

from headrace.runs.formats.prediction import Change, TrackRecord
from headrace.runs.formats.profile import Estimate

SCHEMA = "headrace.capacity/1"


class CapacityOption(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run: as recorded, or changed."""

    name: str
    """`as recorded`, or the change in words."""
    change: Change
    throughput: Estimate | None
    """Per machine at full load, jobs per second."""
    usable_throughput: float | None
    """Per machine, at which the latency goal still holds and headroom is left."""
    usable_share: float | None = None
    """That over full load, 0 to 1."""
    machines: int | None
    machines_range: tuple[int, int] | None = None
    """Fewest and most, from the interval of the throughput."""
    cost_per_million: float | None
    """In the price's unit."""
    cost_per_month: float | None
    saves_per_month: float | None
    """Against the run as recorded; negative costs more."""
    latency_p99: Estimate | None
    """Simulated at the rate that each machine then gets, for the interval of the throughput; None without a goal."""
    says: str
    """Why so much of full load is usable."""
    note: str = ""
    """What the numbers leave out."""
    refused: str = ""


class CapacityDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to: how many, and for how much?"""

    schema: str = SCHEMA
    run: str
    headrace_version: str
    pipeline: str
    plan_id: str
    rate: float
    """Jobs per second that come."""
    slo: str = ""
    """The latency goal, as given."""
    slo_met: bool | None = None
    """Whether the run as recorded holds it at some rate; None without a goal, or if it cannot be told."""
    headroom: float = 0.0
    """Share of full load that is left unused for bursts, deployments and machines that fail."""
    price_per_hour: float | None
    """Of one machine."""
    options: tuple[CapacityOption, ...]
    """As recorded first, then by what they save."""
    says: tuple[str, ...]
    """The result in words."""
    warnings: tuple[str, ...] = ()
    record: TrackRecord = TrackRecord(num=0)
    is_emulated: bool = False
