"""Stages alone, `isolation.json` of the run folder, schema `headrace.isolation/1`. Version 1: 2026-11, first.

The differential method of DS-Analyzer (Mohan et al., "Analyzing and mitigating data stalls in DNN training", VLDB 2021): what a
stage can do alone, and what the pipeline does when one part is replaced by something that costs nothing.
"""

from __future__ import annotations

import msgspec

SCHEMA = "headrace.isolation/1"
FILE = "isolation.json"


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A stage alone with so many workers (a device: so many calls side by side, at `batch_size`)."""

    workers: int
    batch_size: int | None
    throughput: float
    """Items per second, median of the repetitions."""
    throughput_low: float
    throughput_high: float
    """Range over the repetitions."""
    cpu: float | None
    """CPU seconds per item."""
    run_delay: float | None
    blocked: float | None
    """Seconds per item neither running nor runnable."""
    service: float
    """Mean seconds per item (per batch for a device)."""
    num_items: int


class StageAlone(msgspec.Struct, frozen=True, kw_only=True):
    """One stage alone."""

    name: str
    kind: str
    executor: str
    cpu_demand: float | None
    """CPU seconds per item with one worker and nothing beside it: the true demand."""
    wait_demand: float | None
    """Seconds per item that it truly waits on the outside, with one worker."""
    curve: tuple[CurvePoint, ...]
    knee_workers: int | None
    """Fewest workers within 5 % of the best throughput; None if the curve was still rising at its end."""
    best_throughput: float | None
    says: str = ""
    """In words; also why the stage could not be run alone."""


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline with something replaced."""

    name: str
    """`as_is`, `cached_items` (device fed from memory), `warm_files`, `cold_files`, `emulated_model`."""
    throughput: float | None
    """Items per second, median of the repetitions; None if it could not be run here."""
    throughput_low: float | None = None
    throughput_high: float | None = None
    ratio: float | None = None
    """To `as_is`, median of paired ratios."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    """95 % interval of the ratio from the paired repetitions; None with fewer than two."""
    says: str = ""
    """What it means, or why it was not run."""


class IsolationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All isolation runs of one pipeline."""

    schema: str = SCHEMA
    pipeline: str
    plan_id: str
    num_items: int
    """Items whose inputs were kept in memory for each stage."""
    stages: tuple[StageAlone, ...]
    variations: tuple[Variation, ...]
    device_ceiling: float | None
    """Items per second of the device fed from memory."""
    feeding_headroom: float | None
    """device_ceiling over as_is: what perfect feeding would give; 1 means fed perfectly."""
    says: tuple[str, ...] = ()
