"""Beside a run: takes what its parts have counted anyway into the page, once a second.

How this works: jobs, batches and what stages do are counted by the run's summary, which tells them in bulk (`Summary.tell`), so
that an item costs next to nothing here; a SIGKILL loses what it was not told yet, some tens of milliseconds. A thread looks at
the rest once a second: queues, workers, what source and deliveries noted, the process. A second thread asks the source what
waits, because a service may take its time. What cannot be read is counted as dropped and said once; the run goes on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace import __version__
from headrace.base.errors import HeadraceError
from headrace.base.protocols import TellsBacklog, TellsLoans
from headrace.base.records import BatchFormed
from headrace.base.request_tally import TalliesRequests
from headrace.monitor.metrics.counts import Counts
from headrace.monitor.metrics.jobs import JobCounts
from headrace.monitor.metrics.process import look_at_process
from headrace.monitor.metrics.requests import RequestCounts, count_refused
from headrace.monitor.metrics.table import CANARY_STATES, SERIES, Given, Kind
from headrace.monitor.published import forget_published, published
from headrace.pipeline.run_state import RunState
from headrace.pipeline.told import Ended
from headrace.pipeline.watching import RunInProgress

logger = logging.getLogger("headrace")

LOOK_SECONDS = 1.0
#: How often the source is asked, at least, and the share of the time that asking may take: services charge for calls.
_ASK_SECONDS, _ASK_SHARE = 10.0, 0.02
#: Over how many looks throughput and utilization are computed, and how often the process is looked at.
_WINDOW_LOOKS, _PROCESS_LOOKS = 10, 5
#: How long the end of the run waits for the last look.
_LEAVE_SECONDS = 5.0
_DIGEST_DIGITS = 12
#: What notes of refused requests begin with, and {counter of ours: notes of the run that it adds up}.
_REFUSED = "refused."
_NOTES = {
    ("headrace_leases_total", ("renewed",)): ("source.extended",),
    ("headrace_leases_total", ("late",)): ("source.stale",),
    ("headrace_source_errors_total", ()): ("source.failed_calls",),
    ("headrace_brakes_total", ()): ("run.nothing_succeeded", "route.nothing_succeeded"),
}


class MetricsWatch:
    """A watch of `headrace.run`; for one run.

    Args:
        counts: Of this process.
        worker: Number of its slot.
    """

    def __init__(self, counts: Counts, worker: int = 0) -> None:
        self._counts = counts
        self._worker = (str(worker),)

    def __call__(self, run: RunInProgress) -> Looker:
        """Return what looks at the run while it is entered."""
        return Looker(self._counts, self._worker, run)


class Looker:
    """The threads; see above."""

    def __init__(self, counts: Counts, worker: tuple[str], run: RunInProgress) -> None:
        self._counts = counts
        self._jobs = JobCounts(counts, run.pipeline.routes)
        self._worker = worker
        self._run = run
        self._source = run.pipeline.source
        self._delivers = run.pipeline.stages[-1].name
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._troubles: set[str] = set()
        self._looks = 0
        self._is_open = False
        self._window: deque[tuple[float, int, dict[str, float]]] = deque(maxlen=_WINDOW_LOOKS + 1)
        self._plan_id = ""
        self._requests: RequestCounts | None = None
        self._canary: object = None

    def __enter__(self) -> Looker:
        self._counts.page.begin()
        self._say_what_runs()
        self._begin_at_zero({Given.ALWAYS})
        self._run.summary.tell(self)
        if isinstance(self._source, TalliesRequests):
            self._requests = RequestCounts(self._counts, self._source)
        bodies: list[Callable[[], None]] = [self._look_on]
        bodies += [self._ask_on] if isinstance(self._source, TellsBacklog) else []
        for body in bodies:
            thread = threading.Thread(target=body, name="metrics", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._threads[0].join(_LEAVE_SECONDS)
        if not self._threads[0].is_alive():  # else something that it asks does not answer; the run ends all the same
            self._look()
        self._run.summary.tell(None)
        forget_published()
        self._counts.page.end()

    def _look_on(self) -> None:
        self._look()
        while not self._ended.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        self._counts.page.beat()
        self._try(self._look_at_stages)
        self._try(self._look_at_stations)
        self._try(self._look_at_state)
        self._try(self._look_at_requests)
        self._try(self._look_at_canary)
        self._try(self._take_published)
        if self._looks % _PROCESS_LOOKS == 0 or self._ended.is_set():
            self._try(self._look_at_process)
        self._looks += 1

    def _try(self, part: Callable[..., None], *arguments: Any) -> None:
        try:
            part(*arguments)
        except Exception as error:
            self._counts.note_dropped("error")
            what = f"{part.__name__}: {type(error).__name__}"
            if what not in self._troubles:
                self._troubles.add(what)
                frames = None if isinstance(error, HeadraceError) else error
                logger.warning("a metric cannot be read, %s: %s; the run goes on", what, error, exc_info=frames)

    # --- called by others

    def take_received(self, num: int, num_again: int) -> None:
        """See `told.Listener`, as those below."""
        self._try(self._jobs.take_received, num, num_again)

    def take_times(self, stage: str, services: Sequence[int], waits: Sequence[int]) -> None:
        """Count times of passages."""
        self._try(self._jobs.take_times, stage, services, waits)

    def take_batches(self, batches: Sequence[BatchFormed]) -> None:
        """Count batches."""
        self._try(self._jobs.take_batches, batches)

    def take_ended(self, ended: Sequence[Ended], latencies: Sequence[int | None]) -> None:
        """Count how deliveries ended."""
        self._try(self._jobs.take_ended, ended, latencies)

    # --- once

    def _say_what_runs(self) -> None:
        self._counts.set("headrace_run_info", 1.0, (self._run.pipeline.name, __version__))
        self._counts.set("headrace_run_start_timestamp_seconds", time.time())
        self._counts.add("headrace_worker_starts_total")
        for stage, workers in self._run.summary.workers.items():
            self._counts.set("headrace_stage_workers", float(workers), (stage,))

    def _begin_at_zero(self, given: Collection[Given]) -> None:
        """Show counters before they count, or their first increase would not be one."""
        for series in SERIES.values():
            if series.kind is Kind.COUNTER and series.given in given:
                for labels in _closed_labels(self._run, series.label_names, [one.values for one in series.labels]):
                    self._counts.add(series.name, labels, 0.0)

    # --- once a second

    def _look_at_stages(self) -> None:
        counts, summary = self._counts, self._run.summary
        busy: dict[str, float] = {}
        for stage in summary.stage_counts():
            name = (stage.name,)
            counts.follow("headrace_stage_items_total", stage.items - stage.failed, (stage.name, "ok"))
            counts.follow("headrace_stage_items_total", stage.failed, (stage.name, "failed"))
            counts.follow("headrace_stage_busy_seconds_total", stage.busy_seconds, name)
            counts.follow("headrace_stage_blocked_seconds_total", stage.blocked_seconds, name)
            busy[stage.name] = stage.busy_seconds / max(1, summary.workers.get(stage.name) or 1)
        self._look_at_pace(busy)

    def _look_at_pace(self, busy: dict[str, float]) -> None:
        """Compute rates over the window.

        Args:
            busy: {stage: seconds that each of its workers was busy so far}.
        """
        counts, now, delivered = self._counts, time.monotonic(), self._run.counters.delivered
        if self._window and delivered > self._window[-1][1]:
            counts.set("headrace_last_success_timestamp_seconds", time.time())
        self._window.append((now, delivered, busy))
        began, delivered_before, busy_before = self._window[0]
        if now <= began:
            return
        throughput = (delivered - delivered_before) / (now - began)
        most = max((seconds - busy_before.get(stage, 0.0) for stage, seconds in busy.items()), default=0.0)
        utilization = min(1.0, most / (now - began))
        counts.set("headrace_throughput_jobs_per_second", throughput)
        is_known = throughput > 0 and utilization > 0 and len(self._window) > _WINDOW_LOOKS
        counts.set("headrace_capacity_jobs_per_second", throughput / utilization if is_known else float("nan"))

    def _look_at_stations(self) -> None:
        for station in self._run.statistics():
            name = (station.name,)
            self._counts.set("headrace_stage_queue_depth", float(station.depth), name)
            self._counts.set("headrace_stage_queue_capacity", float(station.capacity), name)
            self._counts.set("headrace_stage_workers_busy", float(station.busy), name)

    def _look_at_state(self) -> None:
        counts, state = self._counts, self._run.state()
        if state.is_open and not self._is_open:
            self._is_open = True
            lends = self._source.visibility_seconds is not None
            is_served = isinstance(self._source, TalliesRequests)
            self._begin_at_zero([*([Given.QUEUE] if lends else []), *([Given.SERVE] if is_served else [])])
        counts.set("headrace_jobs_in_flight", float(state.in_flight))
        counts.set("headrace_job_slots", float(state.slots))
        counts.set("headrace_brake_on", float(state.is_braked))
        for (name, labels), notes in _NOTES.items():
            if total := sum(state.notes.get(note, 0) for note in notes):
                counts.follow(name, float(total), labels)
        refused = {note: num for note, num in state.notes.items() if note.startswith(_REFUSED)}
        count_refused(counts, {note.removeprefix(_REFUSED): num for note, num in refused.items()})
        if self._run.counters.lost:
            counts.follow("headrace_leases_total", float(self._run.counters.lost), ("lost",))
        if state.is_open and isinstance(self._source, TellsLoans):
            remaining = self._source.least_remaining_seconds()
            counts.set("headrace_lease_remaining_seconds", float("nan") if remaining is None else remaining)
        if state.open_breakers:
            self._look_at_breakers(state)
        self._look_at_models(state.plan_id, state.variants)

    def _look_at_breakers(self, state: RunState) -> None:
        self._counts.add("headrace_undelivered_total", (), 0.0)
        for side in ("fetch", "delivery"):
            stages = [stage for stage in state.open_breakers if (stage == self._delivers) == (side == "delivery")]
            if stages:
                opened = sum(state.notes.get(f"{stage}.breaker_opened", 0) for stage in stages)
                num_open = sum(state.open_breakers[stage] for stage in stages)
                self._counts.set("headrace_breakers_open", float(num_open), (side,))
                self._counts.follow("headrace_breakers_opened_total", float(opened), (side,))

    def _look_at_models(self, plan_id: str, variants: Sequence[object]) -> None:
        if plan_id != self._plan_id:
            if self._plan_id:
                self._counts.set("headrace_plan_info", 0.0, (self._plan_id,))
            self._plan_id = plan_id
        self._counts.set("headrace_plan_info", 1.0, (plan_id,))
        for variant in variants:
            if isinstance(variant, dict) and variant.get("artifact"):
                digest = str(variant.get("sha256", ""))[:_DIGEST_DIGITS]
                labels = (Path(str(variant["artifact"])).name, digest, str(variant.get("engine", "")))
                self._counts.set("headrace_model_info", 1.0, labels)

    def _look_at_requests(self) -> None:
        if self._requests is not None:
            self._requests.look()

    def _look_at_canary(self) -> None:
        arms = self._run.arms
        if arms is None or not arms.status:
            return
        if arms.watch is not self._canary:
            self._canary = arms.watch
            self._counts.follow_anew("headrace_canary_jobs_total")
        for state in CANARY_STATES:
            self._counts.set("headrace_canary_state", float(arms.status.replace(" ", "_") == state), (state,))
        self._counts.set("headrace_canary_share_ratio", arms.share)
        jobs = arms.watch.seen().jobs.values()
        for arm, all_jobs, bad in (
            ("canary", sum(one.canary for one in jobs), sum(one.bad_canary for one in jobs)),
            ("stable", sum(one.stable for one in jobs), sum(one.bad_stable for one in jobs)),
        ):
            self._counts.follow("headrace_canary_jobs_total", float(all_jobs - bad), (arm, "good"))
            self._counts.follow("headrace_canary_jobs_total", float(bad), (arm, "bad"))

    def _take_published(self) -> None:
        for (name, labels), value in published().items():
            if SERIES[name].kind is Kind.COUNTER:
                self._counts.follow(name, value, labels)
            else:
                self._counts.set(name, value, labels)

    def _look_at_process(self) -> None:
        look_at_process(self._counts, self._worker)

    # --- now and then

    def _ask_on(self) -> None:
        pause = self._first_answer()
        while not self._ended.wait(pause):
            began = time.monotonic()
            self._try(self._ask_source)
            pause = max(_ASK_SECONDS, (time.monotonic() - began) / _ASK_SHARE)

    def _first_answer(self) -> float:
        """Ask until the source answers for the first time: it is opened with the run, and says itself what keeps it."""
        while not self._ended.wait(LOOK_SECONDS):
            with contextlib.suppress(Exception):
                self._ask_source()
                break
        return _ASK_SECONDS

    def _ask_source(self) -> None:
        if not isinstance(self._source, TellsBacklog):
            return
        found = self._source.backlog()
        for state in ("visible", "in_flight", "delayed", "dead"):
            self._counts.set("headrace_source_jobs", float(getattr(found, state)), (state,))
        unknown = float("nan") if found.visible else 0.0
        age = unknown if found.oldest_age_seconds is None else found.oldest_age_seconds
        self._counts.set("headrace_source_oldest_age_seconds", age)


def _closed_labels(
    run: RunInProgress, names: Sequence[str], values: Sequence[Sequence[str]]
) -> Sequence[tuple[str, ...]]:
    """Return every combination of labels whose values are known before the run; none where those of one are not."""
    found: list[tuple[str, ...]] = [()]
    for name, closed in zip(names, values, strict=True):
        if name == "task":
            closed = list(run.pipeline.routes)
        elif name == "stage":
            closed = [stage.name for stage in run.pipeline.stages]
        found = [(*before, value) for before in found for value in closed]
    return found
