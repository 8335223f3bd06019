"""How often one slow batch held up batches that were ready: the price of a loader that keeps its order.

With `in_order=True` the loop gets batches in the order of their indices, so while it waits for one, others may lie ready. What
`in_order=False` could give at most is the time from the first of these being ready until the one that was waited for came.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.diagnose.training.steps import LoadedBatches

#: Waits shorter than this are no waits, seconds: a batch takes its time through the queue.
MIN_WAIT_SECONDS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOfLine:
    """What keeping the order cost."""

    num_waits: int
    """Batches that were not ready when the loop asked, and came more than a millisecond later."""
    num_overtaken: int
    """Of these, those that a later batch was ready before."""
    held_up_seconds: float
    """Of waiting while a later batch was ready: at most this is won by `in_order=False`."""
    waited_seconds: float


def find_head_of_line(batches: LoadedBatches) -> HeadOfLine | None:
    """Return what keeping the order cost; None where that was not recorded, or the training thread loads."""
    passage = batches.passage
    if passage is None:
        return None
    # Those of a validation are another loader's.
    order = np.argsort(passage.taken, kind="stable")
    order = order[(batches.step >= 0)[order] & (passage.worker >= 0)[order]]
    if not len(order):
        return None
    ready, asked, taken = passage.ready[order], passage.asked[order], passage.taken[order]
    # When the first of all later batches was ready: the minimum from the end.
    later = np.append(np.minimum.accumulate(ready[::-1])[::-1][1:], np.inf)
    is_wait = (ready > asked) & (taken - asked > MIN_WAIT_SECONDS)
    is_overtaken = is_wait & (later < ready)
    held_up = taken - np.maximum(asked, later)
    return HeadOfLine(
        num_waits=int(is_wait.sum()),
        num_overtaken=int(is_overtaken.sum()),
        held_up_seconds=float(held_up[is_overtaken].sum()),
        waited_seconds=float((taken - asked)[is_wait].sum()),
    )
