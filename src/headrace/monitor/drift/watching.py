"""Takes parts from the collector, merges those of all processes into windows, and judges them, in a thread beside the run.

How this works. The thread wakes once a second. If this process is the folder's judge it merges its own parts and those that
others left, in the order of time; a window is complete when as many items were looked at closely as the baseline's have. If
not it writes its parts for the judge. At the end of a run what is left waits as a part for the next run, or another process.
A judge that takes over judges the windows that are there already, so its evidence is the old one's.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.base.error_origin import text_of
from headrace.base.errors import HeadraceError
from headrace.base.log_events import event_fields
from headrace.monitor.drift.collector import Collector
from headrace.monitor.drift.folder import DriftFolder
from headrace.monitor.drift.judging import Judge, recording
from headrace.monitor.drift.statistics import CLASS, OWN
from headrace.monitor.drift.sums import Adder
from headrace.monitor.published import publish
from headrace.runs.formats.drift import DriftDocument, DriftWindow

logger = logging.getLogger("headrace")

PERIOD_SECONDS = 1.0
#: Without a baseline the newest windows are kept in mind, to say when there are enough.
_MOST_RECORDED = 1_000
#: Statistics that are logged when they begin to drift in one window; a folder's `scores.json` has all.
_MOST_LINES = 8


class DriftWatcher:
    """Merges and judges.

    Args:
        collector: Of this process.
        folder: Shared.
        window_items: Items of a window that are looked at closely.
    """

    def __init__(
        self,
        collector: Collector,
        folder: DriftFolder,
        window_items: int,
    ) -> None:
        self.document: DriftDocument | None = None
        self._collector = collector
        self._folder = folder
        self._window_items = window_items
        self._pending: Adder | None = None
        self._began = self._ended = 0.0
        self._judge: Judge | None = None
        self._mark: tuple[int, int] | None = None
        self._recorded: list[DriftWindow] = []
        self._is_judge = False
        self._alarmed: set[tuple[str, str | None]] = set()
        self._news: set[tuple[str, str]] = set()
        self._stopping = threading.Event()

    @contextlib.contextmanager
    def watch(self, run: Any) -> Iterator[None]:
        """Judge while a run goes on: a watch."""
        thread = threading.Thread(target=self._live, name="headrace-drift", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()
            self.step(rest=True)
            self.close()

    def close(self) -> None:
        """Let another process judge."""
        self._folder.leave()

    def _live(self) -> None:
        last = time.monotonic()
        while not self._stopping.wait(PERIOD_SECONDS):
            now = time.monotonic()
            self._collector.adapt(now - last)
            last = now
            self.step()

    def step(self, *, rest: bool = False) -> None:
        """Merge and judge what came since the last call; never raises.

        Args:
            rest: The run is over: leave what makes no window for others.
        """
        parts = self._collector.take(rest=rest)
        try:
            if not self._folder.try_to_judge():
                self._is_judge = False
                self._write_parts(parts)
                return
            if not self._is_judge:
                self._take_over()
            for part in sorted([*parts, *self._folder.take_parts()], key=lambda one: one.ended):
                self._merge_safely(part)
            parts = []
            if rest and self._pending is not None:
                self._write_parts([self._window()])
        except Exception as error:
            self._lose(sum(part.items for part in parts), error)

    def _merge_safely(self, part: DriftWindow) -> None:
        """Merge a part; if that fails it is lost, and none of those behind it."""
        try:
            window = self._merge(part)
        except Exception as error:
            self._lose(part.items, error)
            return
        if window is None:
            return
        try:
            self._close(window)
        except Exception as error:
            self._lose(window.items, error)

    def _lose(self, items: int, error: Exception) -> None:
        self._collector.lose(items, f"the monitor failed ({text_of(error)})")
        logger.debug("drift: the monitor failed", exc_info=True)

    def _write_parts(self, parts: Sequence[DriftWindow]) -> None:
        for index, part in enumerate(parts):
            try:
                if self._folder.write_part(part):
                    continue
                why = "too many parts wait in the folder, and no process merges them"
            except OSError as error:
                why = f"{self._folder.path} cannot be written: {error.strerror}"
            self._collector.lose(sum(one.items for one in parts[index:]), why)
            return

    def _take_over(self) -> None:
        """Become the judge: judge what is in the folder already."""
        self._is_judge = True
        self._mark = self._folder.baseline_mark()
        windows, damaged = self._folder.windows()
        if damaged:
            logger.warning("drift: %d lines of %s cannot be read and are left out", damaged, self._folder.path)
        try:
            baseline = self._folder.baseline()
        except HeadraceError as error:
            logger.warning("drift: %s; nothing is judged until then", error)
            baseline = None
        self._judge, self._recorded = None, []
        if baseline is None:
            self._recorded = windows[-_MOST_RECORDED:]
        else:
            self._judge = Judge(baseline, str(self._folder.path))
            for window in windows[-_MOST_RECORDED:]:
                if window.began >= baseline.ended:
                    self._judge.add(window)
        document = (
            self._judge.document() if self._judge is not None else recording(self._recorded, str(self._folder.path))
        )
        self._alarmed = {(one.statistic, one.stratum) for one in document.scores if one.alarm}
        self._news = {(one.stratum, one.what) for one in document.news}
        self.document = document
        _publish(document)

    def _merge(self, part: DriftWindow) -> DriftWindow | None:
        """Merge a part and return the window that it completes, if it does."""
        if self._pending is None:
            self._pending, self._began = Adder(), part.began
        self._pending.merge(part)
        self._began, self._ended = min(self._began, part.began), part.ended
        return self._window() if self._pending.sampled >= self._window_items else None

    def _window(self) -> DriftWindow:
        assert self._pending is not None
        window = self._pending.window(self._began, self._ended, key=self._collector.key, hours=self._collector.hours)
        self._pending = None
        return window

    def _close(self, window: DriftWindow) -> None:
        """Judge a window that is complete, and write where things stand."""
        if self._folder.baseline_mark() != self._mark:
            self._take_over()
        path = str(self._folder.path)
        if self._judge is not None:
            self._judge.add(window)
            self.document = self._judge.document()
        else:
            self._recorded = [*self._recorded, window][-_MOST_RECORDED:]
            self.document = recording(self._recorded, path)
        self._report(self.document)
        _publish(self.document)
        try:
            self._folder.add_window(window)
            self._folder.write_scores(self.document)
        except OSError as error:
            self._collector.lose(window.items, f"{path} cannot be written: {error.strerror}")

    def _report(self, document: DriftDocument) -> None:
        """Log and tell what is new: alarms that began or ended, strata."""
        alarms = {(one.statistic, one.stratum): one for one in document.scores if one.alarm}
        together = {statistic for statistic, stratum in alarms if stratum is None}
        begun = [one for key, one in alarms.items() if key not in self._alarmed]
        shown = [one for one in begun if one.stratum is None or one.statistic not in together]
        for one in shown[:_MOST_LINES]:
            logger.warning("drift: %s", one.says, extra=event_fields("drift", code=f"drift.{one.statistic}"))
        for line in document.latency if shown else ():
            logger.warning("drift: %s", line, extra=event_fields("drift", code="drift.slower"))
        if self._alarmed and not alarms:
            logger.warning("drift: all statistics are as usual again", extra=event_fields("drift", code="drift.ended"))
        for news in document.news:
            if (news.stratum, news.what) not in self._news:
                logger.warning("drift: %s", news.says, extra=event_fields("drift", code=f"drift.{news.what}"))
        self._alarmed = set(alarms)
        self._news = {(one.stratum, one.what) for one in document.news}


def current_scores(folder: str) -> dict[str, float]:
    """Return {statistic: evidence over the alarm's threshold}, the largest of all strata; empty before a window was judged."""
    document = DriftFolder(folder).scores()
    return {} if document is None else _largest(document)


def _largest(document: DriftDocument) -> dict[str, float]:
    """Return the largest score of each statistic; classes of answers are one, values of the user another."""
    found: dict[str, float] = {}
    for one in document.scores:
        name = (
            "classes" if one.statistic.startswith(CLASS) else "own" if one.statistic.startswith(OWN) else one.statistic
        )
        found[name] = max(found.get(name, 0.0), one.score)
    return found


def _publish(document: DriftDocument) -> None:
    """Leave where things stand for the metrics of this process."""
    for name, score in _largest(document).items():
        publish("headrace_drift_score", score, name)
        publish("headrace_drift_alarm", float(score >= 1), name)
    if document.refused_ratio is not None:
        publish("headrace_drift_decode_failure_ratio", document.refused_ratio)
