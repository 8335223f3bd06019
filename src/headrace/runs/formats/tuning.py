"""What tuning tried and found, `headrace.tuning/1`, and the ladder of single steps, `headrace.ladder/1`.

Version 1 of both: 2026-11, first.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.runs.formats.prediction import TrackRecord
from headrace.runs.formats.profile import Estimate

SCHEMA = "headrace.tuning/1"
LADDER_SCHEMA = "headrace.ladder/1"


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One batch size."""

    batch: int
    throughput: float | None
    latency_p50: float | None
    memory_bytes: float | None
    """Most resident memory of the run's processes above that of the smallest batch."""
    source: str
    """`measured`, `predicted`, or `out of memory`."""
    is_sweet_spot: bool = False


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One Plan that was looked at."""

    name: str
    """What it changes, in words."""
    settings: tuple[str, ...]
    plan: dict[str, Any]
    predicted: Estimate | None
    """Throughput ratio to the base."""
    measured: Estimate | None
    """The same as measured against the base, interleaved; None if it was not among the most promising."""
    latency_p50: float | None = None
    latency_p99: float | None = None
    outcome: str
    """`best`, `better` (than the base, but not the best), `worse`, `not sure`, `not measured`, `breaks the goal`,
    `does not fit`, `failed`."""
    why: str = ""
    prediction_id: str = ""
    """In the ledger."""


class TuningDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A search for a better Plan and its proof."""

    schema: str = SCHEMA
    pipeline: str
    headrace_version: str
    objective: str
    """`throughput`, `latency` or `cost`."""
    goals: tuple[str, ...]
    base_plan: dict[str, Any]
    base_throughput: float | None
    num_predicted: int
    num_measured: int
    trials: tuple[Trial, ...]
    """Best first."""
    best: Trial | None
    """None: nothing better was found, by measurement."""
    sweep: tuple[SweepPoint, ...] = ()
    says: tuple[str, ...] = ()
    plan_file: str = ""
    """Where the better Plan was written."""
    verdict: str = ""
    """`better`, `already at the best`, `goal missed` or `inconclusive`."""
    num_runs: int = 0
    """Plans that were run: the base for each profile, the sweep of batch sizes, and each Plan measured."""
    measured_seconds: float = 0.0
    """Wall time of all runs."""
    interrupted: bool = False
    record: TrackRecord = TrackRecord(num=0)
    warnings: tuple[str, ...] = ()
    is_emulated: bool = False
    is_out_of_time: bool = False
    """Plans are predicted to gain, and the budget did not suffice to measure one."""


class LadderStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step on the way from a sequential run to the best Plan."""

    name: str
    """`sequential`, `threads`, `overlap`, `batch`, `decode at scale`, `engine`."""
    settings: tuple[str, ...]
    throughput: float | None
    """Jobs per second with this and all steps before it."""
    ratio_before: Estimate | None
    """To the step before, from interleaved blocks."""
    ratio_first: Estimate | None
    """To the first step."""
    ratio_alone: Estimate | None
    """Of this step alone, taken from the full Plan or added to the first; None where it cannot stand alone."""
    cost_per_thousand: float | None
    """Items, in the price's unit; None without a price."""
    says: str = ""
    plan: dict[str, Any] = {}
    """Resolved, as a table."""
    num_agreeing: int | None = None
    """Items with the same result as in the first step; None if that was not looked at."""
    num_checked: int = 0
    predicted: Estimate | None = None
    """Throughput from the profile of the first step alone, frozen before this step was measured."""
    prediction_error: float | None = None
    """predicted over measured ratio to the first step, less 1."""
    prediction_id: str = ""
    """In the ledger."""
    refused: str = ""
    """Why it was not predicted."""


class LadderDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What each step gives, on the same data and machine."""

    schema: str = LADDER_SCHEMA
    pipeline: str
    headrace_version: str
    price_per_hour: float | None
    steps: tuple[LadderStep, ...]
    num_items: int
    """Of each block."""
    num_rounds: int = 0
    """Blocks of each step; those of one round ran one after the other."""
    run_folder: str = ""
    """The profile of the first step, from which the others were predicted; empty if there is none."""
    says: tuple[str, ...] = ()
    interrupted: bool = False
    record: TrackRecord = TrackRecord(num=0)
    """Of the ledger, before this ladder."""
    warnings: tuple[str, ...] = ()
    is_emulated: bool = False
