"""The flight recorder: what it costs, what is left after a kill, and whether it names the cause of planted incidents.

CPU: one process runs the same pipeline with and without the recorder in turn, A B B A, 400 items a second. Kills: worker and
supervisor are killed together at a random moment, and the last five seconds must be readable, up to the last second. Incidents:
see `benchmarks.watch.incidents`; recordings are kept, so that `benchmarks.watch.incidents.score --stored` scores them again.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.watch.incidents.score import GROUPS, SECONDS, as_table, score_all
from benchmarks.watch.recorder_cost import RATE, measure_cpu_shares
from benchmarks.watch.recorder_kills import count_readable

MOST_CPU_SHARE = 0.01
#: Share of the single incidents, of each list, that must be named right: 22 of 24.
LEAST_RIGHT = 22 / 24
_QUICK_INCIDENT = "slow receiver"
_PAIRS, _KILLS = 16, 100


def measure(quick: bool) -> dict[str, Any]:
    """Return `recorder` and `incidents`."""
    shares = measure_cpu_shares(pairs=1 if quick else _PAIRS, seconds=2.0 if quick else 5.0)
    kills = 1 if quick else _KILLS
    readable = count_readable(kills)
    seed = 1 if quick else int(time.time())
    found = {}
    for group, incidents in GROUPS.items():
        chosen = [one for one in incidents if not quick or one.name == _QUICK_INCIDENT]
        scored = list(score_all(chosen, seed=seed, seconds=SECONDS))
        found[group] = {"right": sum(one["right"] for one in scored), "of": len(scored), "each": scored}
    return {
        "recorder": {
            "cpu_share": statistics.median(shares),
            "cpu_share_of_each_pair": shares,
            "readable_after_kill": readable,
            "kills": kills,
        },
        "incidents": {"seed": seed, "groups": found},
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the part of the page."""
    recorder, incidents = result["recorder"], result["incidents"]
    pairs = ", ".join(f"{share:+.2%}" for share in sorted(recorder["cpu_share_of_each_pair"]))
    cost = (
        f"CPU per item of a run of {RATE:g} items/s with the recorder over the same without: {recorder['cpu_share']:+.2%} "
        f"(median of the pairs {pairs}). Readable after SIGKILL of worker and supervisor: {recorder['readable_after_kill']} of "
        f"{recorder['kills']}."
    )
    groups = [as_table(group, one) for group, one in incidents["groups"].items() if one["of"]]
    heading = f"Named right from the recorder alone, with doses drawn by seed {incidents['seed']}:"
    return "\n\n".join(["## Flight recorder", cost, heading, *groups])


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line for each goal that was missed."""
    recorder, incidents = result["recorder"], result["incidents"]
    missed = []
    if recorder["cpu_share"] > MOST_CPU_SHARE and not result["quick"]:  # a few seconds say nothing of one per cent
        missed.append(f"recorder: {recorder['cpu_share']:.2%} of CPU, goal {MOST_CPU_SHARE:.0%}")
    if recorder["readable_after_kill"] < recorder["kills"]:
        missed.append(f"recorder: readable after {recorder['readable_after_kill']} of {recorder['kills']} kills")
    for group in ("first", "second", "third"):
        one = incidents["groups"][group]
        if one["right"] < LEAST_RIGHT * one["of"]:
            missed.append(f"incidents, {group}: {one['right']} of {one['of']} right, goal {LEAST_RIGHT:.0%}")
    return missed
