"""What is so in a run at one moment, beyond its counts: for metrics and others that look about once a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What is so in a run at one moment, for those who watch it."""

    is_open: bool
    """Whether source and delivery are open."""
    in_flight: int
    """Jobs received and not settled."""
    slots: int
    """Jobs that may be received and not settled, while nothing fails."""
    is_braked: bool
    """Whether nothing succeeds, of a task or of all, so that only a few jobs are tried."""
    open_breakers: Mapping[str, int]
    """{stage: servers and addresses that it does not call now}, for stages that call any."""
    notes: Mapping[str, int]
    """What source, stages and delivery have counted so far, as in `Counters.notes`; none before they are."""
    plan_id: str
    """Of the Plan in force."""
    variants: Sequence[Mapping[str, Any]]
    """Models as opened so far."""
