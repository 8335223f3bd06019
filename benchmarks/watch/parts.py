"""The parts of the benchmark; a module of its own, because processes that run beside import it by its name."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Protocol, cast

#: Modules of this folder; each gives its keys of the benchmark's object.
PARTS: tuple[str, ...] = (
    "metrics", "review", "recorder_cost", "recorder_kills", "causes", "history", "alerts", "drift", "drift_cost",
)  # fmt: skip
#: Parts that measure no time: they run side by side, before those that do.
UNTIMED = frozenset({"recorder_kills", "history", "alerts", "drift"})


class Part(Protocol):
    """The functions of a part's module."""

    def measure(self, quick: bool) -> dict[str, Any]:
        """Return the part's keys of the benchmark's object."""
        ...

    def as_text(self, result: dict[str, Any]) -> str:
        """Return the part of the page for readers, with its heading, from the whole object."""
        ...

    def missed_goals(self, result: dict[str, Any]) -> list[str]:
        """Return a line for each goal that was missed, with the figure and the goal."""
        ...


def load_part(name: str) -> Part:
    """Return the module of a part."""
    return cast(Part, importlib.import_module(f"benchmarks.watch.{name}"))


def _measure(name: str, quick: bool) -> dict[str, Any]:
    print(name, file=sys.stderr, flush=True)
    return load_part(name).measure(quick)


def measure_parts(names: list[str], quick: bool) -> dict[str, dict[str, Any]]:
    """Return {part: its keys}."""
    together = [name for name in names if name in UNTIMED]
    found = {}
    if len(together) > 1:
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            found = dict(zip(together, pool.map(_measure, together, [quick] * len(together)), strict=True))
    return {name: found[name] if name in found else _measure(name, quick) for name in names}
