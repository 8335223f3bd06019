"""How evenly the answers of a service come: whether it, and not who asks, sets the pace.

A service with a limit makes requests wait in line, so each takes the longer, the more were asked before it, and answers come at
even steps of time. A slow service without a limit shows neither: who asks more side by side gets more answers. A service that
refuses what is beyond its limit has no line; who asks again until it is let in waits long or not at all, and yet the answers
come at even steps.

References:
    J. Little, "A proof for the queuing formula L = lambda W", 1961: at a fixed rate the time in line grows with what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.diagnose.concurrency import find_calls, fit_growth, is_rationed
from headrace.diagnose.span_columns import Array
from headrace.diagnose.verdict import trends
from headrace.diagnose.verdict.facts import Facts, StageView

#: Spread of the time between answers over its mean: of calls that know nothing of one another it is about 1, and more where
#: they began together; a limit makes it small.
EVEN = 0.5
#: What a request takes that had at most half as many before it as usual, over what one usually takes.
QUICKER = 0.7
#: Requests under way from which on even answers are no accident, and requests with few before them that are needed to compare.
FEWEST_CALLS, _FEWEST_QUICK = 3, 3
#: Share of the time that grows with an item's bytes, from which on it is a link that is full.
_BY_SIZE = 0.5
#: Bytes that an answer adds to an item, from which on they are what takes the time.
_MUCH = 10_000
#: Cores at work from which on they are the limit.
_FULL = 0.85


@dataclass(frozen=True, slots=True)
class Pace:
    """How a stage's answers came."""

    per_second: float
    unevenness: float
    """Spread of the time between two answers over its mean."""
    under_way: float
    """Requests side by side, on average."""
    quick_ratio: float | None
    """Time of requests with at most half as many before them as usual over the usual; None where too few were such."""
    is_rationed: bool = False
    """Requests take unequal times, by luck, and yet the answers come at even steps."""


def find_pace(facts: Facts, view: StageView) -> Pace | None:
    """Return the pace that the other side sets; None where it sets none, or that cannot be told."""
    if view.workers < FEWEST_CALLS or view.account.kind == "device" or _grows_with_bytes(facts, view):
        return None
    pace = _measure_pace(facts, view)
    if pace is None or pace.under_way < FEWEST_CALLS:
        return None
    if pace.unevenness > EVEN and not (pace.is_rationed or _stand_in_line(facts, view)):
        return None
    is_in_line = pace.quick_ratio is not None and pace.quick_ratio <= QUICKER
    return pace if is_in_line or pace.is_rationed else None


def _stand_in_line(facts: Facts, view: StageView) -> bool:
    """Return whether requests took the longer, the more were under way: who takes the answers may make them uneven.

    Not where the cores are full, which a service on this machine shares, nor where much is brought: that line is a full link.
    """
    brought = (view.account.bytes_out or 0.0) - (view.account.bytes_in or 0.0)
    if brought >= _MUCH or facts.core_utilization is None or facts.core_utilization >= _FULL:
        return False
    return fit_growth(facts.evidence, view.name).is_in_line


def _grows_with_bytes(facts: Facts, view: StageView) -> bool:
    sizes = facts.evidence.spans.bytes_out[view.rows].astype(float)
    share = trends.size_share(facts.service_seconds(view), sizes)
    return share is not None and share >= _BY_SIZE


def _measure_pace(facts: Facts, view: StageView) -> Pace | None:
    """Return how a stage's answers came while as many were under way as usual; None of too few."""
    calls = find_calls(facts.evidence, view.name)
    if len(calls[0]) < trends.FEWEST_ITEMS:
        return None
    started, ended = (times / 1e9 for times in calls)
    before = _count_before(started, ended)
    usual = float(np.median(before))
    ends = np.sort(ended)
    gaps, busy = np.diff(ends), _count_begun(started, ends[:-1]) - np.arange(1, len(ends))
    gaps = gaps[busy >= max(1.0, usual / 2)]
    if len(gaps) < trends.FEWEST_ITEMS or gaps.mean() <= 0:
        return None
    seconds, is_quick = ended - started, before <= usual / 2
    ratio = None
    if int(is_quick.sum()) >= _FEWEST_QUICK and usual >= 1:
        ratio = float(np.median(seconds[is_quick]) / max(1e-9, float(np.median(seconds[~is_quick]))))
    is_by_luck = is_rationed(*calls)
    return Pace(1 / float(gaps.mean()), trends.spread(gaps), usual + 1, ratio, is_by_luck)


def _count_before(started: Array, ended: Array) -> Array:
    """Return for each request how many began before it and had no answer yet; of those that began together, who ends first."""
    order = np.lexsort((ended, started))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return np.asarray(place - np.searchsorted(np.sort(ended), started, "right"))


def _count_begun(started: Array, at: Array) -> Array:
    """Return for each moment how many requests had begun before it."""
    return np.asarray(np.searchsorted(np.sort(started), at, "left"))
