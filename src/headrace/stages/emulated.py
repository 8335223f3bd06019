"""Stages that only take time, for trying a pipeline's structure before its parts exist; every output says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.base.plan import Kind
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
        self.seconds = seconds

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return the sleep; the Plan's option `seconds` overrides the time."""
        given = {"seconds": self.seconds, **context.options}
        seconds = build(EmulatedStageOptions, given, f"[stages.{self.name}.options]").seconds

        def sleep_and_pass(value: Any) -> Any:
            if seconds:
                time.sleep(seconds)
            return value

        return sleep_and_pass


def emulated(name: str, *, seconds: float, kind: Kind = "cpu") -> Stage:
    """Return a stage that only takes time: it sleeps equally long for each item.

    Args:
        name: Unique in its pipeline.
        seconds: Service time, >= 0.
        kind: Kind of the stage that it stands for.
    """
    return EmulatedStage(name, kind=kind, seconds=seconds)
