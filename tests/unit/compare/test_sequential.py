"""After how many rounds the measurements are looked at."""

from __future__ import annotations

import itertools

from headrace.compare.intervals import ALPHA
from headrace.compare.sequential import LOOK_ALPHA, doubling, once, quarters


def test_one_look() -> None:
    """Where nobody looks before the end, the end has the full probability."""
    assert list(once(20)) == [(20, ALPHA)]


def test_looks_double_and_share_the_probability() -> None:
    """Looks come after 6, 12, 24, ... rounds, never end, and together err less than one look would."""
    looks = list(itertools.islice(doubling(6), 10))
    assert [num_rounds for num_rounds, _ in looks[:4]] == [6, 12, 24, 48]
    assert sum(alpha for _, alpha in looks) < ALPHA


def test_doubling_ends_at_the_most_rounds() -> None:
    """The last look comes there, also before the first would."""
    assert [num_rounds for num_rounds, _ in doubling(8, 20)] == [8, 16, 20]
    assert [num_rounds for num_rounds, _ in doubling(8, 4)] == [4]


def test_four_looks_end_at_the_most_rounds() -> None:
    """Each quarter is rounded up, and the last look is not beyond the end."""
    assert list(quarters(30)) == [(8, LOOK_ALPHA), (16, LOOK_ALPHA), (24, LOOK_ALPHA), (30, LOOK_ALPHA)]
