"""Replaces workers one after the other, so that the others serve meanwhile: a rolling restart."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of the worker in one post now."""

    number: int
    """Of the post."""
    pid: int | None
    """None: no worker is there."""
    has_begun: bool
    """Whether it has opened its models, and serves if it is to serve."""


@dataclass(slots=True)
class Renewal:
    """Says which worker is to go next; used by one thread."""

    say: Callable[[str], object]
    _left: deque[tuple[int, int]] = field(default_factory=deque)
    """(post, process) of those that are still to go, the one that goes now first."""
    _is_asked: bool = False
    num_requested: int = 0
    _num_heeded: int = 0

    def request(self) -> None:
        """Ask for all to be replaced; may be called by a signal handler."""
        self.num_requested += 1

    def is_renewed(self, number: int, pid: int) -> bool:
        """Return whether the worker that ended in a post was asked to, so that another takes its place at once."""
        return self._is_asked and self._left[0] == (number, pid)

    def look(self, standing: Sequence[Standing]) -> None:
        """Do what is due."""
        if self._num_heeded < self.num_requested:
            self._num_heeded = self.num_requested
            self._left.extend(
                (one.number, one.pid)
                for one in standing
                if one.pid is not None and (one.number, one.pid) not in self._left
            )
            self.say(f"restarting {len(self._left)} workers, one after the other")
        if not self._left:
            return
        number, pid = self._left[0]
        now = next(one for one in standing if one.number == number)
        if now.pid == pid and not self._is_asked:
            self._is_asked = True
            os.kill(pid, signal.SIGINT)
        elif now.pid != pid and now.has_begun:
            self._left.popleft()
            self._is_asked = False
            if not self._left:
                self.say("all workers were restarted")
