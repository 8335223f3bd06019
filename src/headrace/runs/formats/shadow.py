"""A candidate that ran beside the model in use: part of `headrace run --json`. Version 1: 2026-11, first."""

from __future__ import annotations

from typing import Literal

import msgspec


class ShadowDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    candidate: str
    num_items: int
    """That both answered."""
    num_passed_by: int
    """Batches that the candidate did not see, busy or at rest."""
    disagreement: float
    """Share of the items with another answer."""
    low: float
    """Of its interval, which holds whenever one looks."""
    high: float
    max_disagreement: float
    broken: int
    """Answers of the candidate with a NaN or an infinity where the model in use had none."""
    num_failed: int = 0
    """Batches on which the candidate raised an error."""
    speed: tuple[float, float, float] | None
    """Seconds of a call in use over those of the candidate, low, median, high; the interval holds whenever one looks. The
    candidate runs beside the pipeline at the lowest priority: it tells the least that it can do. None: too few calls."""
    advice: Literal["promote", "keep", "roll back"]
    """What to do: let the candidate take over; keep the model in use; do not use the candidate anywhere."""
    says: str
    """Why, with the figures."""
    next_command: str | None = None
    """What to do it with; PLAN stands for a file that is not known here."""
    attempt: str = ""
    """Its id in the ledger; empty if it was not written there."""
