"""Whether a candidate surely loses a kind of answer, parts, or agreement, of which traffic shows more and more.

`Agreement` judges answers that are all there, such as those to a golden set. Here one looks again and again while items come,
and the first of them may be odd ones: what is said is sure whenever one looks (`excess`). Each item counts once, whatever
number of parts its answer has, because the parts of one image are lost together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

from headrace.base.meaning import Meaning
from headrace.validate.agreement import LOST, MOST_LOST
from headrace.validate.excess import Excess

#: Probability of a wrong word, shared among three questions, and among the kinds of the first.
_ALPHA = 0.05 / 3
#: A kind is lost if that happens more often than not.
_OFTEN = 0.5
_MOST_NAMED = 4


class SureDifference:
    """Not thread-safe.

    Args:
        meaning: Of the answers; nothing is said where it is not known.
        name: Names a kind.
    """

    def __init__(self, meaning: Meaning, name: Callable[[Hashable], str] = str) -> None:
        self._meaning = meaning
        self._name = name
        self._kinds: defaultdict[Hashable, Excess] = defaultdict(lambda: Excess(_OFTEN))
        self._lost = Excess(MOST_LOST)
        self._apart = Excess(1 - meaning.usual)

    def add(self, parts: Sequence[tuple[Hashable, float]]) -> None:
        """Note the parts of one item that both answered: (kind, agreement), as a meaning tells them."""
        if not parts or not self._meaning.is_known:
            return
        lost: defaultdict[Hashable, list[float]] = defaultdict(list)
        for kind, agreement in parts:
            lost[kind].append(0.0 if agreement >= LOST else 1.0)  # a NaN is lost
        for kind, values in lost.items():
            self._kinds[kind].add(sum(values) / len(values))
        self._lost.add(sum(sum(values) for values in lost.values()) / len(parts))
        self._apart.add(sum(1 - _bounded(agreement) for _, agreement in parts) / len(parts))

    def explain(self) -> str | None:
        """Return why the candidate surely does not answer what the other does; None if that is not sure."""
        return next((says for excess, alpha, says in self._questions() if excess.is_sure(alpha)), None)

    def explain_doubt(self) -> str | None:
        """Return what looks like a difference and is none yet, and about how many answers would tell; None: nothing does."""
        for excess, alpha, says in self._questions():
            missing = excess.count_missing(alpha)
            if missing is not None:
                return f"{says}: not sure, about {missing:,} more such answers would tell"
        return None

    def _questions(self) -> Iterator[tuple[Excess, float, str]]:
        """Give the evidence for each difference, the probability of a wrong word about it, and that in words."""
        name, alpha = self._meaning.name, _ALPHA / max(1, len(self._kinds))
        kinds = sorted(self._kinds.items(), key=lambda one: -one[1].num)
        for sure in (True, False):
            lost = [(kind, one) for kind, one in kinds if one.is_seen and one.is_sure(alpha) is sure]
            if lost:
                named = ", ".join(
                    f"{self._name(kind)} ({one.total:.4g} of {one.num})" for kind, one in lost[:_MOST_NAMED]
                )
                yield lost[0][1], alpha, f"other {name} mostly for {named}"
        share = self._lost.total / max(1, self._lost.num)
        yield self._lost, _ALPHA, f"other {name}: {share:.0%} of their parts are not there (at most {MOST_LOST:.0%})"
        mean = 1 - self._apart.total / max(1, self._apart.num)
        yield self._apart, _ALPHA, f"other {name}: they agree by {mean:.2f}, usual is {self._meaning.usual:g} or more"


def _bounded(agreement: float) -> float:
    return min(1.0, max(0.0, agreement)) if agreement == agreement else 0.0
