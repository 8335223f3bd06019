"""Events of a running pipeline: subclass `Observer`, override what you need, pass it to `run(observers=[...])`.

The pipeline knows nothing about profiling or monitoring: profiler, monitor, progress view and run folder all attach here. A
hook that nobody overrides costs nothing. One that raises is logged and detached, and the item goes on. Hooks are called
from the threads that do the work, `stage_finished` from the bookkeeper's: they must be quick and thread-safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.base.records import BatchFormed, Job, Outcome, Span

logger = logging.getLogger("headrace")


class Observer:
    """Typed hooks that do nothing.

    Attributes:
        recorded_only: Whether `stage_finished` needs only the spans that a run folder keeps, those with a weight above 0.
    """

    recorded_only = False

    def job_received(self, jobs: Sequence[Job]) -> None:
        """Jobs came from the source, before any stage."""

    def stage_started(self, stage: str, item_ids: Sequence[str]) -> None:
        """A worker took these items for this stage."""

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Items finished these stages, and the next queue took them."""

    def batch_formed(self, batch: BatchFormed) -> None:
        """A device took a batch."""

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """This delivery of the job ended, and the source knows its outcome."""


HOOKS = ("job_received", "stage_started", "stage_finished", "batch_formed", "job_settled")


class Observers:
    """Calls each hook of those observers that override it.

    Attributes:
        wants: For each hook, whether anybody listens; the pipeline asks before it builds arguments.
        wants_unrecorded: Whether somebody listens who needs the spans of all items.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        every = list(observers)
        self._listeners: dict[str, list[Callable[..., None]]] = {
            hook: [
                getattr(observer, hook)
                for observer in every
                if getattr(type(observer), hook) is not getattr(Observer, hook)
            ]
            for hook in HOOKS
        }
        self.wants = {hook: bool(listeners) for hook, listeners in self._listeners.items()}
        self.wants_unrecorded = not all(
            observer.recorded_only or type(observer).stage_finished is Observer.stage_finished for observer in every
        )

    def notify(self, hook: str, *arguments: Any) -> None:
        """Call one hook of everybody who listens; one that raises is logged and detached."""
        for listener in tuple(self._listeners[hook]):
            try:
                listener(*arguments)
            except (Exception, SystemExit):  # which would end the thread that happened to call it, without a word
                logger.exception("observer %r raised in %s and is detached; the items go on", listener, hook)
                self._listeners[hook] = [other for other in self._listeners[hook] if other is not listener]
                self.wants[hook] = bool(self._listeners[hook])
