"""Inputs that differ: items that grow during a run, and a kind of items that costs many times what the others do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.base.units import format_duration, format_size
from headrace.diagnose.span_columns import Array
from headrace.diagnose.verdict import trends
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.network import is_waiting
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import EvidenceLine, VerdictClass
from headrace.runs.formats.prediction import Change

#: Growth of the cost from which on it is looked at.
_RISE = 1.15
#: Cost per byte may drift by this much and still be called unchanged.
_UNCHANGED = 0.2
#: What the costly kind costs over the others; share of the spread between the two; share of the time that it takes.
_TIMES, _APART, _OF_TIME = 4.0, 0.8, 0.3
#: What a costly item costs at least, seconds: below, a cold cache makes as much of a difference.
_LEAST_SECONDS = 0.001
#: Of the items: more than these are no exception. And fewer are none that come again.
_MOST_ITEMS, _FEWEST_ITEMS = 0.5, 5
#: Where in the run the middle one of them came, 0 to 1: costly items at the beginning or the end are something else.
_FROM, _TO = 0.2, 0.8
_NUM_EXAMPLES = 3


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for stages whose cost rises with the size of their items."""
    for view in facts.stages:
        yield from _skew(facts, view)
        if view.work != "model" and not is_waiting(view):
            yield from _propose_kinds(facts, view)


def _skew(facts: Facts, view: StageView) -> Iterator[Proposal]:
    spans, own = facts.evidence.spans, facts.evidence.stage_rows(view.name)
    started = spans.started[own]
    cost = facts.own_seconds(view, np.arange(own.start, own.stop))
    risen = trends.growth(started, cost)
    if risen is None or not risen.is_rise or risen.ratio < _RISE or risen.excess_share < WORTH_NAMING:
        return
    found = _find_explaining_size(started, cost, spans.bytes_in[own].astype(float), spans.bytes_out[own].astype(float))
    if found is None:
        return
    sizes, left = found
    before, after = format_size(sizes.early), format_size(sizes.late)
    yield Proposal(
        verdict=VerdictClass.INPUT_SKEW,
        stage=view.name,
        says=(
            f"items grew from {before} to {after} during the run, and {view.name} takes {risen.ratio:.1f} times as long for "
            "them as at the beginning; its cost for a size did not change"
        ),
        rule=(
            f"cost per item rises by at least {_RISE - 1:.0%}, as does the size of the items, and what size does not explain "
            f"changes by at most {_UNCHANGED:.0%}"
        ),
        resources=view.resources,
        share=risen.excess_share,
        evidence=(
            line("cost_rise", f"cost per item, end over beginning: x{risen.ratio:.2f}", risen.ratio, _RISE, True),
            line("size_rise", f"size of items, end over beginning: x{sizes.ratio:.2f}", sizes.ratio, _RISE, True),
            line("rest", f"cost for a size, end over beginning: x{left:.2f}", left, 1 + _UNCHANGED, True),
            at_least("excess", "share of the stage's time due to larger items", risen.excess_share, WORTH_NAMING),
        ),
        advice=(
            Advice(says="find out why inputs grew; have them made smaller at the source, or decode at a smaller scale"),
            Advice(
                says=f"as small as they were, {view.name} would take less",
                change=Change(speedups={view.name: risen.mean / risen.early}),
            ),
        ),
        removal=Change(speedups={view.name: 4.0}),
    )


def _find_explaining_size(started: Array, cost: Array, *sizes: Array) -> tuple[trends.Growth, float] | None:
    """Return the growth of the size that explains the cost, and the growth that it leaves; None if none does."""
    known = np.isfinite(cost)
    for size in sizes:
        grown = trends.growth(started[known], size[known])
        if grown is None or not grown.is_rise or grown.ratio < _RISE:
            continue
        slope, start = np.polyfit(size[known], cost[known], 1)
        expected = np.maximum(start + slope * size[known], 1e-9)
        left = trends.growth(started[known], cost[known] / expected)
        if slope > 0 and left is not None and abs(left.ratio - 1) <= _UNCHANGED:
            return grown, left.ratio
    return None


def _propose_kinds(facts: Facts, view: StageView) -> Iterator[Proposal]:
    spans = facts.evidence.spans
    if _is_held_up(facts, view):
        return
    cost = facts.own_seconds(view)
    rows = view.rows[np.isfinite(cost)]
    cost = cost[np.isfinite(cost)]
    kinds = trends.two_kinds(cost)
    if kinds is None or kinds.explained < _APART or kinds.large < max(_LEAST_SECONDS, _TIMES * kinds.usual):
        return
    costly = rows[kinds.is_large]
    place = float((spans.started[rows] < np.median(spans.started[costly])).mean())
    excess = float((cost[kinds.is_large] - kinds.usual).sum()) / float(cost.sum())
    if kinds.share > _MOST_ITEMS or len(costly) < _FEWEST_ITEMS or excess < _OF_TIME or not _FROM <= place <= _TO:
        return
    typical = costly[np.argsort(np.abs(cost[kinds.is_large] - kinds.large), kind="stable")[:_NUM_EXAMPLES]]
    examples = ", ".join(str(spans.unit_ids[int(spans.unit[row])]) for row in typical)
    yield Proposal(
        verdict=VerdictClass.INPUT_SKEW,
        stage=view.name,
        cause="kinds",
        says=(
            f"{kinds.share:.1%} of the items cost {view.name} {format_duration(kinds.large)} and the others "
            f"{format_duration(kinds.usual)}: they take {excess:.0%} of its time beyond what the others would. Such items: "
            f"{examples}"
        ),
        rule=(
            f"the items' costs fall into two groups: at most {_MOST_ITEMS:.0%} of them cost at least {_TIMES:g} times the "
            f"others, all over the run, and take at least {_OF_TIME:.0%} of the stage's time in excess"
        ),
        resources=view.resources,
        share=excess,
        evidence=(
            line(
                "times",
                f"a costly item costs x{kinds.large / kinds.usual:.1f}",
                kinds.large / kinds.usual,
                _TIMES,
                True,
            ),
            line(
                "apart",
                f"of the spread of costs {kinds.explained:.0%} lies between the two groups (from {_APART:.0%})",
                kinds.explained,
                _APART,
                True,
            ),
            at_least("excess", "share of the stage's time that they take beyond the others", excess, _OF_TIME),
            _size_line(spans.bytes_in[rows].astype(float), kinds),
        ),
        advice=(
            Advice(
                says="look at these items: what is done for them alone, and whether a cheaper way does (predicted as if they "
                "cost what the others do)",
                change=Change(speedups={view.name: 1 / max(0.05, 1 - excess)}),
            ),
            Advice(says="or give them a queue and workers of their own, so that the others do not wait behind them"),
        ),
        removal=Change(speedups={view.name: 1 / max(0.05, 1 - excess)}),
    )


def _is_held_up(facts: Facts, view: StageView) -> bool:
    """Return whether what items cost is not known: the stage hardly computes, and may wait for the GIL or a lock."""
    waits = view.waits("gil", "lock")
    return not facts.is_costed_by_cpu(view) and (waits is None or waits >= WORTH_NAMING)


def _size_line(sizes: Array, kinds: trends.Kinds) -> EvidenceLine:
    """Return whether the costly items are the large ones."""
    usual, costly = float(np.median(sizes[~kinds.is_large])), float(np.median(sizes[kinds.is_large]))
    if usual <= 0:
        return line("sizes", "sizes of the items: not measured", None)
    return line("sizes", f"a costly item has {format_size(costly)}, another {format_size(usual)}", costly / usual)
