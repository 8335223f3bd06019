"""Results that were handed to the delivery and are not durable yet; their jobs are settled once they are."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from headrace.base.clock import Clock
from headrace.base.error_origin import text_of
from headrace.base.errors import DeliveryFailed, ResultsRefused
from headrace.base.formatting import pluralize
from headrace.base.protocols import Delivery
from headrace.pipeline.item import Item
from headrace.pipeline.users_code import raise_if_of_the_run

logger = logging.getLogger("headrace")

#: How long after a flush that failed the next one is tried: not for each result, which would flood the log.
_STUCK_SECONDS = 1.0
#: How long nothing is said after that was said.
_SILENT_SECONDS = 60.0


class UnflushedResults:
    """Flushes a buffering delivery after so many results or so much time, and tells who is delivered; thread-safe.

    Args:
        delivery: Where results go.
        delivered: Called with items whose results are durable.
        clock: For the time since the oldest.
        refused: Called with each item whose result the flush refused for good, and with the reason.
    """

    def __init__(
        self,
        delivery: Delivery,
        delivered: Callable[[list[Item]], None],
        clock: Clock,
        refused: Callable[[Item, str], None],
    ) -> None:
        self._delivery = delivery
        self._delivered = delivered
        self._refused = refused
        self._clock = clock
        self._lock = threading.Lock()
        self._items: list[Item] = []
        self._oldest_ns = 0
        self._said_ns: int | None = None
        self._stuck_since_ns = 0
        self._num_failed = 0
        self._longest_ns = self._num_abandoned = 0
        self._last_error = ""
        self.cpu_seconds: dict[int, float] = {}
        """{kernel's number of a thread: CPU time of its flushes} for workers that filled the buffer."""
        self.is_stuck = False
        """The last flush failed: results are kept, and no more should come than the queues hold."""
        self.takes_nothing = False
        """The last flush refused for good all that it was given: what is handed to the delivery now is no success yet."""

    def add(self, items: Sequence[Item]) -> None:
        """Keep items until the next flush."""
        with self._lock:
            if not self._items:
                self._oldest_ns = self._clock.now_ns()
            self._items.extend(items)
            full = len(self._items) >= self._delivery.flush_items and not self.is_stuck
        if full:
            thread, began = threading.get_native_id(), time.thread_time()
            self.flush()
            self.cpu_seconds[thread] = self.cpu_seconds.get(thread, 0.0) + time.thread_time() - began

    def flush_if_due(self) -> None:
        """Flush what has waited long enough."""
        seconds = _STUCK_SECONDS if self.is_stuck else self._delivery.flush_seconds
        if self._items and self._clock.now_ns() - self._oldest_ns >= seconds * 1e9:
            self.flush()

    def flush(self) -> bool:
        """Make everything durable and tell; return False if the delivery could not."""
        with self._lock:
            if not self._items:
                return True
            reasons: Mapping[str, str] = {}
            try:
                self._delivery.flush()
            except ResultsRefused as error:
                reasons = error.reasons
            except BaseException as error:
                # Not only DeliveryFailed: a defect of somebody's delivery must not end the thread that happened to flush.
                raise_if_of_the_run(error)
                self._note_failure(error)
                return False
            self._longest_ns = self._longest_wait()
            self.is_stuck = False
            items, self._items = self._items, []
        taken = [item for item in items if item.job.id not in reasons]
        self.takes_nothing = self.takes_nothing or not taken
        self._delivered(taken)
        for item in items:
            if item.job.id in reasons:
                self._refused(item, reasons[item.job.id])
        self.takes_nothing = not taken
        return True

    def _note_failure(self, error: BaseException) -> None:
        self._oldest_ns = now = self._clock.now_ns()
        if not self.is_stuck:
            self.is_stuck, self._stuck_since_ns, self._num_failed = True, now, 0
        self._num_failed += 1
        self._last_error = text_of(error)
        if self._said_ns is not None and now - self._said_ns < _SILENT_SECONDS * 1e9:
            return
        self._said_ns = now
        text = f"results are kept and will be written later: {self._last_error}"
        seconds = (now - self._stuck_since_ns) / 1e9
        if seconds >= _SILENT_SECONDS:
            waiting = pluralize(len(self._items), "result")
            text += (
                f"; the flush of {type(self._delivery).__name__} has failed {self._num_failed} times in {seconds:.0f} s, and "
                f"the jobs of {waiting} wait for it: unless a disk or service is to come back, stop the run and correct the "
                "delivery"
            )
        logger.warning("%s", text, exc_info=None if isinstance(error, DeliveryFailed) else error)

    def abandon(self) -> list[Item]:
        """Return what is not durable and forget it."""
        with self._lock:
            items, self._items = self._items, []
            self._num_abandoned += len(items)
            return items

    def warning(self) -> str | None:
        """Return what to say of flushes that failed; None: none did."""
        with self._lock:
            if not self._last_error:
                return None
            lost = self._num_abandoned
            left = (
                f"; {pluralize(lost, 'result')} could not be written at all, and the jobs were given back"
                if lost
                else ""
            )
            return (
                f"the flush of {type(self._delivery).__name__} failed, for {self._longest_wait() / 1e9:.3g} s at the longest: "
                f"{self._last_error}{left}"
            )

    def _longest_wait(self) -> int:
        """Return for how long no flush succeeded at the longest, ns."""
        return max(self._longest_ns, self._clock.now_ns() - self._stuck_since_ns if self.is_stuck else 0)
