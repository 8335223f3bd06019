"""Events of a run's jobs: each delivery that ended otherwise than delivered, and the run's own beginning and end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from headrace.base.log_events import event_fields
from headrace.base.observer import Observer
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.base.units import format_duration
from headrace.pipeline.reasons import locate_reason
from headrace.pipeline.watching import RunInProgress

logger = logging.getLogger("headrace")

_EVENTS = {
    OutcomeKind.REJECTED: ("job_rejected", logging.WARNING),
    OutcomeKind.DEAD_LETTERED: ("job_dead_lettered", logging.ERROR),
    OutcomeKind.RETRY: ("job_retried", logging.WARNING),
    OutcomeKind.RETURNED: ("job_returned", logging.INFO),
}


class JobEvents(Observer):
    """Logs deliveries that failed; thread-safe. How many lines that makes is the log's concern."""

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Log one."""
        if outcome.kind not in _EVENTS:
            return
        event, level = _EVENTS[outcome.kind]
        if job.lost:
            event, level = "lease_lost", logging.WARNING
        if not logger.isEnabledFor(level):
            return
        stage, code, what = locate_reason(outcome.reason, job.id)
        code, frames = (code or outcome.origin.error, outcome.origin.traceback) if outcome.origin else (code, None)
        logger.log(level, "%s", what, extra=event_fields(event, job, stage=stage, code=code, traceback=frames))


@contextlib.contextmanager
def log_run(run: RunInProgress) -> Iterator[None]:
    """Log when a run begins and how it ended; a watch."""
    plan, address = run.plan.plan_id, run.pipeline.source.shown_address
    origin = f", from {address}" if address else ""
    logger.info("%s begins%s", run.pipeline.name, origin, extra=event_fields("run_begins", plan=plan))
    try:
        yield
    finally:
        counters = run.counters
        logger.info(
            "%s ends after %s: %d received, %d delivered, %d rejected, %d dead-lettered, %d retried, %d returned",
            *(run.pipeline.name, format_duration(run.summary.progress().elapsed_seconds), counters.received),
            *(counters.delivered, counters.rejected, counters.dead_lettered, counters.retried, counters.returned),
            extra=event_fields("run_ends", plan=plan),
        )  # fmt: skip
