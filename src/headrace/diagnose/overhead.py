"""What profiling cost: CPU per item with the clocks on over CPU per item with them off, from paired blocks of the run itself.

A block's work is counted by its passages through the stages, each weighed with the stage's mean CPU per item, because jobs that
are half done at a block's edge would blur a count of jobs; where passages are not known, jobs are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from headrace.diagnose.estimates import bootstrap_mean
from headrace.runs.formats.profiling import OverheadBlock, OverheadEstimate, ProfilingInfo

#: Pairs below which no interval is given: of fewer, one odd pair decides.
FEWEST_PAIRS = 6
_WRITER = "writing spans"


def overhead_estimate(profile: ProfilingInfo | None, cpu_demand: Mapping[str, float]) -> OverheadEstimate | None:
    """Return the estimate, with the reason where there is no figure; None if the run was not profiled.

    Args:
        profile: How the run was watched.
        cpu_demand: {stage: mean CPU seconds per item}, as weights of the passages.
    """
    if profile is None:
        return None
    ratios = log_ratios(profile.blocks, cpu_demand)
    elapsed = profile.elapsed_seconds
    writer = profile.thread_cpu_seconds.get(_WRITER)
    low = mid = high = None
    if len(ratios) >= FEWEST_PAIRS:
        estimate = bootstrap_mean(np.array(ratios))
        low, mid, high = (math.exp(value) for value in (estimate.low, estimate.mid, estimate.high))
        says = (
            f"profiling changed the CPU time per item by {mid - 1:+.1%} (95 % interval {low - 1:+.1%} to {high - 1:+.1%}, "
            f"{len(ratios)} pairs of blocks)"
        )
    else:
        says = (
            f"not measured: {len(ratios)} pairs of blocks with profiling on and off, at least {FEWEST_PAIRS} are needed; "
            "profile a longer run"
        )
    return OverheadEstimate(
        low=low,
        mid=mid,
        high=high,
        num_pairs=len(ratios),
        says=says,
        helper_core_share=_share(profile.helper_cpu_seconds, elapsed),
        writer_core_share=_share(writer, elapsed),
    )


def log_ratios(blocks: list[OverheadBlock], cpu_demand: Mapping[str, float]) -> list[float]:
    """Return for each pair of neighbouring blocks, one on and one off, the logarithm of their ratio of CPU per work."""
    found = []
    for first, second in zip(blocks[::2], blocks[1::2], strict=False):
        on, off = (first, second) if first.on else (second, first)
        works = [_work(block, cpu_demand) for block in (on, off)]
        if not all(works):
            works = [float(block.items) for block in (on, off)]
        if on.on and not off.on and min(*works, on.cpu_seconds, off.cpu_seconds) > 0:
            found.append(math.log(on.cpu_seconds / works[0]) - math.log(off.cpu_seconds / works[1]))
    return found


def _work(block: OverheadBlock, cpu_demand: Mapping[str, float]) -> float:
    return sum(count * cpu_demand.get(stage, 0.0) for stage, count in block.passages.items())


def _share(seconds: float | None, elapsed: float | None) -> float | None:
    return seconds / elapsed if seconds is not None and elapsed else None
