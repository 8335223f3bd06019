"""A against B, schema `headrace.compare/1`: what `headrace compare --json` prints. Version 1: 2026-11, first."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.runs.formats.outcomes import Verdict

SCHEMA = "headrace.compare/1"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two."""

    name: str
    pipeline: str
    plan_id: str
    plan: dict[str, Any] = {}
    other_plan_ids: tuple[str, ...] = ()
    """Of a recorded run: those that were in force beside it or after it (--follow, --canary)."""
    values: tuple[float, ...] = ()
    """One for each block, in the order of the pairs."""
    median: float | None = None
    stages: dict[str, float] = {}
    """{stage: mean service seconds per item}, for the bars before and after."""
    page_cache: str | None = None
    """Of the input files when a block, or the recorded run, began: `warm`, `cold`, `mixed`; None: not known, or no files."""

    @property
    def plan_ids(self) -> tuple[str, ...]:
        """All of them."""
        return (self.plan_id, *self.other_plan_ids)


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Another metric of the same pairs of blocks, which nobody asked about."""

    metric: str
    """`throughput`, `latency_p50` or `cpu_per_item`."""
    unit: str
    higher_is_better: bool
    ratio: float
    """B over A."""
    ratio_low: float | None
    ratio_high: float | None
    """95 % interval; None with too few pairs."""
    a: float
    """Median of the blocks."""
    b: float
    verdict: Verdict


class ComparisonDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Whether B is really better than A."""

    schema: str = SCHEMA
    a: Side
    b: Side
    metric: str
    """`throughput`, `latency_p50` or `cpu_per_item`."""
    unit: str
    higher_is_better: bool
    paired: bool
    """Whether the blocks were interleaved (A B B A); recorded runs are not, and drift of the machine is in the difference."""
    num_pairs: int
    ratio: float | None
    """B over A: Hodges-Lehmann estimate of the paired ratios; of recorded runs the ratio of the means."""
    ratio_low: float | None
    ratio_high: float | None
    """95 % interval; None with too few pairs."""
    margin: float
    """Differences below this count as none (a share, e.g. 0.02)."""
    budget: float | None
    """Largest loss that the user accepts, as a share; None if none was given."""
    verdict: Verdict
    is_regression: bool
    """Worse, and the whole interval lies beyond the budget."""
    pairs_needed: int | None
    """Further pairs that would decide, when underpowered."""
    budget_met: bool | None = None
    """Whether the loss surely stays within (True) or beyond (False) the budget; None without a budget, or if open."""
    interrupted: bool = False
    """It was stopped by the user; the verdict is from the pairs that were measured."""
    says: tuple[str, ...] = ()
    beside: tuple[Beside, ...] = ()
    """The other metrics that the pairs measured; none of recorded runs."""
    environment: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
