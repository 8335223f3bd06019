"""Results in memory, for tests, notebooks and benchmarks."""

from __future__ import annotations

from typing import Any

from headrace.base.records import Job


class Collect:
    """Keeps (job id, result) pairs in `results`, in the order of delivery."""

    flush_items = 1
    flush_seconds = 0.0
    default_workers = 1

    def __init__(self) -> None:
        self.results: list[tuple[str, Any]] = []

    def open(self, context: Any) -> None:
        """Do nothing."""

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep one result."""
        self.results.append((job.id, result))
        return True

    def flush(self) -> None:
        """Do nothing: results are kept at once."""

    def close(self) -> None:
        """Do nothing: the results stay."""
