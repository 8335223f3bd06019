"""Beside a run: leaves a heartbeat every few seconds, and a last one at its end. A place that fails costs the run nothing.

A run on a queue tells the others there of jobs that kill workers, too: see `suspects`.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from types import TracebackType

from headrace import __version__
from headrace.base.documents import encode_document
from headrace.base.errors import HeadraceError
from headrace.base.redaction import hide_secrets_in_text
from headrace.base.worker_slot import SharesSuspects
from headrace.monitor.fleet.place import FolderPlace, Place
from headrace.monitor.fleet.suspects import SharedSuspects
from headrace.monitor.published import published
from headrace.pipeline.watching import RunInProgress
from headrace.runs.formats.heartbeat import MOST_DRIFTING, Heartbeat

logger = logging.getLogger("headrace")

EVERY_SECONDS = 5.0
#: How often is looked whether the run's parts are open.
_OPENING_SECONDS = 0.1
#: Of the error by which a run ended.
_MOST_CHARACTERS = 300
#: {series: what it says of its label}.
_ALARMS = {"headrace_drift_alarm": "", "headrace_performance_drift_alarm": " is slower"}
#: How long the end of a run waits for its last heartbeat.
_LEAVE_SECONDS = 2.0


class FleetWatch:
    """A watch of `headrace.run`; for one run.

    Args:
        place: Where heartbeats are left.
        slot: Number of the worker's slot.
        every_seconds: Between two.
        suspects: Where workers tell one another of jobs that kill them; None: nowhere.
    """

    def __init__(
        self, place: Place, slot: int = 0, every_seconds: float = EVERY_SECONDS, suspects: Place | None = None
    ) -> None:
        self._place, self._slot, self._every, self._suspects = place, slot, every_seconds, suspects

    def __call__(self, run: RunInProgress) -> Beating:
        """Return what beats while it is entered."""
        beating = Beating(self._place, self._slot, self._every, run)
        if self._suspects is not None and isinstance(run.pipeline.source, SharesSuspects):
            run.pipeline.source.share_suspects(SharedSuspects(self._suspects, beating.name))
        return beating


class Beating:
    """The thread; see above."""

    def __init__(self, place: Place, slot: int, every: float, run: RunInProgress) -> None:
        self._place, self._slot, self._every, self._run = place, slot, every, run
        self._host = os.uname().nodename
        self._began, self._began_steady = time.time(), time.monotonic()
        # Containers may share a host's name, and have processes of the same number in the same second.
        host = re.sub(r"[^A-Za-z0-9.-]", "-", self._host)[:80]
        self.name = f"{host}-{os.getpid()}-{self._began:.0f}-{os.urandom(3).hex()}"
        self._ended = threading.Event()
        self._has_failed = False
        self._error = ""
        self._last = (time.monotonic(), 0)
        self._ended_jobs, self._ended_at = 0, time.monotonic()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeats", daemon=True)

    def __enter__(self) -> Beating:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):  # others are signals and calls to end
            self._error = hide_secrets_in_text(f"{type(error).__name__}: {error}")[:_MOST_CHARACTERS]
        self._ended.set()
        self._thread.join(_LEAVE_SECONDS)  # a place that hangs holds up no end; then the last heartbeat is missing

    def _beat_on(self) -> None:
        while (
            not self._run.opened.is_set()
        ):  # one that a signal ends before could say nothing of its end, and be missed
            if self._ended.wait(_OPENING_SECONDS) and not self._run.opened.is_set():
                return
        if isinstance(self._place, FolderPlace):
            self._place.remove_old()
        while True:
            has_ended = self._ended.is_set()
            self._beat(has_ended)
            if has_ended:
                return
            self._ended.wait(self._every)

    def _beat(self, has_ended: bool) -> None:
        try:
            self._place.put(self.name, encode_document(self._describe(has_ended)))
        except Exception as error:
            if not self._has_failed:
                frames = None if isinstance(error, HeadraceError) else error
                says = "a heartbeat cannot be left: %s; the run goes on, and tries again"
                logger.warning(says, error, exc_info=frames)
            self._has_failed = True
        else:
            self._has_failed = False

    def _describe(self, has_ended: bool) -> Heartbeat:
        run, now = self._run, time.monotonic()
        timed, timed_seconds = run.summary.time_inside()
        counters, state = run.counters, run.state()
        (before, delivered), self._last = self._last, (now, counters.delivered)
        failed = counters.rejected + counters.dead_lettered + counters.retried
        ended = counters.delivered + failed + counters.returned
        if ended > self._ended_jobs or not state.in_flight:
            self._ended_jobs, self._ended_at = ended, now
        return Heartbeat(
            host=self._host,
            process=os.getpid(),
            slot=self._slot,
            pipeline=run.pipeline.name,
            plan_id=state.plan_id,
            headrace_version=__version__,
            started_unix_seconds=self._began,
            at_unix_seconds=time.time(),
            lasted_seconds=now - self._began_steady,
            every_seconds=self._every,
            has_ended=has_ended,
            error=self._error,
            received=counters.received,
            delivered=counters.delivered,
            failed=failed,
            rate=(counters.delivered - delivered) / (now - before) if now > before else 0.0,
            in_flight=state.in_flight,
            slots=state.slots,
            longest_call_seconds=run.longest_call_seconds(),
            idle_seconds=now - self._ended_at,
            open_breakers=sum(state.open_breakers.values()),
            is_braked=state.is_braked,
            drifting=_drifting(),
            timed=timed,
            timed_seconds=timed_seconds,
        )


def _drifting() -> tuple[str, ...]:
    """Return what the monitors of this process raise an alarm of."""
    alarms = [labels[0] + _ALARMS[name] for (name, labels), value in published().items() if name in _ALARMS and value]
    return tuple(sorted(alarms)[:MOST_DRIFTING])
