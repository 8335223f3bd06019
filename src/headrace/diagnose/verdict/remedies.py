"""What an advice buys, by simulation, and the command that says more."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from headrace.base.errors import SettingsError
from headrace.diagnose.assumptions import likely_change
from headrace.diagnose.prediction_interval import interval, is_spread_small
from headrace.diagnose.replay import CannotReplay, Replay
from headrace.diagnose.verdict.proposal import Advice
from headrace.runs.formats.diagnosis import Remedy
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate

#: Resampled runs that give the spread of a remedy's ratio: the first, and all where their spread is not small.
_FIRST_RESAMPLES, _RESAMPLES = 4, 8
#: Jobs of each: `headrace whatif` takes more, and knows the ledger's record of this simulator.
_JOBS = 500


def remedies(replay: Replay, advice: Sequence[Advice]) -> tuple[Remedy, ...]:
    """Return advice with what it buys where that can be predicted, and the next command."""
    return tuple(_remedy(replay, one) for one in advice)


def _remedy(replay: Replay, advice: Advice) -> Remedy:
    change = advice.change or (Change(settings=advice.settings) if advice.settings else None)
    is_left_out = change is not None and not advice.command and not replay.budget.has_left()
    if is_left_out:
        replay.budget.leave_out(f"what it buys: {advice.says}")
    ratio = None if change is None or advice.command or is_left_out else predict_ratio(replay, change)
    is_asked = change is not None and (ratio is not None or is_left_out)
    command = advice.command or (whatif_command(replay, change) if change is not None and is_asked else "")
    settings = advice.settings if ratio is None else replay.applicable(advice.settings)
    return Remedy(says=advice.says, settings=settings, ratio=ratio, command=command)


def predict_ratio(replay: Replay, change: Change) -> Estimate | None:
    """Return the throughput of a change over that of the run, with its interval; None if it is refused."""
    try:
        replay.check_understood()
        likely = likely_change(replay, change)  # more callers of what is limited in rate wait longer each
        mid = replay.ratio(likely)
        jobs, logs = replay.affordable(_JOBS), list[float]()
        for seed in range(1, _RESAMPLES + 1):
            if len(logs) == _FIRST_RESAMPLES and is_spread_small(mid, logs, change.kinds):
                break
            logs.append(math.log(replay.ratio(likely, seed=seed, num_jobs=jobs, resampled=True)))
    except (CannotReplay, SettingsError, ValueError):
        return None
    return interval(mid, logs, replay.misfit, kinds=change.kinds)


def whatif_command(replay: Replay, change: Change) -> str:
    """Return the command that predicts a change, to be typed as it is."""
    parts = ["headrace", "whatif", str(replay.run.path)]
    for setting in change.settings:
        parts += ["--set", setting]
    for stage, factor in change.speedups.items():
        parts += ["--speedup", f"{stage}={factor:.3g}"]
    if change.cores is not None:
        parts += ["--cores", f"{change.cores:g}"]
    if change.devices is not None:
        parts += ["--devices", str(change.devices)]
    if change.arrival_rate is not None:
        parts += ["--arrival-rate", f"{change.arrival_rate:g}/s"]
    if change.quiet:
        parts.append("--quiet-machine")
    return shlex.join(parts)
