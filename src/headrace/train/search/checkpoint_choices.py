"""Which parts of a model to checkpoint: memory and time of every choice, and those that no other one beats. No PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

#: Up to this many parts every choice is looked at: 4,096.
_ALL_CHOICES = 12


class Unit(NamedTuple):
    """One part, in the order of the forward pass."""

    name: str
    saved: frozenset[int]
    """Storages that it keeps for its backward pass."""
    taken: frozenset[int]
    """Storages that it is given."""
    forward_seconds: float


class Choice(NamedTuple):
    """Parts that are checkpointed."""

    names: tuple[str, ...]
    activation_bytes: int
    """Largest sum of what is kept at one time of the backward pass."""
    lost_seconds: float
    """Forward passes that are done again."""


def weigh(units: Sequence[Unit], rest: frozenset[int], sizes: Mapping[int, int], names: Sequence[str]) -> Choice:
    """Return what a choice keeps and costs.

    The backward pass goes through the parts from the last to the first. While it is in one, all before it still keep theirs,
    and a part that is checkpointed has computed its own again.

    Args:
        units: In the order of the forward pass.
        rest: Storages kept outside of the parts.
        sizes: {storage: bytes}.
        names: Parts that are checkpointed.
    """
    chosen = set(names)
    kept = set(rest)
    most = sum(sizes[key] for key in kept)
    for unit in units:
        is_chosen = unit.name in chosen
        kept |= unit.taken if is_chosen else unit.saved
        now = kept | unit.saved if is_chosen else kept
        most = max(most, sum(sizes[key] for key in now))
    lost = sum(unit.forward_seconds for unit in units if unit.name in chosen)
    return Choice(tuple(unit.name for unit in units if unit.name in chosen), most, lost)


def front(units: Sequence[Unit], rest: frozenset[int], sizes: Mapping[int, int]) -> list[Choice]:
    """Return the choices that no other one beats in both memory and time, the quickest first; the first checkpoints nothing."""
    choices = [weigh(units, rest, sizes, names) for names in _candidates(units, sizes)]
    found: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.lost_seconds, choice.activation_bytes)):
        if not found or choice.activation_bytes < found[-1].activation_bytes:
            found.append(choice)
    return found


def _candidates(units: Sequence[Unit], sizes: Mapping[int, int]) -> Iterator[tuple[str, ...]]:
    """Yield choices: all of few parts; of many, the parts that free most bytes a second, one more at a time."""
    worth = {unit.name: sum(sizes[key] for key in unit.saved - unit.taken) for unit in units}
    useful = [unit for unit in units if worth[unit.name] > 0]
    if len(useful) <= _ALL_CHOICES:
        for number in range(len(useful) + 1):
            for chosen in itertools.combinations(useful, number):
                yield tuple(unit.name for unit in chosen)
        return
    ranked = sorted(useful, key=lambda unit: worth[unit.name] / max(unit.forward_seconds, 1e-9), reverse=True)
    for number in range(len(ranked) + 1):
        yield tuple(unit.name for unit in ranked[:number])


def pick(choices: Sequence[Choice], number: int = 3) -> list[Choice]:
    """Return choices of a front to run: the one that keeps least, and those nearest above equal steps on the way there."""
    nothing, least = choices[0].activation_bytes, choices[-1].activation_bytes
    wanted = [nothing - (nothing - least) * step / number for step in range(1, number + 1)]
    picked = [next(choice for choice in choices if choice.activation_bytes <= bytes_) for bytes_ in wanted]
    return [choice for choice in dict.fromkeys(picked) if choice.names]
