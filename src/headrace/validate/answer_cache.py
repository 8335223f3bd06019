"""What the incumbent answered, kept: a search asks it the same for every candidate, and each time takes minutes.

What is kept is what a judge makes of the answers (first classes, scores, boxes, counted pixels), as it is made in full and in
one order of batches whoever the candidate is. So a verdict does not depend on whether something was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

#: 5,500 items of 1,000 scores in float32, which a metric of the set needs whole, are 22 MB.
MOST_BYTES = 128 * 1024**2


@dataclass(frozen=True, slots=True)
class AnswerCache:
    """What was asked, by everything that decides it. For one process, in which files do not change; not for threads."""

    most_bytes: int = MOST_BYTES
    """The most bytes of one kept answer; larger ones are computed again each time. 0: nothing is kept.

    A search keeps two that may be large: the outputs that are compared number by number, and what the metric reads.
    """
    kept: dict[tuple[Hashable, ...], Any] = field(default_factory=dict)
    """{what decides: what came of it}."""
    decides: tuple[Hashable, ...] = ()
    """The model, the items, how they are asked: part of every key."""

    def narrow(self, *decides: Hashable) -> AnswerCache:
        """Return the same for what all of this decides."""
        return replace(self, decides=decides)

    def once(self, what: Hashable, ask: Callable[[], T | None]) -> T | None:
        """Return what came of asking; None, for one that was interrupted, is not kept.

        Args:
            what: Is asked, such as the gate's name.
            ask: Called where it is not known.
        """
        key = (*self.decides, what)
        if key in self.kept:
            found: T = self.kept[key]
            return found
        answer = ask()
        if answer is not None and 0 < num_bytes(answer) <= self.most_bytes:
            self.kept[key] = answer
        return answer


def num_bytes(answer: object) -> int:
    """Return the bytes of the arrays of an answer; of dataclasses, mappings, lists and tuples those inside them."""
    if isinstance(answer, np.ndarray):
        return answer.nbytes
    if is_dataclass(answer):
        return sum(num_bytes(getattr(answer, one.name)) for one in fields(answer))
    inside = answer.values() if isinstance(answer, Mapping) else answer if isinstance(answer, list | tuple) else ()
    return sum(map(num_bytes, inside))
