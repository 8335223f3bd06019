"""Whether a model may take another's place in a running pipeline: the last look, on its own machine, at its own items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.base.meaning import NOTHING_DECLARED, Declared
from headrace.base.plan import ModelPlan
from headrace.validate.agreement import Agreement, explain_unknown
from headrace.validate.detections import LAYOUTS
from headrace.validate.meaning_choice import meaning_of
from headrace.validate.parity import has_broken, name_outputs


def explain_no_switch(
    before: Sequence[Any], after: Sequence[Any], settings: ModelPlan, declared: Declared = NOTHING_DECLARED
) -> str | None:
    """Return why a model may not take over; None if it may.

    It was validated before, on the golden set; here it is only made sure that this machine makes the same of it: one file runs
    in other precisions and other kernels elsewhere. Answers are compared by what they mean. Where nobody can tell that, or
    where there is nothing to compare, a model may take over only if its numbers are the same but for rounding.

    Args:
        before: Answers of the model in use, one for each batch.
        after: Of the new one, to the same batches.
        settings: The new one's `[model]` table.
        declared: What is known of the answers of the model in use.
    """
    what = f"{settings.artifact} on {settings.engine}"
    broken_a, broken_b = (sum(map(has_broken, answers)) for answers in (before, after))
    if broken_b > broken_a:
        return f"{broken_b} of {len(after)} recent batches make {what} answer with a NaN or an infinity"
    if broken_a > broken_b:
        return None  # nothing to hold it against: the model in use is the broken one
    try:
        agreement = _agreement(before, after, declared)
        if not agreement.num_parts:  # neither finds anything: then the numbers decide
            agreement = _agreement(before, after, Declared())
    except ValueError as error:
        return f"{what} cannot be held against the model in use: {error}{_shapes(before)}"
    why = agreement.explain_difference()
    if why is None:
        return None
    unknown = "" if agreement.meaning.is_known else f"; {explain_unknown(before[0])}"
    return f"{what} gives {why} on recent items: on this machine it is not what was validated{unknown}"


def _agreement(before: Sequence[Any], after: Sequence[Any], declared: Declared) -> Agreement:
    found = Agreement(meaning_of(before, declared))
    for one, other in zip(before, after, strict=True):
        found.add(one, other)
    return found


def _shapes(answers: Sequence[Any]) -> str:
    """Return what to do where answers change their shape from batch to batch; nothing where they do not."""
    arrays = [array for one in answers for array in name_outputs(one).values()]
    if len({array.shape[1:] for array in arrays}) <= max(len(name_outputs(one)) for one in answers):
        return ""
    shapes = sorted({str(list(array.shape)) for array in arrays})
    return (
        f"; the answers change their shape from batch to batch ({', '.join(shapes[:4])}): detections could be compared all the "
        f"same, and are read from {LAYOUTS}. To use it anyway, start the run again"
    )
