"""Replaces workers one after the other, so that the others serve meanwhile: a rolling restart.

Where a worker's successor does not come to serve, as with a Plan that does not work, the next would do no better: the restart
stops, and the workers that are left go on.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.base.log_events import EventText

#: A successor that does not serve after so long never will, nor after so many times what the slowest worker took so far.
_LEAST_SECONDS, _TIMES = 120.0, 3.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of the worker in one post now."""

    number: int
    """Of the post."""
    pid: int | None
    """None: no worker is there."""
    has_begun: bool
    """Whether it has opened its models, and serves if it is to serve."""
    is_given_up: bool = False
    """Whether none is there and none will be started, as its settings keep it from beginning."""


@dataclass(slots=True)
class Renewal:
    """Says which worker is to go next; used by one thread."""

    say: Callable[[str], object]
    _left: deque[tuple[int, int]] = field(default_factory=deque)
    """(post, process) of those that are still to go, the one that goes now first."""
    _is_asked: bool = False
    num_requested: int = 0
    _num_heeded: int = 0
    _waits_since: float | None = None
    """Since when a worker is not there without which no other may go; None: all are."""

    def request(self) -> None:
        """Ask for all to be replaced; may be called by a signal handler."""
        self.num_requested += 1

    @property
    def is_requested(self) -> bool:
        """Whether a request has come that was not heeded yet."""
        return self._num_heeded < self.num_requested

    def is_renewed(self, number: int, pid: int) -> bool:
        """Return whether the worker that ended in a post was asked to, so that another takes its place at once."""
        return self._is_asked and self._left[0] == (number, pid)

    def look(self, standing: Sequence[Standing], at: float, slowest_seconds: float = 0.0) -> None:
        """Do what is due.

        Args:
            standing: Of all posts.
            at: Seconds of any clock that does not jump.
            slowest_seconds: What a worker took at most so far, from its start until it did its work.
        """
        if self.is_requested:
            self._num_heeded = self.num_requested
            self._left.extend(
                (one.number, one.pid)
                for one in sorted(standing, key=lambda one: one.has_begun)  # who does no work can go at once
                if one.pid is not None and (one.number, one.pid) not in self._left
            )
            num_left = sum((one.number, one.pid) in self._left for one in standing)  # not those that died meanwhile
            self.say(f"restarting {num_left} workers, one after the other")
        if not self._left:
            return
        number, pid = self._left[0]
        others = (one for one in standing if (one.number, one.pid) not in self._left)
        missing = next((one for one in others if not one.has_begun), None)
        if missing is not None:
            self._wait(missing, standing, at, max(_LEAST_SECONDS, _TIMES * slowest_seconds))
            return
        self._waits_since = None
        if (number, pid) not in ((one.number, one.pid) for one in standing):
            self._left.popleft()
            self._is_asked = False
            if not self._left:
                self.say("all workers were restarted")
        elif not self._is_asked:
            self._is_asked = True
            os.kill(pid, signal.SIGINT)

    def _wait(self, missing: Standing, standing: Sequence[Standing], at: float, limit: float) -> None:
        """Ask nobody to go while another is not there; after a while, or where it will not come, never."""
        if self._waits_since is None:
            self._waits_since = at
        if not missing.is_given_up and at - self._waits_since <= limit:
            return
        num_left = sum((one.number, one.pid) in self._left for one in standing)
        self._left.clear()
        self._is_asked, self._waits_since = False, None
        why = "cannot begin" if missing.is_given_up else f"has not come to do its work within {limit:.0f} s"
        text = (
            f"the rolling restart stops: worker {missing.number} {why}; {num_left} workers "
            f"were not restarted, and {sum(one.has_begun for one in standing)} do their work. The lines above say what is "
            "wrong, such as a Plan or a model that was changed; mend that, and send SIGHUP again"
        )
        self.say(EventText(text, "restart_stopped", logging.ERROR, worker=missing.number))
