"""Measures alternatives in turn: the loop of every comparison by measurement.

How this works: a round measures each alternative once. Rounds run forwards and backwards in the order of Thue and Morse (A B,
B A, B A, A B, ...), which gives a steady drift of the machine, and one that bends, to all alike; what a round still has of it
counts as noise. Measurements are compared within a round, so that slow minutes of a shared machine hit both sides of a pair or
show as an outlier, which the interval takes calmly. After the rounds that `looks` names the caller is asked whether the answer
is there; see `headrace.compare.sequential`. Ctrl-C ends it with the measurements at hand.

References:
    L. Bulej et al., "Duet benchmarking: improving measurement accuracy in the cloud", 2020: pairs, but side by side; on
    saturated cores that would change what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from headrace.base.errors import Interrupted
from headrace.compare.intervals import ALPHA
from headrace.compare.sequential import Look

M = TypeVar("M")


@dataclass(slots=True)
class Turns(Generic[M]):
    """What was measured so far."""

    rounds: list[dict[str, M]] = field(default_factory=list)
    """{alternative: what its block measured} of each round, in order; a block that tells nothing is missing."""
    alpha: float = ALPHA
    """By how much the look at these rounds may err."""
    num_looks: int = 1
    """Looks at these rounds so far, with the one to come."""
    interrupted: bool = False
    """The user stopped it; the last round may lack some alternatives."""
    num_again: int = 0
    """Rounds that were measured again, and are not among `rounds`."""

    def of(self, name: str) -> list[M]:
        """Return the measurements of one alternative."""
        return [measured[name] for measured in self.rounds if name in measured]

    def pairs(self, a: str, b: str) -> list[tuple[M, M]]:
        """Return the measurements of two alternatives from the rounds that have both."""
        return [(measured[a], measured[b]) for measured in self.rounds if a in measured and b in measured]


def runs_backwards(number: int) -> bool:
    """Return whether round `number` (from 0) begins with the last alternative: the sequence of Thue and Morse."""
    return number.bit_count() % 2 == 1


def take_turns(
    alternatives: Mapping[str, Callable[[], M | None]],
    looks: Iterable[Look],
    *,
    is_sure: Callable[[Turns[M]], bool] = lambda turns: False,
    may_go_on: Callable[[], Any] = lambda: True,
    after_round: Callable[[Turns[M]], object] = lambda turns: None,
    is_disturbed: Callable[[Mapping[str, M]], bool] = lambda measured: False,
    always_forwards: bool = False,
) -> Turns[M]:
    """Run blocks of all alternatives in turn until a look has the answer, the last look is over, or the user stops it.

    Args:
        alternatives: {name: runs one block and returns what it measured}. None: the block tells nothing. Raises Interrupted
            when the user stopped the block.
        looks: After how many rounds to look.
        is_sure: Called at each look; True ends it.
        may_go_on: Called before each round but the first; False ends it.
        after_round: Called after each round, such as to report progress.
        is_disturbed: Returns whether a round says nothing for a reason that favours no alternative; it is then measured again,
            as long as such rounds are no more than those that are asked for.
        always_forwards: Run every round in the order given, for one that is balanced in itself, such as A B A.
    """
    turns: Turns[M] = Turns()
    forwards = list(alternatives.items())
    try:
        for num_looks, look in enumerate(looks, 1):
            while (number := len(turns.rounds)) < look.num_rounds:
                if number and not may_go_on():
                    return turns
                turns.rounds.append({})
                backwards = runs_backwards(number) and not always_forwards
                for name, run_block in forwards[::-1] if backwards else forwards:
                    if (measured := run_block()) is not None:
                        turns.rounds[-1][name] = measured
                if turns.num_again < look.num_rounds and is_disturbed(turns.rounds[-1]) and may_go_on():
                    turns.rounds.pop()
                    turns.num_again += 1
                    continue
                turns.alpha, turns.num_looks = look.alpha, num_looks
                after_round(turns)
            if is_sure(turns):
                return turns
    except (Interrupted, KeyboardInterrupt):
        turns.interrupted = True
    return turns
