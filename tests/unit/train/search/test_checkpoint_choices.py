"""Memory and time of checkpoints, by formulas that can be checked by hand."""

from __future__ import annotations

import pytest

from headrace.runs.formats.train_check import CheckpointChoice
from headrace.train.search.checkpoint_choices import Unit, front, pick, weigh
from headrace.train.search.checkpointing import at_usual_speed, propose


def _chain(count: int) -> tuple[list[Unit], dict[int, int]]:
    """Return blocks that are given 1 MB each and keep that and 10 MB more; forward takes a second."""
    units = [Unit(f"block{n}", frozenset({2 * n, 2 * n + 1}), frozenset({2 * n}), 1.0) for n in range(count)]
    return units, {key: 1 if key % 2 == 0 else 10 for key in range(2 * count)}


def test_without_checkpoints_everything_is_kept() -> None:
    """Four blocks of 11."""
    units, sizes = _chain(4)
    assert weigh(units, frozenset(), sizes, ()) == ((), 44, 0.0)


def test_a_checkpointed_block_keeps_its_input_until_its_own_backward() -> None:
    """All four: the inputs of four, and the inside of one at a time."""
    units, sizes = _chain(4)
    names = tuple(unit.name for unit in units)
    assert weigh(units, frozenset(), sizes, names) == (names, 4 + 10, 4.0)


def test_the_last_block_alone_frees_nothing() -> None:
    """Its backward comes first, while all others still keep theirs."""
    units, sizes = _chain(4)
    assert weigh(units, frozenset(), sizes, ("block3",)).activation_bytes == 44
    assert weigh(units, frozenset(), sizes, ("block0",)).activation_bytes == 34


def test_what_two_parts_keep_counts_once_and_what_is_kept_outside_stays() -> None:
    """Storage 1 is kept by both; checkpointing one of them frees none of it."""
    units = [Unit("a", frozenset({1}), frozenset(), 1.0), Unit("b", frozenset({1}), frozenset(), 1.0)]
    sizes = {1: 100, 2: 5}
    assert weigh(units, frozenset({2}), sizes, ()).activation_bytes == 105
    assert weigh(units, frozenset({2}), sizes, ("b",)).activation_bytes == 105


def test_no_choice_of_the_front_is_beaten_by_any_choice() -> None:
    """Against all 64 choices of six blocks of different worth."""
    units = [
        Unit(f"u{n}", frozenset({2 * n, 2 * n + 1}), frozenset({2 * n}), seconds)
        for n, seconds in enumerate((3.0, 1.0, 2.0, 5.0, 1.5, 0.5))
    ]
    sizes = dict(enumerate((1, 10, 2, 40, 1, 5, 3, 60, 1, 25, 2, 8)))
    found = front(units, frozenset(), sizes)
    every = [
        weigh(units, frozenset(), sizes, [unit.name for n, unit in enumerate(units) if bits >> n & 1])
        for bits in range(64)
    ]
    for choice in found:
        assert not any(
            other.activation_bytes <= choice.activation_bytes
            and other.lost_seconds <= choice.lost_seconds
            and other[1:] != choice[1:]
            for other in every
        )
    assert found[0].names == ()
    assert found[-1].activation_bytes == min(choice.activation_bytes for choice in every)


def test_many_parts_are_ranked_and_the_three_best_are_picked() -> None:
    """Of twenty blocks the last pick keeps least, and none checkpoints nothing."""
    units, sizes = _chain(20)
    choices = front(units, frozenset(), sizes)
    picked = pick(choices)
    assert 1 <= len(picked) <= 3
    assert picked[-1] == choices[-1]
    assert all(choice.names for choice in picked)
    assert pick([weigh(units, frozenset(), sizes, ())]) == []


def test_proposed_is_what_was_measured_to_pay() -> None:
    """Half of the activations for at most a third more time, as run and not as predicted."""

    def choice(name: str, kept: int, seconds: float | None) -> CheckpointChoice:
        return CheckpointChoice(
            units=(name,),
            activation_bytes=kept,
            predicted_step_seconds=1.0,
            predicted_peak_bytes=0,
            step_seconds=seconds,
        )

    small, slow, best, unknown = choice("a", 60, 1.0), choice("b", 10, 1.5), choice("c", 40, 1.3), choice("d", 5, None)
    assert propose([small, slow, best, unknown], 100, 1.0) == ("c",)
    assert propose([small, slow, unknown], 100, 1.0) == ()


def test_a_core_that_was_slower_for_a_while_makes_no_choice_slower() -> None:
    """It took half as long again around the second of three choices, of which each takes a fifth longer than nothing."""
    without, steps = [1.0, 1.0, 1.5, 1.5, 1.0], [1.2, 1.2 * 1.5**0.5, 1.8, None]
    found = at_usual_speed(steps, without)
    assert found[:3] == pytest.approx([1.2, 1.2, 1.2])
    assert found[3] is None
