"""What is told of one job's way through one stage, where somebody asked."""

from __future__ import annotations

from typing import NamedTuple


class Passage(NamedTuple):
    """One passage of a job, or of a part that a fan-out cut from it, through one stage."""

    stage: str
    started: int
    """On the run's clock, ns."""
    ended: int
    batch_size: int | None
    """Items that were run together; None where the stage takes no batches."""
