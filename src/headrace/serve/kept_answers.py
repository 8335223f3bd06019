"""Answers to requests that did not wait for them, kept for a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from headrace.serve.door import Ended

#: Statuses of ends after which the same job may be tried again: it was not done, and that was not its fault.
_TRY_AGAIN = (503, 504)
#: How many answers are kept, how many bytes of results, and for how long.
MOST_ANSWERS, MOST_BYTES, KEPT_SECONDS = 10_000, 64 * 1024 * 1024, 600.0


@dataclass(slots=True)
class KeptAnswer:
    """How it stands with one job."""

    ended: Ended | None = None
    """None while it is worked on."""
    is_new: bool = True
    """Whether nobody has asked for this job before."""
    is_another: bool = False
    """The job of this id that was here before had another content."""
    is_lost: bool = False
    """The process that worked on it is gone."""
    content: str = ""
    num_bytes: int = 0
    until: float = 0.0


def may_try_again(ended: Ended | None) -> bool:
    """Return whether the next try of a job that ended so is a job of its own."""
    return ended is not None and ended.status in _TRY_AGAIN


class Answers(Protocol):
    """Where they are kept."""

    def open(self, job_id: str, content: str = "") -> KeptAnswer:
        """Keep a place for a job's answer; of a job that is known already, return what there is. May raise OSError."""
        ...

    def drop(self, job_id: str) -> None:
        """Forget a job that was not let in."""
        ...

    def close(self, job_id: str, ended: Ended) -> None:
        """Keep a job's answer; any thread."""
        ...

    def find(self, job_id: str) -> KeptAnswer | None:
        """Return how it stands with a job; None if it is not known."""
        ...


class KeptAnswers:
    """In this process, by the job's id; the oldest go first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working: dict[str, KeptAnswer] = {}
        self._ended: OrderedDict[str, KeptAnswer] = OrderedDict()
        self._num_bytes = 0

    def open(self, job_id: str, content: str = "") -> KeptAnswer:
        """Keep a place for a job's answer; of a job that is known already, return what there is.

        Args:
            job_id: The job's.
            content: Tells what the job carries from what others do.
        """
        with self._lock:
            known = self._working.get(job_id) or self._ended.get(job_id)
            if known is not None and not may_try_again(known.ended):
                return KeptAnswer(known.ended, is_new=False, is_another=known.content != content)
            self._working[job_id] = KeptAnswer(content=content)
            return self._working[job_id]

    def drop(self, job_id: str) -> None:
        """Forget a job that was not let in."""
        with self._lock:
            self._working.pop(job_id, None)

    def close(self, job_id: str, ended: Ended) -> None:
        """Keep a job's answer."""
        now, num_bytes = time.monotonic(), len(ended.result or b"") + len(ended.reason)
        with self._lock:
            kept = self._working.pop(job_id, None) or KeptAnswer()
            kept.ended, kept.num_bytes, kept.until = ended, num_bytes, now + KEPT_SECONDS
            before = self._ended.pop(job_id, None)
            self._ended[job_id] = kept
            self._num_bytes += num_bytes - (before.num_bytes if before else 0)
            self._forget_old(now)

    def find(self, job_id: str) -> KeptAnswer | None:
        """Return how it stands with a job; None if it is not known."""
        with self._lock:
            self._forget_old(time.monotonic())
            return self._working.get(job_id) or self._ended.get(job_id)

    def _forget_old(self, now: float) -> None:
        while self._ended:
            oldest = next(iter(self._ended.values()))
            if len(self._ended) <= MOST_ANSWERS and self._num_bytes <= MOST_BYTES and oldest.until > now:
                return
            self._ended.popitem(last=False)
            self._num_bytes -= oldest.num_bytes
