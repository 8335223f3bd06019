"""What watching costs, and whether it finds what it should: metrics, alerts, drift, history, the flight recorder, review.

python -m benchmarks.watch --json     # every part
python -m benchmarks.watch --quick    # the short way, under a minute
python -m benchmarks.watch --write    # with a dated result file
python -m benchmarks.watch --only drift --quick
"""

import sys
from typing import Any

from benchmarks import measure
from benchmarks.watch.parts import PARTS, load_part, measure_parts


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


def main() -> int:
    """Run the benchmark from the command line; status 1 when a goal is missed."""
    chosen = _chosen()
    parts = {name: load_part(name) for name in chosen}
    theme = "watch" if chosen == list(PARTS) else f"watch_{chosen[0]}"

    def measure_all(quick: bool) -> dict[str, Any]:
        result: dict[str, Any] = {"quick": quick}
        for found in measure_parts(chosen, quick).values():
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
