"""Whether a model may take another's place in a running pipeline: the last look, on its own machine, at its own items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.base.plan import ModelPlan
from headrace.validate.parity import BANDS, compare_outputs
from headrace.validate.variants import MOST_BANDS, joined


def why_not_switch(before: Sequence[Any], after: Sequence[Any], settings: ModelPlan) -> str | None:
    """Return why a model may not take over; None if it may.

    It was validated before, on the golden set; here it is only made sure that this machine makes the same of it: one file runs
    in other precisions and other kernels elsewhere.

    Args:
        before: Answers of the model in use, one for each batch.
        after: Of the new one, to the same batches.
        settings: The new one's `[model]` table.
    """
    found = compare_outputs(joined(before), joined(after))
    what = f"{settings.artifact} on {settings.engine}"
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
