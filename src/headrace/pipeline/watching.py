"""What may live beside a run: the profiler, the live view, or a user's own watch.

How this works: a watch is called with the run that is about to begin and returns a context manager, which is entered before the
first job is received and left when all is over, before the run folder is finished.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from headrace.base.metering import Metering
from headrace.base.plan import Plan
from headrace.base.records import Counters, StageStatistics
from headrace.pipeline.arms import Arms
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.levers import Adjustable, Levers
from headrace.pipeline.run_state import RunState
from headrace.pipeline.span_limit import SpanLimit
from headrace.pipeline.summary import Summary
from headrace.pipeline.warm_up import CostCurve
from headrace.pipeline.worker import WorkerThread
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SpanWriter


@dataclass(frozen=True, slots=True)
class RunInProgress:
    """A run that is about to begin, for those who watch it closely."""

    summary: Summary
    statistics: Callable[[], Sequence[StageStatistics]]
    """Returns the state of each station's queue and workers, in the order of the pipeline; from any thread."""
    worker_threads: Callable[[], list[WorkerThread]]
    """Returns where the workers' stages run now; from any thread."""
    num_waiting: Callable[[str], int]
    """Returns how many items wait in the queues on the way of a task's jobs; from any thread, for who asks often."""
    state: Callable[[], RunState]
    """Returns what else is so now; from any thread, about once a second."""
    longest_call_seconds: Callable[[], float]
    """Returns for how long the oldest call of a stage lasts by now; from any thread."""
    longest_calls: Callable[[], tuple[float, float]]
    """Returns the same of stages that only compute, and of those that are known to take long now and then; what only waits on
    the outside is in neither."""
    warm_ups: Sequence[CostCurve]
    """What was measured at warm-up; grows while the run begins."""
    metering: Metering
    """Whether and for which jobs workers read what passages cost; may be changed at any time."""
    counters: Counters
    folder: RunFolder | None
    pipeline: Pipeline
    plan: Plan
    """Resolved."""
    spans: SpanWriter | None
    """Writes the spans; None without a folder."""
    span_limit: SpanLimit | None
    """Keeps their number below a limit, which may be changed until the run begins; None without a folder."""
    opened: threading.Event
    """Set when every part is open; until then a signal ends the process at once, and nothing was received."""
    begun: threading.Event
    """Set when the first job has come, before it goes anywhere."""
    before_closing: list[Callable[[], object]]
    """Called in the run's thread when every job has been settled, before the workers leave; must not raise."""
    arms: Arms | None
    """Whose model answers which job; None: the run can have no canary."""
    describe: Callable[[], dict[str, Any]]
    """Returns {field of RunInfo: value} of what may change while the run goes on, as it is now: stages, plans, variants,
    counters, cost curves, warnings; from any thread."""
    levers: Levers
    """What an experiment may change while the run goes on."""
    adjustable: Callable[[], Sequence[Adjustable]]
    """Returns the stations that can be experimented with, once the first job has come."""
    receivers_cpu_seconds: Mapping[int, float]
    """{kernel's number: CPU time} of the source's receivers that have ended; they do so before the rest."""
    flushes_cpu_seconds: Mapping[int, float]
    """{kernel's number: CPU seconds in which a worker made results durable}; grows while the run lasts."""


#: Makes a context manager that is entered before the run begins and left when it is over, before the folder is finished.
Watch = Callable[[RunInProgress], AbstractContextManager[Any]]


def watch_together(*watches: Watch) -> Watch:
    """Return one watch of several, entered in this order and left in the reverse order."""

    @contextlib.contextmanager
    def together(run: RunInProgress) -> Iterator[None]:
        with contextlib.ExitStack() as entered:
            for watch in watches:
                entered.enter_context(watch(run))
            yield

    return together
