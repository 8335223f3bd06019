"""What a model's answers mean, so that two variants of it can be compared by what a task makes of them.

Numbers of mixed units hide what counts: in the head of a detector coordinates of hundreds of pixels stand beside scores from 0
to 1, and a norm over both does not see a detector that finds nothing. A meaning reads answers (classes, boxes, text, masks,
embeddings) and says how far two of them agree. The kinds that headrace knows are in `validate.meanings`; a user writes another
one by `read` and `same`.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Gist:
    """What an answer comes to in few words, for those who count and show answers."""

    kind: Hashable = None
    """The class that it names, of several the surest; None: it names none."""
    certainty: float | None = None
    """From 0 to 1; None: the answer does not say."""
    boxes: Sequence[tuple[Hashable, float, Sequence[float]]] = ()
    """Class, score, and x1, y1, x2, y2 in pixels of the model's input, of each object that it found."""


class Meaning(abc.ABC):
    """What the answers of a model mean: named by `Module.output`, or found from the model's file and the answers' shapes.

    Attributes:
        name: Of the kind of answer, such as `text`.
        least: Two answers that agree by less than this are different ones.
        usual: Mean agreement, of parts where there are any, else of items, that two right variants reach.
        most_changed: Share of the items with another answer that two right variants do not exceed.
        is_known: Whether it says what a task makes of an answer; if not, nothing is switched or promoted by it.
    """

    name: str = "own"
    least: float = 0.5
    usual: float = 0.8
    most_changed: float = 0.25
    is_known: bool = True

    @abc.abstractmethod
    def read(self, outputs: Any) -> Sequence[Any]:
        """Return the answer to each item of one call.

        Args:
            outputs: Array (items, ...), or {name: array} where the model has several outputs.

        Raises:
            ValueError: If they hold no such answers.
        """

    @abc.abstractmethod
    def same(self, a: Any, b: Any) -> float:
        """Return how far two answers agree, from 0 to 1."""

    def gist(self, answer: Any) -> Gist:
        """Return what one answer, as `read` returns it, comes to; the default: nothing is known."""
        return Gist()

    def parts(self, a: Any, b: Any) -> Iterable[tuple[Hashable, float]]:
        """Give (kind, agreement from 0 to 1) of each part of two answers: a box by its class, a character, a region.

        A kind that is surely lost (a class that is never found any more) is a defect, however rare it is.
        """
        return (("", self.same(a, b)),)

    def fitted(self, answers: Sequence[Any]) -> Meaning:
        """Return it with what it leaves open settled by answers of the model in use, call by call."""
        return self


#: Named by the user, for the only output or by the outputs' names; None: nothing is declared.
Output = Meaning | Mapping[str, Meaning] | None


@dataclass(frozen=True, slots=True)
class Declared:
    """What is known of a model's answers before any is seen."""

    output: Output = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What the model's file says of itself."""


NOTHING_DECLARED = Declared()
