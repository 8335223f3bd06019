"""Who is told what a run's summary counts, in bulk: so that an item costs a listener next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.base.records import BatchFormed, OutcomeKind
from headrace.pipeline.reasons import Failure

#: How a delivery of a job ended: when (ns), the job's id, its attempt, the outcome, why it failed (None if delivered), its
#: task, and whether only the delivery of its result failed. A plain tuple: one is made for each job.
Ended = tuple[int, str, int, OutcomeKind, Failure | None, str, bool]


class Listener(Protocol):
    """Is called under the summary's lock, some tens of times a second: it must be quick, and must not raise."""

    def take_received(self, num: int, num_again: int) -> None:
        """Jobs came; `num_again` of them had been delivered before."""
        ...

    def take_times(self, stage: str, services: Sequence[int], waits: Sequence[int]) -> None:
        """Items passed a stage: service times and queue waits, ns."""
        ...

    def take_batches(self, batches: Sequence[BatchFormed]) -> None:
        """Devices took batches."""
        ...

    def take_ended(self, ended: Sequence[Ended], latencies: Sequence[int | None]) -> None:
        """Deliveries of jobs ended; for each its latency, ns, None if it was not delivered."""
        ...
