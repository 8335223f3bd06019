"""Finds stages that share a worker because they seemed to compute, and that really wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.runs.run_folder import StageInfo

#: Workers that are busy for this share of a run limit it, and a process that uses fewer cores than that waits.
_BUSY, _MOST_CORES = 0.8, 0.5
#: A shorter run tells nothing: opening and the first items are most of it.
_LEAST_SECONDS = 1.0


def warn_of_waits(stages: Sequence[StageInfo], summary: Mapping[str, Any], cpu_seconds: float) -> list[str]:
    """Return a warning for each group of stages fused by default whose workers are busy while the process hardly computes.

    Args:
        stages: As they ran.
        summary: The document `headrace.run/1`.
        cpu_seconds: That the process used meanwhile.
    """
    elapsed = summary["elapsed_seconds"]
    if elapsed < _LEAST_SECONDS or cpu_seconds > _MOST_CORES * elapsed:
        return []
    busy = {row["name"]: row["busy_seconds"] for row in summary["stages"]}
    found = []
    for station in dict.fromkeys(stage.station for stage in stages if stage.fused == "gil"):
        group = [stage for stage in stages if stage.station == station]
        share = sum(busy.get(stage.name, 0.0) for stage in group) / (group[0].workers * elapsed)
        if share >= _BUSY:
            longest = max(group, key=lambda stage: busy.get(stage.name, 0.0)).name
            names = ", ".join(stage.name for stage in group)
            found.append(
                f"{names} share workers, for they are of kind cpu and keep the GIL. These were busy {share:.0%} of the time "
                f"while the process used {cpu_seconds / elapsed:.2f} cores, so {longest} waits rather than computes: give it "
                f"kind io, or stages.{longest}.workers"
            )
    return found
