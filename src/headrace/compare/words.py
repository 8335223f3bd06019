"""Says in words what a comparison found."""

from __future__ import annotations

from headrace.base.formatting import pluralize
from headrace.compare.judging import MOST_LOST, lost_share
from headrace.runs.formats.comparison import ComparisonDocument
from headrace.runs.formats.profile import EMULATED

#: Most pairs of blocks that can be asked for.
MOST_PAIRS = 1000

_METRICS = {
    "throughput": "throughput",
    "latency_p50": "median latency",
    "cpu_per_item": "CPU time per item",
}


def describe(document: ComparisonDocument) -> tuple[str, ...]:
    """Return what a document says, one sentence each; `says` itself is not looked at."""
    lines = [_headline(document), _budget(document), _method(document)]
    if document.environment.get("emulated"):
        lines.append(EMULATED)
    if document.interrupted:
        lines.append(
            f"It was interrupted: this is from the {pluralize(document.num_pairs, 'pair')} measured until then."
        )
    return tuple(line for line in lines if line)


def _headline(document: ComparisonDocument) -> str:
    return {
        "better": _explain_changed,
        "worse": _explain_changed,
        "no_difference": _explain_no_difference,
        "underpowered": _explain_underpowered,
    }[document.verdict](document)


def _explain_changed(document: ComparisonDocument) -> str:
    delivered_a, delivered_b = document.environment.get("delivered_share", (1.0, 1.0))
    if lost_share((delivered_a, delivered_b)) > MOST_LOST:
        return f"B is worse, whatever its rate: it delivers {delivered_b:.1%} of the jobs, and A {delivered_a:.1%}."
    return f"B is {document.verdict}: {_effect(document)}."


def _explain_no_difference(document: ComparisonDocument) -> str:
    return f"No difference: {_effect(document)}, all within {document.margin:.1%} of the same."


def _explain_underpowered(document: ComparisonDocument) -> str:
    head = f"It cannot be told yet: {_effect(document)}"
    if not document.paired:
        return f"{head}; recorded runs only tell differences beyond {document.margin:.0%}. --measure runs them again in pairs."
    if document.environment.get("side_by_side"):
        return f"{head}; more jobs under both Plans would tell."
    needed = document.pairs_needed or 0
    more = pluralize(needed, "more pair")
    if document.num_pairs + needed > MOST_PAIRS:
        longer = " with --seconds" if "items_per_block" in document.environment else ""
        return f"{head}; it would take about {more}: quieten the machine, or lengthen the blocks{longer}."
    return f"{head}; about {more} would tell (--blocks {document.num_pairs + needed}, or --until-sure)."


def _effect(document: ComparisonDocument) -> str:
    metric = _METRICS[document.metric]
    if document.ratio_low is None or document.ratio_high is None:
        (ratio,) = _format_alike(document.ratio)
        return f"{metric} of B is {ratio} in {pluralize(document.num_pairs, 'pair')}, too few for an interval"
    confidence = document.environment.get("confidence", 0.95)
    ratio, low, high = _format_alike(document.ratio, document.ratio_low, document.ratio_high)
    return f"{metric} of B is {ratio} ({100 * confidence:.4g} % interval {low} to {high})"


def _format_alike(*ratios: float | None) -> list[str]:
    """Return ratios as people say them: `+4.8 %`, or `x2.31` where one of them is a doubling, or a half, or beyond."""
    as_factor = any(ratio is not None and not 0.5 < ratio < 2 for ratio in ratios)
    return [
        "not known" if ratio is None else f"x{ratio:.3g}" if as_factor else f"{100 * (ratio - 1):+z.1f} %"
        for ratio in ratios
    ]


def _budget(document: ComparisonDocument) -> str:
    if document.budget is None:
        return ""
    share = f"{document.budget:.1%}"
    if document.budget_met is None:
        return f"Whether the loss stays within the budget of {share} cannot be told yet."
    return f"The loss {'stays within' if document.budget_met else 'is beyond'} the budget of {share}."


def _method(document: ComparisonDocument) -> str:
    if not document.paired:
        return (
            f"The runs were not made at the same time: differences up to {document.margin:.0%} may be the machine's, and count "
            "as none."
        )
    if document.environment.get("side_by_side"):
        return f"Both answered at the same time: each of {document.num_pairs} stretches of it is a pair."
    items = document.environment.get("items_per_block")
    return f"{pluralize(document.num_pairs, 'pair')} of blocks of {items:,} items, run in turn." if items else ""
