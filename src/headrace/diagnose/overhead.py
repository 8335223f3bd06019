"""What profiling cost: the workers' clocks, from paired blocks of the run itself, and what has a CPU clock of its own.

The clocks cost CPU per item with them on over CPU per item with them off. The thread that writes spans, the profiler's thread
and the sampler process run in all blocks alike, so that blocks do not see them; their own CPU clocks do, exactly.

A block's work is counted by its passages through the stages, each weighed with the stage's mean CPU per item, because jobs that
are half done at a block's edge would blur a count of jobs; where passages are not known, jobs are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from headrace.base.formatting import pluralize
from headrace.diagnose.estimates import bootstrap_mean
from headrace.runs.formats.profiling import OverheadBlock, OverheadEstimate, ProfilingInfo

#: Pairs below which no interval is given: of fewer, one odd pair decides.
FEWEST_PAIRS = 6
_WRITER, _THREAD = "writing spans", "profiling"
#: Roles of threads that only a profile needs: what they are called.
_BESIDE = {_WRITER: "writing spans", _THREAD: "the profiler's thread"}
_HELPER = "the sampler process with its start"


def overhead_estimate(profile: ProfilingInfo | None, cpu_demand: Mapping[str, float]) -> OverheadEstimate | None:
    """Return the estimate, with the reason where there is no figure; None if the run was not profiled.

    Args:
        profile: How the run was watched.
        cpu_demand: {stage: mean CPU seconds per item}, as weights of the passages.
    """
    if profile is None:
        return None
    ratios = log_ratios(profile.blocks, cpu_demand)
    beside = _beside(profile)
    clocks = low = mid = high = None
    if len(ratios) >= FEWEST_PAIRS:
        estimate = bootstrap_mean(np.array(ratios))
        clocks = (math.exp(estimate.low), math.exp(estimate.mid), math.exp(estimate.high))
        low, mid, high = (_with_beside(ratio, beside) for ratio in clocks)
        says = (
            f"{mid - 1:+z.1%} CPU time per item (95 % interval {low - 1:+z.1%} to {high - 1:+z.1%}, "
            f"{len(ratios)} pairs of blocks)"
        )
        if beside:
            says += f", of which the clocks {mid - _with_beside(1.0, beside):+z.1%}, {_list_beside(beside)}"
    else:
        says = (
            f"what the clocks cost is not measured: {pluralize(len(ratios), 'pair')} of blocks with the clocks on and off, "
            f"at least {FEWEST_PAIRS} are needed; profile a longer run"
        )
        if beside:
            says += f". Beside them, in CPU time per item: {_list_beside(beside)}"
    if profile.span_cost is not None:
        reading, limit = profile.span_cost.reading_seconds, profile.span_limit_per_second or 0.0
        says += f". One reading of the clocks takes {reading * 1e6:.1f} us here: at most {limit:,.0f} spans a second are kept"
    elapsed = profile.elapsed_seconds
    return OverheadEstimate(
        low=low,
        mid=mid,
        high=high,
        clocks_ratio=clocks,
        num_pairs=len(ratios),
        says=says,
        helper_core_share=_share(profile.helper_cpu_seconds, elapsed),
        writer_core_share=_share(profile.thread_cpu_seconds.get(_WRITER), elapsed),
        thread_core_share=_share(profile.thread_cpu_seconds.get(_THREAD), elapsed),
    )


def _beside(profile: ProfilingInfo) -> dict[str, float]:
    """Return {what: its CPU time over that of the run without it}, for all that has a CPU clock of its own."""
    threads = {what: profile.thread_cpu_seconds.get(role) for role, what in _BESIDE.items()}
    known = {what: seconds for what, seconds in threads.items() if seconds is not None}
    plain = (profile.process_cpu_seconds or 0.0) - sum(known.values())
    if profile.helper_cpu_seconds is not None:
        known[_HELPER] = profile.helper_cpu_seconds
    return {what: seconds / plain for what, seconds in known.items()} if plain > 0 else {}


def _with_beside(ratio: float, beside: Mapping[str, float]) -> float:
    """Return the ratio of all that profiling did, from that of the clocks.

    Blocks with the clocks on and off both hold the threads, and neither the sampler: with threads t and sampler h as shares of
    the rest, on / off = (plain on + t) / (1 + t), and what is wanted is plain on + t + h.
    """
    threads = sum(share for what, share in beside.items() if what != _HELPER)
    return ratio * (1 + threads) + beside.get(_HELPER, 0.0)


def _list_beside(beside: Mapping[str, float]) -> str:
    return ", ".join(f"{what} {share:+z.1%}" for what, share in beside.items())


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
