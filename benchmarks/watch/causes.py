"""Whether the flight recorder names the cause of planted incidents, from its recording alone; see `benchmarks.watch.incidents`.

Recordings are kept, so that `benchmarks.watch.incidents.score --stored` scores them again.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.watch.incidents.score import GROUPS, SECONDS, as_table, score_all

#: Share of the single incidents, of each list, that must be named right: 22 of 24.
LEAST_RIGHT = 22 / 24
_GOAL = "first"
_QUICK_INCIDENT, _QUICK_SECONDS = "slow receiver", 10.0


def measure(quick: bool) -> dict[str, Any]:
    """Return `incidents`: `right` and `of` are those of the first list, which the goal is about."""
    seed = 1 if quick else int(time.time())
    found = {}
    for group, incidents in GROUPS.items():
        chosen = [one for one in incidents if not quick or one.name == _QUICK_INCIDENT]
        scored = list(score_all(chosen, seed=seed, seconds=_QUICK_SECONDS if quick else SECONDS))
        found[group] = {"right": sum(one["right"] for one in scored), "of": len(scored), "each": scored}
    goal = {name: found[_GOAL][name] for name in ("right", "of")}
    return {"incidents": {**goal, "seed": seed, "groups": found}}


def as_text(result: dict[str, Any]) -> str:
    """Return the part of the page."""
    incidents = result["incidents"]
    groups = [as_table(group, one) for group, one in incidents["groups"].items() if one["of"]]
    heading = f"Named right from the recorder alone, with doses drawn by seed {incidents['seed']}:"
    return "\n\n".join(["## Planted incidents", heading, *groups])


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line for each list of which too few were named right."""
    missed = []
    for group in ("first", "second", "third"):
        one = result["incidents"]["groups"][group]
        if one["right"] < LEAST_RIGHT * one["of"]:
            missed.append(f"incidents, {group}: {one['right']} of {one['of']} right, goal {LEAST_RIGHT:.0%}")
    return missed
