"""The cost summary of a search: items an hour, items for money, and right answers that are lost."""

from __future__ import annotations

import re

import msgspec

from headrace.optimize.better_plan import find_accepted_concurrency, find_recommended
from headrace.runs.formats.optimization import Business, OptimizationDocument
from headrace.runs.formats.profile import Estimate

_HOUR = 3600.0
#: Metrics that are a share of right answers.
_SHARE_OF_RIGHT = re.compile(r"top\d+")


def with_cost_summary(document: OptimizationDocument, price_per_hour: float | None) -> OptimizationDocument:
    """Return a search's document with items an hour, for money, and right answers; as it is where nothing was found.

    The whole pipeline counts where it was measured; else variant and concurrency together; else the variant's calls.

    Args:
        document: The search.
        price_per_hour: Of this machine; None: nothing is said of money.
    """
    measured = _find_measured(document)
    if measured is None:
        return document
    of_pipeline, before, ratio = measured
    after = Estimate(*(before * value for value in (ratio.low, ratio.mid, ratio.high)))
    # A search for cost tells of money by CPU time: a second figure, of one caller at a time, would be another one.
    told_already = document.objective == "cost" and not of_pipeline
    paid = price_per_hour is not None and price_per_hour > 0 and not told_already
    found = Business(
        of="pipeline" if of_pipeline else "model",
        before_per_hour=before,
        after_per_hour=after,
        more=Estimate(ratio.low - 1, ratio.mid - 1, ratio.high - 1),
        fewer_right=_fewer_right(document),
        fewer_found=_fewer_found(document),
        before_per_money=before / price_per_hour if paid and price_per_hour else None,
        after_per_money=Estimate(*(value / price_per_hour for value in (after.low, after.mid, after.high)))
        if paid and price_per_hour
        else None,
        says="",
    )
    return msgspec.structs.replace(document, business=msgspec.structs.replace(found, says=_says(found, document)))


def _find_measured(document: OptimizationDocument) -> tuple[bool, float, Estimate] | None:
    """Return (whether of the pipeline, items an hour before, ratio)."""
    variant, concurrency, pipeline = find_recommended(document), document.layout, document.end_to_end
    if variant is None and find_accepted_concurrency(document) is None:
        return None
    if pipeline is not None and pipeline.measured is not None:
        return True, pipeline.before_per_second * _HOUR, pipeline.measured
    if (
        concurrency is not None and concurrency.whole is not None
    ):  # also where the Plan's concurrency stays: the variant was timed in it
        return False, concurrency.whole.before_per_second * _HOUR, concurrency.whole.ratio
    if variant is None or variant.speedup is None or not variant.validation.a.call_seconds:
        return None
    return False, variant.validation.batch / variant.validation.a.call_seconds * _HOUR, variant.speedup


def _fewer_right(document: OptimizationDocument) -> Estimate | None:
    """Return the share of right answers that is lost, where answers are right or wrong."""
    variant = find_recommended(document)
    if variant is None or variant.drop is None or not _SHARE_OF_RIGHT.fullmatch(variant.validation.metric):
        return None
    before = variant.validation.values_of("accuracy").get("a")
    if not before:
        return None
    return Estimate(*(value / before for value in (variant.drop.low, variant.drop.mid, variant.drop.high)))


def _fewer_found(document: OptimizationDocument) -> Estimate | None:
    """Return the share of right detections that is lost."""
    variant = find_recommended(document)
    if variant is None:
        return None
    return variant.validation.interval("accuracy", "fewer_found_low", "fewer_found", "fewer_found_high")


def _says(found: Business, document: OptimizationDocument) -> str:
    after, more, fewer = found.after_per_hour, found.more, found.fewer_right
    # Speed is over what the Plan uses, answers are compared with the model as given.
    than = " than the model as given" if document.in_use else ""
    what = "" if found.of == "pipeline" else " of the model alone"
    parts = [f"{_change(more, 'more', 'fewer')} images an hour{what}"]
    if fewer is not None:
        parts.append(f"for {_change(fewer, 'fewer', 'more')} right answers{than}")
    elif found.fewer_found is not None:
        parts.append(f"for {_change(found.fewer_found, 'fewer', 'more')} right detections{than}")
    said = [" ".join(parts), f"{found.before_per_hour:,.0f} an hour before, {after.mid:,.0f} after"]
    if found.before_per_money is not None and found.after_per_money is not None:
        said.append(
            f"{found.before_per_money:,.0f} for one unit of money before, {found.after_per_money.mid:,.0f} after"
        )
    return "; ".join(said)


def _change(share: Estimate, up: str, down: str) -> str:
    """Return `42 % more (38 to 46)`; the interval has the sign of what is said."""
    sign, word = (1, up) if share.mid >= 0 else (-1, down)
    low, high = sorted((100 * sign * share.low, 100 * sign * share.high))
    return f"{_number(100 * abs(share.mid))} % {word} ({_number(low)} to {_number(high)})"


def _number(percent: float) -> str:
    return f"{percent:.0f}" if abs(percent) >= 10 else f"{percent:.2g}"
