"""Joins sources, stations and delivery into one running pipeline.

How this works. Receivers take jobs from the source, as many as may be in flight, and put each into the first station of its
route. A station's workers run its stages and hand the items to the next station's bounded queue; a full queue makes them
wait, and so on back to the receivers. The last stage is the delivery; then the job is settled, exactly once, and leaves.

Who owns what: each queue belongs to its station; receivers and workers put, only the station's workers take. The heartbeat
thread sends acks, extends loans and brings back what waits for a retry, and nothing else: it waits for nobody but the source,
or loans would run out. The bookkeeper makes spans and looks for workers that hang; the flusher makes results durable. The
thread that called `run` only waits, so that it can hear signals.

How it ends. When the source has no more (or on the first SIGTERM or Ctrl-C) the receivers stop; once every job is settled
the queues are closed in the order of the stations, the workers leave, deliveries and source are closed. What is not done
after the grace period, or at a second signal, is given back to the source at once, children are killed, and results that
threads still produce are dropped.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.base.plan import Plan
from headrace.base.protocols import HearsOfEnd, KeepsResults, PushesJobs, TakesNotes, TellsStreams, Thins
from headrace.base.records import Outcome, OutcomeKind, Receiving, StageStatistics, StreamRecord, Tending
from headrace.base.threads import start_thread
from headrace.pipeline.admission import Admission
from headrace.pipeline.bookkeeping import Bookkeeper
from headrace.pipeline.building import Equipment, Routes, build_stations
from headrace.pipeline.connections import Connections
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.end_signals import EndSignals
from headrace.pipeline.failing import Failing
from headrace.pipeline.garbage import GrowthWatch, calm_garbage_collector
from headrace.pipeline.guard import Guard
from headrace.pipeline.levers import Adjustable
from headrace.pipeline.ordering import Reorderer, release_in_order
from headrace.pipeline.prefetch import Prefetch
from headrace.pipeline.punctuality import Punctuality
from headrace.pipeline.receivers import Receivers
from headrace.pipeline.rest import TICK_SECONDS, Rest
from headrace.pipeline.router import Router
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.run_limit import RunLimit
from headrace.pipeline.run_state import RunState
from headrace.pipeline.settling import Settling
from headrace.pipeline.stall_watch import StallWatch
from headrace.pipeline.station import Leaves, Station
from headrace.pipeline.task_shares import TaskShares
from headrace.pipeline.worker import WorkerThread
from headrace.pipeline.workers import Workers
from headrace.stages.stage import StageContext

#: How often the thread that called `run` looks by itself: while jobs are in flight, while none are and `stop` may end the run,
#: and otherwise. It is woken by signals, and when the run ends.
_POLL_SECONDS, _POLL_STOP_SECONDS, _POLL_EMPTY_SECONDS = 0.05, 0.2, 1.0
#: How long threads that were told to leave may take before they are left behind (they are daemons).
_LEAVE_SECONDS = 5.0
_ABANDON_SECONDS = 1.0
_GIVEN_BACK = Outcome(OutcomeKind.RETURNED, "the run was stopped before the job was done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a run takes from its source, and how."""

    limit: int | None = None
    """Stop after receiving this many jobs, without those that were turned away; None for no limit."""
    first_alone: bool = False
    """Receive one job, and the others when it is through: none waits for what the first one sets up."""
    brakes: bool = True
    """Whether to stop receiving where nothing succeeds, as the Plan's `run.brake_after` says."""


