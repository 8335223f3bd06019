"""Refuses what cannot be answered in time: joins `policies.expected_wait` to a door and a run.

Of several tasks each has a policy of its own, which knows what is inside of that task: so one that is asked for more than it
can do makes nobody else wait or be refused. How much of a device that they share each gets shows in how fast its answers come.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headrace.base.clock import Clock, SystemClock
from headrace.base.plan import StagePlan
from headrace.base.policies.expected_wait import ExpectedWait, Inside, LetIn, Reason, TurnedAway
from headrace.pipeline.warm_up import CostCurve
from headrace.pipeline.watching import RunInProgress
from headrace.serve.door import Ended, Refused, Work
from headrace.serve.source import RequestSource

#: Ends that say how long answers take: an answer, or that there was none in time. What failed early says nothing.
_TELLING = ("", "deadline.passed")


class WaitJudge:
    """Asked by the door about each piece of work; thread-safe.

    Args:
        source: Knows what is inside.
        clock: The run's.
    """

    def __init__(self, source: RequestSource, clock: Clock | None = None) -> None:
        self._source = source
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._policies = {"": ExpectedWait()}
        self._num_waiting: Callable[[str], int] = lambda task: 0
        self._curves: Sequence[CostCurve] = ()
        self._stages: Mapping[str, StagePlan] = {}
        self._task_of: Mapping[str, str] = {}
        self._num_curves = 0

    def watch(self, run: RunInProgress) -> None:
        """Learn from a run that is about to begin."""
        self._num_waiting = run.num_waiting
        self._curves, self._stages = run.warm_ups, run.plan.stages
        routes = run.pipeline.routes
        if len(routes) > 1:
            self._policies = {task: ExpectedWait() for task in routes}
            self._task_of = {stage.name: stage.task for route in routes.values() for stage in route}

    def __call__(self, work: Work) -> Refused | None:
        """Return why work is not let in; None: it is, and what becomes of it is learned."""
        task = self._policy_of(work)
        if task is None:
            return None  # which fails by itself
        decision = self._decide(task, work, ExpectedWait.decide)
        if isinstance(decision, LetIn):
            work.on_end = partial(self._ended, task, decision, work.on_end)
            return None
        return decision

    def foresee(self, work: Work) -> Refused | None:
        """Return why work will not be let in of which only the head has come; None: it is to be asked again."""
        task = self._policy_of(work)
        decision = None if task is None else self._decide(task, work, ExpectedWait.foresee)
        return decision if isinstance(decision, Refused) else None

    def _policy_of(self, work: Work) -> str | None:
        task = work.task if len(self._policies) > 1 else ""
        return task if task in self._policies else None

    def _decide(
        self,
        task: str,
        work: Work,
        decide: Callable[[ExpectedWait, float, float | None, Inside, int], LetIn | TurnedAway | None],
    ) -> LetIn | Refused | None:
        now = self._clock.now_ns() / 1e9
        deadline = None if work.deadline_ns is None else work.deadline_ns / 1e9
        with self._lock:
            if len(self._curves) > self._num_curves:
                self._take_up_curves(now)
            inside = self._inside(task, work.priority)
            decision = decide(self._policies[task], now, deadline, inside, work.priority)
        if isinstance(decision, TurnedAway):
            return _refused(decision, 0.0 if deadline is None else deadline - now)
        return decision

    def _ended(self, task: str, work: LetIn, on_end: Callable[[Ended], object], ended: Ended) -> None:
        now = self._clock.now_ns() / 1e9
        try:
            on_end(ended)  # first: the client need not wait until something was learned of it
        finally:
            if ended.code in _TELLING:
                with self._lock:
                    self._policies[task].note_end(now, work, self._inside(task, work.priority))

    def _inside(self, task: str, priority: int) -> Inside:
        before = self._source.count_open(task or None, priority)
        return Inside(before, self._source.num_waiting + self._num_waiting(task))

    def _take_up_curves(self, now: float) -> None:
        """Begin with what the warm-up measured of each task's slowest device; what came before waited for it, too."""
        self._num_curves = len(self._curves)
        for task in self._policies:
            paces = [self._pace(curve) for curve in self._curves if self._task_of.get(curve.stage, "") in ("", task)]
            if paces:
                seconds, at_once = max(paces)
                self._policies[task] = ExpectedWait(at_once, seconds, since=now)

    def _pace(self, curve: CostCurve) -> tuple[float, int]:
        """Return the seconds of an item in full batches, and how many items are worked on at once."""
        plan = self._stages[curve.stage]
        size = min(max(curve.seconds, default=1), plan.batch or 1)
        at_once = size * (plan.workers or 1)
        return statistics.median(curve.seconds.get(size, [0.0])) / at_once, at_once


def _refused(away: TurnedAway, left: float) -> Refused:
    if left <= 0:
        said = "it waited for longer than its deadline allows before it was read: more comes than can be done"
        return Refused(
            429, "serve.busy", f"{said}; try again after Retry-After, or elsewhere", away.retry_after_seconds
        )
    expected = f"an answer takes up to {away.most_seconds:.3g} s now, and its deadline is in {left:.3g} s"
    if away.reason is Reason.HOPELESS:
        reason = f"{expected}, which nothing can meet; give it more time, such as Request-Timeout-Ms: 30000"
        return Refused(504, "deadline.too_short", reason, away.retry_after_seconds)
    return Refused(
        429, "serve.busy", f"{expected}; try again after Retry-After, or elsewhere", away.retry_after_seconds
    )
