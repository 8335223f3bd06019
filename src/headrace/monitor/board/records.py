"""What the board knows of one thing that it found."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.runs.formats.comparison import ComparisonDocument
from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.incident import IncidentDocument
from headrace.runs.formats.ledger import PredictionEntry
from headrace.runs.formats.optimization import Attempt

State = Literal["runs", "finished", "interrupted", "failed", "killed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run, in the figures of `run.json`."""

    pipeline: str
    plan_id: str
    state: State
    began: float
    """Unix time, as `ended`."""
    ended: float | None
    """None while it runs, or if it was killed."""
    host: str
    delivered: int
    failed: int
    """Rejected and dead-lettered."""
    retried: int
    throughput: float | None
    latency_p50: float | None
    latency_p99: float | None
    is_emulated: bool = False
    is_worker: bool = False
    """One of several processes of a run."""
    warnings: tuple[str, ...] = ()

    @property
    def is_bad(self) -> bool:
        """Whether at least as many jobs failed as were delivered."""
        return self.state != "runs" and self.failed + self.retried > 0 and self.failed + self.retried >= self.delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """What a ledger holds."""

    decisions: tuple[Decision, ...] = ()
    """The newest first, as for the others."""
    attempts: tuple[Attempt, ...] = ()
    predictions: tuple[PredictionEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What should be done about a pipeline."""

    says: str
    """What limits it, for people who know no verdicts."""
    to_do: str = ""
    """One thing; empty: nothing is known."""
    why: str = ""
    """With the numbers: for those who want to know."""
    command: str = ""
    """To type."""
    settings: tuple[str, ...] = ()
    """Of the Plan, `KEY=VALUE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Something that was found."""

    kind: str
    path: Path
    name: str
    """Path below the folder that was looked through."""
    at: float
    """Unix time at which it began, or was last changed."""
    trouble: str = ""
    """Why it could not be read; empty: it was."""
    run: RunRow | None = None
    incident: IncidentDocument | None = None
    comparison: ComparisonDocument | None = None
    ledger: LedgerRow | None = None
    alarms: tuple[str, ...] = ()
    """What is not as it was: drift, a stage that takes longer."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """{what: value} of other kinds, in words; `says` is a sentence that stands for all of them."""
    command: str = ""
    """What to type about it, where somebody is waited for."""

    @property
    def id(self) -> str:
        """What links name it by: no path of this machine travels in an address."""
        return hashlib.sha256(str(self.path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
