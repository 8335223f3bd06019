"""What watching costs, and whether it finds what it should: metrics, alerts, drift, history, the flight recorder, review.

python -m benchmarks.watch --json     # every part
python -m benchmarks.watch --quick    # the short way, under a minute
python -m benchmarks.watch --write    # with a dated result file
python -m benchmarks.watch --only drift --quick
"""

import importlib
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Protocol, cast

from benchmarks import measure

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


def _chosen() -> list[str]:
    """Return the parts that `--only` names, which is taken out of the arguments; all without it."""
    if "--only" not in sys.argv:
        return list(PARTS)
    at = sys.argv.index("--only")
    names = sys.argv[at + 1 : at + 2]
    del sys.argv[at : at + 2]
    if not set(names) <= set(PARTS) or not names:
        raise SystemExit(f"--only takes one of {', '.join(PARTS)}")
    return names


def _load(name: str) -> Part:
    return cast(Part, importlib.import_module(f"benchmarks.watch.{name}"))


def _measure(name: str, quick: bool) -> dict[str, Any]:
    print(name, file=sys.stderr, flush=True)
    return _load(name).measure(quick)


def _measure_parts(names: list[str], quick: bool) -> dict[str, dict[str, Any]]:
    """Return {part: its keys}."""
    together = [name for name in names if name in UNTIMED]
    found = {}
    if len(together) > 1:
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            found = dict(zip(together, pool.map(_measure, together, [quick] * len(together)), strict=True))
    return {name: found[name] if name in found else _measure(name, quick) for name in names}


def main() -> int:
    """Run the benchmark from the command line; status 1 when a goal is missed."""
    chosen = _chosen()
    parts = {name: _load(name) for name in chosen}
    theme = "watch" if chosen == list(PARTS) else f"watch_{chosen[0]}"

    def measure_all(quick: bool) -> dict[str, Any]:
        result: dict[str, Any] = {"quick": quick}
        for found in _measure_parts(chosen, quick).values():
            for key, value in found.items():  # two parts may have some of the same key
                result[key] = {**result[key], **value} if key in result else value
        missed = [line for part in parts.values() for line in part.missed_goals(result)]
        return {**result, "missed_goals": missed}

    def as_text(result: dict[str, Any]) -> str:
        missed = result["missed_goals"]
        ends = (
            [f"Goals missed: {len(missed)}.", *(f"- {line}" for line in missed)] if missed else ["No goal is missed."]
        )
        return "\n\n".join(["# Watching", *(part.as_text(result) for part in parts.values()), "\n".join(ends)])

    result = measure.run_benchmark(theme, __doc__.splitlines()[0], measure_all, as_text)
    return int(bool(result["missed_goals"]))


if __name__ == "__main__":
    sys.exit(main())
