"""When the pairs are looked at, and by how much each look may err. A plain object: no clock, no threads."""

from __future__ import annotations

from headrace.validate.intervals import ALPHA


class Looks:
    """Looks at the pairs once, or again and again until the answer is there.

    Who looks often finds something sooner or later, also where nothing is. So of several looks, after n, 2 n, 4 n, ... pairs,
    the k-th may err with probability alpha / 2^k only: all together then err with less than alpha (Bonferroni).

    Args:
        first: Pairs before the first look.
        again: Whether there are more.

    Attributes:
        next: Pairs at the look to come.
    """

    def __init__(self, first: int, *, again: bool) -> None:
        self.next = first
        self._again = again
        self._number = 1

    @property
    def alpha(self) -> float:
        """Error probability of the next interim analysis."""
        return ALPHA / 2**self._number if self._again else ALPHA

    def is_over(self, num_pairs: int) -> bool:
        """Return whether there are all pairs that will ever be looked at."""
        return num_pairs >= self.next and not self._again

    def is_due(self, num_pairs: int) -> bool:
        """Return whether to look now, and then go on or not."""
        return self._again and num_pairs == self.next

    def go_on(self) -> None:
        """Prepare the next look: nothing was decided by this one."""
        self.next *= 2
        self._number += 1
