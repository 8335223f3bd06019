"""Which Plan took whose place, and who said so. Version 1: 2026-11, first."""

from __future__ import annotations

from typing import Literal

import msgspec


class Decision(msgspec.Struct, frozen=True):
    """One change of a Plan's file."""

    number: int
    """`d12` in the ledger."""
    created_unix_seconds: float
    plan: str
    """The file."""
    action: Literal["accept", "rollback"]
    attempt: int | None
    """Number of the attempt that proved it, or whose acceptance is taken back."""
    who: str
    why: str
    before: str | None
    """The file's text; None: there was none."""
    after: str | None
    """None: it was taken away."""
