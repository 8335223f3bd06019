"""What reading a worker's clocks adds to a passage, from passages of the same run that had other readings, or none.

How this works: a reading takes 1 us where the code is in the cache and a dozen where one job in a hundred is recorded, which no
measurement beforehand can tell. While profiling measures its own cost it switches the clocks off now and then, so a run has
spans with wall times alone. A run too short for that still has spans of its beginning, when every job was recorded; a reading
among those takes what it took before the run. Medians are compared, since they are of passages that nothing held up.

Only a stage that does next to nothing shows it: beside a millisecond of work a reading is lost in the noise, and nothing is
taken off there.
"""

from __future__ import annotations

import numpy as np

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.span_columns import Array

#: Spans of each kind that a median needs.
_FEWEST = 20
#: Longer passages hide a reading.
_SHORT_SECONDS = 200e-6
#: No reading takes longer.
MOST_SECONDS = 20e-6


def clock_seconds(evidence: Evidence, stage: str) -> float:
    """Return CPU seconds that the clocks added to a passage in which they were read; 0 where that cannot be told."""
    own, spans = evidence.stage_rows(stage), evidence.spans
    if (spans.batch_size[own] > 1).any():
        return 0.0
    wall, weight = (spans.ended[own] - spans.started[own]) / 1e9, spans.weight[own]
    metered = np.isfinite(spans.cpu[own])
    if metered.sum() < _FEWEST:
        return 0.0
    without = _find_without(evidence, wall, weight, metered)
    if without is None or without > _SHORT_SECONDS:
        return 0.0
    return min(max(0.0, _median(wall[metered], weight[metered]) - without), MOST_SECONDS)


def _find_without(evidence: Evidence, wall: Array, weight: Array, metered: Array) -> float | None:
    """Return seconds of a passage without the clocks; None where there are too few to tell."""
    if (~metered).sum() >= _FEWEST:
        return _median(wall[~metered], weight[~metered])
    each, cost = metered & (weight == 1), evidence.profiling.span_cost if evidence.profiling else None
    if cost is None or each.sum() < _FEWEST:
        return None
    return max(0.0, _median(wall[each], weight[each]) - cost.reading_seconds)


def _median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    summed = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(summed, summed[-1] / 2)])
