"""Whether a larger batch trains as well: validation losses of the same seeds, paired."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from headrace.compare.intervals import FEWEST_PAIRS, centre, paired_interval
from headrace.runs.formats.batch_search import LossComparison

#: Fewer seeds allow no interval at 95 %.
FEWEST_SEEDS = FEWEST_PAIRS


def judge_losses(
    batch_size: int,
    present: Sequence[float],
    larger: Sequence[float],
    *,
    margin: float,
    seconds_ratio: float | None = None,
    at_time: Sequence[float | None] = (),
) -> LossComparison:
    """Return whether a batch size is kept: only if its loss is surely not higher by more than the margin.

    Args:
        batch_size: The larger one.
        present: Validation loss of each seed after the same samples, with the present batch size.
        larger: The same of the larger one.
        margin: Increase that is acceptable, as a share of the present loss.
        seconds_ratio: Time of the larger one to the same samples, over that of the present one.
        at_time: Losses of the larger one after the time that the present one took; None: it was slower.
    """
    scale = statistics.fmean(abs(loss) for loss in present)
    increases = [(new - old) / scale if scale else new - old for old, new in zip(present, larger, strict=True)]
    timed = [
        (new - old) / scale if scale else new - old
        for old, new in zip(present, at_time, strict=False)
        if new is not None and math.isfinite(new)
    ]
    common: dict[str, Any] = {
        "batch_size": batch_size,
        "num_seeds": len(increases),
        "margin": margin,
        "present_loss": statistics.fmean(present),
        "loss": statistics.fmean(larger),
        "seconds_ratio": seconds_ratio,
        "increase_at_equal_time": centre(timed) if timed else None,
    }
    if not all(map(math.isfinite, increases)):
        diverged = sum(not math.isfinite(increase) for increase in increases)
        return LossComparison(
            outcome="worse", why=f"the loss was not a finite number with {diverged} of {len(increases)} seeds", **common
        )
    interval = paired_interval(increases)
    if interval is None:
        why = f"{len(increases)} seeds allow no interval at 95 %; {FEWEST_SEEDS} do"
        return LossComparison(outcome="cannot tell", why=why, increase=centre(increases), **common)
    outcome = "kept" if interval.high <= margin else "worse" if interval.low > margin else "cannot tell"
    return LossComparison(
        outcome=outcome, increase=interval.mid, increase_low=interval.low, increase_high=interval.high, **common
    )
