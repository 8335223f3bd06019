"""Entries of the ledger, schema `headrace.ledger/1`: what `headrace ledger list --json` prints.

A ratio is throughput over that of the run that was predicted from. Version 1: 2026-11, first.
"""

from __future__ import annotations

import msgspec

from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.events import Event
from headrace.runs.formats.optimization import Attempt
from headrace.runs.formats.prediction import Change, PredictionDocument, TrackRecord
from headrace.runs.formats.profile import Estimate

SCHEMA = "headrace.ledger/1"


class MeasuredRatio(msgspec.Struct, frozen=True, kw_only=True):
    """What the change did when it was tried."""

    ratio: Estimate
    measured_unix_seconds: float
    """When measuring began, as far as it is known; never before the prediction was written."""
    how: str
    """`24 interleaved pairs`, `two recorded runs`, ... and what is doubtful about it."""


class PredictionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction as it was written, and its measurement, if there is one."""

    id: str
    created_unix_seconds: float
    """When it was written to the ledger."""
    headrace_version: str
    run: str
    """Name of the run folder that it was made from."""
    pipeline: str
    plan_id: str
    """Of that run."""
    hardware: str
    """Twelve hexadecimal digits that stand for the machine of that run; empty if it was not told."""
    change: Change
    says: str
    """The change in words."""
    predicted: Estimate
    """Ratio, with the interval that nine in ten should keep to."""
    measured: MeasuredRatio | None
    """None: nobody has measured it yet."""
    error: float | None
    """predicted / measured - 1; None without a measurement."""
    document: PredictionDocument | None = None
    """All that was said; only `headrace ledger show` gives it."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that was done again."""

    attempt: str
    """Its id."""
    is_same: bool
    """Whether it came out the same: the verdict, and intervals that touch."""
    differences: tuple[str, ...]
    """In words; empty where it is the same."""
    drift: tuple[str, ...]
    """What is otherwise than it was: machine, versions."""
    verdict: str
    speedup: Estimate | None
    drop: Estimate | None
    seconds: float
    says: str


class LedgerDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger holds."""

    schema: str = SCHEMA
    file: str
    predictions: tuple[PredictionEntry, ...]
    """The newest first."""
    record: TrackRecord
    attempts: tuple[Attempt, ...] = ()
    """Variants of models that were tried, the newest first."""
    decisions: tuple[Decision, ...] = ()
    """Which Plan took whose place, the newest first."""
    events: tuple[Event, ...] = ()
    """Techniques that were not tried, validations, replays and measured pipelines, the newest first; only of `show`,
    `why-not` and `list --events`."""
    replayed: Replayed | None = None
    """Only of `headrace ledger replay`."""
