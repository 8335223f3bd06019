"""What the receivers did: calls of the source, waiting for room, running inline stages, and the age of what came.

How this works: one book for all receivers, written once per call of the source, under the lock that `Admission` takes
then anyway. It covers the time from the first job to the last. Calls that began before the first job came are left out: they
waited for whoever sends, not for us. Empty calls are counted only if another job follows: at the
end, a source that has no more only waits for our own last jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.base.records import Job, Receiving

#: Means of ages are kept for 100 to 200 stretches of the run, once it had as many jobs.
_MIN_STRETCHES = 100
#: The end of the run whose jobs' age is told apart.
_LAST_SHARE = 0.1
#: Times between calls from which on it is said how even they are.
_MIN_GAPS = 20


class AgeBook:
    """Ages of jobs at receipt, in stretches of equal numbers of jobs, so that a run of any length takes little memory."""

    def __init__(self) -> None:
        self._stretches: list[tuple[int, float]] = []
        self._jobs_each = 1

    def add(self, num_jobs: int, age_seconds: float) -> None:
        """Note jobs that were received together.

        Args:
            num_jobs: How many, >= 0.
            age_seconds: Their ages, summed.
        """
        stretches = self._stretches
        if stretches and stretches[-1][0] < self._jobs_each:
            before, seconds = stretches.pop()
            num_jobs, age_seconds = num_jobs + before, age_seconds + seconds
        if num_jobs:
            stretches.append((num_jobs, age_seconds))
        if len(stretches) > 2 * _MIN_STRETCHES:
            self._jobs_each *= 2
            pairs = zip(stretches[::2], [*stretches[1::2], (0, 0.0)], strict=False)
            self._stretches = [(first[0] + second[0], first[1] + second[1]) for first, second in pairs]

    def mean(self, last_share: float = 1.0) -> float | None:
        """Return the mean age in seconds of the last so many of the jobs; None without jobs.

        Of a stretch that only partly belongs to them its mean is taken for the part.
        """
        wanted = last_share * sum(num for num, _ in self._stretches)
        left, seconds = wanted, 0.0
        for num, age in reversed(self._stretches):
            taken = min(left, num)
            seconds += age * taken / num
            left -= taken
            if left <= 0:
                break
        return seconds / wanted if wanted else None


class GapBook:
    """Times between the ends of calls that brought jobs: how even they are, and whether they follow a clock."""

    def __init__(self) -> None:
        self._ended_at: float | None = None
        self._first = self._last = 0.0
        self._num = 0
        self._sum = self._squares = self._products = 0.0

    def add(self, ended: float) -> None:
        """Note the end of a call, seconds of any steady clock."""
        before, self._ended_at = self._ended_at, ended
        if before is None:
            return
        gap = ended - before
        if self._num:
            self._products += gap * self._last
        else:
            self._first = gap
        self._num += 1
        self._sum += gap
        self._squares += gap * gap
        self._last = gap

    def spread(self) -> float | None:
        """Return standard deviation over mean; None with too few."""
        mean = self._sum / self._num if self._num >= _MIN_GAPS else 0.0
        return math.sqrt(max(self._variance(mean), 0.0)) / mean if mean > 0 else None

    def correlation(self) -> float | None:
        """Return the correlation of each with the one before; None with too few, and where all are equal."""
        if self._num < _MIN_GAPS:
            return None
        mean, others = self._sum / self._num, self._num - 1
        variance = self._variance(mean)
        if variance <= 0:
            return None
        together = self._products - mean * (2 * self._sum - self._first - self._last) + others * mean * mean
        return together / others / variance

    def _variance(self, mean: float) -> float:
        return self._squares / self._num - mean * mean


class ReceivingBook:
    """Adds up what all receivers did. Not thread-safe: the lock of `Admission` is held.

    Args:
        num_receivers: How many there are.
    """

    def __init__(self, num_receivers: int) -> None:
        self._num_receivers = num_receivers
        self._began_at: float | None = None
        self._calls = self._empty_calls = self._full_calls = self._jobs = self._asked = 0
        self._call_seconds = self._empty_seconds = self._blocked_seconds = self._inline_seconds = 0.0
        self._again_calls, self._again_seconds = 0, 0.0
        # Since the last job came: empty calls, jobs asked for by them, seconds within them, seconds blocked before calls.
        self._aside = (0, 0, 0.0, 0.0)
        self._most_jobs = self._most_calls = 0
        self._gaps = GapBook()
        self._ages = AgeBook()

    def called(self, asked: int, jobs: Sequence[Job], began: float, ended: float, unix_seconds: float) -> None:
        """Note one call of the source.

        Args:
            asked: Jobs asked for.
            jobs: Those that came.
            began: When the call began, seconds of any steady clock.
            ended: When it came back.
            unix_seconds: The same moment in Unix time.
        """
        num_again, num_aged, age_seconds = 0, 0, 0.0
        # A loop, since a request comes alone: what makes lists and sums would take longer than all else here.
        for job in jobs:
            if job.attempt > 1:
                num_again += 1
            elif job.sent_at is not None:
                num_aged += 1
                age_seconds += unix_seconds - job.sent_at
        if num_aged:
            self._ages.add(num_aged, age_seconds)
        if self._began_at is None or began < self._began_at:
            if jobs and self._began_at is None:
                self._began_at = ended
            return
        if not jobs:
            calls, asked_before, seconds, blocked = self._aside
            self._aside = calls + 1, asked_before + asked, seconds + ended - began, blocked
            return
        self._take_from_aside()
        self._calls += 1
        self._full_calls += len(jobs) >= asked
        self._jobs += len(jobs)
        self._asked += asked
        self._call_seconds += ended - began
        if len(jobs) > self._most_jobs:
            self._most_jobs, self._most_calls = len(jobs), 0
        self._most_calls += len(jobs) == self._most_jobs
        self._gaps.add(ended)
        if num_again == len(jobs):
            self._again_calls += 1
            self._again_seconds += ended - began

    def waited(self, seconds: float) -> None:
        """Note seconds that a receiver waited until fewer jobs were in flight."""
        if self._began_at is not None:
            calls, asked, empty_seconds, blocked = self._aside
            self._aside = calls, asked, empty_seconds, blocked + seconds

    def handed_on(self, blocked_seconds: float, inline_seconds: float) -> None:
        """Note what a receiver did with the jobs of a call: waiting for room in a queue, running stages itself."""
        self._blocked_seconds += blocked_seconds
        self._inline_seconds += inline_seconds

    def total(self) -> Receiving:
        """Return the sums up to now."""
        return Receiving(
            num_receivers=self._num_receivers,
            calls=self._calls,
            empty_calls=self._empty_calls,
            full_calls=self._full_calls,
            jobs=self._jobs,
            asked=self._asked,
            call_seconds=self._call_seconds,
            empty_call_seconds=self._empty_seconds,
            blocked_seconds=self._blocked_seconds,
            inline_seconds=self._inline_seconds,
            mean_age_seconds=self._ages.mean(),
            last_age_seconds=self._ages.mean(_LAST_SHARE),
            again_calls=self._again_calls,
            again_call_seconds=self._again_seconds,
            most_jobs=self._most_jobs,
            most_calls=self._most_calls,
            gap_spread=self._gaps.spread() if self._num_receivers == 1 else None,
            gap_correlation=self._gaps.correlation() if self._num_receivers == 1 else None,
        )

    def _take_from_aside(self) -> None:
        calls, asked, seconds, blocked = self._aside
        self._aside = (0, 0, 0.0, 0.0)
        self._calls += calls
        self._empty_calls += calls
        self._asked += asked
        self._call_seconds += seconds
        self._empty_seconds += seconds
        self._blocked_seconds += blocked
