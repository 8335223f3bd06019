"""The alpha budget: how many candidates may be tested on the golden set, and at what level each.

Testing many candidates inflates false acceptances (multiple comparisons). So the probability of a wrong acceptance is shared
equally among the tests before any is made (Bonferroni): in whatever order they are made, all together accept a worse candidate
with that probability at most. A test costs seconds; a share of alpha costs items of the golden set.

A test counts once it was made, in an earlier, interrupted search too. What was accepted then stands only if its alpha was no
larger than that of a test now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.base.formatting import pluralize
from headrace.runs.formats.optimization import Attempt


@dataclass(slots=True)
class AlphaBudget:
    """A share of alpha, and the tests among which it is divided.

    Args:
        share: Probability that any wrong one of them is accepted, at most.
        max_tests: Tests that may be made; known without the golden set, or the share would not hold.
    """

    share: float
    max_tests: int
    tested: set[str] = field(default_factory=set)
    """Candidates that were tested, in an interrupted search too."""

    @property
    def alpha(self) -> float:
        """Level of one test: the probability that it wrongly accepts, at most."""
        return self.share / self.max_tests

    def why_not(self, candidate: str) -> str | None:
        """Return why a candidate is not tested; None if it may be, or was."""
        if candidate in self.tested or len(self.tested) < self.max_tests:
            return None
        return f"{pluralize(self.max_tests, 'candidate')} {'was' if self.max_tests == 1 else 'were'} asked already"

    def accepts_earlier(self, known: Attempt) -> bool:
        """Count an earlier test, and return whether its outcome stands; if not, the candidate is tested again.

        Answers are the same today: who is accepted at a smaller alpha would be at a larger one too. What was rejected, or left
        open, stands in any case, for nothing is accepted by it.
        """
        if self.why_not(known.candidate) is None:
            self.tested.add(known.candidate)
        alpha = known.asked.alpha if known.asked else 1.0
        return known.verdict != "accept" or (known.candidate in self.tested and alpha <= self.alpha * (1 + 1e-9))


def is_tested(attempt: Attempt) -> bool:
    """Return whether a candidate was tested on the golden set; the model as given never is."""
    return attempt.drop is not None and bool(attempt.validation.golden_sha256)


def network_of(attempt: Attempt) -> tuple[str, int | None]:
    """Return what decides the answers on any engine: a file, and the size of the images that it is given."""
    return attempt.artifact.sha256, attempt.settings.get("input_side")


def count_tests(candidates: Iterable[Attempt], *, each: bool) -> int:
    """Return how many tests candidates can come to, at most; at least 1.

    Of one file on several engines one is tested, the fastest: if it is not accepted the others are not either, and if it is
    they are no use.

    Args:
        candidates: Those worth testing, and those that were tested before.
        each: Whether a slower one is some use all the same, as where the smallest file is looked for.
    """
    found: dict[str | tuple[str, int | None], int] = {}
    for one in candidates:
        network = one.candidate if each else network_of(one)
        found[network] = found.get(network, 0) + is_tested(one)
    return max(1, sum(max(1, before) for before in found.values()))
