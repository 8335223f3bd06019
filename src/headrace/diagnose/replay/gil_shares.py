"""How much of its work a stage does with the GIL, as the stage benchmark measured it: alone, with one worker and with two.

Two threads of a stage that keeps the GIL wait for one another, and of one that lets go of it they do not. A call that needs D
of a core, h D of it with the GIL, waits h D times as long as the other thread is in that part: h times, as seen by one who
comes (mean value analysis of two customers). So the wait over D is h squared. Waiting for a core is counted apart, and a
machine without a free core does not disturb the measurement.

References:
    M. Reiser, S. Lavenberg, "Mean-value analysis of closed multichain queuing networks", Journal of the ACM 27, 1980.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.diagnose.replay.demands import StageDemands
from headrace.runs.formats.isolation import CurvePoint, IsolationDocument, StageAlone

#: Calls with two workers below which nothing is said.
_FEWEST_ITEMS = 20


def find_gil_shares(isolation: IsolationDocument | None, stages: Sequence[StageDemands]) -> dict[str, float]:
    """Return {stage: share of its CPU time with the GIL, 0 to 1} of stages that may keep it and were run alone."""
    alone = {} if isolation is None else {stage.name: stage for stage in isolation.stages}
    shares = {
        stage.name: _share(alone[stage.name])
        for stage in stages
        if stage.holds_gil > 0 and stage.name in alone and alone[stage.name].executor == "thread"
    }
    return {name: share for name, share in shares.items() if share is not None}


def _share(alone: StageAlone) -> float | None:
    one, two = (_point(alone, workers) for workers in (1, 2))
    if one is None or two is None or two.num_items < _FEWEST_ITEMS:
        return None
    if not one.cpu or one.blocked is None or two.blocked is None:
        return None
    waits = max(0.0, two.blocked - one.blocked) / one.cpu
    return min(1.0, math.sqrt(waits))


def _point(alone: StageAlone, workers: int) -> CurvePoint | None:
    return next((point for point in alone.curve if point.workers == workers and point.batch_size is None), None)
