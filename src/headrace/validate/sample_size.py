"""How many items a margin needs, said before anything is asked: whose set is too small learns nothing from it."""

from __future__ import annotations

import numpy as np

from headrace.validate.noninferiority import items_planned, judge_drop, largest_discordance
from headrace.validate.policy import Policy

#: Shares of items on which a variant answers otherwise: int8 that is right, and int8 that is nearly so, of ResNet-18 and
#: MobileNetV2 on photographs.
_USUAL = (0.01, 0.02)


def sample_size_told(num_items: int, policy: Policy) -> str:
    """Return what a golden set of so many items can show, in words; empty for metrics that single items do not have.

    The figures are of a test of fixed size, which a test that may be looked at after every item does not beat: at least so
    many are needed. Whether the set can show anything at all is asked of the test itself.

    Args:
        num_items: Of the golden set.
        policy: The margin, and the probability of a wrong acceptance.
    """
    if policy.metric.recount is not None or policy.metric.needs_all:
        return ""
    margin, alpha = policy.max_drop, policy.alpha
    most = largest_discordance(margin, num_items, alpha)
    needed = " and ".join(f"{items_planned(margin, share, alpha):,} for {share:.0%}" for share in _USUAL)
    # By the test itself: of equal answers it needs a quarter more than one of fixed size.
    few = judge_drop(np.zeros(num_items), margin, alpha, is_all=True).outcome != "passed"
    can = (
        "are too few to accept anything"
        if few
        else f"can show that a variant is as good if it answers up to {most:.1%} of them otherwise"
    )
    return (
        f"{num_items:,} golden items, a drop of {100 * margin:g} points allowed: they {can}; it takes at least {needed}"
    )
