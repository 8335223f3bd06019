"""Answers to requests that did not wait for them, kept for a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from headrace.serve.door import Ended

#: How many answers are kept, how many bytes of results, and for how long.
_MOST, _MOST_BYTES, _SECONDS = 10_000, 64 * 1024 * 1024, 600.0


@dataclass(slots=True)
class KeptAnswer:
    """How it stands with one job."""

    ended: Ended | None = None
    """None while it is worked on."""
    is_new: bool = True
    """Whether nobody has asked for this job before."""
    is_another: bool = False
    """The job of this id that was here before had another content."""
    content: str = ""
    num_bytes: int = 0
    until: float = 0.0


class KeptAnswers:
    """By the job's id; the oldest go first. Thread-safe."""

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
            if known is not None:
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
            kept.ended, kept.num_bytes, kept.until = ended, num_bytes, now + _SECONDS
            self._ended[job_id] = kept
            self._num_bytes += num_bytes
            self._forget_old(now)

    def find(self, job_id: str) -> KeptAnswer | None:
        """Return how it stands with a job; None if it is not known."""
        with self._lock:
            self._forget_old(time.monotonic())
            return self._working.get(job_id) or self._ended.get(job_id)

    def _forget_old(self, now: float) -> None:
        while self._ended:
            oldest = next(iter(self._ended.values()))
            if len(self._ended) <= _MOST and self._num_bytes <= _MOST_BYTES and oldest.until > now:
                return
            self._ended.popitem(last=False)
            self._num_bytes -= oldest.num_bytes
