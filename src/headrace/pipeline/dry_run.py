"""Tries a pipeline on a few of its jobs: everything but the delivery and the acks is done, and every job is given back.

How this works: the source is wrapped so that it hears of no outcome before its close, and then that each job is given back
without its counting. Until then it keeps the jobs in flight, and extends their loans, as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.base.error_origin import Origin
from headrace.base.errors import DeliveryRejected
from headrace.base.plan import Plan
from headrace.base.protocols import Checkable, Delivery, Source
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.delivery.callback import Callback
from headrace.delivery.encoding import encode
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Measuring, run

#: Characters of a result that are shown.
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Trial:
    """What would have become of one job."""

    job_id: str
    outcome: OutcomeKind
    says: str
    """What would be delivered, cut, or why nothing would be."""
    origin: Origin | None = None


class _TrialSource:
    """A source whose jobs all come back to it in the end."""

    is_endless = False

    def __init__(self, source: Source) -> None:
        self.trials: dict[str, Trial] = {}
        self.results: dict[str, str] = {}
        self._source = source
        self._held: list[Callable[[Outcome], None]] = []

    def __getattr__(self, name: str) -> Any:
        """Be what the source is: remote, of an address, ..."""
        if name == "_source":  # before it is there, as when copied
            raise AttributeError(name)
        return getattr(self._source, name)

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return jobs; None once there are none at the moment."""
        jobs = self._source.receive(limit, wait_seconds)
        for job in jobs or ():
            self._held.append(job.intercept_settle(self._note))
        return jobs or None

    def close(self) -> None:
        """Give everything back, then close."""
        held, self._held = self._held, []
        for settle in held:
            settle(Outcome(OutcomeKind.RETURNED, "it was only tried (dry run)", excused=True))
        self._source.close()

    def _note(self, job: Job, outcome: Outcome) -> None:
        says = self.results.get(job.id, "") if outcome.kind is OutcomeKind.DELIVERED else outcome.reason
        self.trials[job.id] = Trial(job.id, outcome.kind, says, outcome.origin)


class _TrialDelivery:
    """Shows what would be delivered instead of delivering it."""

    flush_items = 1
    flush_seconds = 0.0
    default_workers = 1

    def __init__(self, results: dict[str, str], delivery: Delivery) -> None:
        self._results = results
        self._delivery = delivery

    def open(self, context: Any) -> None:
        """Let a callback read its settings, secrets and rules; other deliveries would make a file or a folder."""
        if isinstance(self._delivery, Callback):
            self._delivery.open(context)

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep the beginning of what would be delivered; raises what delivering it would."""
        text = self._delivery.check(job, result).decode() if isinstance(self._delivery, Checkable) else _show(result)
        self._results[job.id] = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return True

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing to close."""


def _show(result: Any) -> str:
    try:
        return encode(result).decode()
    except DeliveryRejected:
        return repr(result)


def dry_run(pipeline: Pipeline, plan: Plan, num_jobs: int) -> list[Trial]:
    """Return what would become of the next jobs, in the order in which they were done; the source has them all again.

    A message that was received too often before is a dead letter all the same: the source does that by itself.
    """
    source = _TrialSource(pipeline.source)
    tried = pipeline.replace_delivery(_TrialDelivery(source.results, pipeline.delivery))
    tried.source = source
    # All are held at a time, and a source that gives out few at a time would seem to have no more.
    at_once = max(num_jobs, plan.source.max_in_flight or 0)
    plan = plan.with_settings([f"source.max_in_flight={at_once}"])
    # Each of them is to have its own reason, also where none succeeds.
    run(tried, plan, limit=num_jobs, checkpoint=False, measuring=Measuring(brakes=False))
    return list(source.trials.values())
