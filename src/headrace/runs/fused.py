"""Why stages of a run shared a worker, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from headrace.base.handoff import HandoffCost
from headrace.base.units import format_duration
from headrace.runs.run_folder import RunInfo, StageInfo

#: As `StageInfo.fused` has them.
_REASONS = {
    "plan": "the Plan says so",
    "gil": "all compute with the GIL, so other workers would bring nothing",
    "default": "what they get is still in the cache of the core",
}


def explain_fused(info: RunInfo, *, by_plan: bool = True) -> list[str]:
    """Return which stages ran in the workers of another, why, and what a hand-off costs there; empty where none did.

    Args:
        info: Of the run.
        by_plan: Name those too of which the Plan says so.
    """
    stages = [stage for stage in info.stages if by_plan or stage.fused != "plan"]
    return explain_stages(stages, info.summary or {}, info.handoff)


def explain_stages(
    stages: Sequence[StageInfo], summary: Mapping[str, object], handoff: HandoffCost | None
) -> list[str]:
    """Return the same of a run that left no folder.

    Args:
        stages: As they ran; of these alone.
        summary: The document `headrace.run/1`.
        handoff: What a hand-off costs on the machine; None: not known.
    """
    rows = summary.get("stages")
    means = {row["name"]: row["service_seconds"]["mean"] for row in rows} if isinstance(rows, list) else {}
    together = defaultdict(list)
    for stage in stages:
        if stage.fused in _REASONS:
            together[stage.station, stage.fused].append(stage.name)
    return [
        f"{', '.join(names)} {'runs' if len(names) == 1 else 'run'} in the workers of {station}: {_REASONS[reason]}"
        + _compare(handoff, [means.get(name) for name in names])
        for (station, reason), names in together.items()
    ]


def _compare(handoff: HandoffCost | None, seconds: Sequence[float | None]) -> str:
    if handoff is None or not handoff.cpu_seconds or None in seconds:
        return ""
    took = " + ".join(format_duration(one) for one in seconds)
    return f"; a hand-off costs {format_duration(handoff.cpu_seconds)} of CPU here, the work {took} per item"
