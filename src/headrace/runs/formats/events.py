"""What happened beside attempts and decisions, and belongs to a ledger all the same. Version 1: 2026-11, first."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.runs.formats.profile import Estimate

EventKind = Literal["skip", "validation", "replay", "pipeline", "run-off", "canary", "budget"]
"""A technique not tried; a `headrace validate`; an attempt judged again; a pipeline measured with an attempt's variant; two
attempts that tied, held against each other; something that was done with a canary; a step of a run down
the ladder of its budget, or up."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One of them; what does not apply is empty."""

    id: str = ""
    """In the ledger, such as `e12`; empty until it is written there."""
    created_unix_seconds: float = 0.0
    kind: EventKind
    attempt: str = ""
    """That it is about, such as `a7`."""
    model: str = ""
    """sha256 of the model as it was given."""
    technique: str = ""
    verdict: str = ""
    says: str
    """What came of it; of a technique that was not tried, why."""
    would_change: str = ""
    """What would have to be otherwise for another outcome."""
    golden_sha256: str = ""
    """Of the golden set that judged; empty: none did."""
    hardware: str = ""
    """Fingerprint of the machine."""
    speedup: Estimate | None = None
    """Of a replay; of a pipeline its throughput after over before; of a run-off that of the second over the first."""
    drop: Estimate | None = None
    prediction: str = ""
    """Of what a pipeline came to, such as `p12`."""
