"""Hands leases to workers on other machines, and hands on the lease of what died.

How this works. One thread asks, every fraction of a second, which calls were answered. A worker has one call that says when it
is there, then one for each lease. A lease whose worker is gone, or whose process died, goes to whoever is free next. Nothing of
what was done is kept here: that is in the results, their checkpoints and the queue, so it also outlives this process.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headrace.ray.leases import Lease, Report, Setting

logger = logging.getLogger("headrace")

_POLL_SECONDS = 0.2
_NEWS_SECONDS = 1.0
_PROGRESS_SECONDS = 10.0
#: Before a lease whose worker or process died is tried again, or a worker that never came is asked for again, at most; twice as
#: long each time.
_MOST_PAUSE_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.5
#: A little more than a process may take to leave, see `worker`.
_CLOSE_SECONDS = 12.0


class Lost(Exception):
    """The worker died, or cannot be reached; it may come back."""


class NoPlace(Exception):
    """The worker cannot begin, wherever it is placed."""


class Cluster(Protocol):
    """Where workers live; see `cluster.RayCluster`."""

    def start(self, setting: Setting) -> Any:
        """Ask for a worker."""
        ...

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        """Call a method of it, and return what stands for its answer."""
        ...

    def wait(self, calls: Sequence[Any], seconds: float) -> list[Any]:
        """Return those of the calls that have been answered; waits for the first."""
        ...

    def answer(self, call: Any) -> Any:
        """Return the answer; raises Lost or NoPlace."""
        ...

    def free_cores(self) -> float:
        """Return how many cores nobody has."""
        ...

    def end(self, worker: Any) -> None:
        """End a worker."""
        ...


@dataclass
class Crewed:
    """What came of all leases."""

    done: list[tuple[Lease, Report]] = field(default_factory=list)
    """Those that ended orderly, also where they were asked to stop."""
    deaths: list[tuple[Lease, str, float]] = field(default_factory=list)
    """Lease, cause, and for how many seconds it had been at work."""
    status: int = 0
    """Why the others were stopped: the exit status of a process; 0: they were not."""
    reason: str = ""
    first_done_seconds: float | None = None
    """From the first worker's being there to the first lease's end."""
    is_unfinished: bool = False
    """A lease was not done to its end."""


@dataclass(eq=False)
class _Post:
    """One worker."""

    number: int
    worker: Any = None
    call: Any = None
    is_there: bool = False
    num_missed: int = 0
    """How many workers in a row were asked for and never came."""
    begin_at: float = 0.0
    """Where there is no worker: when one is asked for again."""
    lease: Lease | None = None
    since: float = 0.0
    news: Any = None
    unfinished_line: str = ""


class Crew:
    """See above.

    Args:
        cluster: Where workers live.
        setting: What they share with the command.
        num_workers: How many.
        say: Takes a line for people.
        tell: Takes a line that a process wrote.
        progress: Takes a line now and then.
        enough_because: Says why a lease that died, after so many seconds, is not worth another try; empty: it is.
        num_stops: Returns how often somebody asked all to stop.
        now: A clock.
    """

    def __init__(
        self,
        cluster: Cluster,
        setting: Setting,
        num_workers: int,
        *,
        say: Callable[[str], object],
        tell: Callable[[str], object],
        progress: Callable[[str], object],
        enough_because: Callable[[Lease, float], str],
        num_stops: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._setting = setting
        self._num_workers = num_workers
        self._say, self._tell, self._progress = say, tell, progress
        self._enough_because = enough_because
        self._num_stops = num_stops
        self._now = now
        self._posts: list[_Post] = []
        self._pending: deque[tuple[float, Lease]] = deque()
        self._num_heeded = 0
        self._news_at = self._progress_at = 0.0
        self._total = 0
        self._were_all_there = False
        self.result = Crewed()

    @property
    def is_stopping(self) -> bool:
        """Whether nothing more is begun."""
        return bool(self._num_heeded or self.result.status)

    def run(self, leases: Sequence[Lease]) -> Crewed:
        """Have all leases done, or those at work when all are asked to stop."""
        self._pending.extend((0.0, lease) for lease in leases)
        self._total = len(leases)
        self._progress_at = self._now() + _PROGRESS_SECONDS
        try:
            for number in range(min(self._num_workers, len(leases))):
                self._posts.append(_Post(number))
            while self._has_work():
                self._heed_stops()
                self._ask_workers()
                self._hand_out()
                self._listen()
                self._ask_news()
                self._tell_progress()
        finally:
            self._end_workers()
        return self.result

    def _end_workers(self) -> None:
        """End all: first let the processes of those that are there leave, all at the same time."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            calls = [self._cluster.call(post.worker, "close") for post in self._posts if post.is_there]
            until = self._now() + _CLOSE_SECONDS
            while calls and (seconds := until - self._now()) > 0:
                answered = self._cluster.wait(calls, seconds)
                calls = [call for call in calls if call not in answered]
        for post in self._posts:
            if post.worker is not None:
                self._cluster.end(post.worker)

    def _has_work(self) -> bool:
        if self.is_stopping:
            return any(post.lease for post in self._posts)
        return bool(self._pending) or any(post.lease for post in self._posts)

    def _heed_stops(self) -> None:
        while self._num_heeded < self._num_stops():
            self._num_heeded += 1
            self._stop_all()

    def _stop_all(self) -> None:
        """Begin nothing more, and ask those at work to finish what they have in hand."""
        # A place at a queue that nobody has taken leaves nothing undone.
        parts = [lease for _, lease in self._pending if lease.args.shard is not None]
        self.result.is_unfinished = self.result.is_unfinished or bool(parts)
        self._pending.clear()
        for post in self._posts:
            if post.lease is not None:
                self._cluster.call(post.worker, "stop")

    def _fail(self, status: int, reason: str) -> None:
        if self.result.status:
            return
        is_stopping = self.is_stopping
        self.result.status, self.result.reason = status, reason
        if not is_stopping:  # a second request would have the others give back at once what they have in hand
            self._stop_all()

    # --- giving

    def _ask_workers(self) -> None:
        for post in self._posts:
            if post.worker is None and not self.is_stopping and post.begin_at <= self._now():
                post.worker = self._cluster.start(self._setting)
                post.call = self._cluster.call(post.worker, "ready")

    def _hand_out(self) -> None:
        if self.is_stopping:
            return
        now = self._now()
        for post in self._posts:
            due = next((one for one in self._pending if one[0] <= now), None)
            if due is None:
                return
            if post.is_there and post.call is None:
                self._pending.remove(due)
                post.lease, post.since = due[1], now
                post.call = self._cluster.call(post.worker, "work", due[1])

    # --- hearing

    def _listen(self) -> None:
        calls = {id(post.call): post for post in self._posts if post.call is not None}
        if not calls:
            time.sleep(_POLL_SECONDS)  # all wait for a lease's pause to end
            return
        for call in self._cluster.wait([post.call for post in calls.values()], _POLL_SECONDS):
            post = next((one for one in self._posts if one.call is not None and one.call == call), None)
            if post is not None:
                self._hear(post)

    def _hear(self, post: _Post) -> None:
        call, post.call = post.call, None
        try:
            answer = self._cluster.answer(call)
        except NoPlace as error:
            self._fail(3, f"a worker cannot begin: {error}")  # first: no other one is asked for
            self._lose(post, str(error))
        except Lost as error:
            self._lose(post, str(error))
        else:
            if isinstance(answer, Report):
                self._take_report(post, answer)
            else:
                post.is_there, post.num_missed = True, 0
                self._tell_all_there()

    def _take_report(self, post: _Post, report: Report) -> None:
        lease, post.lease = post.lease, None
        assert lease is not None
        self._take_news(post, wait_seconds=1.0)
        self._tell_lines(post, lease, report.said, is_end=True)
        if report.status < 0:
            cause = signal.Signals(-report.status).name if -report.status in set(signal.Signals) else str(report.status)
            self._note_death(lease, f"killed by {cause}: its process {report.pid} on {report.host}", report.seconds)
        elif report.is_death:
            cause = f"ended in the midst with exit status {report.status}: its process {report.pid} on {report.host}"
            self._note_death(lease, cause, report.seconds)
        elif report.status:
            self._fail(
                report.status, f"{lease.name} on {report.host} ended with exit status {report.status}, as said above"
            )
            self.result.is_unfinished = True
        else:
            self.result.done.append((lease, report))
            self.result.is_unfinished = self.result.is_unfinished or report.interrupted

    def _lose(self, post: _Post, cause: str) -> None:
        """Note that a worker is gone; Ray starts it again, and its lease goes to whoever is free."""
        lease, post.lease = post.lease, None
        was_there = post.is_there
        post.is_there, post.news, post.unfinished_line = False, None, ""
        if lease is not None:
            self._note_death(lease, f"its worker is gone: {cause}", self._now() - post.since)
        if self.is_stopping:
            return
        if was_there:
            post.call = self._cluster.call(post.worker, "ready")
            return
        self._cluster.end(post.worker)  # it does not come back
        post.worker = None
        pause = _pause(post.num_missed)
        post.num_missed += 1
        post.begin_at = self._now() + pause
        self._say(f"a worker did not come: {cause}; another is asked for in {pause:g} s")

    def _note_death(self, lease: Lease, cause: str, seconds: float) -> None:
        self.result.deaths.append((lease, cause, seconds))
        if self.is_stopping:
            self.result.is_unfinished = True
            self._say(f"{lease.name}: {cause}")
            return
        again = replace(lease, attempt=lease.attempt + 1)
        if why := self._enough_because(again, seconds):
            self._fail(3, f"{why}: {cause}")
            self.result.is_unfinished = True
            return
        pause = _pause(lease.attempt) if seconds < 5 else 0.0
        self._pending.append((self._now() + pause, again))
        self._say(f"{lease.name}: {cause}; it goes on with the next free worker")

    # --- telling

    def _ask_news(self) -> None:
        if self._now() < self._news_at:
            return
        self._news_at = self._now() + _NEWS_SECONDS
        for post in self._posts:
            self._take_news(post)
            if post.lease is not None and post.news is None:
                post.news = self._cluster.call(post.worker, "news")

    def _take_news(self, post: _Post, wait_seconds: float = 0.0) -> None:
        if post.news is None or not self._cluster.wait([post.news], wait_seconds):
            return
        news, post.news = post.news, None
        try:
            text = self._cluster.answer(news)
        except (Lost, NoPlace):
            return
        if post.lease is not None:
            self._tell_lines(post, post.lease, text)

    def _tell_lines(self, post: _Post, lease: Lease, text: str, *, is_end: bool = False) -> None:
        *lines, rest = (post.unfinished_line + text).split("\n")
        post.unfinished_line = "" if is_end else rest
        for line in [*lines, *([rest] if is_end else [])]:
            if line.strip():
                self._tell(f"{lease.name}| {line}")

    def _tell_all_there(self) -> None:
        if not self._were_all_there and all(post.is_there for post in self._posts):
            self._were_all_there = True
            self._progress(f"all {len(self._posts)} workers are there")

    def _tell_progress(self) -> None:
        now = self._now()
        if now < self._progress_at:
            return
        self._progress_at = now + _PROGRESS_SECONDS
        there = sum(post.is_there for post in self._posts)
        text = (
            f"{there} of {len(self._posts)} workers are there; {len(self.result.done)} of {self._total} parts are done"
        )
        if there < len(self._posts):
            text += (
                f"; the cluster has {self._cluster.free_cores():g} cores free, and a worker needs {self._setting.cores}"
            )
        self._progress(text)


def _pause(num_before: int) -> float:
    return min(_MOST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(num_before, 10))
