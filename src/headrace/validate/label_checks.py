"""Whether labels can be those of a model at all, before a candidate is judged by them.

A that is no better than always naming the commonest class shows nothing: labels in another order and wrong preprocessing look
just so. "Better" is McNemar's exact test, one-sided: of the items on which the two differ, A has to win more than a coin would.

Reference:
    Q. McNemar, "Note on the sampling error of the difference between correlated proportions or percentages", Psychometrika 12,
    1947; the exact form is the sign test of the items that differ.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.base.formatting import pluralize

#: Probability at most of believing labels by which A is no better than always naming the commonest class.
_ALPHA = 0.05
#: Items of other classes below which even a faultless A could be chance: a coin falls so often on one side in 1 of 32 cases.
_FEWEST = math.ceil(-math.log2(_ALPHA))


def doubt_of_labels(labels: np.ndarray, found: np.ndarray, num_classes: int) -> str | None:
    """Return in words why a candidate cannot be judged by these labels; None if it can.

    Args:
        labels: (items,) the true classes.
        found: (items,) the classes that A names.
        num_classes: That the model has.
    """
    if labels.min() < 0 or labels.max() >= num_classes:
        return (
            f"the labels go from {labels.min()} to {labels.max()}, and the model has {num_classes} classes: labels are the "
            "classes' places in the output, counted from 0"
        )
    commonest = np.bincount(labels).argmax()
    inside, right = labels == commonest, labels == found
    others = int((~inside).sum())
    if others == 0:
        return None
    won, lost = int((right & ~inside).sum()), int((~right & inside).sum())
    chance = _chance_of(won, won + lost)
    if chance <= _ALPHA:
        return None
    says = (
        f"A itself is right for {right.mean():.2%} of the items, and always naming the commonest class for "
        f"{inside.mean():.2%}"
    )
    if won <= lost:
        return f"{says}: labels or preprocessing are not those of this model"
    more = f"at least {_FEWEST - others} more of them" if others < _FEWEST else "more of them"
    return (
        f"{says}; only {pluralize(others, 'item')} of {len(labels):,} {'is' if others == 1 else 'are'} of another class, and "
        f"{won} right there against {lost} wrong elsewhere can be chance ({chance:.2g}, at most {_ALPHA:g}): add {more} to the "
        "golden set"
    )


def _chance_of(heads: int, tosses: int) -> float:
    """Return how probable so many heads or more are."""
    return sum(math.comb(tosses, count) for count in range(heads, tosses + 1)) / (1 << tosses)
