"""Which batch size is tried next, when to stop, and which one is best. No clock, no processes.

Sizes double from 1. A step of a larger batch uses the machine better, up to where it is busy: two doublings in a row that give
less than 3 % each end the search. Memory grows by the sample, so a straight line through the last two sizes says whether the
next one can fit; one that cannot is not tried, and the largest that the line allows is. What is recommended was run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.runs.formats.batch_search import MemoryModel, SizeTrial

#: More throughput than this is a gain.
GAIN = 0.03
#: Share of the limit that a recommended size leaves free: later batches may be larger, and allocators fragment.
HEADROOM = 0.10
#: From here on a peak tells of the batch: below it is what making the model took for a moment.
_GROWTH = 1.05
#: The size that the line allows is rounded down to such a part of itself, so that it is a round one.
_ROUND = 8


def measured(trials: Sequence[SizeTrial]) -> list[SizeTrial]:
    """Return those that ran, by size."""
    return sorted((trial for trial in trials if trial.outcome == "measured"), key=lambda trial: trial.batch_size)


def predict_peak(trials: Sequence[SizeTrial], batch_size: int) -> float | None:
    """Return the peak that a size will have, bytes; None with fewer than two trials below it."""
    below = [trial for trial in measured(trials) if trial.batch_size < batch_size]
    if len(below) < 2:
        return None
    fixed, slope = _line(below[-2], below[-1])
    return fixed + slope * batch_size


def _line(first: SizeTrial, second: SizeTrial) -> tuple[float, float]:
    """Return the line through two peaks, (bytes at 0, bytes a sample); it never falls."""
    assert first.peak_bytes is not None
    assert second.peak_bytes is not None
    slope = max(0.0, (second.peak_bytes - first.peak_bytes) / (second.batch_size - first.batch_size))
    return second.peak_bytes - slope * second.batch_size, slope


def model_memory(trials: Sequence[SizeTrial]) -> MemoryModel | None:
    """Return the line through the two largest that ran, with the error that its predictions had; None with fewer than two."""
    ran = measured(trials)
    if len(ran) < 2:
        return None
    fixed, slope = _line(ran[-2], ran[-1])
    errors = [
        abs(trial.predicted_peak_bytes / trial.peak_bytes - 1)
        for trial in ran
        if trial.predicted_peak_bytes and trial.peak_bytes and _has_grown(ran, trial)
    ]
    return MemoryModel(fixed_bytes=fixed, bytes_per_sample=slope, error=max(errors, default=None))


def _has_grown(ran: Sequence[SizeTrial], trial: SizeTrial) -> bool:
    """Return whether the two trials that predicted this one already showed memory growing with the size."""
    below = [other.peak_bytes for other in ran if other.batch_size < trial.batch_size and other.peak_bytes]
    return len(below) >= 2 and below[-1] > below[0] * _GROWTH


def next_size(trials: Sequence[SizeTrial], *, limit_bytes: int, largest: int) -> tuple[int | None, str]:
    """Return the size to try next, or None and why there is none.

    Args:
        trials: So far, in the order in which they ran.
        limit_bytes: Of memory.
        largest: Samples in the data set, or what the user allows.
    """
    if not trials:
        return 1, ""
    ran = measured(trials)
    failed = min((trial.batch_size for trial in trials if trial.outcome != "measured"), default=None)
    if not ran:
        return None, f"a batch of {failed} does not fit into memory"
    top = ran[-1].batch_size
    if failed is None and gains_no_more(ran):
        return None, f"two doublings in a row gave less than {GAIN:.0%} more throughput each"
    if top >= largest:
        return None, f"{largest:,} is the largest that the data set or --largest allows"
    doubled = min(2 * top, largest)
    usable = (1 - HEADROOM) * limit_bytes
    predicted = predict_peak(trials, doubled)
    if failed is None and (predicted is None or predicted <= usable):
        return doubled, ""
    fitting = _largest_that_fits(ran, usable, doubled if failed is None else min(doubled, failed - 1))
    if fitting > top:
        return fitting, ""
    return None, "more does not fit into memory" + (
        f": {failed:,} did not" if failed is not None else f": {doubled:,} would need more"
    )


def gains_no_more(ran: Sequence[SizeTrial]) -> bool:
    """Return whether the last two sizes gave less than 3 % each."""
    rates = [trial.samples_per_second or 0.0 for trial in ran]
    return len(rates) >= 3 and all(rates[-k] < rates[-k - 1] * (1 + GAIN) for k in (1, 2))


def _largest_that_fits(ran: Sequence[SizeTrial], usable: float, most: int) -> int:
    """Return a round size between the largest that ran and `most` which the line allows; 0 if it would gain nothing."""
    top = ran[-1].batch_size
    if len(ran) < 2:
        return 0
    fixed, slope = _line(ran[-2], ran[-1])
    allowed = most if slope <= 0 else min(most, math.floor((usable - fixed) / slope))
    step = max(1, 2 ** math.floor(math.log2(max(1, allowed))) // _ROUND)
    rounded = allowed // step * step
    # An eighth more is what one more trial is worth.
    return rounded if rounded >= top * (1 + 1 / _ROUND) else 0


def choose_size(trials: Sequence[SizeTrial], *, limit_bytes: int) -> int | None:
    """Return the smallest size that fits with headroom and is within 3 % of the best throughput of those; None: none fits."""
    fitting = [
        trial
        for trial in measured(trials)
        if trial.peak_bytes is not None and trial.peak_bytes <= (1 - HEADROOM) * limit_bytes
    ]
    if not fitting:
        return None
    best = max(trial.samples_per_second or 0.0 for trial in fitting)
    return next(trial.batch_size for trial in fitting if (trial.samples_per_second or 0.0) >= best * (1 - GAIN))
