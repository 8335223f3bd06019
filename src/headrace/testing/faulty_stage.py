"""Stages that fail on demand: the value says how. They can be sent to another process.

    FaultyStage("classify", kind="device")

    "!raise"      raise ValueError                 "!reject"     raise ItemRejected
    "!kill"       SIGKILL the process              "!exit"       end the process with status 3
    "!hang"       never come back                  "!sleep 0.2"  take so many seconds
    "!memory 1e9" ask for so many bytes            "!short"      (device) return a result too few

Anything else passes unchanged.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.base.errors import ItemRejected
from headrace.base.plan import Executor, Kind
from headrace.stages.stage import Stage, StageContext


class FaultyStage(Stage):
    """Passes values on, and does what those that start with `!` say; see the module.

    Args:
        name: Unique in its pipeline.
        kind: A device stage does it when the value is in its batch.
        executor: Where it runs unless the Plan says otherwise.
    """

    def __init__(self, name: str, *, kind: Kind = "cpu", executor: Executor = "thread") -> None:
        super().__init__(name)
        self.kind = kind
        self.executor = executor

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return the pass."""
        return _pass_batch if self.kind == "device" else act


def act(value: Any) -> Any:
    """Do what a value says and return it."""
    if not isinstance(value, str) or not value.startswith("!"):
        return value
    what, _, argument = value[1:].partition(" ")
    match what:
        case "raise":
            raise ValueError(f"as asked: {argument}")
        case "reject":
            raise ItemRejected(f"as asked: {argument}")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "hang":
            threading.Event().wait()
        case "sleep":
            time.sleep(float(argument))
        case "memory":
            bytearray(int(float(argument)))
    return value


def _pass_batch(batch: Any) -> list[Any]:
    results = [act(value) for value in batch]
    return results[1:] if "!short" in results else results
