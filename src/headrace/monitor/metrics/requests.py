"""Counts what became of requests, for a pipeline that answers them and for what takes them for a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from headrace.base.request_tally import TalliesRequests
from headrace.monitor.metrics.counts import Counts

#: Answers whose times wait for the next look.
_MOST_WAITING = 100_000


class RequestCounts:
    """Looks at a tally, about once a second.

    Args:
        counts: Where.
        source: Of the requests; it tells how long each answer took from now on.
    """

    def __init__(self, counts: Counts, source: TalliesRequests) -> None:
        self._counts = counts
        self._source = source
        self._took: deque[int] = deque(maxlen=_MOST_WAITING)
        source.tally.on_end = self._take_answer

    def _take_answer(self, seconds: float) -> None:
        self._took.append(round(seconds * 1e9))

    def look(self) -> None:
        """Count what ended since the last look."""
        for status, num in self._source.tally.statuses().items():
            self._counts.follow("headrace_requests_total", float(num), (str(status),))
        self._counts.set("headrace_requests_waiting", float(self._source.num_open))
        took = [self._took.popleft() for _ in range(len(self._took))]
        self._counts.observe_many("headrace_request_latency_seconds", took)


def count_refused(counts: Counts, refused: Mapping[str, int]) -> None:
    """Count requests that were not let in.

    Args:
        counts: Where.
        refused: {code: how many so far}.
    """
    for code, num in refused.items():
        counts.follow("headrace_requests_refused_total", float(num), (code,))
