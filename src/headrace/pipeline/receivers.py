"""The threads that take jobs from the source and put them into the first stations of their routes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from headrace.base.errors import UnknownTask
from headrace.base.policies.brake import Fault
from headrace.base.protocols import KeepsResults, Source
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.pipeline.admission import Admission
from headrace.pipeline.building import Routes
from headrace.pipeline.failing import Failing
from headrace.pipeline.item import Item
from headrace.pipeline.rest import Rest
from headrace.pipeline.router import Router
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.settling import Settling
from headrace.pipeline.station import Station
from headrace.pipeline.task_shares import TaskShares
from headrace.pipeline.worker import RECEIVER, Worker

_STOPPED = "the run was stopped"
_OVER_LIMIT = Outcome(OutcomeKind.RETURNED, "more than the limit of this run")


class Receivers:
    """Those of one run.

    Args:
        context: Of the run.
        source: Whose jobs are taken.
        routes: {task: the stations that its jobs pass}.
        admission: Says how many may be inside.
        settling: Ends jobs that go nowhere.
        router: Puts items into queues.
        failing: Turns away jobs of tasks of which nothing succeeds.
        tasks: Shares out what may be in flight; None where there is one task.
        keeper: The delivery, where it keeps results; None: it does not.
        rest: Where threads rest that jobs stir.

    Attributes:
        begun: Set when the first job has come, before it goes anywhere.
        cpu_seconds: {kernel's number: CPU time} of receivers that have ended.
        inline: Workers of the stations that receivers run themselves, by station and the receiver's number.
    """

    def __init__(
        self,
        context: RunContext,
        source: Source,
        routes: Routes,
        *,
        admission: Admission,
        settling: Settling,
        router: Router,
        failing: Failing,
        tasks: TaskShares | None,
        keeper: KeepsResults | None,
        rest: Rest,
    ) -> None:
        self.begun = threading.Event()
        self.cpu_seconds: dict[int, float] = {}
        self.inline: dict[tuple[Station, int], Worker] = {}
        self._context = context
        self._source = source
        self._routes = routes
        self._admission = admission
        self._settling = settling
        self._router = router
        self._failing = failing
        self._tasks = tasks
        self._keeper = keeper
        self._rest = rest
        self._sequence = itertools.count()
        self._is_ordered = any(station.reorderer is not None for route in routes.values() for station in route)

    @property
    def may_be_pushed(self) -> bool:
        """Whether jobs can be let in without waiting for anything."""
        return all(route[0].has_queue for route in self._routes.values())

    def push(self, jobs: Sequence[Job]) -> None:
        """Let jobs in that came by themselves; any thread, waits for nothing."""
        if not self._admission.pushed(jobs):
            for job in jobs:
                job.settle(Outcome(OutcomeKind.RETURNED, _STOPPED))
            return
        self._admit(jobs, 0, {}, waits=False)
        self._rest.stir()

    def threads(self, guard: Callable[[Callable[..., None]], Callable[..., None]]) -> list[threading.Thread]:
        """Return one thread for each receiver, not started; `guard` is put around what they run."""
        return [
            threading.Thread(target=guard(self._receive), args=(number,), name=f"{RECEIVER}-{number}", daemon=True)
            for number in range(self._context.plan.source.receivers)
        ]

    def _receive(self, number: int) -> None:
        try:
            self._receive_all({station: worker for (station, which), worker in self.inline.items() if which == number})
        finally:
            self.cpu_seconds[threading.get_native_id()] = time.thread_time()
            self._admission.receiver_left()

    def _receive_all(self, inline: dict[Station, Worker]) -> None:
        wait_seconds = self._context.plan.source.wait_seconds
        for worker in inline.values():
            worker.begin()
        while (room := self._admission.reserve_room()) > 0:
            called = self._context.clock.now_ns()
            jobs = self._source.receive(room, wait_seconds)
            if jobs is None:
                self._admission.received([], room, called)
                return
            if self._admission.is_closed:
                for job in jobs:
                    job.settle(Outcome(OutcomeKind.RETURNED, _STOPPED))
                return
            over = self._admission.received(jobs, room, called)
            if self._context.levers.receiving.delay_seconds:
                self._context.levers.receiving.pause(len(jobs))
            if jobs:
                self._admit(jobs, over, inline)
                self._rest.stir()
            if self._admission.has_all():
                self._admission.attention.ring()  # batches need not wait for company

    def _admit(self, jobs: Sequence[Job], over: int, inline: dict[Station, Worker], *, waits: bool = True) -> None:
        """Send jobs on their way; the last `over` of them are beyond the run's limit. Where it `waits`, for room in queues."""
        received = self._context.clock.now_ns()
        if not self.begun.is_set():
            self.begun.set()
        if self._context.observers.wants["job_received"]:
            self._context.observers.notify("job_received", jobs)
        by_station: dict[Station, list[Item]] = {}
        began = self._context.clock.now_ns()
        inline_ns: list[int] = []

        def hand_in() -> None:
            inline_ns.append(self._hand_in(by_station, inline, waits=waits))

        items = [self._make_item(job, received) for job in jobs]
        is_shared_out = self._tasks is not None and waits  # what is pushed is bounded by who pushes it
        if not is_shared_out:
            self._enter(items)
        for index, item in enumerate(items):
            verdict = item.job.verdict if index < len(jobs) - over else _OVER_LIMIT
            if is_shared_out:  # one by one: whether it may go in depends on who is in
                self._enter([item])
            if self._is_to_run(item, verdict) and self._goes_in(item, hand_in if is_shared_out else None):
                first = self._route(item.job)[0] if waits else self._pushed_to(item)
                by_station.setdefault(first, []).append(item)
        hand_in()
        blocked_ns = self._context.clock.now_ns() - began - sum(inline_ns)
        self._admission.handed_on(blocked_ns / 1e9, sum(inline_ns) / 1e9)

    def _make_item(self, job: Job, received: int) -> Item:
        weight = self._context.metering.weight(job.id)
        item = Item(job, job.payload, self._route(job), sequence=next(self._sequence), received=received, weight=weight)
        if self._is_ordered:
            for station in item.route:
                if station.reorderer is not None:
                    station.reorderer.expect(item)
        job.plan_id = self._context.plan_id
        if self._context.arms is not None:
            item.arm = self._context.arms.draw(job)
        return item

    def _enter(self, items: Sequence[Item]) -> None:
        """Count jobs as in flight; they end at once where the run was stopped meanwhile."""
        if not self._admission.enter(items):
            self._settling.settle_all(items, Outcome(OutcomeKind.RETURNED, _STOPPED))

    def _is_to_run(self, item: Item, verdict: Outcome | None) -> bool:
        """Return whether a job is to be run; if not, it has ended."""
        if item.settled:
            pass
        elif verdict is not None:
            # Of a delivery that failed before this run; or what the list of a folder says: nothing of it is lost, and nothing
            # that stages did.
            is_final = verdict.kind is OutcomeKind.DEAD_LETTERED or not item.job.keeps_results
            if is_final:
                self._settling.settle(item, verdict)
            else:
                self._settling.judge(item, verdict, Fault.JOB)
        elif not item.route:
            known = ", ".join(self._routes)
            error = UnknownTask(f"route.task: no module takes task {item.job.task!r}; this pipeline has: {known}")
            self._settling.fail(item, error, "route")
        else:
            return True
        return False

    def _pushed_to(self, item: Item) -> Station:
        """Return the station where a pushed item begins: the second, if the first would do nothing with it."""
        route = self._route(item.job)
        first, second = route[0], route[1] if len(route) > 1 else None
        stages = first.stages
        may_skip = second is not None and second.has_queue and len(stages) == 1
        if second is None or not (may_skip and stages[0].passes(item.value)):
            return first
        item.position = 1
        return second

    def _hand_in(self, by_station: dict[Station, list[Item]], inline: dict[Station, Worker], *, waits: bool) -> int:
        """Put jobs into the stations where they begin, forget them, and return the time in inline stages, ns."""
        inline_ns = 0
        for station, items in by_station.items():
            if station.reorderer is not None and station.has_queue:
                self._router.put(station, items, has_room=not waits)
            elif station.has_queue:
                station.queue.put(items, force=not waits or self._router.is_let_in(station))
            else:
                inline_ns += self._run_inline(inline[station], station, items)
        by_station.clear()
        return inline_ns

    def _goes_in(self, item: Item, before_waiting: Callable[[], object] | None) -> bool:
        """Return whether a job goes into the first station; if not, it is on its way already, or back at its source.

        Args:
            item: The job's.
            before_waiting: Sends those on their way that were let in before; None: it need not wait for its task's turn.
        """
        if item.job.kept and self._take_up(item):
            return False
        verdict = self._failing.turned_away(item.job, self._admission.is_busy_beyond)
        if verdict is not None:
            self._settling.settle(item, verdict)
            return False
        return self._tasks is None or before_waiting is None or self._tasks.let_in(item, before_waiting)

    def _take_up(self, item: Item) -> bool:
        """Send a job with which something was kept straight to the delivery if it is its result; return whether it was."""
        last = item.route[-1]
        if self._keeper is None or not (last.only_delivers and last.has_queue):
            return False
        item.kept = self._keeper.take_up(item.job)
        if item.kept is None or not item.kept.has_result:
            return False
        item.value = item.kept.result
        item.position = len(item.route) - 1
        self._router.put(last, [item])
        return True

    def _run_inline(self, worker: Worker, station: Station, items: list[Item]) -> int:
        """Run the stages that receivers run themselves, and return the time in them, ns."""
        size = station.max_batch
        return sum(station.serve(worker, items[start : start + size]) for start in range(0, len(items), size))

    def _route(self, job: Job) -> tuple[Station, ...]:
        if len(self._routes) == 1 and "" in self._routes:
            return self._routes[""]
        return self._routes.get(job.task, ())
