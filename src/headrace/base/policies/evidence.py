"""How strongly counts speak for or against a canary: e-values that hold whenever one looks, however often.

A bettor begins with 1 and bets against a hypothesis. If that is true, the capital passes 1/alpha with a probability of alpha at
most, at any of all looks (Ville). Capital depends on counts alone, so counts of several workers are added up, and whoever reads
them comes to the same. The best stake is not known beforehand, so the capital is spread over several bettors, each of which
goes on from one share of the canary to the next.

Three hypotheses are bet against:

- "An event falls to the canary with its share at most." Each job's arm is drawn by chance, so a failure that would have come
  anyway falls to the canary with a probability of its share, be failures clustered or in bursts. The bettor says that it comes
  so many times as often (`MORE`) or as rarely (`FEWER`). The same bet serves for a share of changed answers against the largest
  acceptable one, and for pairs of calls, of which the canary's should be the slower one in half the cases.
- "Events come as often as the share says": both ways at once (`OTHER`), for the split itself.
- "The canary's rate of failures is above the other arm's by a margin or more" (`bet_within`): each failure counts 1/share in
  the canary and -1/(1 - share) beside it, of which the mean over jobs is the difference of the rates.

An event may count in parts (from 0 to 1): capital is then at most what the parts would have won, so that the bound holds.

References:
    M. Lindon, A. Malek, "Anytime-valid inference for multinomial count data", NeurIPS 2022 (the first, with a beta prior);
    I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024 (the third);
    J. Ville, "Etude critique de la notion de collectif", 1939.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

#: {how many times as often an event comes, as odds: the part of the capital that is staked on it}. Of failures twice as often
#: it is known soonest: far more often is found within minutes anyway.
MORE = {1.5: 0.1, 2.0: 0.6, 3.0: 0.1, 5.0: 0.12, 10.0: 0.08}
FEWER = {0.67: 0.2, 0.5: 0.2, 0.33: 0.2, 0.2: 0.2, 0.1: 0.2}
OTHER = {0.5: 0.125, 0.8: 0.125, 0.9: 0.125, 0.95: 0.125, 1.05: 0.125, 1.1: 0.125, 1.25: 0.125, 2.0: 0.125}
#: Stakes as parts of the largest that cannot lose everything at once.
_STAKES = (0.99, 0.75, 0.5, 0.25, 0.125, 0.0625)


class Counts(msgspec.Struct):
    """Jobs of both arms while the canary had one share, and those that went wrong."""

    stable: float = 0
    canary: float = 0
    bad_stable: float = 0
    bad_canary: float = 0

    def plus(self, other: Counts) -> Counts:
        """Return the counts of both."""
        return Counts(
            self.stable + other.stable,
            self.canary + other.canary,
            self.bad_stable + other.bad_stable,
            self.bad_canary + other.bad_canary,
        )


#: {share of the canary: what happened meanwhile}.
Tally = Mapping[float, Counts]


@dataclass(frozen=True, slots=True)
class Bet:
    """Bettors against one hypothesis."""

    capitals: Callable[[float, Counts], Sequence[float]]
    """Given a share and its counts: the logarithm of what each bettor's capital is multiplied by."""
    parts: Sequence[float]
    """Of the capital, with which each of them begins."""

    def log_e(self, tally: Tally) -> float:
        """Return the logarithm of the e-value: of the capital of all bettors."""
        return _log_sum(self._owned(tally))

    def seconds_to(self, goal: float, tally: Tally, share: float | None, seconds: float) -> float | None:
        """Return after how much more time the logarithm of the e-value reaches a goal, if all goes on as at this share.

        Args:
            goal: Logarithm.
            tally: Everything up to now.
            share: Of the canary now; None: what all of the tally says goes on.
            seconds: For which it has had this share.

        Returns:
            None: never, or nothing is known yet.
        """
        recent = tally if share is None else {key: counts for key, counts in tally.items() if key == share}
        if not recent or seconds <= 0:
            return None
        rows = [self.capitals(key, counts) for key, counts in recent.items()]
        growth = [math.fsum(column) / seconds for column in zip(*rows, strict=True)]
        times = [(goal - owns) / grows for owns, grows in zip(self._owned(tally), growth, strict=True) if grows > 0]
        return max(0.0, min(times)) if times else None

    def _owned(self, tally: Tally) -> list[float]:
        rows = [[math.log(part) for part in self.parts]]
        rows += [list(self.capitals(share, counts)) for share, counts in tally.items()]
        return [math.fsum(column) for column in zip(*rows, strict=True)]


def bet_events(times: Mapping[float, float]) -> Bet:
    """Return the bet against "what goes wrong falls to the canary with its share"; see `MORE`, `FEWER`."""

    def capitals(share: float, counts: Counts) -> list[float]:
        return [_odds(share, one, counts.bad_canary, counts.bad_stable) for one in times]

    return Bet(capitals, tuple(times.values()))


def bet_split() -> Bet:
    """Return the bet against "jobs fall to the canary with its share"."""

    def capitals(share: float, counts: Counts) -> list[float]:
        return [_odds(share, one, counts.canary, counts.stable) for one in OTHER]

    return Bet(capitals, tuple(OTHER.values()))


def bet_within(margin: float) -> Bet:
    """Return the bet against "the canary's rate of failures is above the other's by the margin or more"."""

    def capitals(share: float, counts: Counts) -> list[float]:
        good = counts.stable + counts.canary - counts.bad_stable - counts.bad_canary
        found = []
        for part in _STAKES:
            stake = part * share / (1 - share * margin)
            gain = 1 + stake * margin
            capital = good * math.log(gain) + counts.bad_canary * math.log(gain - stake / share)
            found.append(capital + counts.bad_stable * math.log(gain + stake / (1 - share)))
        return found

    return Bet(capitals, (1 / len(_STAKES),) * len(_STAKES))


def _odds(share: float, times: float, num_canary: float, num_stable: float) -> float:
    """Return the logarithm of the capital of who says that the odds of the canary are so many times those of its share."""
    above = 1 - share + share * times
    return num_canary * math.log(times) - (num_canary + num_stable) * math.log(above)


def _log_sum(capitals: Sequence[float]) -> float:
    most = max(capitals)
    return most + math.log(math.fsum(math.exp(one - most) for one in capitals))
