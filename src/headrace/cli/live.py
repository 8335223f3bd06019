"""Shows a run while it goes on, on stderr: a view that refreshes in a terminal, else one line every ten seconds.

How this works: one thread of the view asks the summary and the stations, which nobody waits for, and draws. It draws four times
a second, less often where drawing would take more than one hundredth of a core. The supervisor digests what the
summary shows; the view only reads. A view that fails is logged and ends; the run goes on.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from headrace.base.records import StageStatistics
from headrace.base.units import format_duration
from headrace.cli.terminal import stamp
from headrace.pipeline.summary import Progress, Summary, format_rate

if TYPE_CHECKING:
    from rich.text import Text

logger = logging.getLogger("headrace")

REFRESH_SECONDS = 0.25
PLAIN_SECONDS = 10.0

#: "Now" means this long.
WINDOW_SECONDS = 10.0

#: Share of a core that drawing may take.
MAX_COST_RATIO = 0.01

_BAR_CELLS = 12


@dataclass(frozen=True, slots=True)
class _Reading:
    progress: Progress
    stages: Sequence[StageStatistics]
    busy_seconds: dict[str, float]
    """By station, since the start."""


@dataclass(frozen=True, slots=True)
class _View:
    """What is drawn."""

    progress: Progress
    stages: Sequence[StageStatistics]
    total: int | None
    done_before: int
    """By earlier starts of this run."""
    rate_now: float | None
    """Jobs delivered per second of the window."""
    rate_mean: float | None
    """Jobs delivered per second since the first was received."""
    seconds_left: float | None
    busy: dict[str, float]
    """{station: share of its workers' time in service, over the window}."""
    slowest: str | None
    """The station whose workers have the least time to spare."""


class LiveView:
    """A context manager that shows a run from its entry to its exit."""

    def __init__(
        self,
        summary: Summary,
        stages: Callable[[], Sequence[StageStatistics]],
        total: int | None = None,
        *,
        stream: TextIO | None = None,
    ) -> None:
        """Prepare a view.

        Args:
            summary: Of the run; somebody else digests it.
            stages: Returns the state of each station's queue and workers, in the order of the pipeline.
            total: Jobs there will be at most; None for what the summary says is left, where it knows.
            stream: Where to write; None for stderr.
        """
        self._summary = summary
        self._stages = stages
        self._total = total
        self._stream = stream or sys.stderr
        self._readings: deque[_Reading] = deque()
        self._show: Callable[[_View], None] = self._print_line
        self._interval = PLAIN_SECONDS
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-live-view", daemon=True)
        self._cleanup = ExitStack()

    def __enter__(self) -> LiveView:
        """Start to show."""
        if self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._open_terminal()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop; a terminal is left clean, a log gets a last line."""
        self._stopping.set()
        self._thread.join()
        self._cleanup.close()

    def plain_line(self) -> str:
        """Return where the run stands now, as one line."""
        return _plain_line(self._look())

    def _run(self) -> None:
        try:
            self._look()  # what the first rate is measured against
            ended = False
            while not ended:
                ended = self._stopping.wait(self._interval)
                began = time.thread_time()
                self._show(self._look())
                if self._interval < PLAIN_SECONDS:
                    self._interval = max(REFRESH_SECONDS, (time.thread_time() - began) / MAX_COST_RATIO)
        except Exception:
            logger.exception("the live view failed and is closed; the run goes on")

    def _look(self) -> _View:
        progress, stages = self._summary.progress(), self._stages()
        now = _Reading(progress, stages, _busy_by_station(progress, stages))
        self._readings.append(now)
        while len(self._readings) > 2 and _between(self._readings[1], now) >= WINDOW_SECONDS:
            self._readings.popleft()
        known = [total for total in (self._total, self._summary.left) if total is not None]
        return _view(self._readings[0], now, min(known, default=None), self._summary.done_before)

    def _print_line(self, view: _View) -> None:
        if self._stopping.is_set() and not view.progress.received:
            return  # the run ended before it began, and the error says more
        if self._stopping.is_set():
            view = replace(view, seconds_left=None)
        self._stream.write(f"{stamp()}headrace: {_plain_line(view)}\n")
        self._stream.flush()

    def _open_terminal(self) -> None:
        from rich.live import Live

        from headrace.cli.terminal import open_console

        console = open_console(self._stream)
        # Prints to stdout go above the view only where stdout is a terminal: results in a pipe must stay there.
        live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=True,
        )
        self._cleanup.enter_context(live)
        self._redirect_logging(console)
        unicode = (self._stream.encoding or "").lower().replace("-", "") == "utf8"

        def show(view: _View) -> None:
            live.update(_drawing(view, unicode), refresh=True)

        self._show, self._interval = show, REFRESH_SECONDS

    def _redirect_logging(self, console: Any) -> None:
        """Let log lines appear above the view: handlers keep the stream they were made with."""
        from rich.file_proxy import FileProxy

        proxy = FileProxy(console, self._stream)
        for handler in (*logging.getLogger().handlers, *logger.handlers):
            if isinstance(handler, logging.StreamHandler) and handler.stream is self._stream:
                self._cleanup.callback(handler.setStream, handler.setStream(proxy))


def _between(earlier: _Reading, later: _Reading) -> float:
    return later.progress.elapsed_seconds - earlier.progress.elapsed_seconds


def _busy_by_station(progress: Progress, stages: Sequence[StageStatistics]) -> dict[str, float]:
    """Return busy seconds by station. A station is named for its first stage; stages fused with it follow that one."""
    busy = {stage.name: 0.0 for stage in stages}
    station = None
    for name, seconds in progress.busy_seconds.items():
        station = name if name in busy else station
        if station is not None:
            busy[station] += seconds
    return busy


def _view(earlier: _Reading, now: _Reading, total: int | None, done_before: int) -> _View:
    progress, window = now.progress, _between(earlier, now)
    rate_now, finished_per_second, busy = None, None, {}
    if window > 0:
        rate_now = (progress.delivered - earlier.progress.delivered) / window
        finished_per_second = (progress.finished - earlier.progress.finished) / window
        for stage in now.stages:
            seconds = now.busy_seconds[stage.name] - earlier.busy_seconds.get(stage.name, 0.0)
            busy[stage.name] = min(1.0, seconds / (window * max(1, stage.workers)))
    seconds_left = None
    if total is not None and finished_per_second:
        seconds_left = max(0, total - progress.finished) / finished_per_second
    return _View(
        progress,
        now.stages,
        total,
        done_before,
        rate_now,
        progress.throughput,
        seconds_left,
        busy,
        max(busy, key=lambda name: busy[name]) if any(busy.values()) else None,
    )


def _counts(view: _View) -> str:
    progress = view.progress
    of = f" of {view.total:,}" if view.total is not None else ""
    counts = [f"{progress.received:,} received", f"{progress.delivered:,}{of} delivered"]
    optional = {
        "rejected": progress.rejected,
        "dead-lettered": progress.dead_lettered,
        "retried": progress.retried,
        "returned": progress.returned,
    }
    if view.done_before:
        counts.insert(0, f"{view.done_before:,} done before")
    return ", ".join(counts + [f"{count:,} {name}" for name, count in optional.items() if count])


def _rates(view: _View) -> str:
    return f"{format_rate(view.rate_now)} now, {format_rate(view.rate_mean)} on average"


def _clock(view: _View) -> str:
    left = "" if not view.seconds_left else f", about {format_duration(view.seconds_left)} to go"
    return f"{format_duration(view.progress.elapsed_seconds)} elapsed{left}"


def _plain_line(view: _View) -> str:
    parts = [_counts(view), _rates(view)]
    if view.slowest is not None:
        parts.append(f"slowest {view.slowest} ({100 * view.busy[view.slowest]:.0f} % busy)")
    return "; ".join([*parts, _clock(view)])


def _drawing(view: _View, unicode: bool) -> Text:
    from rich.text import Text

    # Text put together by hand: a rich table of the same content takes several times as long to draw.
    text = Text(no_wrap=True, overflow="crop")
    text.append(_counts(view), "bold")
    text.append(f"\n{_rates(view)}; {_clock(view)}\n")
    width = max((len(stage.name) for stage in view.stages), default=0)
    full, empty = ("█", "░") if unicode else ("#", ".")
    for stage in view.stages:
        cells = min(_BAR_CELLS, round(_BAR_CELLS * stage.depth / max(1, stage.capacity)))
        share = f"{100 * view.busy[stage.name]:3.0f} %" if stage.name in view.busy else "  - %"
        line = (
            f"{stage.name:<{width}}  {full * cells}{empty * (_BAR_CELLS - cells)} {stage.depth:>5,}/{stage.capacity:<5,}"
            f"  {stage.busy:>3}/{stage.workers:<3} workers  {share} busy"
        )
        if stage.slow or stage.parked:
            line += f"  {stage.slow} slow, {stage.parked} parked"
        is_slowest = stage.name == view.slowest
        text.append(f"{line}{'  <- slowest' if is_slowest else ''}\n", "yellow" if is_slowest else "")
    text.right_crop(1)
    return text
