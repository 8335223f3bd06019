"""Keeps a run within its Plan's `[budget]`: a thread that reads sensors, and steps down a ladder and up again.

How this works: ten times a second the sensors are read (`sensors`). Where one says that its budget is exceeded, what is held
for nothing is given back first: Python's cycles, and the buffers that engines keep for larger batches. If that does not do, the
run goes one rung down (`rungs`): stations and receivers are capped, and from then on spans carry the id of that rung's Plan.
Once all is well below the budget for a while, it goes up again (`policies.descent`).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.budget import BudgetPlan
from headrace.base.formatting import pluralize
from headrace.base.freed_memory import trim
from headrace.base.log_events import event_fields
from headrace.base.plan import Plan
from headrace.base.policies.descent import Descent
from headrace.pipeline.garbage import collect
from headrace.pipeline.opening import give_back_buffers
from headrace.pipeline.sensors import Reading, Sensor

logger = logging.getLogger("headrace.run")

_LOOK_SECONDS = 0.1
#: What is held for nothing is given back no more often than this.
_GIVE_BACK_SECONDS = 5.0
#: Steps that are kept, and lines on the terminal about them.
_MOST_STEPS, _MOST_LINES = 1000, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From one rung to the next."""

    at_unix_seconds: float
    rung: int
    """On which the run is from then on; 0: the Plan as it is."""
    is_down: bool
    plan_id: str
    why: str


@dataclass(slots=True)
class BudgetReport:
    """What became of a run's budget."""

    not_measured: dict[str, str] = field(default_factory=dict)
    """{what is bounded: why it cannot be measured here}."""
    rung: int = 0
    """On which the run is."""
    lowest: int = 0
    """On which it was at worst."""
    num_rungs: int = 0
    steps: list[Step] = field(default_factory=list)
    """The first thousand."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return dataclasses.asdict(self)


class Governor:
    """The thread; used as a context manager, as long as the run goes on.

    Args:
        sensors: What is measured; those that cannot be are named and left out.
        plans: The run's Plan, and that of each rung.
        hold_to: Caps the run as a Plan says, and returns the Plan that is then in force: a model may have to stay.
        counts: Of the run: steps are added to it.
        give_back: Gives back what is held for nothing.
        now: Seconds of a steady clock.

    Attributes:
        report: What became of the budget so far.
        switched: Called with the Plan that is in force from now on; may be replaced until the run begins.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        plans: Sequence[Plan],
        *,
        hold_to: Callable[[Plan], Plan],
        counts: dict[str, int] | None = None,
        give_back: Callable[[], object] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.report = BudgetReport({one.name: one.not_measured for one in sensors if one.not_measured})
        self.report.num_rungs = len(plans) - 1
        self._sensors = [one for one in sensors if not one.not_measured]
        self._plans = plans
        self._hold_to = hold_to
        self.switched: Callable[[Plan], object] = lambda plan: None
        self._counts = {} if counts is None else counts
        self._give_back = give_back or _give_back
        self._now = now
        self._descent = Descent(len(plans) - 1)
        self._given_back_at: float | None = None
        self._says_lowest = False
        self._has_failed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._govern, name="governor", daemon=True)

    def __enter__(self) -> Governor:
        for name, why in self.report.not_measured.items():
            logger.warning("[budget] %s is not measured, and does not bound the run: %s", name, why)
        if self._sensors:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _govern(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                self.look()
            except Exception:  # it must not end the run that it watches
                if not self._has_failed:  # it would be told ten times a second
                    logger.exception("the run's budget cannot be watched; it is tried again")
                self._has_failed = True

    def look(self) -> None:
        """Read the sensors, and do what is due."""
        now = self._now()
        readings = [reading for one in self._sensors if (reading := one.read(now)) is not None]
        over = _first_over(readings)
        is_clear = bool(readings) and all(reading.state == "clear" for reading in readings)
        is_held_down = self._descent.rung > 0 and not is_clear
        if (over is not None or is_held_down) and self._may_give_back(now):
            self._given_back_at = now
            self._give_back()
            self._count("given_back")
            return  # the next look tells whether that did it
        step = self._descent.look(now, is_over=over is not None, is_clear=is_clear)
        if step:
            why = over.says if over is not None else readings[0].says
            self._step(self._descent.rung, why, is_down=step > 0)
        elif over is not None and self._descent.rung == self._descent.num_rungs and not self._says_lowest:
            self._says_lowest = True
            logger.warning("[budget] %s, on the lowest rung: no more can be done about it", over.says)

    def warnings(self) -> list[str]:
        """Return what people should know of it at the end."""
        told = [f"[budget] {name} was not measured: {why}" for name, why in self.report.not_measured.items()]
        if self.report.steps:
            first, down, up = self.report.steps[0], self._counts["budget.down"], self._counts.get("budget.up", 0)
            told.append(
                f"[budget] the run went {pluralize(down, 'rung')} down and {up} up, at worst to rung {self.report.lowest} of "
                f"{self.report.num_rungs}; at first because {first.why}"
            )
        return told

    def _count(self, what: str) -> None:
        self._counts[f"budget.{what}"] = self._counts.get(f"budget.{what}", 0) + 1

    def _may_give_back(self, now: float) -> bool:
        return self._given_back_at is None or now - self._given_back_at >= _GIVE_BACK_SECONDS

    def _step(self, rung: int, why: str, *, is_down: bool) -> None:
        plan, report = self._hold_to(self._plans[rung]), self.report
        self.switched(plan)
        if is_down:
            give_back_buffers()  # those of the larger batches
        report.rung, report.lowest = rung, max(rung, report.lowest)
        self._count("down" if is_down else "up")
        if len(report.steps) < _MOST_STEPS:
            step = Step(at_unix_seconds=time.time(), rung=rung, is_down=is_down, plan_id=plan.plan_id, why=why)
            report.steps.append(step)
        if len(report.steps) <= _MOST_LINES:
            where = f"rung {rung} of {report.num_rungs}" if rung else "the Plan as it is"
            text = f"[budget] {why}: {'down' if is_down else 'up'} to {where} (plan {plan.plan_id})"
            logger.warning("%s", text, extra=event_fields("budget_step", plan=plan.plan_id))


def budget_of(plan: Plan, share: int) -> BudgetPlan | None:
    """Return what a process has for itself where it is one of `share`; None: nothing is bounded."""
    budget = plan.budget
    if budget is None or budget.is_open:
        return None
    return budget if budget.memory_bytes is None else dataclasses.replace(budget, memory=budget.memory_bytes // share)


def _first_over(readings: Sequence[Reading]) -> Reading | None:
    return next((reading for reading in readings if reading.state == "over"), None)


def _give_back() -> None:
    give_back_buffers()
    collect()
    trim()  # also what was freed long ago: large blocks are kept for others of their size
