"""Shows a run while it goes on, on stderr: a view that refreshes in a terminal, else one line every ten seconds.

How this works: one thread of the view asks the summary and the stations, which nobody waits for, and draws. It draws four times
a second, less often where drawing would take more than one hundredth of a core. The supervisor digests what the
summary shows; the view only reads. A view that fails is logged and ends; the run goes on. A second thread asks a queue
now and then how many jobs wait in it, since a service may take its time to answer.
"""

from __future__ import annotations

import logging
import os
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from headrace.base.records import StageStatistics
from headrace.base.units import format_duration, format_rate
from headrace.cli.terminal import stamp
from headrace.pipeline.summary import Progress, Summary

if TYPE_CHECKING:
    from rich.text import Text

logger = logging.getLogger("headrace")

REFRESH_SECONDS = 0.25
PLAIN_SECONDS = 10.0
#: How often a queue is asked what waits in it, at most, and the share of the time that asking may take.
ASK_SECONDS, ASK_RATIO = 2.0, 0.02

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
    waiting: int | None = None
    """Jobs in the source's queue that nobody has received; None where that is not known."""
    waited: float = 0.0
    """Seconds that the run has been shown: until the first job is received, its own clock stands."""


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
        self._waiting: int | None = None
        self._began = time.monotonic()
        self._cleanup = ExitStack()

    def __enter__(self) -> LiveView:
        """Start to show."""
        if self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._open_terminal()
        self._thread.start()
        if self._summary.ask_source is not None:  # daemon, and not waited for: a service may not answer at all
            threading.Thread(target=self._ask, name="headrace-live-queue", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop; a terminal is left clean, a log gets a last line."""
        self._stopping.set()
        self._thread.join()
        with suppress(OSError):  # a terminal that was closed needs no cleaning
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

    def _ask(self) -> None:
        ask, pause = self._summary.ask_source, REFRESH_SECONDS
        while ask is not None and not self._stopping.wait(pause):
            began = time.monotonic()
            try:
                self._waiting = ask().visible
            except Exception as error:  # closed by now, or away for a while: the run itself says so where it matters
                logger.debug("the queue did not say what waits in it: %s", error)
                self._waiting = None
            pause = max(ASK_SECONDS, (time.monotonic() - began) / ASK_RATIO)

    def _look(self) -> _View:
        progress, stages = self._summary.progress(), self._stages()
        now = _Reading(progress, stages, _busy_by_station(progress, stages))
        self._readings.append(now)
        while len(self._readings) > 2 and _between(self._readings[1], now) >= WINDOW_SECONDS:
            self._readings.popleft()
        known = [total for total in (self._total, self._summary.left) if total is not None]
        view = _view(self._readings[0], now, min(known, default=None), self._summary.done_before, self._waiting)
        return replace(view, waited=time.monotonic() - self._began)

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
            live.update(_draw(view, unicode, console.width), refresh=True)

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


def _view(earlier: _Reading, now: _Reading, total: int | None, done_before: int, waiting: int | None = None) -> _View:
    progress, window = now.progress, _between(earlier, now)
    rate_now, finished_per_second, busy = None, None, {}
    if window > 0:
        rate_now = (progress.delivered - earlier.progress.delivered) / window
        finished_per_second = (progress.finished - earlier.progress.finished) / window
        for stage in now.stages:
            seconds = now.busy_seconds[stage.name] - earlier.busy_seconds.get(stage.name, 0.0)
            busy[stage.name] = min(1.0, seconds / (window * max(1, stage.workers)))
    left = None if total is None else max(0, total - progress.finished)
    if waiting is not None:
        at_work = max(0, progress.received - progress.finished - progress.retried - progress.returned)
        left = at_work + waiting if left is None else min(left, at_work + waiting)
    seconds_left = left / finished_per_second if left is not None and finished_per_second else None
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
        waiting,
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
        "waiting in the queue": view.waiting or 0,
    }
    if view.done_before:
        counts.insert(0, f"{view.done_before:,} done before")
    return ", ".join(counts + [f"{count:,} {name}" for name, count in optional.items() if count])


def _rates(view: _View) -> str:
    return f"{format_rate(view.rate_now)} now, {format_rate(view.rate_mean)} on average"


def _clock(view: _View) -> str:
    if not view.progress.received:
        return f"nothing came for {format_duration(view.waited)}"
    left = "" if not view.seconds_left else f", about {_roughly(view.seconds_left)} to go"
    return f"{format_duration(view.progress.elapsed_seconds)} elapsed{left}"


def _roughly(seconds: float) -> str:
    """Return a time as people say it: `5 s`, `3 min`, `2 h 10 min`, `4 days`; a guess deserves no more digits."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{round(minutes / 60 / 24)} days"


def _plain_line(view: _View) -> str:
    parts = [_counts(view), _rates(view)]
    if view.slowest is not None:
        parts.append(f"slowest {view.slowest} ({100 * view.busy[view.slowest]:.0f} % busy)")
    return "; ".join([*parts, _clock(view)])


def _draw(view: _View, unicode: bool, columns: int) -> Text:
    from rich.text import Text

    # Text put together by hand: a rich table of the same content takes several times as long to draw.
    text = Text(no_wrap=True, overflow="crop")
    text.append("\n".join(textwrap.wrap(_counts(view), columns)), "bold")
    text.append("\n" + "\n".join(textwrap.wrap(f"{_rates(view)}; {_clock(view)}", columns)) + "\n")
    rows = [_row(view, stage, unicode) for stage in view.stages]
    # A narrow terminal shows less of each station, and the same of all.
    shown = next((row for row in _SHOWN if all(len(_join(cells, row)) <= columns for cells in rows)), _SHOWN[-1])
    for stage, cells in zip(view.stages, rows, strict=True):
        text.append(f"{_join(cells, shown)}\n", "yellow" if stage.name == view.slowest else "")
    text.right_crop(1)
    return text


#: Cells of a station's row that are shown, from all of them to those that fit forty columns.
_SHOWN = (
    ("name", "bar", "queue", "workers", "busy", "marks"),
    ("name", "queue", "workers", "busy", "marks"),
    ("name", "queue", "busy", "mark"),
    ("name", "busy", "mark"),
)


def _join(cells: dict[str, str], shown: Sequence[str]) -> str:
    return "  ".join(cells[name] for name in shown if cells[name])


def _row(view: _View, stage: StageStatistics, unicode: bool) -> dict[str, str]:
    """Return what there is to say of a station, by the names in `_SHOWN`."""
    width = max((len(stage.name) for stage in view.stages), default=0)
    full, empty = ("█", "░") if unicode else ("#", ".")
    cells = min(_BAR_CELLS, round(_BAR_CELLS * stage.depth / max(1, stage.capacity)))
    share = f"{100 * view.busy[stage.name]:3.0f} %" if stage.name in view.busy else "  - %"
    is_slowest = stage.name == view.slowest
    aside = f"{stage.slow} slow, {stage.parked} parked" if stage.slow or stage.parked else ""
    return {
        "name": f"{stage.name:<{width}}",
        "bar": full * cells + empty * (_BAR_CELLS - cells),
        "queue": f"{stage.depth:>4,}/{stage.capacity:<5,}",
        "workers": f"{stage.busy:>3}/{stage.workers:<3} workers",
        "busy": f"{share} busy",
        "mark": "<-" if is_slowest else "",
        "marks": "  ".join(part for part in (aside, "<- slowest" if is_slowest else "") if part),
    }
