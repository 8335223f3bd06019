"""How much faster the rest of a thread's work becomes where a change takes loading away from between it, or slower with more.

A thread that slept, or read and decoded other data, comes back to caches that hold something else: its core was halted, or lent
to somebody else, or what it held was pushed out. So CPU times that were recorded next to reading and decoding are longer
than the same work needs without those, and what takes loading away makes the rest cheaper, too. Where the training thread
begins to load, each of both comes back to caches that hold the other's; where it ceases to, neither does any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.diagnose.training.simulation_needs import Needs
from headrace.runs.training_phases import LoaderWork, Phase

#: By which share of it the CPU time of the rest falls, for each share of a thread's time that was loading and is taken away.
#: Between what items kept in memory and faster reading showed on two quiet virtual cores of an Intel Xeon of model 207: without
#: any sleep the same phases took 4 to 15 % less CPU, without decoding too another 2 to 8 %, and up to 28 % beside neighbours.
WARMTH = 0.2


def taken_share(
    before: Mapping[LoaderWork, Needs], after: Mapping[LoaderWork, Needs], others: Iterable[Needs] = ()
) -> float:
    """Return which share of a thread's time was loading that a change takes away, 0 to 1.

    Args:
        before: What loading needed as it was recorded.
        after: The same with a change made; parts that it adds, or makes longer, do not count.
        others: What else the same thread does.
    """
    whole = sum(_seconds(needs) for needs in (*before.values(), *others))
    gone = sum(max(0.0, _seconds(needs) - _seconds(after[work])) for work, needs in before.items() if work in after)
    return gone / whole if whole > 0 else 0.0


def loading_share(loads: Mapping[LoaderWork, Needs], phases: Mapping[Phase, Needs]) -> float:
    """Return which share of its time a thread that loads and trains would load, 0 to 1."""
    loading, training = (sum(map(_seconds, needs.values())) for needs in (loads, phases))
    return loading / (loading + training) if loading + training > 0 else 0.0


def _seconds(needs: Needs) -> float:
    return float(needs.total.sum())
