"""How many candidates the golden set is asked about, and what share of the error each question has.

Testing many candidates inflates false acceptances (multiple comparisons). So the probability of a wrong acceptance is shared
among the questions before any is asked (Bonferroni): whichever of them is answered, and in whatever order, all together accept
a worse one with that probability at most. Asking costs seconds; a share of the error costs items of the golden set.

A question is about a candidate, and stays asked: in a search that goes on after an interruption, what was asked before counts,
and what was accepted before stands only if it was held to no larger share of the error than it would have now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.base.formatting import counted
from headrace.runs.formats.optimization import Attempt

#: Candidates that nothing is trained for that may be asked about: the ladder and its repairs.
MOST_UNTRAINED = 8


@dataclass(slots=True)
class Questions:
    """A share of the error, and those among whom it is divided.

    Args:
        share: Probability that any wrong one among them is accepted, at most.
        most: Questions that may be asked; known without the golden set, or the share would not hold.
    """

    share: float
    most: int
    asked: set[str] = field(default_factory=set)
    """Candidates that were asked about, in an interrupted search too."""

    @property
    def alpha(self) -> float:
        """Probability that one question wrongly accepts, at most."""
        return self.share / self.most

    def why_not(self, candidate: str) -> str | None:
        """Return why a candidate is not asked about; None if it may be, or was."""
        if candidate in self.asked or len(self.asked) < self.most:
            return None
        return f"{counted(self.most, 'candidate')} {'was' if self.most == 1 else 'were'} asked already"

    def stands(self, known: Attempt) -> bool:
        """Count what was asked before, and return whether its outcome is one of these questions: else it is asked again.

        Answers are the same today: who is accepted at a smaller alpha would be at a larger one too. What was turned down, or
        left open, stands in any case, for nothing is accepted by it.
        """
        if self.why_not(known.candidate) is None:
            self.asked.add(known.candidate)
        alpha = known.asked.alpha if known.asked else 1.0
        return known.verdict != "accept" or (known.candidate in self.asked and alpha <= self.alpha * (1 + 1e-9))


def was_asked(attempt: Attempt) -> bool:
    """Return whether the golden set was asked about a candidate; of the model as given it never is."""
    return attempt.drop is not None and bool(attempt.validation.golden_sha256)


def answering(attempt: Attempt) -> tuple[str, int | None]:
    """Return what answers, on whatever engine: a file, and the size of the images that it is given."""
    return attempt.artifact.sha256, attempt.settings.get("input_side")


def most_questions(candidates: Iterable[Attempt], *, each: bool) -> int:
    """Return how many questions candidates can come to, at most; at least 1.

    Of one file on several engines one is asked about, the fastest: if it is not accepted the others are not either, and if it
    is they are no use.

    Args:
        candidates: Those worth asking about, and those that were asked about before.
        each: Whether a slower one is some use all the same, as where the smallest file is looked for.
    """
    found: dict[str | tuple[str, int | None], int] = {}
    for one in candidates:
        file = one.candidate if each else answering(one)
        found[file] = found.get(file, 0) + was_asked(one)
    return max(1, sum(max(1, before) for before in found.values()))
