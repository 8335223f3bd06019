"""Counts a run while it goes on, writes its line and windows, and compares each window with the baseline when it ends.

How this works: the bookkeeper's thread hands over the spans that are recorded (`RunCounter.stage_finished`), which only puts a
few numbers of each into a list. A thread of this module sums them up every few seconds, writes the window in progress every
minute, and at the end of the window, or of the run, reads the baseline's windows and judges. Nobody else touches the file, so
a full or slow disk holds up nothing: what cannot be written is counted, said once, and tried again a minute later. When the run
is over, the thread writes the last window and the line, for a few seconds at most.

CPU times cost about 2 us a span, the yardstick half a millisecond every two seconds. Where nobody else records spans, one job
in so many is metered that about `SPANS_PER_SECOND` are.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import HeadraceError
from headrace.base.log_events import event_fields
from headrace.base.observer import Observer
from headrace.base.records import Span
from headrace.monitor.history.baseline import as_window
from headrace.monitor.history.judging import judge_windows
from headrace.monitor.history.lines import describe_machine, hash_module
from headrace.monitor.history.moments import add_windows, bytes_per_item, cpu_per_item, make_rows, sum_rows
from headrace.monitor.history.store import History
from headrace.monitor.history.windows import WINDOW_SECONDS
from headrace.monitor.history.yardstick import measure_yardstick
from headrace.pipeline.span_limit import SpanLimit
from headrace.pipeline.watching import RunInProgress
from headrace.runs.formats.history import HistoryLine, HistoryWindow, StageDrift, StageWindow
from headrace.runs.hardware import find_hardware, find_versions
from headrace.runs.run_folder import headrace_version

logger = logging.getLogger("headrace")

#: Spans that are metered in a second where no run folder is written.
SPANS_PER_SECOND = 500.0
#: Spans that may wait to be summed up; more are left out, and counted.
_MOST_WAITING = 200_000
_LOOK_SECONDS, _WRITE_SECONDS = 2.0, 60.0
#: How long the end of a run waits for this module.
_PATIENCE_SECONDS = 10.0
#: How long a write waits for other processes.
_BUSY_SECONDS = 5.0

Publish = Callable[[Sequence[StageDrift]], object]
"""Takes the verdicts of the newest window."""
_Row = tuple[int, int, int, int, int]


class RunCounter(Observer):
    """Keeps what spans cost until it is summed up.

    Attributes:
        left_out: Spans for which there was no room.
    """

    recorded_only = True

    def __init__(self) -> None:
        self.left_out = 0
        self._num_waiting = 0
        self._waiting: dict[tuple[str, str], list[_Row]] = defaultdict(list)
        self._lock = threading.Lock()

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Keep the numbers of those that have a CPU time."""
        with self._lock:
            for span in spans:
                if span.cpu is None or not span.weight or span.outcome != "ok":
                    continue
                if self._num_waiting >= _MOST_WAITING:
                    self.left_out += 1
                    continue
                self._num_waiting += 1
                self._waiting[span.plan_id, span.stage].append(
                    (span.bytes_in, span.bytes_out, span.batch_size or 1, span.cpu, span.weight)
                )

    def take(self) -> dict[tuple[str, str], StageWindow]:
        """Return {(plan_id, stage): sums} of what came since the last call."""
        with self._lock:
            waiting, self._waiting, self._num_waiting = self._waiting, defaultdict(list), 0
        found = {}
        for key, rows in waiting.items():
            columns = np.array(rows, dtype=np.float64).T
            found[key] = sum_rows(make_rows(*columns[:4]), columns[4])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and as what a run is written."""

    file: Path
    window_seconds: float = WINDOW_SECONDS
    key: str = ""
    """That the worker processes of one run share; empty: a run of its own."""
    began_unix_seconds: float | None = None
    """When the first of them began; None: now."""
    folder: str = ""
    """The run folder that the user named."""
    publish: Publish = lambda drifts: None


@dataclass(slots=True)
class _Part:
    """The line of one Plan in one process."""

    line: HistoryLine
    row: int | None = None
    """In the file; None: not written yet."""
    number: int = 0
    """Of the window in progress."""
    delivered_before: int = 0
    stages: dict[str, StageWindow] = field(default_factory=dict)
    """Sums of the window in progress."""
    yardstick: StageWindow | None = None
    """Of the window in progress."""
    total: dict[str, StageWindow] = field(default_factory=dict)
    """Sums of all windows."""


class HistoryWatch:
    """The counter of a run, and the watch that writes what it counts."""

    def __init__(self, place: Place) -> None:
        self.counter = RunCounter()
        self.num_failed_writes = 0
        self._place = place
        self._over = threading.Event()
        self._says_failure = True

    @contextlib.contextmanager
    def watch(self, run: RunInProgress) -> Iterator[None]:
        """Live beside a run; raises nothing."""
        run.metering.on = True
        began = self._place.began_unix_seconds or time.time()
        writer = _Writer(self, self._place, self._over, run, began)
        thread = threading.Thread(target=writer.work, name="history", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(_PATIENCE_SECONDS)
            if thread.is_alive():
                self.say(f"not written within {_PATIENCE_SECONDS:g} s; the line of this run may be missing")

    def say(self, problem: object) -> None:
        """Say once that the history cannot be written; the run goes on."""
        self.num_failed_writes += 1
        if self._says_failure:
            self._says_failure = False
            logger.warning("history %s: %s; the run goes on", self._place.file, problem)


class _Writer:
    """What the thread does."""

    def __init__(
        self, owner: HistoryWatch, place: Place, over: threading.Event, run: RunInProgress, began: float
    ) -> None:
        self._owner = owner
        self._place, self._over = place, over
        self._run = run
        self._began = began
        self._key = self._place.key or f"{run.pipeline.name} {began:.3f}"
        self._parts: dict[str, _Part] = {}
        self._written = time.monotonic()
        self._limit = SpanLimit(run.metering, time.monotonic_ns())
        self._limit.per_second = SPANS_PER_SECOND
        self._slower: frozenset[str] = frozenset()

    def work(self) -> None:
        """Look every few seconds until the run is over, and then once more."""
        while not self._over.wait(_LOOK_SECONDS):
            self._guard(self._look)
        self._guard(self._finish)

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (HeadraceError, OSError) as error:
            self._owner.say(error)
        except Exception:  # whatever is wrong here, the run is not to end for it
            logger.exception("the history failed; the run goes on")

    def _look(self) -> None:
        if self._run.span_limit is None:  # nobody else decides how many jobs are metered
            self._limit.look(time.monotonic_ns(), self._run.summary.num_passages)
        self._count()
        number = int((time.time() - self._began) / self._place.window_seconds)
        ended = [part for part in self._parts.values() if part.number < number]
        if ended or time.monotonic() - self._written >= _WRITE_SECONDS:
            self._written = time.monotonic()
            self._write(list(self._parts.values()))
        for part in ended:
            self._judge(part)
            part.number, part.stages, part.yardstick = number, {}, None
            part.delivered_before = part.line.delivered

    def _count(self) -> None:
        taken = self._owner.counter.take()
        for (plan_id, stage), sums in taken.items():
            part = self._parts.get(plan_id) or self._begin(plan_id)
            for into in (part.stages, part.total):
                into[stage] = add_windows([into[stage], sums]) if stage in into else sums
        if taken:  # not of a machine that idles, at another clock
            measured = measure_yardstick()
            for part in {id(self._parts[plan_id]): self._parts[plan_id] for plan_id, _ in taken}.values():
                part.yardstick = add_windows([part.yardstick, measured]) if part.yardstick else measured

    def _begin(self, plan_id: str) -> _Part:
        hardware = find_hardware()
        machine, says = describe_machine(hardware)
        number = int((time.time() - self._began) / self._place.window_seconds)
        line = HistoryLine(
            kind="run",
            began_unix_seconds=self._began,
            key=self._key,
            status="running",
            pipeline=self._run.pipeline.name,
            plan_id=plan_id,
            machine=machine,
            machine_says=says,
            headrace_version=headrace_version(),
            python=hardware.python,
            versions=find_versions(),
            module_sha256=hash_module(self._run.pipeline.name),
            folder=self._place.folder,
        )
        self._parts[plan_id] = _Part(line, number=number)
        return self._parts[plan_id]

    def _write(self, parts: Sequence[_Part]) -> None:
        with History(self._place.file, busy_seconds=_BUSY_SECONDS) as history:
            for part in parts:
                part.line = self._update(part)
                if part.row is None:
                    part.row = history.add_line(part.line)
                else:
                    history.change_line(part.row, part.line)
                history.write_window(part.row, part.number, self._window(part))

    def _window(self, part: _Part) -> HistoryWindow:
        began = self._began + part.number * self._place.window_seconds
        return HistoryWindow(
            began_unix_seconds=began,
            seconds=max(0.0, min(self._place.window_seconds, time.time() - began)),
            delivered=max(0, part.line.delivered - part.delivered_before),
            stages=dict(part.stages),
            yardstick=part.yardstick,
        )

    def _update(self, part: _Part) -> HistoryLine:
        counters = self._run.counters
        return msgspec.structs.replace(
            part.line,
            delivered=self._delivered(part),
            failed=counters.rejected + counters.dead_lettered,
            cpu_per_item={stage: cpu_per_item(sums) for stage, sums in part.total.items()},
            bytes_per_item={stage: bytes_per_item(sums) for stage, sums in part.total.items()},
        )

    def _delivered(self, part: _Part) -> int:
        """Return the jobs delivered under a Plan: all, or its share if the run uses several."""
        items = {
            id(one): max((sums.moments[0] for sums in one.total.values()), default=0.0) for one in self._parts.values()
        }
        share = items[id(part)] / sum(items.values()) if len(items) > 1 and any(items.values()) else 1.0
        return round(share * self._run.counters.delivered)

    def _finish(self) -> None:
        self._count()
        if not self._parts:  # nothing was metered: a line all the same
            self._begin(self._run.plan.plan_id)
        summary: Mapping[str, Any] = self._run.summary.as_dict()
        latency = summary["latency_seconds"]
        for part in self._parts.values():
            part.line = msgspec.structs.replace(
                part.line,
                status="ended",
                ended_unix_seconds=time.time(),
                throughput=summary["throughput_per_second"],
                latency_p50=latency["p50"],
                latency_p90=latency["p90"],
                latency_p99=latency["p99"],
            )
        self._write(list(self._parts.values()))
        for part in self._parts.values():  # a nightly run may be shorter than a window
            self._judge(part)

    def _judge(self, part: _Part) -> None:
        line = part.line
        with History(self._place.file, busy_seconds=_BUSY_SECONDS) as history:
            found = history.windows(line.pipeline, line.plan_id, line.machine)
        judged = judge_windows([as_window(key, window) for key, window in found])
        self._place.publish(judged.stages)
        slower = frozenset(stage.stage for stage in judged.stages if stage.verdict == "slower")
        for stage in judged.stages:
            if stage.stage in slower - self._slower:
                fields = event_fields("performance_drift", stage=stage.stage, plan=line.plan_id)
                logger.warning("%s", stage.says, extra=fields)
        self._slower = slower
