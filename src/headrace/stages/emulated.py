"""Stages that only take time, for trying a pipeline's structure before its parts exist; every output says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.base.calls import Call, Pause, run_call
from headrace.base.plan import Kind, Plan
from headrace.base.records import Job
from headrace.base.settings import build
from headrace.stages.stage import Stage, StageContext


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedStageOptions:
    """The Plan's `[stages.NAME.options]` of an emulated stage."""

    seconds: float
    """Service time, instead of the one given in the program."""


class EmulatedStage(Stage):
    """Sleeps, without holding the GIL or the CPU, and passes the value on."""

    releases_gil = True
    computes = False

    def __init__(self, name: str, *, kind: Kind, seconds: float, task: str = "") -> None:
        super().__init__(name, task=task)
        self.kind = kind
        self.may_carry = kind == "io"
        self.executor = "events" if self.may_carry else "thread"
        self.seconds = seconds

    def is_emulated(self, plan: Plan) -> bool:
        """Return True."""
        return True

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return the sleep; the Plan's option `seconds` overrides the time."""
        given = {"seconds": self.seconds, **context.options}
        return _Sleep(build(EmulatedStageOptions, given, f"[stages.{self.name}.options]").seconds)


class _Sleep:
    """Sleeps, in this thread or while one thread carries others."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, value: Any) -> Any:
        return run_call(self._pause(value))

    def carried(self, job: Job, value: Any) -> Call[Any]:
        """Return the sleep as a call."""
        return self._pause(value)

    def _pause(self, value: Any) -> Call[Any]:
        if self._seconds:
            yield Pause(self._seconds)
        return value


def emulated(name: str, *, seconds: float, kind: Kind = "cpu") -> Stage:
    """Return a stage that only takes time: it sleeps equally long for each item.

    Args:
        name: Unique in its pipeline.
        seconds: Service time, >= 0.
        kind: Kind of the stage that it stands for.
    """
    return EmulatedStage(name, kind=kind, seconds=seconds)
