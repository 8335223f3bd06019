"""Joins sources, stations and delivery into one running pipeline.

How this works. Receivers take jobs from the source, as many as may be in flight, and put each into the first station of its
route. A station's workers run its stages and hand the items to the next station's bounded queue; a full queue makes them
wait, and so on back to the receivers. The last stage is the delivery; then the job is settled, exactly once, and leaves.

Who owns what: each queue belongs to its station; receivers and workers put, only the station's workers take. The supervisor
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
import dataclasses
import heapq
import itertools
import logging
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import (
    HeadraceError,
    ItemError,
    SettingsError,
    StageFailed,
    UnknownTask,
    as_item_error,
)
from headrace.base.metering import Metering
from headrace.base.observer import Observer, Observers
from headrace.base.plan import Plan
from headrace.base.policies.brake import Fault
from headrace.base.protocols import Instrument, KeepsResults, Source, TakesNotes
from headrace.base.records import DELIVERED, Counters, Job, Outcome, OutcomeKind, StageStatistics
from headrace.pipeline.bookkeeping import Bookkeeper
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.failing import Failing
from headrace.pipeline.garbage import GrowthWatch, calm_garbage_collector
from headrace.pipeline.governor import ThreadBudget, limit_library_threads
from headrace.pipeline.item import Item
from headrace.pipeline.model_slots import ModelSlots
from headrace.pipeline.opening import GroupSpec, groups, opening_error
from headrace.pipeline.ordering import Reorderer
from headrace.pipeline.outbox import Outbox
from headrace.pipeline.prefetch import Prefetch
from headrace.pipeline.punctuality import Punctuality
from headrace.pipeline.receiving import ReceivingBook
from headrace.pipeline.run_limit import RunLimit
from headrace.pipeline.sizes import measure
from headrace.pipeline.stall_watch import StallWatch
from headrace.pipeline.station import RECEIVER, Station, Worker, WorkerThread, pause
from headrace.pipeline.task_shares import TaskShares
from headrace.pipeline.threads import start_thread
from headrace.pipeline.users_code import raise_if_of_the_run
from headrace.pipeline.warm_up import CostCurve, WarmUp
from headrace.runs.run_folder import Receiving, Tending
from headrace.stages.stage import Fan, Joined, Stage, StageContext

logger = logging.getLogger("headrace")

_TICK_SECONDS = 0.03
#: How soon the thread that called `run` heeds a signal.
_POLL_SECONDS = 0.05
#: How long threads that were told to leave may take before they are left behind (they are daemons).
_LEAVE_SECONDS = 5.0
_ABANDON_SECONDS = 1.0
_OVER_LIMIT = Outcome(OutcomeKind.RETURNED, "more than the limit of this run")
_FEWER_WORKERS = "lower stages.{}.workers"
_COUNTER = {
    OutcomeKind.DELIVERED: "delivered",
    OutcomeKind.REJECTED: "rejected",
    OutcomeKind.DEAD_LETTERED: "dead_lettered",
    OutcomeKind.RETRY: "retried",
    OutcomeKind.RETURNED: "returned",
}


class Runtime:
    """One run of a pipeline under a resolved Plan.

    Args:
        pipeline: What is done.
        plan: Resolved.
        budget: Threads per model call.
        observers: Who is told.
        counters: Where to count; None for new ones.
        limit: Stop after receiving so many jobs, without those that were turned away; None for no limit.
        clock: Stamps everything.
        tick: Called by the bookkeeper every few tens of milliseconds, for views.
        metering: Whether and for which jobs workers read what passages cost; whoever profiles changes it during the run.
        instruments: What goes around the calls of the stages.
        warm_up: What is measured at warm-up beyond the Plan's own batch sizes.
        first_alone: Receive one job, and the others when it is through: none waits for what the first one sets up.
        brakes: Whether to stop receiving where nothing succeeds, as the Plan's `run.brake_after` says.
        signals: Those that end the run.
        stop: Ends it too, as the first signal does, once it is set.

    Attributes:
        first_signal: The one that ended the run; None: none did.
        ended_because: Why it ended before its source did, without a signal; empty: it did not.
        begun: Set when the first job has come, before it goes anywhere.
        before_receiving: Called by the thread that called `run` when the workers have opened their stages; may raise.
        before_closing: Called by the thread that called `run` when every job has been settled, before the workers leave.
        receivers_cpu_seconds: {kernel's number: CPU time} of receivers that have ended; they do so before the rest.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        plan: Plan,
        budget: ThreadBudget,
        observers: Sequence[Observer] = (),
        *,
        counters: Counters | None = None,
        limit: int | None = None,
        clock: Clock | None = None,
        tick: Callable[[], object] | None = None,
        metering: Metering | None = None,
        instruments: Sequence[Instrument] = (),
        warm_up: WarmUp | None = None,
        first_alone: bool = False,
        brakes: bool = True,
        slots: ModelSlots | None = None,
        signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
        stop: threading.Event | None = None,
    ) -> None:
        self._heeded = signals
        self._stop_asked = stop or threading.Event()
        self.clock = clock or SystemClock()
        self.plan = plan
        self.plan_id = plan.plan_id
        self.observers = Observers(observers)
        self.random = random.random
        self.counters = counters or Counters()
        self.cost_curves: list[CostCurve] = []
        self.begun = threading.Event()
        self.before_receiving: list[Callable[[], object]] = []
        self.before_closing: list[Callable[[], object]] = []
        self.receivers_cpu_seconds: dict[int, float] = {}
        self.metering = metering or Metering()
        self._instruments = tuple(instruments)
        self._warm_up = warm_up or WarmUp()
        self._slots = slots
        self.interrupted = False
        self.ended_because = ""
        self._pipeline = pipeline
        source_ends = not getattr(pipeline.source, "is_endless", False)
        self._limit = None if limit is None else RunLimit(limit, source_ends=source_ends)
        self._tick = tick
        self._sequence = itertools.count()
        self._lock = threading.Lock()
        self._admission = threading.Condition(self._lock)
        self._in_flight: dict[int, Item] = {}
        self._inside = 0
        self._reserved = 0
        self._stopping = False
        self._abandoning = False
        self._closing = threading.Event()
        self._sources_done = self._seems_done = False
        self.bookkeeper = Bookkeeper(self)
        self._punctuality = Punctuality()
        self._idle = threading.Event()
        # Wakes the thread that called `run`, and the flusher, before their time.
        self._attention = threading.Event()
        self._num_receiving = plan.source.receivers
        self._receiving = ReceivingBook(plan.source.receivers)
        self._something_due = threading.Event()
        self._crash: BaseException | None = None
        self._retries: list[tuple[float, int, Item, Station]] = []
        self._retry_lock = threading.Lock()
        self._left_to_open = threading.Semaphore(0)
        self._parts = contextlib.ExitStack()
        self._inline: dict[tuple[Station, int], Worker] = {}
        self._delivery_counts: dict[str, int] = {}
        self._num_signals = 0
        self.first_signal: int | None = None
        self._num_heeded = 0
        self._leaving_since: float | None = None
        self.stations, self._routes = self._lay_out(budget)
        self._reorderer = Reorderer(_release_ordered) if plan.run.ordered else None
        self._outbox = Outbox(pipeline.delivery, self._delivered, self.clock)
        self._stalls = StallWatch(self, plan.run.stall_seconds, pipeline.source)
        self._prefetch = Prefetch(self, pipeline.source)
        self._max_in_flight = self._capacity()
        tasks = TaskShares(self._routes, self.clock, lambda: self._max_in_flight, self.fail)
        self._tasks = tasks if tasks.is_of_use and not plan.run.ordered else None
        self._first_is_alone = first_alone
        delivery = pipeline.delivery
        self._keeper = delivery if isinstance(delivery, KeepsResults) else None
        ends = limit is not None or source_ends
        self._failing = Failing(
            *(plan.run.brake_after if brakes else 0, self._keeper, self.clock, self.random),
            tasks=self._routes,
            is_ordered=plan.run.ordered,
            ends=ends,
            end=self.end,
            is_busy_beyond=self._is_busy_beyond,
        )

    # --- the outside

    def run(self) -> None:
        """Run until the source has no more, or until a signal or `stop`.

        Raises:
            HeadraceError: If a part cannot be opened, or a worker breaks.
        """
        self._open()
        helpers = [
            threading.Thread(target=self._guard(body), name=name, daemon=True)
            for name, body in (
                ("supervisor", self._supervise),
                ("bookkeeper", self._keep_books),
                ("flusher", self._flush_results),
            )
        ]
        receivers = [
            threading.Thread(
                target=self._guard(self._receive), args=(number,), name=f"{RECEIVER}-{number}", daemon=True
            )
            for number in range(self.plan.source.receivers)
        ]
        with self._signals():
            try:
                self._start_workers()
                for call in self.before_receiving:
                    call()
                with calm_garbage_collector():
                    for thread in (*helpers, *receivers):
                        start_thread(thread, "lower source.receivers and the workers of the stages")
                    self._wait()
                    for call in self.before_closing:
                        call()
            finally:
                self._close(helpers, receivers)
        self.ended_because = self.ended_because or self._failing.given_up
        if self._crash is not None:
            raise self._crash

    def stop(self) -> None:
        """Receive no more; finish what is inside within the grace period and return the rest. A second call: at once."""
        with self._lock:
            again, self._stopping = self._stopping, True
            self.interrupted = True
            self._admission.notify_all()
        for station in self.stations:
            station.queue.wake()
        if again:
            self.abandon()

    def end(self, reason: str) -> None:
        """Receive no more and finish what is inside, because there is no sense in going on."""
        with self._lock:
            self.ended_because = self.ended_because or reason
            self._stopping = True
            self._admission.notify_all()
        for station in self.stations:
            station.queue.wake()

    def abandon(self) -> None:
        """Give everything that is not settled back to the source at once."""
        self._abandoning = True
        self._outbox.flush()
        with self._lock:
            items = list(self._in_flight.values())
        for item in items:
            self._settle(item, Outcome(OutcomeKind.RETURNED, "the run was stopped before the job was done"))
        for station in self.stations:
            station.queue.close()  # or one that waits for room in it would wait on
            station.queue.remove_all()
            station.kill_children()

    @property
    def is_drained(self) -> bool:
        """Whether one signal ended a source that has no other end, and all that was received was finished."""
        is_endless = self._limit is None and getattr(self._pipeline.source, "is_endless", False)
        return is_endless and self._num_signals == 1 and not self._abandoning

    def is_draining(self) -> bool:
        """Return whether no more items can come, so that a batch need not wait for company."""
        return self._stopping or self._sources_done or self._seems_done

    def statistics(self) -> list[StageStatistics]:
        """Return queue and workers of each station as they are now."""
        return [station.statistics() for station in self.stations]

    def worker_threads(self) -> list[WorkerThread]:
        """Return where the workers' stages run now; changes when a process is replaced."""
        places = [worker.place() for station in self.stations for worker in list(station.workers)]
        return [place for place in places if place is not None]

    def receiving(self) -> Receiving:
        """Return what the receivers did up to now."""
        with self._lock:
            return self._receiving.total()

    def tending(self) -> Tending:
        """Return how punctual acks and heartbeats were up to now."""
        return self._punctuality.tending()

    def warnings(self) -> list[str]:
        """Return what did not go as it should, for people."""
        warnings = [self._punctuality.warning(), self._limit.warning() if self._limit else ""]
        return [warning for warning in warnings if warning]

    def notes(self) -> dict[str, int]:
        """Return what the source, the stages and the delivery counted."""
        source = self._pipeline.source
        total = {**(source.notes() if isinstance(source, TakesNotes) else {}), **self._delivery_counts}
        total.update(self._tasks.counts if self._tasks is not None else {})
        total.update(self._failing.counts())
        for station in self.stations:
            for counts in list(station.counts):
                for name, number in list(counts.items()):
                    total[name] = total.get(name, 0) + number
        return total

    def variants(self) -> list[dict[str, Any]]:
        """Return the model variants as opened, each once."""
        found: list[dict[str, Any]] = []
        for station in self.stations:
            for variants in station.variants:
                found.extend(variant for variant in variants if variant not in found)
        for slot in self._slots.all() if self._slots else ():
            found.extend(variant for variant in slot.variants if variant not in found)
        return found

    # --- called by stations

    def hand_on(self, items: Sequence[Item], station: Station) -> list[int]:
        """Send items that went through a station on their way, and return when each left it (ns), in order."""
        now = self.clock.now_ns()
        stamps = [now] * len(items)
        onward: list[tuple[int, Item]] = []
        for index, item in enumerate(items):
            if item.root.settled:
                continue
            if item.error is not None:
                self._retry_or_fail(item, station)
            elif station.last_role == "deliver":
                self._handed_over(item)
            elif station.last_role == "fan_out":
                stamps[index] = self._fan_out(item)
            else:
                onward.append((index, item))
        if onward:
            for (index, _), stamp in zip(onward, self._move([item for _, item in onward]), strict=True):
                stamps[index] = stamp
        return stamps

    def fail(self, item: Item, error: ItemError, stage: str) -> None:
        """Settle an item's job as rejected or for another try, with the reason."""
        error.located(stage, item.id)
        outcome = self._failing.outcome(item, error)
        _let_frames_go(error)
        item.error = None
        self._settle(item, outcome)

    def give_up(self, item: Item, error: ItemError, stage: str) -> None:
        """Settle an item's job for good: another try would end like this one."""
        error.located(stage, item.id)
        outcome = Outcome(OutcomeKind.DEAD_LETTERED, str(error), origin=error.origin)
        self._settle(item, self._failing.judged(item.job, outcome, Fault.WORK))

    def take_back(self, item: Item, reason: str) -> None:
        """Let the source offer an item's job again, without its being the job's fault."""
        self._settle(item, Outcome(OutcomeKind.RETURNED, reason))

    def drop_lost(self, item: Item) -> None:
        """Leave an item whose loan ran out to whoever has it now."""
        outcome = Outcome(OutcomeKind.RETURNED, "its visibility timeout ran out before it was done")
        self._settle(item, outcome, counter="lost")

    @property
    def num_inside(self) -> int:
        """Jobs that count against the limit, with those that were asked for."""
        return self._inside

    def limit_in_flight(self, limit: int | None) -> None:
        """Let so many jobs be in flight, as far as queues and workers can hold them; None: as many as that."""
        with self._lock:
            before, most = self._max_in_flight, self._capacity()
            self._max_in_flight = most if limit is None else min(limit, most)
            if self._max_in_flight > before:
                self._admission.notify_all()

    def give_back(self, count: int, reason: str) -> None:
        """Let the source offer jobs again that nobody has begun with for a while: the newest, and each only once."""
        if self._limit is not None or self._stopping:  # those of a limited run do not come again
            return
        for station in self.stations:
            if station.has_queue and not station.only_delivers:
                gone = station.queue.remove_newest(count, _may_go_back)
                for item in gone:
                    self.take_back(item, reason)
                count -= len(gone)

    # --- laying out, opening, closing

    def _lay_out(self, budget: ThreadBudget) -> tuple[list[Station], dict[str, tuple[Station, ...]]]:
        stations: dict[tuple[int, ...], Station] = {}
        routes: dict[str, tuple[Station, ...]] = {}
        plan = _for_workers(self.plan, self._pipeline.source)
        for task, stages in self._pipeline.routes.items():
            route = []
            for number, group in enumerate(groups(stages, self.plan)):
                key = tuple(id(stage) for stage in group)
                if key not in stations:
                    devices = [stage for stage in group if stage.kind == "device"]
                    spec = GroupSpec(
                        group,
                        plan,
                        0,
                        budget.model_threads[devices[0].name] if devices else 1,
                        max((self.plan.stages[stage.name].batch or 1 for stage in devices), default=1),
                        self._instruments,
                        self._warm_up,
                        self._slots,
                        budget.model_calls[devices[0].name] if devices else 1,
                    )
                    _check_group(group, self.plan)
                    _check_order(group, self.plan)
                    inline = number == 0 and self.plan.stages[group[0].name].executor == "inline"
                    stations[key] = Station(self, spec, has_queue=not inline)
                route.append(stations[key])
            routes[task] = tuple(route)
        return list(stations.values()), routes

    def _capacity(self) -> int:
        # What the queues and the workers can hold; a fan-out's children stand for their parent.
        plan = self.plan.source
        total = sum(
            (station.settings.queue_items or 1) + station.num_workers for station in self.stations if station.has_queue
        )
        return plan.max_in_flight or max(total, plan.receive_batch)

    def _open(self) -> None:
        deliver = self._pipeline.stages[-1]
        context = StageContext(
            stage=deliver.name,
            worker=0,
            plan=self.plan,
            options=self.plan.stages[deliver.name].options,
            next_stage=None,
            open_model=_no_model,
            counts=self._delivery_counts,
        )
        with contextlib.ExitStack() as parts:
            self._pipeline.source.open(self.plan.source)
            parts.callback(self._pipeline.source.close)
            self._pipeline.delivery.open(context)
            parts.callback(self._pipeline.delivery.close)
            self._parts = parts.pop_all()
        self._prefetch.begin()

    def _start_workers(self) -> None:
        # Before any other thread: it changes the environment, and a process that another thread starts at that moment gets
        # a list of variables that is gone, and dies.
        limit_library_threads()
        opening: list[threading.Thread] = []
        for station in self.stations:
            if not station.has_queue:
                self._open_receivers_workers(station)
                continue
            opening.extend(self._worker_thread(station, number) for number in range(station.num_workers))
        for thread in opening:
            start_thread(thread, _FEWER_WORKERS.format(thread.name.rpartition("-")[0]))
        # Models are loaded before the first job is received: a job's visibility timeout is not for loading.
        for _ in opening:
            while not self._left_to_open.acquire(timeout=_TICK_SECONDS):
                self._heed_signals()
                if self._stopping:
                    return  # nothing was received, so there is nothing to finish
        self._heed_signals()
        if self._crash is not None:
            raise self._crash

    def start_worker(self, station: Station, number: int) -> None:
        """Start a worker in the place of one that was left behind."""
        threads = station.threads
        station.threads = [thread for thread in threads if thread.name != f"{station.name}-{number}"]
        start_thread(self._worker_thread(station, number), _FEWER_WORKERS.format(station.name))

    def _worker_thread(self, station: Station, number: int) -> threading.Thread:
        thread = threading.Thread(
            target=self._guard(self._work), args=(station, number), name=f"{station.name}-{number}", daemon=True
        )
        station.threads.append(thread)
        return thread

    def _open_receivers_workers(self, station: Station) -> None:
        for number in range(station.num_workers):
            try:
                self._inline[station, number] = station.open_worker(number)
            except (Exception, SystemExit) as error:
                self._crash = self._crash or opening_error(station.name, error)

    def _work(self, station: Station, number: int) -> None:
        try:
            worker = station.open_worker(number)
        except (Exception, SystemExit) as error:
            if number < station.num_workers:
                self._crash = self._crash or opening_error(station.name, error)
            else:  # it would have had the place of one that waits, and the others work as they did
                logger.warning("one more worker could not be opened: %s", opening_error(station.name, error))
            return
        finally:
            self._left_to_open.release()
        try:
            station.work(worker)
        finally:
            worker.close()

    def _wait(self) -> None:
        grace_ends: float | None = None
        while not (self._sources_done and self._idle.is_set()):
            self._attention.wait(_POLL_SECONDS)
            self._attention.clear()
            self._heed_signals()
            if self._crash is not None:
                self.abandon()
            if self._abandoning:
                return
            if not self._sources_done:
                self._note_what_came()
            if self._stopping:
                now = self.clock.now_ns() / 1e9
                grace_ends = grace_ends or now + self.plan.run.grace_seconds
                if now >= grace_ends:
                    self.abandon()
                    return

    def _note_what_came(self) -> None:
        """Let batches go without company where no more can come, or none will unless one in flight is turned away."""
        self._seems_done = self._has_all()
        self._sources_done = self._num_receiving == 0
        if self._sources_done or self._seems_done:
            for station in self.stations:
                station.queue.wake()
            self._note_idle()

    def _close(self, helpers: Sequence[threading.Thread], receivers: Sequence[threading.Thread]) -> None:
        try:
            self._let_leave(receivers)
            for station in self.stations:
                station.queue.close()
                self._let_leave(station.threads)
            self._outbox.flush()
            for item in self._outbox.abandon():
                self._settle(item, Outcome(OutcomeKind.RETRY, "deliver: the result could not be written", 0.0, True))
        finally:
            self._closing.set()
            self._something_due.set()
            for thread in helpers:
                if thread.ident is not None:
                    thread.join(_LEAVE_SECONDS)
            self.bookkeeper.report(None)
            for station in self.stations:
                station.kill_children()  # of workers that did not leave; the others have closed theirs
            with self._lock:
                self.counters.notes = self.notes()
            try:
                self._parts.close()
            except Exception as error:
                self._crash = self._crash or error

    def _let_leave(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for threads that were told to leave, all stations' together at most so long."""
        for thread in threads:
            while thread.is_alive():
                now = self.clock.now_ns() / 1e9
                self._leaving_since = self._leaving_since or now
                left = self._leaving_since + (_ABANDON_SECONDS if self._abandoning else _LEAVE_SECONDS) - now
                if left <= 0:
                    break  # a daemon: it is left behind, and what it still produces is dropped
                thread.join(min(left, _TICK_SECONDS))
                self._heed_signals()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # A handler runs between any two instructions of this thread, perhaps while it holds a lock that `stop` needs: it
        # only counts, and whatever this thread waits for looks at the count.
        before = {number: signal.getsignal(number) for number in self._heeded}
        for number in before:
            signal.signal(number, self._note_signal)
        try:
            yield
        finally:
            # One that came while the run was closing: whoever goes on with other runs wants to know.
            self.interrupted = self.interrupted or self._num_heeded < self._num_signals
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note_signal(self, number: int, _: Any) -> None:
        self.first_signal = self.first_signal or number
        self._num_signals += 1

    def _heed_signals(self) -> None:
        if self._stop_asked.is_set() and not self._stopping:
            self.stop()
        while self._num_heeded < self._num_signals:
            self._num_heeded += 1
            self.stop()

    def _guard(self, body: Callable[..., None]) -> Callable[..., None]:
        # A worker that breaks would leave its items in flight for ever: end the run loudly instead.
        def guarded(*arguments: Any) -> None:
            try:
                body(*arguments)
            except BaseException as error:
                self.broke(error)

        return guarded

    def broke(self, error: BaseException) -> None:
        """Note that a thread of the pipeline broke: the run ends with this error."""
        logger.debug("a thread of the pipeline broke", exc_info=error)
        if self._crash is None:
            self._crash = error
        with self._lock:
            self._stopping = True
            self._admission.notify_all()

    # --- receiving

    def _receive(self, number: int) -> None:
        try:
            self._receive_all(number)
        finally:
            self.receivers_cpu_seconds[threading.get_native_id()] = time.thread_time()
            with self._lock:
                self._num_receiving -= 1
            self._attention.set()

    def _receive_all(self, number: int) -> None:
        source, wait_seconds = self._pipeline.source, self.plan.source.wait_seconds
        inline = {station: worker for (station, which), worker in self._inline.items() if which == number}
        for worker in inline.values():
            worker.begin()
        while (room := self._reserve_room()) > 0:
            called = self.clock.now_ns()
            jobs = source.receive(room, wait_seconds)
            if jobs is None:
                self._admit([], room, called, inline)
                return
            if self._stopping:
                for job in jobs:
                    job.settle(Outcome(OutcomeKind.RETURNED, "the run was stopped"))
                return
            self._admit(jobs, room, called, inline)
            if self._has_all():
                self._attention.set()  # batches need not wait for company

    def _reserve_room(self) -> int:
        """Wait until something may be received and return how much; 0 at the end.

        What is asked for counts as inside until the source has answered, or several receivers would ask for the same room.
        """
        waiting_since = 0
        with self._lock:
            while not self._stopping:
                most = 1 if self._first_is_alone else self._max_in_flight
                allowed = self._failing.allowed()
                if allowed is not None:
                    most = min(most, allowed)
                room = min(most - self._inside, self.plan.source.receive_batch)
                if self._inside > self._reserved and self._holds_too_much():
                    room = 0  # what is settled makes room and wakes whoever waits here
                if self._limit is not None:
                    left = self._limit.left(self.counters.received)
                    if left <= 0 and not self._in_flight:  # what is in flight may still be turned away
                        return 0
                    room = min(room, left - self._reserved)
                if room > 0:
                    self._inside += room
                    self._reserved += room
                    if waiting_since:
                        self._receiving.waited((self.clock.now_ns() - waiting_since) / 1e9)
                    return room
                waiting_since = waiting_since or self.clock.now_ns()
                self._admission.wait(self._failing.seconds_to_try())
            return 0

    def _has_all(self) -> bool:
        """Return whether as many jobs were received as the run's limit allows."""
        return self._limit is not None and self._limit.left(self.counters.received) <= 0

    def _holds_too_much(self) -> bool:
        return sum(station.queue.num_bytes for station in self.stations) > self.plan.source.max_bytes_in_flight

    def _admit(self, jobs: Sequence[Job], room: int, called: int, inline: dict[Station, Worker]) -> None:
        now = self.clock.now_ns()
        with self._lock:
            self._receiving.called(room, jobs, called / 1e9, now / 1e9, self.clock.unix_seconds())
            self.counters.received += len(jobs)
            self._reserved -= room
            self._inside += len(jobs) - room
            over = 0 if self._limit is None else max(0, -self._limit.left(self.counters.received))
            if self.plan.source.receivers > 1:
                self._admission.notify_all()
        if not jobs:
            return
        if not self.begun.is_set():
            self.begun.set()
        if self.observers.wants["job_received"]:
            self.observers.notify("job_received", jobs)
        by_route: dict[tuple[Station, ...], list[Item]] = {}
        began = self.clock.now_ns()
        inline_ns: list[int] = []

        def hand_in() -> None:
            inline_ns.append(self._hand_in(by_route, inline))

        for index, job in enumerate(jobs):
            verdict = job.verdict if index < len(jobs) - over else _OVER_LIMIT
            route = self._route(job)
            weight = self.metering.weight(job.id)
            item = Item(job, job.payload, route, sequence=next(self._sequence), received=now, weight=weight)
            with self._lock:
                self._in_flight[id(item)] = item
                if self._tasks is not None:
                    self._tasks.entered(item)
                too_late = self._abandoning  # whoever gave everything back may not have seen this one
            if too_late:
                self._settle(item, Outcome(OutcomeKind.RETURNED, "the run was stopped"))
            elif verdict is not None:
                is_final = verdict.kind is OutcomeKind.DEAD_LETTERED  # of a delivery that failed before this run
                self._settle(item, verdict if is_final else self._failing.judged(job, verdict, Fault.JOB))
            elif not route:
                known = ", ".join(self._routes)
                self.fail(item, UnknownTask(f"no module takes task {job.task!r}; this pipeline has: {known}"), "route")
            elif self._goes_in(item, hand_in):
                by_route.setdefault(route, []).append(item)
        hand_in()
        with self._lock:
            self._receiving.handed_on((self.clock.now_ns() - began - sum(inline_ns)) / 1e9, sum(inline_ns) / 1e9)

    def _hand_in(self, by_route: dict[tuple[Station, ...], list[Item]], inline: dict[Station, Worker]) -> int:
        """Put jobs into the first stations of their routes, forget them, and return the time in inline stages, ns."""
        inline_ns = 0
        for route, items in by_route.items():
            if route[0].has_queue:
                route[0].queue.put(items, force=self._is_let_in(route[0]))
            else:
                inline_ns += self._run_inline(inline[route[0]], route[0], items)
        by_route.clear()
        return inline_ns

    def _goes_in(self, item: Item, before_waiting: Callable[[], object]) -> bool:
        """Return whether a job goes into the first station; if not, it is on its way already, or back at its source."""
        if self._take_up(item):
            return False
        verdict = self._failing.turned_away(item.job)
        if verdict is not None:
            self._settle(item, verdict)
            return False
        return self._tasks is None or self._tasks.let_in(item, before_waiting)

    def _is_busy_beyond(self, tasks: Collection[str]) -> bool:
        with self._lock:
            return any(item.job.task not in tasks for item in self._in_flight.values())

    def _take_up(self, item: Item) -> bool:
        """Send a job whose result was kept straight to the delivery; return whether it was."""
        last = item.route[-1]
        if not item.job.kept or self._keeper is None or not (last.only_delivers and last.has_queue):
            return False
        item.kept = self._keeper.take_up(item.job)
        if item.kept is None or not item.kept.has_result:
            return False
        item.value = item.kept.result
        item.position = len(item.route) - 1
        self._put(last, [item])
        return True

    def _run_inline(self, worker: Worker, station: Station, items: list[Item]) -> int:
        """Run the stages that receivers run themselves, and return the time in them, ns."""
        size = max(
            (self.plan.stages[stage.name].batch or 1 for stage in station.stages if stage.kind == "device"), default=1
        )
        return sum(station.serve(worker, items[start : start + size]) for start in range(0, len(items), size))

    def _route(self, job: Job) -> tuple[Station, ...]:
        if len(self._routes) == 1 and "" in self._routes:
            return self._routes[""]
        return self._routes.get(job.task, ())

    # --- moving on

    def _move(self, items: list[Item]) -> list[int]:
        """Put items into the next stations of their routes; return the stamps in the order of the items."""
        first = items[0]
        station = first.route[first.position + 1]
        if first.parent is None and all(
            item.route is first.route and item.position == first.position and item.parent is None for item in items
        ):
            for item in items:
                item.entry = None
                item.tries = 0
                item.position += 1
            return self._put(station, items)
        return self._move_apart(items)

    def _move_apart(self, items: list[Item]) -> list[int]:
        stamps = [0] * len(items)
        by_station: dict[Station, list[int]] = {}
        for index, item in enumerate(items):
            item.entry = None
            item.tries = 0
            item.position += 1
            station = item.route[item.position]
            if station.stages[0].role == "join" and item.parent is not None:
                stamps[index] = self._gather(item)
            else:
                by_station.setdefault(station, []).append(index)
        for station, indices in by_station.items():
            moved = self._put(station, [items[index] for index in indices])
            for index, stamp in zip(indices, moved, strict=True):
                stamps[index] = stamp
        return stamps

    def _put(self, station: Station, items: list[Item]) -> list[int]:
        if self._reorderer is not None and station.last_role == "deliver":
            # Here and not when they are let go, which may be by somebody who must not wait: see `Reorderer`.
            station.queue.wait_for_room()
            pushed = self.clock.now_ns()
            self._reorderer.push(items)
            # Those it let go have arrived in the queue since; the others left the worker when they were pushed.
            return [max(pushed, item.arrived) for item in items]
        return station.queue.put(items, force=self._is_let_in(station))

    def _is_let_in(self, station: Station) -> bool:
        """Return whether what goes to a station was let in for it, so that nobody need wait for room; see `TaskShares`."""
        return self._tasks is not None and self._tasks.begins_own(station)

    def _fan_out(self, parent: Item) -> int:
        fan = parent.value
        try:
            values = _children_of(fan)
        except BaseException as error:  # of the user's objects
            raise_if_of_the_run(error)
            self.fail(parent, as_item_error(error), parent.route[parent.position].stages[-1].name)
            return self.clock.now_ns()
        parent.keep = fan.keep
        parent.pending = len(values)
        parent.gathered = [None] * parent.pending
        parent.value = None
        if parent.pending == 0:
            return self._all_gathered(parent, self._join_position(parent.route, parent.position))
        children = [
            Item(
                parent.job,
                value,
                parent.route,
                sequence=parent.sequence,
                received=parent.received,
                parent=parent,
                child_index=index,
            )
            for index, value in enumerate(values)
        ]
        for child in children:
            child.position -= 1  # _move steps forward
        return self._move(children)[-1]

    def _gather(self, child: Item) -> int:
        parent = child.parent
        if parent is None:
            raise RuntimeError("only a child can be gathered")
        with self._lock:
            parent.gathered[child.child_index] = child.value
            parent.pending -= 1
            complete = parent.pending == 0
        return self._all_gathered(parent, child.position) if complete else self.clock.now_ns()

    def _all_gathered(self, parent: Item, position: int) -> int:
        # Not by _move: there an item that comes to a join is a child, and this one may be a child of another fan-out.
        parent.num_bytes = measure(parent.gathered)[0] + measure(parent.keep)[0]
        parent.shape_key = None
        parent.value = Joined(parent.keep, parent.gathered)
        parent.keep, parent.gathered = None, []
        parent.entry = None
        parent.tries = 0
        parent.position = position
        return self._put(parent.route[position], [parent])[0]

    @staticmethod
    def _join_position(route: tuple[Station, ...], position: int) -> int:
        depth = 1  # the fan_out that ends the station at `position`
        for index in range(position + 1, len(route)):
            for stage in route[index].stages:
                depth += {"fan_out": 1, "join": -1}.get(stage.role, 0)
                if stage.role == "join" and depth == 0:
                    return index
        raise RuntimeError("the pipeline's check lets no fan_out without a join through")

    # --- ending

    def _retry_or_fail(self, item: Item, station: Station) -> None:
        error = item.error
        if error is None:
            raise RuntimeError("nothing failed")
        delay = None if self._abandoning else station.retry_delay(item)
        if delay is None:
            self.fail(item, error, station.name)
            return
        _let_frames_go(error)
        if item.entry is not None:
            item.value, item.num_bytes, item.shape_key = item.entry
        if station.retries_in_place:
            pause(delay)  # the worker tries again itself
            return
        item.error = None
        with self._retry_lock:
            due = self.clock.now_ns() / 1e9 + delay
            heapq.heappush(self._retries, (due, id(item), item, station))

    def _handed_over(self, item: Item) -> None:
        if item.kept is None:  # another run's work, which says nothing about this one's
            self._failing.succeeded(item.job)
        if item.value:
            self._settle(item, DELIVERED)
        else:
            self._outbox.add(item)
            # While results cannot be written they count as in flight, or a full disk would fill the memory.
            if not self._outbox.is_stuck:
                self._leave(item)

    def _delivered(self, items: list[Item]) -> None:
        for item in items:
            self._settle(item, DELIVERED)

    def _leave(self, item: Item) -> None:
        with self._lock:
            if item.inside and not item.settled:
                item.inside = False
                self._make_room()
                if self._inside == self._reserved:
                    self._something_due.set()  # perhaps these were the last: see _flush_results

    def _settle(self, item: Item, outcome: Outcome, counter: str | None = None) -> None:
        root = item.root
        with self._lock:
            if root.settled:
                return
            root.settled = True
            if self._in_flight.pop(id(root), None) is not None and self._tasks is not None:
                self._tasks.left(root)
            name = counter or _COUNTER[outcome.kind]
            setattr(self.counters, name, getattr(self.counters, name) + 1)
            if root.inside:
                self._make_room()
            if self._limit is not None:
                self._limit.settled(root.job, outcome)
                if not self._in_flight:
                    self._admission.notify_all()  # receivers that have all wait for this: see `_reserve_room`
        root.job.settle(outcome)
        self._failing.left(root.job)
        if self._reorderer is not None and not self._abandoning:  # what is given back needs no order
            self._reorderer.skip(root.sequence)
        if self.observers.wants["job_settled"]:
            self.observers.notify("job_settled", root.job, outcome)
        self._note_idle()

    def _make_room(self) -> None:
        """Let a receiver know that one job less is inside; the lock is held."""
        self._inside -= 1
        self._admission.notify(self.plan.source.receivers if self._first_is_alone else 1)
        self._first_is_alone = False

    def _note_idle(self) -> None:
        if self._sources_done and not self._in_flight:
            self._idle.set()
            self._attention.set()

    # --- the supervisor, the bookkeeper and the flusher

    def _supervise(self) -> None:
        # Every call here is to be short and to wait for nobody: while it lasts no loan is extended.
        while not self._closing.is_set():
            self._tend()
            self._bring_back()
            self._closing.wait(_TICK_SECONDS)

    def _tend(self) -> None:
        source, began = self._pipeline.source, self.clock.now_ns()
        source.tend()
        visibility = getattr(source, "visibility_seconds", None)
        self._punctuality.tended(began / 1e9, self.clock.now_ns() / 1e9, visibility)

    def _keep_books(self) -> None:
        growth = GrowthWatch()
        while not self._closing.is_set():
            is_done = self.bookkeeper.report()
            if self._tick:
                self._tick()
            now = self.clock.now_ns() / 1e9
            self._stalls.look(now)
            self._prefetch.look(now)
            for station in self.stations:
                if station.bulkheads is not None:
                    station.bulkheads.tend(self._max_in_flight)
            growth.look()
            if is_done:
                self._closing.wait(_TICK_SECONDS)

    def _flush_results(self) -> None:
        while not self._closing.is_set():
            # A source that ends waits until all is settled, and results that are not durable for company that never comes.
            ends = self._pipeline.source.is_exhausted or self._has_all()
            if self._inside == self._reserved and ends and not self._outbox.is_stuck:
                self._outbox.flush()
            self._outbox.flush_if_due()
            self._something_due.wait(_TICK_SECONDS)
            self._something_due.clear()

    def _bring_back(self) -> None:
        now = self.clock.now_ns() / 1e9
        while self._retries and self._retries[0][0] <= now:
            with self._retry_lock:
                _, _, item, station = heapq.heappop(self._retries)
            station.queue.put([item], force=True)


def _children_of(fan: Any) -> list[Any]:
    """Return what a fan-out cut; raises what the user's objects raise, and StageFailed where there is nothing to cut."""
    if not isinstance(fan, Fan) or not hasattr(fan.children, "__len__"):
        got = f"Fan({type(fan.children).__name__}, ...)" if isinstance(fan, Fan) else type(fan).__name__
        raise StageFailed(f"a fan_out stage must return headrace.Fan(list of children, keep), got {got}")
    return list(fan.children)  # as many as there are: a length may say something else


def _may_go_back(item: Item) -> bool:
    return item.parent is None and item.job.attempt == 1 and not item.tries


def _release_ordered(items: list[Item]) -> None:
    for item in items:
        item.route[item.position].queue.put([item], force=True)


def _for_workers(plan: Plan, source: Source) -> Plan:
    """Return what workers read: jobs that come over a network name no files unless the Plan says which."""
    if plan.network.files is not None or not getattr(source, "is_remote", True):
        return plan
    return dataclasses.replace(plan, network=dataclasses.replace(plan.network, files=[]))


def _check_group(group: Sequence[Stage], plan: Plan) -> None:
    for position, stage in enumerate(group):
        if stage.role == "join" and position > 0:
            raise SettingsError(
                f"stages.{stage.name}.executor = 'inline' is not possible: a join waits for all children"
            )
        if stage.role == "fan_out" and position < len(group) - 1:
            after = group[position + 1].name
            raise SettingsError(
                f"stages.{after}.executor = 'inline' is not possible after the fan_out stage {stage.name}"
            )
    head = plan.stages[group[0].name]
    if head.executor != "process":
        return
    for stage in group:
        if stage.role != "map":
            raise SettingsError(f"stage {stage.name} ({stage.role}) cannot run in a process; allowed: thread or inline")
        emulated = stage.kind == "device" and plan.model_of(stage.task, stage.name).engine == "emulated"
        if emulated and (head.workers or 1) > 1:
            raise SettingsError(
                f"stages.{group[0].name}.workers = {head.workers} processes would make as many emulated devices; use 1, or "
                "threads"
            )


def _check_order(group: Sequence[Stage], plan: Plan) -> None:
    if not plan.run.ordered or group[-1].role != "deliver":
        return
    head = plan.stages[group[0].name]
    where = f"stages.{group[0].name}"
    workers = plan.source.receivers if head.executor == "inline" else head.workers
    if (workers or 1) > 1:
        setting = "source.receivers" if head.executor == "inline" else f"{where}.workers"
        raise SettingsError(
            f"{setting} = {workers} is not possible with run.ordered: several would overtake; allowed: 1"
        )
    if any((plan.stages[stage.name].batch or 1) > 1 for stage in group):
        raise SettingsError(
            f"{where} is not possible with run.ordered and a batch above 1: a result tried again would come after those of "
            "its batch; give deliver a queue of its own"
        )


def _let_frames_go(error: BaseException | None) -> None:
    """Drop the tracebacks of an error whose reason is all that is still wanted, and of what caused it.

    They hold the frames that the error went through, with the item and all that was computed of it. A frame that has the
    error in a variable makes this a cycle, which would last until the collector's next round; that is rare (see
    `calm_garbage_collector`).
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _no_model(path: str | None = None) -> Any:
    raise HeadraceError("a delivery has no model")
