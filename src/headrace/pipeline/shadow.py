"""A candidate beside the model in use, on the same batches: its answers are compared and thrown away.

How this works: the thread that calls the model in use hands over a copy of the batch and the answers, if the shadow has nothing
to do at that moment; else the batch passes it by. The candidate runs in a thread of its own at the lowest priority, and rests
after each call so that it takes no more than its share of the time. So it never delays the model in use by more than a copy
of a batch, keeps no more than one batch, and cannot fail a job: what it raises is counted, and after a few times it stops.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.current_job import hands
from headrace.base.meaning import NOTHING_DECLARED, Declared
from headrace.base.protocols import Model
from headrace.base.records import Job
from headrace.base.redaction import hide_secrets_in_text

logger = logging.getLogger("headrace.run")

#: Calls in a row that may fail before the shadow stops.
_MOST_FAILURES = 10
_LOWEST_PRIORITY = 19

#: Told of each batch that both answered: the answers in use, the candidate's, the seconds of both calls, and what is known of
#: the answers. Returns for each item how far they differ, from 0 to 1, if it knows.
Compare = Callable[[Any, Any, float, float, Declared], object]


@dataclass(frozen=True, slots=True)
class Failures:
    """Calls of a candidate that failed."""

    num: int = 0
    last: str = ""
    """What it raised last."""
    has_stopped: bool = False
    """Whether there were so many in a row that it was called no more."""


@dataclass(frozen=True, slots=True)
class _Offer:
    batch: Any
    answers: Any
    seconds: float
    declared: Declared
    jobs: list[Job]
    """Of the items of the batch, in its order."""

    def note(self, changed: object) -> None:
        """Let each job know how far its answers differ."""
        known = isinstance(changed, Sequence | np.ndarray) and len(changed) == len(self.jobs)
        for index, job in enumerate(self.jobs):
            job.twin = [float(changed[index]) if known else None]  # type: ignore[index]


class Shadow:
    """Runs a candidate on some of the batches.

    Args:
        candidate: Opened.
        compare: Told of each batch that both answered; called in the shadow's thread.
        share: Of the time that it may be busy, above 0 and at most 1.

    Attributes:
        num_passed_by: Batches that came while it was busy or at rest.
        failures: Of the candidate.
    """

    def __init__(self, candidate: Model, compare: Compare, *, share: float = 0.1) -> None:
        self.num_passed_by = 0
        self.failures = Failures()
        self._candidate = candidate
        self._compare = compare
        self._share = share
        self._offer: _Offer | None = None
        self._is_idle = False
        self._wake = threading.Condition()
        self._ended = False
        self._num_in_a_row = 0
        self._thread = threading.Thread(target=self._work, name="shadow", daemon=True)

    def __enter__(self) -> Shadow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._wake:
            self._ended = True
            self._wake.notify()
        self._thread.join()

    def offer(
        self,
        batch: np.ndarray | Mapping[str, np.ndarray],
        answers: Any,
        seconds: float,
        declared: Declared = NOTHING_DECLARED,
    ) -> None:
        """Take a batch, if there is nothing to do; never waits for the candidate."""
        if not self._is_idle:
            self.num_passed_by += 1
            return
        # Copies of both: the runtime writes over the one, and the user's code may write over the other.
        copied, kept = _copy(batch), _copy(answers)
        with self._wake:
            if self._is_idle:  # else another worker was faster
                self._is_idle = False
                jobs = [item.job for item in hands.items]
                for job in jobs:
                    job.twin = []
                self._offer = _Offer(copied, kept, seconds, declared, jobs)
                self._wake.notify()

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # the thread's own priority, on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        while (offer := self._next()) is not None:
            began = time.perf_counter()
            self._answer(offer)
            busy = time.perf_counter() - began
            with self._wake:
                self._wake.wait_for(lambda: self._ended, busy * (1 / self._share - 1))
            if self.failures.has_stopped:
                logger.warning("the shadow stops after %d failures in a row: %s", _MOST_FAILURES, self.failures.last)
                return

    def _next(self) -> _Offer | None:
        with self._wake:
            self._is_idle = True
            self._wake.wait_for(lambda: self._offer is not None or self._ended)
            self._is_idle = False
            offer, self._offer = self._offer, None
        return None if self._ended else offer

    def _answer(self, offer: _Offer) -> None:
        began = time.perf_counter()
        try:
            answers = self._candidate(offer.batch)
            seconds = time.perf_counter() - began
            offer.note(self._compare(offer.answers, answers, offer.seconds, seconds, offer.declared))
        except Exception as error:  # a shadow cannot fail a job, whatever its engine raises
            self._num_in_a_row += 1
            offer.note(None)
            said = hide_secrets_in_text(str(error)) or type(error).__name__
            self.failures = Failures(self.failures.num + 1, said, self._num_in_a_row >= _MOST_FAILURES)
            return
        self._num_in_a_row = 0


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: np.array(one) for name, one in value.items()}
    return np.array(value)
