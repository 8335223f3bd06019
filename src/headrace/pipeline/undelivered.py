"""How a job ends, for now, that has to wait for somebody else.

Its result could not be delivered: it is held back with its result, or dead-lettered with it. Or nothing was tried, because its
server is left alone or others would have to wait: it is held back as if it was new.
"""

from __future__ import annotations

import msgspec

from headrace.base.errors import Crowded, DeliveryRejected, ItemError, ItemFailed, ItemRejected
from headrace.base.protocols import KeepsResults
from headrace.base.records import Job, Kept, Outcome, OutcomeKind
from headrace.pipeline.item import Item


def of_undelivered(item: Item, error: ItemError, keeper: KeepsResults, now: float, jitter: float) -> Outcome:
    """Return the outcome of an item that failed in the delivery.

    Args:
        item: Its value is the result.
        error: Why.
        keeper: The delivery.
        now: Unix seconds.
        jitter: Uniform random number, 0 <= jitter < 1.
    """
    earlier = item.kept or Kept(item.value, None, 0)
    # Redriven it is to have all its time again.
    final = _write(item.job, Kept(item.value, None, 0), keeper)
    if isinstance(error, ItemRejected):
        return Outcome(OutcomeKind.REJECTED, str(error), kept=final, origin=error.origin)
    asked = error.retry_after_seconds if isinstance(error, ItemFailed) else 0.0
    delay = keeper.postponement.next_delay(now, earlier.since, earlier.tries, jitter, asked)
    if delay is None:
        seconds = keeper.postponement.give_up_seconds
        reason = f"{error} (given up after {seconds:g} s: give_up_seconds)"
        return Outcome(OutcomeKind.DEAD_LETTERED, reason, undelivered=True, kept=final, origin=error.origin)
    since = now if earlier.since is None else min(now, earlier.since)
    kept, brief = (
        _write(item.job, Kept(value, since, earlier.tries + 1), keeper) for value in (item.value, msgspec.UNSET)
    )
    if isinstance(error, Crowded):
        return Outcome(OutcomeKind.RETURNED, str(error), delay, False, kept, brief, spared=True)
    return Outcome(OutcomeKind.RETRY, str(error), delay, True, kept, brief, error.origin)


def of_postponed(item: Item, error: ItemFailed, now: float, jitter: float) -> Outcome | None:
    """Return the outcome of an item for which nothing was tried; None if it is to count as a try.

    It counts where the source cannot offer a job as if it was new. So it does where a server has been away for longer than
    anything waits for it: then the job has its last tries, and an end.

    Args:
        item: What failed.
        error: Why; its `retry_after_seconds` is the pause, its `patience_seconds` how old the job may be.
        now: Unix seconds.
        jitter: Uniform random number, 0 <= jitter < 1.
    """
    job = item.job
    if not job.may_wait:
        return None
    if job.sent_at is not None and now - job.sent_at > error.patience_seconds:
        return None
    delay = error.retry_after_seconds * (1.0 + jitter / 2)
    # One of too many waits for its turn; a server that is left alone has failed.
    kind = OutcomeKind.RETURNED if isinstance(error, Crowded) else OutcomeKind.RETRY
    return Outcome(kind, str(error), delay, spared=True)


def _write(job: Job, kept: Kept, keeper: KeepsResults) -> bytes:
    try:
        return keeper.keep(job, kept)
    except DeliveryRejected:  # no JSON: that is why it was rejected
        return b""
