"""Gives results back to the requests that wait for them."""

from __future__ import annotations

from typing import Any

from headrace.base.calls import Call
from headrace.base.records import Job
from headrace.delivery.callback import Callback
from headrace.serve.source import RequestJob


class Reply:
    """Keeps each result with its job; the source answers the request when the job ends."""

    flush_items = 1
    flush_seconds = 0.0
    default_workers = 1
    is_instant = True

    def open(self, context: Any) -> None:
        """Do nothing."""

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep one result with its job; raises what `Work.prepare` does."""
        _keep(job, result)
        return True

    def flush(self) -> None:
        """Do nothing: whoever waits is told when the job ends."""

    def close(self) -> None:
        """Do nothing."""


class ReplyOrCall:
    """The same, for jobs of which some name a receiver for their results.

    Args:
        callback: Calls the receivers.
    """

    flush_items = 1
    flush_seconds = 0.0

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self.default_workers = callback.default_workers

    def open(self, context: Any) -> None:
        """Make the callback ready."""
        self._callback.open(context)

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep one result, and call its receiver if there is one."""
        if job.attributes.get("callback"):
            self._callback.deliver(job, result)
        _keep(job, result)
        return True

    def delivering(self, job: Job, result: Any) -> Call[bool]:
        """Return a call that does the same."""
        if job.attributes.get("callback"):
            yield from self._callback.delivering(job, result)
        _keep(job, result)
        return True

    def goes_to(self, job: Job) -> tuple[str, str]:
        """Return the receiver and its host; nothing where the result only goes back."""
        return self._callback.goes_to(job) if job.attributes.get("callback") else ("", "")

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Release what the callback has."""
        self._callback.close()


def _keep(job: Job, result: Any) -> None:
    if isinstance(job, RequestJob):
        job.result = result if job.work.prepare is None else job.work.prepare(result)
