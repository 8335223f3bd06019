"""The order of questions about trained candidates."""

from __future__ import annotations

import itertools
import math

import pytest

from headrace.optimize.halves import ask_by_halves


def asked_about(right: list[bool]) -> list[int]:
    """Return which candidates were asked about, of those that are right or not, the fastest first."""
    accepted: list[int] = []

    def ask(number: int) -> bool:
        if right[number]:
            accepted.append(number)
        return right[number]

    return ask_by_halves(range(len(right)), ask, lambda number: any(best < number for best in accepted))


@pytest.mark.parametrize("count", range(13))
def test_the_fastest_that_is_right_is_found_in_few_questions(count: int) -> None:
    """Where the slower ones are right and the faster ones not, bisection finds the boundary; one more looks above it."""
    for num_wrong in range(count + 1):
        right = [number >= num_wrong for number in range(count)]
        asked = asked_about(right)
        assert len(asked) <= math.ceil(math.log2(count + 1)) + 1
        assert num_wrong == count or num_wrong in asked


def test_a_precision_that_fails_in_every_round_hides_no_other() -> None:
    """Of int8 and bfloat16 in turn, int8 always wrong, the fastest bfloat16 that is right is found all the same."""
    right = [False, False, False, False, False, True, False, True]
    assert 5 in asked_about(right)


def test_none_is_asked_twice_and_something_right_is_found() -> None:
    """Whatever is right, each is asked about once at most; if the slowest is right, one that is right is found."""
    for right in itertools.product([False, True], repeat=7):
        asked = asked_about(list(right))
        assert len(asked) == len(set(asked))
        assert not right[-1] or any(right[number] for number in asked)


def test_nothing_to_ask_is_no_question() -> None:
    """What is out from the start is not asked about."""
    assert ask_by_halves([1, 2, 3], lambda _: True, lambda _: True) == []
