"""When the pairs are looked at."""

from __future__ import annotations

from headrace.validate.intervals import ALPHA
from headrace.validate.looks import Looks


def test_one_look() -> None:
    """Without `again` there is one, at the full probability, and nothing is due before the end."""
    looks = Looks(20, again=False)
    assert looks.alpha == ALPHA
    assert [looks.is_over(19), looks.is_over(20), looks.is_due(20)] == [False, True, False]


def test_looks_double_and_share_the_probability() -> None:
    """Looks come after 6, 12, 24, ... pairs, never end, and together err less than one look would."""
    looks, nexts, spent = Looks(6, again=True), [], 0.0
    for _ in range(10):
        assert looks.is_due(looks.next)
        assert not looks.is_over(looks.next)
        nexts.append(looks.next)
        spent += looks.alpha
        looks.go_on()
    assert nexts[:4] == [6, 12, 24, 48]
    assert spent < ALPHA