class Runtime:
    """One run of a pipeline: makes its parts, connects them, and sees it from the first job to the last.

    Args:
        pipeline: What is done.
        context: Of the run, with the resolved Plan.
        equipment: What workers open their stages with.
        bounds: How much is received.
        signals: What ends the run before its source does.

    Attributes:
        tick: Called by the bookkeeper every few tens of milliseconds, for views; may be replaced until the run begins.
        interrupted: Whether a signal or `stop` ended it.
        ended_because: Why it ended before its source did, without a signal; empty: it did not.
        before_receiving: Called by the thread that called `run` when the workers have opened their stages; may raise.
        before_closing: Called by the thread that called `run` when every job has been settled, before the workers leave.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        context: RunContext,
        equipment: Equipment,
        bounds: Bounds | None = None,
        *,
        signals: EndSignals | None = None,
    ) -> None:
        bounds = bounds or Bounds()
        self.context = context
        self.signals = signals or EndSignals()
        #: Set when every part is open and whoever ends the run is heard.
        self.opened = threading.Event()
        self.interrupted = False
        self.ended_because = ""
        self.before_receiving: list[Callable[[], object]] = []
        self.before_closing: list[Callable[[], object]] = []
        self._pipeline = pipeline
        source = pipeline.source  # asked once: a protocol takes 60 us to answer
        self._may_stop = source.may_stop if isinstance(source, HearsOfEnd) else _at_once
        self.tick: Callable[[], object] = lambda: None
        self._slots = equipment.slots
        self._punctuality = Punctuality()
        self._parts = contextlib.ExitStack()
        self._delivery_counts: dict[str, int] = {}
        self._delivery_shared: dict[str, Any] = {}
        self._leaving_since: float | None = None
        self._source_is_stopped = False
        self._is_open = False
        self.stations, self._routes = build_stations(pipeline, context, equipment)
        self._connect(self._routes, bounds)

    def _connect(self, routes: Routes, bounds: Bounds) -> None:
        """Make the parts of the run, and let the stations know them."""
        context, plan, stations = self.context, self.context.plan, self.stations
        source, delivery = self._pipeline.source, self._pipeline.delivery
        keeper = delivery if isinstance(delivery, KeepsResults) else None
        reorderers = _put_in_order(stations, plan)
        self._failing = Failing(
            *(plan.run.brake_after if bounds.brakes else 0, keeper, context.clock, context.random),
            tasks=routes,
            is_ordered=plan.run.ordered,
            ends=bounds.limit is not None or not source.is_endless,
            end=self.end,
        )
        shares = TaskShares(
            routes,
            context.clock,
            lambda: self._admission.max_in_flight,
            lambda item, error, stage: self._settling.fail(item, error, stage),
        )
        self._tasks = tasks = shares if shares.is_of_use and not reorderers else None
        limit = None if bounds.limit is None else RunLimit(bounds.limit, source_ends=not source.is_endless)
        self._admission = admission = Admission(
            *(context, stations, self._failing, tasks, limit),
            attention=self.signals.bell,
            first_alone=bounds.first_alone,
        )
        self._rest = Rest(admission.has_none, context.seconds)
        self._settling = settling = Settling(context, admission, self._failing, delivery, reorderers)
        self._router = Router(context, admission, settling, tasks)
        self._receivers = Receivers(
            *(context, source, routes),
            admission=admission,
            settling=settling,
            router=self._router,
            failing=self._failing,
            tasks=tasks,
            keeper=keeper,
            rest=self._rest,
        )
        self._guard = Guard(admission.close)
        self._workers = Workers(stations, self._guard, context)
        self._bookkeeper = Bookkeeper(context)
        self._stalls = StallWatch(stations, plan.run.stall_seconds, source, settling, self._guard.broke)
        self._prefetch = Prefetch(context, source, stations, admission, settling)
        for station in stations:
            station.connect(
                Connections(
                    hand_on=partial(self._router.hand_on, station),
                    find_room=partial(self._router.find_room, station),
                    fail=settling.fail,
                    drop_lost=settling.drop_lost,
                    is_draining=admission.is_draining,
                    note=self._bookkeeper.note,
                    start_worker=partial(self._workers.start_one, station),
                    broke=self._guard.broke,
                )
            )

    # --- from outside

    def run(self) -> None:
        """Run until the source has no more, or until a signal or `stop`.

        Raises:
            HeadraceError: If a part cannot be opened, or a worker breaks.
        """
        self._open()
        helpers = [
            threading.Thread(target=self._guard.around(body), name=name, daemon=True)
            for name, body in (
                ("heartbeat", self._keep_loans),
                ("bookkeeper", self._keep_books),
                ("flusher", self._flush_results),
            )
        ]
        receivers = self._receivers.threads(self._guard.around)
        with self.signals.heard():
            self.opened.set()
            try:
                self._start_workers()
                for call in self.before_receiving:
                    call()
                with calm_garbage_collector():
                    self._let_push()
                    for thread in (*helpers, *receivers):
                        start_thread(thread, "lower source.receivers and the workers of the stages")
                    self._wait()
                    for call in self.before_closing:
                        call()
            finally:
                self._close(helpers, receivers)
                # One that came while the run was closing: whoever goes on with other runs wants to know.
                self.interrupted = self.interrupted or self.signals.has_news
        self.ended_because = self.ended_because or self._failing.given_up
        if self._guard.error is not None:
            raise self._guard.error

    def stop(self) -> None:
        """Receive no more; finish what is inside within the grace period and return the rest. A second call: at once."""
        self.context.levers.end(is_stopped=True)
        self.interrupted = True
        if self._admission.close():
            self.abandon()

    def end(self, reason: str) -> None:
        """Receive no more and finish what is inside, because there is no sense in going on."""
        self.context.levers.end()
        self.ended_because = self.ended_because or reason
        self._admission.close()

    def abandon(self) -> None:
        """Give everything that is not settled back to the source at once."""
        self.context.levers.end()
        self._admission.is_given_up = True
        self._settling.unflushed.flush()
        for item in self._admission.items():
            self._settling.settle(item, _GIVEN_BACK)
        for station in self.stations:
            station.queue.close()  # or one that waits for room in it would wait on
            station.queue.remove_all()
            station.give_up()

    @property
    def begun(self) -> threading.Event:
        """Set when the first job has come, before it goes anywhere."""
        return self._receivers.begun

    @property
    def receivers_cpu_seconds(self) -> dict[int, float]:
        """{kernel's number: CPU time} of receivers that have ended; they do so before the rest."""
        return self._receivers.cpu_seconds

    @property
    def flushes_cpu_seconds(self) -> dict[int, float]:
        """{kernel's number: CPU time} in which workers made results durable."""
        return self._settling.unflushed.cpu_seconds

    @property
    def is_drained(self) -> bool:
        """Whether one signal ended a source that has no other end, and all that was received was finished."""
        is_endless = self._admission.limit is None and self._pipeline.source.is_endless
        return is_endless and self.signals.num == 1 and not self._admission.is_given_up

    def statistics(self) -> list[StageStatistics]:
        """Return queue and workers of each station as they are now."""
        return [station.statistics() for station in self.stations]

    def adjustable(self) -> list[Adjustable]:
        """Return what an experiment may change, in the order of the pipeline; once the workers have opened their stages."""
        return [station.adjustable() for station in self.stations]

    def hold_to(self, plan: Plan) -> None:
        """Ask for no more than a Plan says that asks for less than the run's own: batches, workers, jobs in flight, frames."""
        for station in self.stations:
            station.hold_to(plan)
        most = plan.source.max_in_flight
        self._admission.cap_in_flight(None if most == self.context.plan.source.max_in_flight else most)
        if isinstance(self._pipeline.source, Thins):
            self._pipeline.source.thin(plan.source.every or 1)

    def child_processes(self) -> set[int]:
        """Return the ids of the processes in which stages run, beside this one."""
        here = os.getpid()
        return {place.process for place in self.worker_threads()} - {here}

    def worker_threads(self) -> list[WorkerThread]:
        """Return where the workers' stages run now; changes when a process is replaced."""
        places = [worker.place() for station in self.stations for worker in list(station.workers)]
        return [place for place in places if place is not None]

    def num_waiting(self, task: str) -> int:
        """Return how many items wait in the queues on the way of a task's jobs, or in all where there is one task; cheap."""
        num = 0
        for station in self._routes.get(task, self.stations):
            num += station.queue.depth
        return num

    def longest_call_seconds(self) -> float:
        """Return for how long the oldest call of a stage lasts by now; 0 where none is under way."""
        hands = [worker.hand for station in self.stations for worker in list(station.workers)]
        began = min((hand[0] for hand in hands if hand is not None), default=None)
        return 0.0 if began is None else max(0, self.context.clock.now_ns() - began) / 1e9

    def longest_calls(self) -> tuple[float, float]:
        """Return for how long the oldest call lasts by now, once for each `Station.pace`; 0 where none is under way."""
        now, longest = self.context.clock.now_ns(), [0, 0]
        for station in self.stations:
            if station.pace is not None:
                busy = [since for worker in list(station.workers) if (since := worker.busy_since)]
                longest[station.pace] = max([longest[station.pace], *(now - since for since in busy)])
        return longest[0] / 1e9, longest[1] / 1e9

    def receiving(self) -> Receiving:
        """Return what the receivers did up to now."""
        return self._admission.receiving()

    def tending(self) -> Tending:
        """Return how punctual acks and heartbeats were up to now."""
        return self._punctuality.tending()

    def warnings(self) -> list[str]:
        """Return what did not go as it should, for people."""
        limit = self._admission.limit
        unwritten = self._settling.unflushed.warning()
        warnings = [self._punctuality.warning(), limit.warning() if limit else "", unwritten]
        return [warning for warning in warnings if warning]

    def notes(self) -> dict[str, int]:
        """Return what the source, the stages and the delivery counted."""
        source = self._pipeline.source
        total = {**(source.notes() if isinstance(source, TakesNotes) else {}), **self._delivery_counts}
        total.update(self._tasks.counts if self._tasks is not None else {})
        total.update(self._failing.counts())
        total.update(dict(self.context.counts))
        if self.context.arms is not None and self.context.arms.num_rescued:
            total["canary.rescued"] = self.context.arms.num_rescued
        for station in self.stations:
            for counts in list(station.counts):
                for name, number in list(counts.items()):
                    total[name] = total.get(name, 0) + number
        return total

    def streams(self) -> list[StreamRecord]:
        """Return what became of the frames of each live stream; empty where the source has none."""
        source = self._pipeline.source
        now = time.monotonic()
        return [tally.record(now) for tally in source.tallies()] if isinstance(source, TellsStreams) else []

    def state(self) -> RunState:
        """Return what is so now; any thread."""
        return RunState(
            is_open=self._is_open,
            in_flight=self._admission.num_in_flight,
            slots=self._admission.max_in_flight,
            is_braked=self._failing.is_braked,
            open_breakers=self._count_open_breakers(),
            notes=self.notes() if self._is_open else {},
            plan_id=self.context.plan_id,
            variants=self.variants(),
        )

    def _count_open_breakers(self) -> dict[str, int]:
        shared = {name: there for station in self.stations for name, there in station.shared.items()}
        shared[self._pipeline.stages[-1].name] = self._delivery_shared
        now = self.context.seconds()
        known = {name: there["servers"] for name, there in shared.items() if "servers" in there}
        return {name: servers.count_open(now) for name, servers in known.items()}

    def variants(self) -> list[dict[str, Any]]:
        """Return the model variants as opened, each once."""
        opened = [variants for station in self.stations for variants in station.variants]
        opened += [slot.variants for slot in self._slots.all()] if self._slots else []
        found: list[dict[str, Any]] = []
        for variants in opened:
            found.extend(variant for variant in variants if variant not in found)
        return found

    # --- opening, waiting, closing

    def _open(self) -> None:
        deliver, plan = self._pipeline.stages[-1], self.context.plan
        context = StageContext(
            stage=deliver.name,
            worker=0,
            plan=plan,
            options=plan.stages[deliver.name].options,
            next_stage=None,
            open_model=_no_model,
            counts=self._delivery_counts,
            shared=self._delivery_shared,
        )
        with contextlib.ExitStack() as parts:
            self._pipeline.source.open(plan.source)
            parts.callback(self._pipeline.source.close)
            self._pipeline.delivery.open(context)
            parts.callback(self._pipeline.delivery.close)
            self._parts = parts.pop_all()
        self._is_open = True
        self._prefetch.begin()

    def _start_workers(self) -> None:
        self._receivers.inline.update(self._workers.start(self._wait_for_worker))
        self._heed_signals()

    def _wait_for_worker(self, opened: threading.Semaphore) -> bool:
        """Wait until one more worker is open; return False where the run is to end: nothing was received yet."""
        while not opened.acquire(timeout=TICK_SECONDS):
            self._heed_signals()
            if self._admission.is_closed:
                return False
        return True

    def _wait(self) -> None:
        admission, grace_ends = self._admission, None
        while not (admission.has_ended and admission.idle.is_set()):
            admission.attention.wait(self._poll_seconds())
            self._heed_signals()
            if self._guard.error is not None:
                self.abandon()
            if admission.is_given_up:
                return
            admission.look()
            if admission.is_closed or admission.has_ended:
                self._stop_source()
            if admission.is_closed:
                now = self.context.seconds()
                grace_ends = grace_ends or now + self.context.plan.run.grace_seconds
                if now >= grace_ends:
                    self.abandon()
                    return

    def _let_push(self) -> None:
        source = self._pipeline.source
        if isinstance(source, PushesJobs) and self._receivers.may_be_pushed:
            source.push_to(self._receivers.push)

    def _stop_source(self) -> None:
        source = self._pipeline.source
        if not self._source_is_stopped and isinstance(source, HearsOfEnd):
            source.stop()
        self._source_is_stopped = True

    def _poll_seconds(self) -> float:
        if self._admission.is_closed or not self._admission.has_none() or self.signals.has_news:
            return _POLL_SECONDS
        return _POLL_STOP_SECONDS if self.signals.is_polled else _POLL_EMPTY_SECONDS

    def _heed_signals(self) -> None:
        self.signals.heed(self.stop, self._may_stop, is_stopping=self._admission.is_closed)

    def _close(self, helpers: Sequence[threading.Thread], receivers: Sequence[threading.Thread]) -> None:
        self.context.levers.end()
        try:
            self._let_leave(receivers)
            for station in self.stations:
                station.queue.close()
                self._let_leave(station.leaving)
            self._let_leave(self._workers.of_all)
            self._settling.drop_unwritten()
        finally:
            self._rest.end()
            self._settling.is_flush_due.set()
            for thread in helpers:
                if thread.ident is not None:
                    thread.join(_LEAVE_SECONDS)
            self._bookkeeper.report(None)
            for station in self.stations:
                station.give_up()  # of workers that did not leave; the others have closed theirs
            self.context.counters.notes = self.notes()
            try:
                self._parts.close()
            except Exception as error:
                self._guard.note(error)

    def _let_leave(self, leaving: Sequence[Leaves]) -> None:
        """Wait for what was told to leave, all stations' together no longer than the limits above."""
        for one in leaving:
            while one.is_alive():
                now = self.context.seconds()
                self._leaving_since = self._leaving_since or now
                longest = _ABANDON_SECONDS if self._admission.is_given_up else _LEAVE_SECONDS
                left = self._leaving_since + longest - now
                if left <= 0:
                    break  # a daemon: it is left behind, and what it still produces is dropped
                one.join(min(left, TICK_SECONDS))
                self._heed_signals()

    # --- the heartbeat, the bookkeeper and the flusher

    def _keep_loans(self) -> None:
        # Every call here is to be short and to wait for nobody: while it lasts no loan is extended.
        while not self._rest.is_over:
            self._tend()
            self._router.bring_back()
            if self._rest.pause(self._pipeline.source.visibility_seconds):
                self._punctuality.rested()

    def _tend(self) -> None:
        source, began = self._pipeline.source, self.context.seconds()
        source.tend()
        self._punctuality.tended(began, self.context.seconds(), source.visibility_seconds)

    def _keep_books(self) -> None:
        growth = GrowthWatch()
        while not self._rest.is_over:
            is_done = self._bookkeeper.report()
            self.tick()
            now = self.context.seconds()
            self._stalls.look(now)
            self._prefetch.look(now)
            for station in self.stations:
                if station.bulkheads is not None:
                    station.bulkheads.tend(self._admission.max_in_flight)
            growth.look()
            if is_done:
                self._rest.pause()

    def _flush_results(self) -> None:
        unflushed, is_due = self._settling.unflushed, self._settling.is_flush_due
        while not self._rest.is_over:
            # A source that ends waits until all is settled, and results that are not durable for company that never comes.
            ends = self._pipeline.source.is_exhausted or self._admission.has_all()
            if self._admission.is_empty and ends and not unflushed.is_stuck:
                unflushed.flush()
            unflushed.flush_if_due()
            if self._admission.has_none():
                self._rest.pause()
            else:
                is_due.wait(TICK_SECONDS)
            is_due.clear()


def _put_in_order(stations: Sequence[Station], plan: Plan) -> list[Reorderer]:
    """Give stations whose items must come in order what puts them so, and return that."""
    all_in_all = Reorderer(release_in_order)
    found = {}
    for station in stations:
        if plan.run.ordered and station.last_role == "deliver":
            station.reorderer = found[0] = all_in_all
        elif station.keeps_streams:
            station.reorderer = found[id(station)] = Reorderer(release_in_order, by_stream=True)
    return list(found.values())


def _at_once() -> bool:
    return True


def _no_model(path: str | None = None) -> Any:
    raise HeadraceError("a delivery has no model")
