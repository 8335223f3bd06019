"""Asks the source, about once a second, what waits to be received; where the source can tell.

A thread of its own, because a queue service may take its time to answer, and the other gauges are not to wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from headrace.base.protocols import TellsBacklog

logger = logging.getLogger("headrace")

_EVERY_SECONDS = 1.0
#: At most this share of the time goes by in asking: some queues count their messages one by one.
_SHARE = 0.02
#: How long the end of a run waits for an answer that is under way.
_LEAVE_SECONDS = 1.0


class TakesGauges(Protocol):
    """A `ResourceWriter`, or another that takes what was measured; used by the gauge's thread."""

    def write(self, time_ns: int, values: Mapping[str, Mapping[str, float | None]]) -> None:
        """Take what was measured at one moment."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...


class BacklogGauge:
    """Writes the source's gauges from `start` to `stop`.

    Args:
        source: The pipeline's; it must be open from `begun` on.
        writer: Takes them; closed by `stop`.
        begun: Set when the first job has come.

    Attributes:
        problem: Why nothing more was measured from some moment on; empty if all is well.
    """

    def __init__(self, source: Any, writer: TakesGauges, begun: threading.Event) -> None:
        self.problem = ""
        self._source = source
        self._begun = begun
        self._writer = writer
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-profiler-backlog", daemon=True)

    def start(self) -> None:
        """Ask from the first job on; nothing for a source that cannot tell."""
        if isinstance(self._source, TellsBacklog):
            self._thread.start()

    def stop(self) -> None:
        """Ask no more: the source is about to be closed. Waits for an answer under way, but not for long; may be repeated."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_LEAVE_SECONDS)
        if not self._thread.is_alive():
            self._writer.close()

    def _watch(self) -> None:
        while not self._begun.wait(_EVERY_SECONDS / 4):
            if self._stopping.is_set():
                return
        pause = 0.0
        while not self._stopping.wait(pause):
            began = time.monotonic_ns()
            try:
                self._write(began)
            except Exception as error:  # Watching must not end the run.
                self._note(error)
            pause = max(_EVERY_SECONDS, (time.monotonic_ns() - began) / 1e9 / _SHARE)

    def _write(self, now_ns: int) -> None:
        told = self._source.backlog()
        if self._stopping.is_set():
            return  # it answered too late: the files may be sealed by now
        self._writer.write(
            now_ns,
            {
                "source": {
                    "visible": told.visible,
                    "source_in_flight": told.in_flight,
                    "oldest_age_seconds": told.oldest_age_seconds,
                }
            },
        )

    def _note(self, error: Exception) -> None:
        if not self._stopping.is_set() and not self.problem:  # asked again: a service that is away may come back
            self.problem = f"the source did not always tell what waits in it: {error}"
            logger.info("%s", self.problem)
