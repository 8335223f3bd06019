"""Frames of streams that say no times are chosen by when they came."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from fractions import Fraction

import pytest

from headrace.sources.frames import Chooser, choose


def taken(came: list[float], fps: float) -> list[float]:
    """Return when those frames came that are taken."""
    counts: Counter[str] = Counter()
    choice = choose(every=1, fps=fps, keyframes=False, size=None, region=None, motion=None)
    chooser = Chooser(choice, counts)
    found = [at for number, at in enumerate(came) if not chooser.why_not(None, None, number, Fraction(at))]
    assert counts["times_missing"] == len(came)
    return found


@pytest.mark.parametrize(("rate", "share"), [(10, 0.5), (25, 0.2), (7, 5 / 7), (5, 1.0), (4, 1.0)])
def test_as_many_are_taken_as_are_asked_for(rate: float, share: float) -> None:
    """Of a camera that sends so many a second, each up to a tenth of a gap early or late, five a second or all it sends."""
    rng = random.Random(1)
    came = [100.0 + (number + rng.uniform(-0.1, 0.1)) / rate for number in range(1000)]
    assert len(taken(came, 5)) == pytest.approx(share * 1000, rel=0.02)


def test_a_pause_is_not_made_up_for() -> None:
    """After it frames come as far apart as before: at the first that is due, or a quarter early."""
    came = [100.0 + number / 25 for number in range(50)] + [160.0 + number / 25 for number in range(50)]
    after = [at for at in taken(came, 5) if at >= 160.0]
    assert after[0] == 160.0
    assert len(after) == 11
    assert min(later - before for before, later in itertools.pairwise(after)) > 0.15
