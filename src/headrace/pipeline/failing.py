"""How jobs that failed end: rejected, for another try, given up, or given back where nothing succeeds at all.

The one place where an error becomes an outcome. The brake (`policies.brake`) sees every failure and every success; while it is
on, failures are given back without their counting, and the runtime asks here how many jobs may be inside. Where a run has
several tasks each has a brake too (`policies.task_brakes`): what a task's brake holds back is no news to the run's, which goes
on seeing how the others do; while the run's own is on, it alone decides what is tried.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from headrace.base.clock import Clock
from headrace.base.deadline import drop_late_tries
from headrace.base.errors import (
    DeliveryFailed,
    DeliveryRejected,
    ItemError,
    ItemFailed,
    ItemRejected,
    NotWanted,
    Shortage,
)
from headrace.base.formatting import pluralize, showable
from headrace.base.log_events import event_fields
from headrace.base.policies.brake import Brake, BrakePolicy, Fault
from headrace.base.policies.task_brakes import TaskBrakes
from headrace.base.protocols import KeepsResults
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.base.units import format_duration
from headrace.pipeline.item import Item
from headrace.pipeline.undelivered import of_postponed, of_undelivered

logger = logging.getLogger("headrace")

#: Longest pause before the source offers a failed job again.
_MAX_RETRY_SECONDS = 60.0
#: Tries in vain before a source that ends is not waited for any longer.
_MOST_TRIES = 4


class Failing:
    """Makes outcomes of errors; thread-safe.

    Args:
        brake_after: The Plan's `run.brake_after`.
        keeper: The delivery, where it keeps results; None: it does not.
        clock: The run's.
        random: Gives uniform random numbers, 0 <= number < 1.
        tasks: Of the run.
        is_ordered: The Plan's `run.ordered`.
        ends: Whether the source comes to an end, so that trying for ever would keep whoever waits for it.
        end: Ends the run, for a reason.

    Attributes:
        given_up: Why no job of some tasks was tried any more at the end; empty: there are none.
    """

    def __init__(
        self,
        brake_after: int,
        keeper: KeepsResults | None,
        clock: Clock,
        random: Callable[[], float],
        *,
        tasks: Collection[str],
        is_ordered: bool,
        ends: bool,
        end: Callable[[str], None],
    ) -> None:
        policy = BrakePolicy(jobs=brake_after, jobs_later=4 * brake_after, tries=_MOST_TRIES if ends else None)
        self._brake = Brake(policy)
        self._is_ordered = is_ordered
        self._tasks = TaskBrakes(tasks, policy)
        self.given_up = ""
        self._keeper = keeper
        self._clock = clock
        self._random = random
        self._end = end
        self._lock = threading.Lock()
        self._unwanted: dict[str, int] = {}
        self._since = 0.0

    def outcome(self, item: Item, error: ItemError, fault: Fault | None = None) -> Outcome:
        """Return how an item's job ends that failed with an error, which says where.

        Args:
            item: That failed.
            error: Why.
            fault: Whose it may be; None: what the error says.
        """
        outcome = drop_late_tries(self._by_itself(item, error), item.job.deadline_ns, self._clock.now_ns())
        if isinstance(error, NotWanted):
            self._count_unwanted(error.code)
            return outcome
        is_receivers = self._has_keeper(item) and not isinstance(error, ItemRejected)
        if is_receivers or outcome.spared:
            return outcome  # who delivers or fetches has a patience of its own
        if isinstance(error, ItemRejected) and not (item.job.keeps_results or isinstance(error, DeliveryRejected)):
            return outcome  # nothing is lost: a folder or list still has it
        return self.judged(item.job, outcome, fault or _fault(error, item.job), str(error))

    def judged(self, job: Job, outcome: Outcome, fault: Fault, reason: str = "") -> Outcome:
        """Return the outcome of a failure, or instead that the job is given back because nothing succeeds.

        Args:
            job: That failed.
            outcome: If the failure counts.
            fault: Whose it may be.
            reason: If it does not count; empty: that of the outcome.
        """
        if outcome.kind is OutcomeKind.RETURNED:
            return outcome
        reason = reason or outcome.reason
        brake, delays = self._tasks.find_brake(job.task), [self._held_by_its_task(job, fault, reason)]
        if brake is None or not brake.is_on or self._brake.is_on:
            delays.append(self._held_by_the_run(job, fault, reason))
        delay = max((seconds for seconds in delays if seconds is not None), default=None)
        if delay is None:
            return outcome
        return Outcome(*(OutcomeKind.RETURNED, reason, delay, outcome.undelivered), origin=outcome.origin, excused=True)

    def _held_by_the_run(self, job: Job, fault: Fault, reason: str) -> float | None:
        """Tell the run's brake of a failure; return after which time the job comes again, None if the failure counts."""
        with self._lock:
            brake, now = self._brake, self._now()
            was_on, tries = brake.is_on, brake.num_tries
            delay = brake.note_failure(job.id, fault, now)
            if brake.is_on and not was_on:
                self._since = now
            is_news = brake.is_on and (not was_on or brake.num_tries > tries)
            is_hopeless = brake.is_hopeless
        if is_news and not is_hopeless:
            self._say(reason, is_first=not was_on)
        if is_hopeless:
            self._end(f"none of the last {pluralize(brake.num_failed, 'job')} succeeded; the last: {reason}")
        return delay

    def _held_by_its_task(self, job: Job, fault: Fault, reason: str) -> float | None:
        """Do the same with the brake of a job's task."""
        brake = self._tasks.find_brake(job.task)
        if brake is None:
            return None
        with self._lock:
            was_on, was_hopeless = brake.is_on, brake.is_hopeless
            delay = self._tasks.note_failure(job.task, job.id, fault, self._now())
            is_given_up = brake.is_hopeless and not was_hopeless
            if is_given_up:
                jobs = pluralize(brake.num_failed, "job")
                what = f"none of the last {jobs} of task {job.task!r} succeeded; the last: {reason}"
                self.given_up = "; ".join(filter(None, (self.given_up, what)))
        if brake.is_on and not was_on:
            logger.error(
                "nothing of task %r succeeds: its last %s failed. Its jobs are given back, which does not count, but for a few "
                "that are tried from time to time; the other tasks go on. The last reason: %s",
                *(showable(job.task), pluralize(brake.num_failed, "job"), showable(reason)),
                extra=event_fields("brake_on", task=job.task, code="brake.task"),
            )
        if is_given_up:
            given_up = event_fields("brake_on", task=job.task, code="brake.given_up")
            logger.error(
                "task %r is given up for this run; its jobs stay where they are", showable(job.task), extra=given_up
            )
        return delay

    def turned_away(self, job: Job, is_busy_beyond: Callable[[Collection[str]], bool]) -> Outcome | None:
        """Return how a job ends that was received while nothing of its task succeeds; None: it is to be tried.

        Cheap while no task's brake is on.

        Args:
            job: That was received.
            is_busy_beyond: Returns whether a job is in flight that is of none of these tasks.
        """
        if not self._tasks.is_any_on or self._brake.is_on:
            return None
        with self._lock:
            seconds = self._tasks.seconds_away(job.task, job.id, self._now())
            is_all = seconds is not None and self._tasks.is_all_there_is(job.task, job.id)
            given_up = self._tasks.list_given_up()
        if seconds is None:
            return None
        if is_all and not is_busy_beyond(given_up):
            self._end(self.given_up)
        reason = f"brake.task: nothing of task {job.task!r} succeeded of late; it is offered again later"
        return Outcome(OutcomeKind.RETURNED, reason, seconds, excused=True)

    def left(self, job: Job) -> None:
        """Note that a job has ended, however it did."""
        if self._tasks.is_any_on:
            with self._lock:
                self._tasks.note_end(job.task, job.id)

    def succeeded(self, job: Job) -> None:
        """Note that the work on a job succeeded; cheap while nothing fails."""
        if self._tasks.note_success(job.task):
            is_off = event_fields("brake_off", task=job.task)
            logger.warning("jobs of task %r succeed again", showable(job.task), extra=is_off)
        if self._brake.note_success():
            logger.warning(
                "jobs succeed again, after %s; receiving goes on",
                format_duration(self._now() - self._since),
                extra=event_fields("brake_off"),
            )

    @property
    def is_braked(self) -> bool:
        """Whether the run's brake is on, or a task's."""
        return self._brake.is_on or self._tasks.is_any_on

    def allowed(self) -> int | None:
        """Return how many jobs may be inside; None: any number."""
        return self._brake.find_limit(self._now()) if self._brake.is_on else None

    def seconds_to_try(self) -> float | None:
        """Return how long whoever waits for `allowed` may sleep; None: until something changes."""
        return self._brake.seconds_to_try(self._now()) if self._brake.is_on else None

    def counts(self) -> dict[str, int]:
        """Return how often nothing succeeded, and nothing of a task, and how many results nobody wanted; without zeros."""
        numbers = {"run.nothing_succeeded": self._brake.num_engaged, "route.nothing_succeeded": self._tasks.num_engaged}
        return {name: number for name, number in (numbers | self._unwanted).items() if number}

    def _count_unwanted(self, code: str) -> None:
        with self._lock:
            self._unwanted = {**self._unwanted, code: self._unwanted.get(code, 0) + 1}  # a new one: others read it

    def _by_itself(self, item: Item, error: ItemError) -> Outcome:
        job, undelivered = item.job, isinstance(error, DeliveryFailed) or _is_short_to_deliver(item, error)
        has_result = bool(item.route) and item.route[item.position].only_delivers
        # In order, a list's item that came at the end would be out of place: there it is tried as often as any.
        may_wait = job.keeps_results or not self._is_ordered
        if isinstance(error, ItemFailed) and error.is_postponed and may_wait and not (has_result or undelivered):
            postponed = of_postponed(item, error, self._clock.unix_seconds(), self._random())
            if postponed is not None:
                return postponed
        if self._keeper is not None and self._has_keeper(item):
            return of_undelivered(item, error, self._keeper, self._clock.unix_seconds(), self._random())
        if isinstance(error, ItemRejected):
            return Outcome(OutcomeKind.REJECTED, str(error), origin=error.origin)
        if job.max_attempts is not None and job.attempt >= job.max_attempts:
            last = f"{error} (delivery {job.attempt} of {job.max_attempts})"
            return Outcome(OutcomeKind.DEAD_LETTERED, last, undelivered=undelivered, origin=error.origin)
        doublings = min(job.attempt - 1, 60)  # by then the limit is met; 2.0**1024 is no float
        asked = error.retry_after_seconds if isinstance(error, ItemFailed) else 0.0
        delay = min(_MAX_RETRY_SECONDS, asked) + min(_MAX_RETRY_SECONDS, 2.0**doublings) * self._random()
        return Outcome(OutcomeKind.RETRY, str(error), delay, undelivered, origin=error.origin)

    def _has_keeper(self, item: Item) -> bool:
        """Return whether an item that failed has a result that the source keeps."""
        has_result = bool(item.route) and item.route[item.position].only_delivers
        return has_result and self._keeper is not None and item.job.keeps_results

    def _say(self, reason: str, *, is_first: bool) -> None:
        """Say that nothing succeeds: at once, and then less and less often."""
        brake = self._brake
        pause = format_duration(brake.seconds_to_try(self._now()) or 0.0)
        if is_first:
            logger.error(
                "nothing succeeds: the last %s failed, and nothing more is received. What fails now is given back and does "
                "not count; a job is tried in %s. The last reason: %s",
                *(pluralize(brake.num_failed, "job"), pause, showable(reason)),
                extra=event_fields("brake_on", code="brake.run"),
            )
        elif brake.num_tries & (brake.num_tries - 1) == 0:
            logger.warning(
                "still nothing succeeds, after %s; the next try is in %s: %s",
                *(pluralize(brake.num_failed, "failure"), pause, showable(reason)),
                extra=event_fields("brake_on", code="brake.run"),
            )

    def _now(self) -> float:
        return self._clock.now_ns() / 1e9


def _is_short_to_deliver(item: Item, error: ItemError) -> bool:
    """Return whether the result is there, and something is missing on this machine to write it."""
    return isinstance(error, Shortage) and bool(item.route) and error.stage == item.route[-1].stages[-1].name


def _fault(error: ItemError, job: Job) -> Fault:
    if isinstance(error, Shortage):
        return Fault.DISK if error.reason.startswith("shortage.disk") else Fault.SHORTAGE
    return Fault.JOB if isinstance(error, ItemRejected) or job.is_leftover else Fault.WORK
