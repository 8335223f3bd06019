"""A brake for each task of a run: a task whose jobs all fail is stopped, and the others go on.

What is said of a run in `policies.brake` holds for each task: when its brake is put on, what is tried then and when, and when
it is given up. Only, nobody can receive the jobs of some tasks and not of others. So those of a task whose brake is on are
received and turned away, each for as long as the brake has been on: a backlog of which nothing can be made comes round more
and more seldom.

A plain object that takes `now`; whoever shares one between threads holds a lock around each call but `note_success` and
`is_any_on`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.base.policies.brake import Brake, BrakePolicy, Fault

#: Least and most that a job which is turned away waits. A run that ends tries for seconds only, and is not to wait for long.
_LEAST_SECONDS, _LEAST_SECONDS_TO_THE_END, _MOST_SECONDS = 15.0, 1.0, 300.0


@dataclass(slots=True)
class _On:
    """A task whose brake is on."""

    since: float
    """When it was put on, or since when it is given up."""
    tried: set[str] = field(default_factory=set)
    """Jobs that were let in since then and have not ended."""
    witness: str | None = None
    """Once it is given up: a job that was turned away since another task's came."""


class TaskBrakes:
    """The brakes of one run's tasks.

    Args:
        tasks: Their names; a single one needs no brake beside the run's.
        policy: Of each; its `tries` say whether the run comes to an end.
    """

    def __init__(self, tasks: Iterable[str], policy: BrakePolicy) -> None:
        names = list(tasks)
        self._brakes = {task: Brake(policy) for task in names} if len(names) > 1 else {}
        self._on: dict[str, _On] = {}
        self._least_seconds = _LEAST_SECONDS if policy.tries is None else _LEAST_SECONDS_TO_THE_END

    @property
    def is_any_on(self) -> bool:
        """Whether any task's brake is on."""
        return bool(self._on)

    @property
    def num_engaged(self) -> int:
        """How often any was put on."""
        return sum(brake.num_engaged for brake in self._brakes.values())

    def find_brake(self, task: str) -> Brake | None:
        """Return a task's brake; None for one that the run does not know, or alone has."""
        return self._brakes.get(task)

    def note_success(self, task: str) -> bool:
        """Note that the work on a job of a task succeeded, and return whether that lets its brake go."""
        brake = self._brakes.get(task)
        if brake is None or not brake.note_success():
            return False
        self._on.pop(task, None)
        return True

    def note_failure(self, task: str, job_id: str, fault: Fault, now: float) -> float | None:
        """Note that a job of a task failed; see `Brake.failed`."""
        brake = self._brakes.get(task)
        if brake is None:
            return None
        was_hopeless = brake.is_hopeless
        delay = brake.note_failure(job_id, fault, now)
        if brake.is_on:
            self._on.setdefault(task, _On(now))
            if brake.is_hopeless and not was_hopeless:
                self._on[task] = _On(now)
        return delay

    def seconds_away(self, task: str, job_id: str, now: float) -> float | None:
        """Return for how long a job that was received is turned away; None: it is let in.

        Args:
            task: Its task.
            job_id: Of the source.
            now: Seconds of any clock that does not jump.
        """
        on, brake = self._on.get(task), self._brakes.get(task)
        if brake is None or not brake.is_hopeless:
            for other in list(self._on.values()):  # `note_success` may take one out meanwhile
                other.witness = None
        allowed = brake.find_limit(now) if brake is not None else None
        if on is None or allowed is None:
            return None
        if len(on.tried) < allowed:
            on.tried.add(job_id)
            return None
        return min(_MOST_SECONDS, max(self._least_seconds, now - on.since))

    def note_end(self, task: str, job_id: str) -> None:
        """Note that a job that was let in has ended, however it did."""
        on = self._on.get(task)
        if on is not None:
            on.tried.discard(job_id)

    def is_all_there_is(self, task: str, job_id: str) -> bool:
        """Return whether a job that is turned away was so before, and none came in between but of tasks that are given up."""
        on, brake = self._on.get(task), self._brakes.get(task)
        if on is None or brake is None or not brake.is_hopeless:
            return False
        if on.witness is None:
            on.witness = job_id
            return False
        return on.witness == job_id

    def list_given_up(self) -> list[str]:
        """Return the tasks that are not tried any more in this run."""
        return [task for task, brake in self._brakes.items() if brake.is_hopeless and brake.is_on]
