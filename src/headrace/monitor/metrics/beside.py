"""Answers scrapes beside a supervisor: in a process of its own, so that the supervisor's only thread waits for nobody.

How this works. Before the first worker is forked, the supervisor makes a page for each worker slot and forks a keeper. This
one forks the process that serves, waits for its end, and forks another one; if the keeper ends, the supervisor forks
another. Both ignore the signals that end a service: they are there until the supervisor is not, whether it ends orderly
(`close`) or dies (the kernel then kills the keeper, and with it the one that serves). They hold the pages, so that neither
workers nor scrapes ever wait for each other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from headrace.base.parent_death import die_with_parent
from headrace.monitor.metrics.counts import Counts
from headrace.monitor.metrics.exporter import Exporter
from headrace.monitor.metrics.page import Page
from headrace.monitor.metrics.server import MetricsServer
from headrace.monitor.metrics.table import DEATH_CAUSES
from headrace.monitor.published import tell_counts

#: Before one that ended is started again.
_PAUSE_SECONDS = 0.5


class MetricsBeside:
    """The pages of a supervised run, and who shows them; make it before the first fork of a worker.

    Args:
        num_workers: Worker slots.
        listening: Closed with this, used by the process that serves; None: nobody scrapes, the pages are for others.
    """

    def __init__(self, num_workers: int, listening: socket.socket | None) -> None:
        self.pages = [Page() for _ in range(num_workers)]
        own = Page()
        self._deaths = Counts(own)
        for cause in DEATH_CAUSES:
            self._deaths.add("headrace_worker_deaths_total", (cause,), 0.0)
        supervisor = os.getpid()

        def take(name: str, labels: tuple[str, ...], total: float) -> None:
            if os.getpid() == supervisor:  # a worker's own page takes what that counts
                self._deaths.follow(name, total, labels)

        tell_counts(take)
        self._own, self._scrapes, self._listening = own, Page(), listening
        self._keeper = self._fork_keeper()

    def _fork_keeper(self) -> int | None:
        """Return the process id of a new keeper; None: there is nothing to keep, or no process to be had."""
        listening = self._listening
        if listening is None:
            return None
        others = [self._own, self._scrapes]
        with contextlib.suppress(OSError):
            return _fork(lambda: _keep(lambda: _serve(self.pages, others, self._scrapes, listening)))
        return None

    def note_death(self, cause: str) -> None:
        """Count the death of a worker; `cause` as in `DeathNote`."""
        self._deaths.add("headrace_worker_deaths_total", (name_cause(cause),))

    def note_child_end(self, process: int) -> None:
        """Start another keeper if it was the keeper that ended."""
        if process == self._keeper:
            self._keeper = self._fork_keeper()

    def close(self) -> None:
        """End those who serve."""
        if self._listening is not None:
            self._listening.close()
        if self._keeper is None:
            return
        with contextlib.suppress(OSError):
            os.kill(self._keeper, signal.SIGKILL)
            os.waitpid(self._keeper, 0)


def name_cause(cause: str) -> str:
    """Return the label for a death's cause in words."""
    if "out of memory" in cause and "outside" not in cause:
        return "out_of_memory"
    if "no sign of life" in cause:
        return "silent"
    if cause.startswith("SIGKILL"):
        return "killed"
    return "exit" if cause.startswith("exit code") else "signal"


def _serve(workers: Sequence[Page], others: Sequence[Page], scrapes: Page, listening: socket.socket) -> None:
    MetricsServer(listening, Exporter(workers, others, Counts(scrapes)).scrape).serve()


def _keep(serve: Callable[[], None]) -> None:
    while True:
        with contextlib.suppress(OSError):  # no process to be had now, which need not last
            os.waitpid(_fork(serve), 0)
        time.sleep(_PAUSE_SECONDS)


def _fork(body: Callable[[], None]) -> int:
    """Return the process id of a child that runs body, ignores what ends a service, and dies with this process."""
    parent = os.getpid()
    process = os.fork()
    if not process:
        _run_as_child(parent, body)
    return process


def _run_as_child(parent: int, body: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)  # the terminal's Ctrl-C is the supervisor's alone
        is_wanted = die_with_parent(parent)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        if is_wanted:
            body()
            status = 0
    finally:
        os._exit(status)
