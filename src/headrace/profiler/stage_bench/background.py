"""Runs of a pipeline beside the thread that measures them, over the same jobs again and again, with results forgotten.

No job is acked and no result delivered, so a pipeline can run as often as needed.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.base.observer import Observer
from headrace.base.plan import Plan
from headrace.base.protocols import Source
from headrace.base.records import Job
from headrace.delivery.collect import Collect
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Measuring, run
from headrace.profiler.stage_bench.values import copy_of
from headrace.sources.finite import Entry, FiniteSource


class Replay(FiniteSource):
    """Gives jobs like those of another source round and round, until the run is stopped.

    Args:
        jobs: At least one; they may be settled already.
        before: Called with each job just before it is given out.
        copies: Give each job a copy of its payload.
    """

    def __init__(
        self, jobs: Sequence[Job], before: Callable[[Job], object] = lambda job: None, *, copies: bool = False
    ) -> None:
        super().__init__(max_receives=1)
        self._jobs = jobs
        self._before = before
        self._copies = copies

    def entries(self) -> Iterator[Entry]:
        """Return what jobs are made of; an id carries a number, because ids are unique within a run."""
        for number, job in enumerate(itertools.cycle(self._jobs)):
            yield Entry(f"{job.id}#{number}", job.payload, job.attributes)

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return jobs with the tasks of those that they are like."""
        received = super().receive(limit, wait_seconds)
        for job in received or ():
            job.task = self._jobs[(job.sequence or 0) % len(self._jobs)].task
            # Here and not in `entries`, where settling would wait for it.
            self._before(job)
            if self._copies:
                job.payload = copy_of(job.payload)
        return received


class Discard(Collect):
    """A delivery that forgets every result.

    Args:
        default_workers: As many as the delivery that it replaces.
    """

    def __init__(self, default_workers: int = 1) -> None:
        super().__init__()
        self.default_workers = default_workers

    def deliver(self, job: Job, result: Any) -> bool:
        """Forget it."""
        return True


class BackgroundRun:
    """A run of a pipeline from entering this context manager to leaving it.

    It runs in a thread of its own: in the main thread the runtime would take the signals that the caller waits for. Leaving
    drops what is queued; a worker in the midst of a call has a second to end it, then it is left behind (a daemon).

    Args:
        pipeline: Its own source is not used.
        source: The source instead.
        plan: How.
        observers: Who watches.

    Attributes:
        error: Why the run broke; None while it has not.
    """

    def __init__(self, pipeline: Pipeline, source: Source, plan: Plan, observers: Sequence[Observer] = ()) -> None:
        self._pipeline = copy.copy(pipeline)
        self._pipeline.source = source
        self._plan = dataclasses.replace(
            plan,
            run=dataclasses.replace(plan.run, grace_seconds=0.0),
            source=dataclasses.replace(plan.source, max_receives=None),
        )
        self._observers = observers
        self._stop = threading.Event()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"run of {pipeline.name}", daemon=True)

    def __enter__(self) -> BackgroundRun:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def goes_on(self, seconds: float) -> bool:
        """Return whether the run is still going on after these seconds; as soon as it is not."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def _run(self) -> None:
        measuring = Measuring(brakes=False)
        try:
            run(
                self._pipeline,
                self._plan,
                observers=self._observers,
                checkpoint=False,
                stop=self._stop,
                measuring=measuring,
            )
        except Exception as error:
            self.error = error
