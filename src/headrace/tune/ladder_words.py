"""Says in words what a ladder found."""

from __future__ import annotations

import msgspec

from headrace.base.formatting import pluralize
from headrace.compare.intervals import FEWEST_PAIRS
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.tuning import LadderDocument, LadderStep


def describe(document: LadderDocument) -> LadderDocument:
    """Return the document with its sentences, and each step with its own."""
    rounds = document.num_rounds
    steps = tuple(
        msgspec.structs.replace(step, says=f"{step.says}: {verdict(step, rounds)}" if step.ratio_before else step.says)
        for step in document.steps
    )
    lines = [
        "The device was emulated: its times are settings, not measurements." if document.is_emulated else "",
        _whole(document),
        _cost(document),
        *_agreement(document),
        _predictions(document),
        "It was interrupted: this is from what was measured until then." if document.interrupted else "",
    ]
    return msgspec.structs.replace(document, steps=steps, says=tuple(line for line in lines if line))


def verdict(step: LadderStep, num_rounds: int) -> str:
    """Return what a step did against the one before, in words; from too few rounds nothing but the ratio."""
    ratio = step.ratio_before
    if ratio is None:
        return "the start"
    if num_rounds < FEWEST_PAIRS:
        return f"x{ratio.mid:.2f} so far; {pluralize(num_rounds, 'round')} cannot tell more, {FEWEST_PAIRS} can"
    if ratio.low <= 1 <= ratio.high:
        return f"no change ({format_ratio(ratio)} holds 1)"
    return f"{'faster' if ratio.mid > 1 else 'slower'}, {format_ratio(ratio)}"


def format_ratio(ratio: Estimate) -> str:
    """Return a ratio with its interval: `x2.32 (2.28 to 2.36)`."""
    digits = 2 if ratio.mid < 10 else 1
    return f"x{ratio.mid:.{digits}f} ({ratio.low:.{digits}f} to {ratio.high:.{digits}f})"


def _whole(document: LadderDocument) -> str:
    first, last = document.steps[0], document.steps[-1]
    if first.throughput is None or last.throughput is None or last.ratio_first is None:
        return "Too little was measured to tell the whole."
    return (
        f"From {first.throughput:.3g}/s to {last.throughput:.3g}/s: {format_ratio(last.ratio_first)}, from "
        f"{pluralize(document.num_rounds, 'round')} of {document.num_items:,} items, run in turn."
    )


def _cost(document: LadderDocument) -> str:
    first, last = document.steps[0], document.steps[-1]
    if not first.cost_per_thousand or not last.cost_per_thousand:
        return ""
    return f"1,000 items cost {first.cost_per_thousand:.3g} at first and {last.cost_per_thousand:.3g} at the end."


def _agreement(document: LadderDocument) -> list[str]:
    differing = [step for step in document.steps[1:] if step.num_agreeing != step.num_checked]
    checked = document.steps[0].num_checked
    if not differing:
        return [f"All steps gave the same results, of {pluralize(checked, 'item')} looked at."] if checked else []
    lines = []
    for step in differing:
        agree = f"{step.num_agreeing} of {step.num_checked} results agree with those of the first step"
        expected = step.name in ("decode at scale", "engine") or _comes_after_lossy(document, step)
        lines.append(
            f"{step.name}: {agree}"
            + (
                "; other pixels or another engine may change some, so look at them."
                if expected
                else ", and this step must not change any: look at them before you take it."
            )
        )
    return lines


def _comes_after_lossy(document: LadderDocument, step: LadderStep) -> bool:
    names = [one.name for one in document.steps[: document.steps.index(step)]]
    return "decode at scale" in names


def _predictions(document: LadderDocument) -> str:
    told = [step for step in document.steps if step.prediction_error is not None]
    if not told:
        return ""
    errors = [abs(step.prediction_error or 0.0) for step in told]
    return (
        f"Predicted from the first step's profile alone, before the others ran: mean error {sum(errors) / len(errors):.1%}, "
        f"largest {max(errors):.1%}; {sum(map(_is_inside, told))} of {len(told)} lie within the measured intervals. Before "
        f"this ladder: {document.record.says}."
    )


def _is_inside(step: LadderStep) -> bool:
    """Return whether the measured interval holds the predicted ratio to the first step."""
    ratio = step.ratio_first
    return ratio is not None and ratio.low <= ratio.mid * (1 + (step.prediction_error or 0.0)) <= ratio.high
