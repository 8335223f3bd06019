"""The loop that measures in turn: its order, when it ends, and what an interrupt leaves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.base.errors import Interrupted
from headrace.compare.sequential import doubling, once
from headrace.compare.turns import Turns, take_turns


def alternatives(names: str, ran: list[str]) -> dict[str, Callable[[], int | None]]:
    """Return alternatives that note their name, and measure how many blocks ran before."""

    def block(name: str) -> Callable[[], int]:
        def run() -> int:
            ran.append(name)
            return len(ran) - 1

        return run

    return {name: block(name) for name in names}


@pytest.mark.parametrize(("names", "order"), [("AB", "ABBABAABBAABABBA"), ("ABC", "ABCCBACBAABCCBAABCABCCBA")])
def test_rounds_run_forwards_and_backwards(names: str, order: str) -> None:
    """The order of Thue and Morse, of any number of alternatives."""
    ran: list[str] = []
    take_turns(alternatives(names, ran), once(8))
    assert "".join(ran) == order


def test_a_round_that_is_balanced_in_itself_keeps_its_order() -> None:
    """A B A is not turned round."""
    ran: list[str] = []
    take_turns(alternatives("ABC", ran), once(3), always_forwards=True)
    assert "".join(ran) == "ABCABCABC"


def test_a_look_with_the_answer_ends_it() -> None:
    """After 2, 4, 8, ... rounds it is asked; the rounds until then are kept, with what the look may err by."""
    seen: list[int] = []

    def is_sure(turns: Turns[int]) -> bool:
        seen.append(len(turns.rounds))
        return len(turns.rounds) == 8

    turns = take_turns(alternatives("AB", []), doubling(2), is_sure=is_sure)
    assert seen == [2, 4, 8]
    assert (len(turns.rounds), turns.num_looks, turns.alpha) == (8, 3, pytest.approx(0.05 / 8))


def test_what_is_not_gone_on_with_costs_no_look() -> None:
    """Where the time is over at a look, the rounds are judged by that look: no further round was run."""
    turns = take_turns(alternatives("AB", []), doubling(2), may_go_on=iter([True, False]).__next__)
    assert (len(turns.rounds), turns.num_looks) == (2, 1)


def test_a_first_round_is_always_run() -> None:
    """Time that is over at once leaves one round, and not nothing."""
    assert len(take_turns(alternatives("AB", []), once(5), may_go_on=lambda: False).rounds) == 1


def test_blocks_that_tell_nothing_are_missing() -> None:
    """A pair needs both of a round."""
    blocks = iter([None, 2, 3, 4])
    found = take_turns({"A": lambda: 1, "B": blocks.__next__}, once(4))
    assert found.of("B") == [2, 3, 4]
    assert found.pairs("B", "A") == [(2, 1), (3, 1), (4, 1)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted])
def test_an_interrupt_keeps_what_was_measured(error: type[BaseException]) -> None:
    """The fourth round has A alone; pairs are of the three before."""

    def b() -> int:
        if next(count) == 3:
            raise error
        return 2

    count = iter(range(9))
    turns = take_turns({"A": lambda: 1, "B": b}, once(5))
    assert turns.interrupted
    assert turns.pairs("A", "B") == [(1, 2)] * 3
    assert turns.rounds[-1] == {"A": 1}


def test_a_round_that_says_nothing_is_measured_again() -> None:
    """In the same order and in its place; as many times as rounds are asked for, and then what there is counts."""
    ran: list[str] = []
    turns = take_turns(alternatives("AB", ran), once(2), is_disturbed=lambda measured: measured["A"] in (0, 2))
    assert ("".join(ran), turns.num_again) == ("ABABABBA"[:8], 2)
    assert turns.rounds == [{"A": 4, "B": 5}, {"B": 6, "A": 7}]
    turns = take_turns(alternatives("AB", []), once(3), is_disturbed=lambda measured: True)
    assert (len(turns.rounds), turns.num_again) == (3, 3)


def test_no_round_is_measured_again_when_the_time_is_over() -> None:
    """Better a round that says little than none."""
    turns = take_turns(alternatives("AB", []), once(1), is_disturbed=lambda measured: True, may_go_on=lambda: False)
    assert (len(turns.rounds), turns.num_again) == (1, 0)
