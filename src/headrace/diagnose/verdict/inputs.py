"""Inputs that grow during a run: the stage is no slower than it was, its items are larger."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.base.units import format_size
from headrace.diagnose.span_columns import Array
from headrace.diagnose.verdict import trends
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.formats.prediction import Change

#: Growth of the cost from which on it is looked at.
_RISE = 1.15
#: Cost per byte may drift by this much and still be called unchanged.
_UNCHANGED = 0.2


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for stages whose cost rises with the size of their items."""
    for view in facts.stages:
        yield from _skew(facts, view)


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
