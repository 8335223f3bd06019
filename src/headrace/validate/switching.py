"""Whether a model may take another's place in a running pipeline: the last look, on its own machine, at its own items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.base.plan import ModelPlan
from headrace.validate.detections import LAYOUTS
from headrace.validate.parity import BANDS, by_name, compare_outputs, has_broken, joined
from headrace.validate.same_detections import MOST_CHANGED, SURE, changed_detections
from headrace.validate.variants import MOST_BANDS


def why_not_switch(before: Sequence[Any], after: Sequence[Any], settings: ModelPlan) -> str | None:
    """Return why a model may not take over; None if it may.

    It was validated before, on the golden set; here it is only made sure that this machine makes the same of it: one file runs
    in other precisions and other kernels elsewhere.

    Args:
        before: Answers of the model in use, one for each batch.
        after: Of the new one, to the same batches.
        settings: The new one's `[model]` table.
    """
    what = f"{settings.artifact} on {settings.engine}"
    detections = [changed_detections(one, other) for one, other in zip(before, after, strict=True)]
    known = [one for one in detections if one is not None]
    if known and len(known) == len(detections):
        return _why_not_detections(before, after, np.concatenate(known), what)
    try:
        found = compare_outputs(joined(before), joined(after))
    except ValueError:
        shapes = sorted(
            {str(list(array.shape)) for answers in (*before, *after) for array in by_name(answers).values()}
        )
        return (
            f"the answers change their shape from batch to batch ({', '.join(shapes[:4])}), so those of {what} cannot be held "
            f"against those of the model in use; detections could be, and are read from {LAYOUTS}. To use it all the same, "
            "start the run again"
        )
    if found.shapes:
        return f"{what} answers in another shape: {'; '.join(found.shapes)}"
    if found.broken_b > found.broken_a:
        return f"{found.broken_b} of {found.num_items} answers of {what} hold a NaN or an infinity"
    if found.broken_a > found.broken_b:
        return None  # nothing to hold it against: the model in use is the broken one
    # Either of the two may be the rougher one.
    limit = MOST_BANDS * BANDS["int8"]
    if found.relative_l2 > limit:
        return (
            f"the answers of {what} are {found.relative_l2:.2g} off those of the model in use (relative L2, {found.num_items} "
            f"recent items; at most {limit:g}): on this machine it is not what was validated"
        )
    return None


def _why_not_detections(before: Sequence[Any], after: Sequence[Any], changed: np.ndarray, what: str) -> str | None:
    """Return why a detector may not take over, from (items,) 1 where it finds something else; None if it may."""
    broken_a, broken_b = (sum(map(has_broken, answers)) for answers in (before, after))
    if broken_b > broken_a:
        return f"{broken_b} of {len(after)} recent batches make {what} answer with a NaN or an infinity"
    if broken_a > broken_b or changed.mean() <= MOST_CHANGED:
        return None
    return (
        f"the detections of {what} are other ones than those of the model in use for {int(changed.sum())} of {len(changed)} "
        f"recent items (at most {MOST_CHANGED:.0%}): what the one finds with a score of {SURE:g} or more, the other does not; "
        "on this machine it is not what was validated"
    )
