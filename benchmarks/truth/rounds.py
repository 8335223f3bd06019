"""Measures what changes of a pipeline gain, in interleaved rounds that end for each of them once its gain is clear.

How this works: a round runs a block of the pipeline as it is, and one of each alternative that is not decided yet. What counts
is the ratio to the block of the same round. There are four looks, after 3, 6, 9 and 12 rounds; each may miss the truth with a
probability of 1.82 %, so that all four together miss it with at most 5 % (Pocock 1977, see `headrace.compare.sequential`). An
alternative stops at the first look that tells enough; its interval is the one of that look, and holds whenever it stopped.
From the second look on it also stops where the rounds that are left would not tell either, by its width and their
number. Where the time runs out between two looks, the next one comes then.

A look at fewer than seven pairs takes Student's t: no interval of ranks exists at that level. It assumes normal noise; where
the noise has longer tails it is too wide, not too narrow (Benjamini 1983). Later looks take ranks, which assume symmetry alone.
`test_truth_rounds` simulates both. An interval that is still wide after the last look is stated as it is: `scores` counts the
case as not clear, and those that were given up among them.

References:
    Y. Benjamini, "Is the t test really conservative when the parent distribution is long-tailed?", Journal of the American
    Statistical Association 78, 1983.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.truth.blocks import throughput
from benchmarks.truth.rows import Truth
from benchmarks.truth.spec import Spec
from headrace.compare.intervals import Interval, paired_interval
from headrace.compare.sequential import LOOK_ALPHA, quarters
from headrace.compare.turns import Turns, take_turns

AS_IT_IS = "as it is"
#: Cures are measured until it is clear whether they gain; changes, which need not gain, until their ratio is known well: for so
#: many rounds at least, and at most.
_CHANGE_PAIRS, _MOST_CHANGE_PAIRS = 3, 9
#: Pairs below which nothing is given up.
_FEWEST_TO_GIVE_UP = 6
#: Two-sided quantiles of Student's t at `LOOK_ALPHA`, by pairs; from seven on there are intervals of ranks.
_STUDENT = {3: 7.3109, 4: 4.7020, 5: 3.8566, 6: 3.4519}


class Measured(NamedTuple):
    """What came of the rounds; alternatives that gave too few results are missing."""

    truths: dict[str, Truth]
    rates: dict[str, float]
    """Median jobs per second, also of the pipeline as it is."""
    num_rounds: int


class Gains:
    """Asks at each look which alternatives are clear, and has the others measured on.

    Args:
        names: Of the alternatives, without the pipeline as it is.
        most_rounds: That there can be.
    """

    def __init__(self, names: Sequence[str], most_rounds: int) -> None:
        self.truths: dict[str, Truth] = {}
        self._pending = list(names)
        self._most_rounds = most_rounds

    def wants(self, name: str) -> bool:
        """Return whether an alternative is to be measured again."""
        return name == AS_IT_IS or name in self._pending

    def look(self, turns: Turns[float]) -> bool:
        """Note what the rounds so far tell; return whether everything is clear."""
        for name in list(self._pending):
            truth = gain_of(turns.pairs(AS_IT_IS, name))
            if truth is not None:
                self.truths[name] = truth
            if is_clear(name, truth) or (truth is not None and is_hopeless(truth, self._most_rounds)):
                self._pending.remove(name)
        return not self._pending


def is_clear(name: str, truth: Truth | None) -> bool:
    """Return whether an alternative needs no more rounds."""
    if truth is None:
        return False
    if name.startswith("change"):
        return truth.pairs >= (_CHANGE_PAIRS if truth.is_known_well else _MOST_CHANGE_PAIRS)
    return truth.is_gain is not None


def is_hopeless(truth: Truth, most_rounds: int) -> bool:
    """Return whether a gain would not be clear either after all rounds, if its middle stayed where it is."""
    if truth.pairs < _FEWEST_TO_GIVE_UP:
        return False
    share = math.sqrt(truth.pairs / most_rounds)
    low, high = (truth.ratio * (end / truth.ratio) ** share for end in (truth.low, truth.high))
    return Truth(ratio=truth.ratio, low=low, high=high, pairs=most_rounds).is_gain is None


def measure_gains(specs: Mapping[str, Spec], block_seconds: float, most_rounds: int, most_seconds: float) -> Measured:
    """Run a pipeline and its alternatives in turn.

    Args:
        specs: {name: alternative}, with the pipeline as it is.
        block_seconds: Of each block.
        most_rounds: The last look comes then.
        most_seconds: No round begins after so long.

    Raises:
        KeyboardInterrupt: If the user wants no more.
    """
    gains = Gains([name for name in specs if name != AS_IT_IS], most_rounds)
    sides: dict[str, Callable[[], float | None]] = {
        name: functools.partial(_measure_wanted, gains, name, spec, block_seconds) for name, spec in specs.items()
    }
    ends = time.monotonic() + most_seconds
    turns = take_turns(sides, quarters(most_rounds), is_sure=gains.look, may_go_on=lambda: time.monotonic() < ends)
    if turns.interrupted:
        raise KeyboardInterrupt
    gains.look(turns)  # of rounds since the last look, where the time ran out; else it changes nothing
    rates = {name: statistics.median(turns.of(name)) for name in specs if turns.of(name)}
    return Measured(gains.truths, rates, len(turns.rounds))


def _measure_wanted(gains: Gains, name: str, spec: Spec, seconds: float) -> float | None:
    return throughput(spec, seconds) if gains.wants(name) else None


def gain_of(pairs: Sequence[tuple[float, float]]) -> Truth | None:
    """Return what an alternative gains, at the level of one of the four looks.

    Args:
        pairs: Rates before and after, > 0, from the same rounds.

    Returns:
        None where fewer than three rounds gave both rates.
    """
    differences = [math.log(after / before) for before, after in pairs]
    found = paired_interval(differences, LOOK_ALPHA) or _student(differences)
    if found is None:
        return None
    low, mid, high = math.exp(found.low), math.exp(found.mid), math.exp(found.high)
    return Truth(ratio=mid, low=low, high=high, pairs=len(pairs))


def _student(differences: Sequence[float]) -> Interval | None:
    quantile = _STUDENT.get(len(differences))
    if quantile is None:
        return None
    mid = statistics.fmean(differences)
    half = quantile * statistics.stdev(differences) / math.sqrt(len(differences))
    return Interval(mid - half, mid, mid + half)
