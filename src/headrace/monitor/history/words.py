"""Says in words how stages compare with their baseline."""

from __future__ import annotations

from headrace.base.units import format_time
from headrace.runs.formats.history import ALL_STAGES, StageDrift


def describe_stage(drift: StageDrift) -> str:
    """Return a verdict as a sentence; `says` itself is not looked at."""
    name = "every stage" if drift.stage == ALL_STAGES else drift.stage
    if drift.ratio is None or drift.low is None or drift.high is None:
        return f"{name}: cannot tell yet; no window since the baseline can be compared with it"
    change = (
        f"{_percent(drift.ratio)} CPU time per item (95 % interval {_percent(drift.low)} to {_percent(drift.high)})"
    )
    if drift.verdict == "same":
        return f"{name}: the same as in the baseline, {change}"
    if drift.verdict == "faster":
        return f"{name}: faster than in the baseline, {change}"
    if drift.verdict == "cannot_tell":
        return f"{name}: cannot tell yet, {change}"
    since = f" since {format_time(drift.since_unix_seconds)}" if drift.since_unix_seconds is not None else ""
    if drift.stage == ALL_STAGES and drift.machine_taken_out:
        return (
            f"every stage takes {change}{since}: not the machine, whose speed was measured beside the run, but something that "
            "all stages use, such as another Python or library, or what the run shares its caches with"
        )
    if drift.stage == ALL_STAGES:
        return (
            f"every stage takes {change}{since}: the machine is slower, or something changed that all stages use; "
            "CPU times alone cannot tell which"
        )
    return f"{name} is slower than in the baseline{since}: {change} at equal input, against the other stages"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+z.1f} %"
