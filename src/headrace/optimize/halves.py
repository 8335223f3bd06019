"""In which order the golden set is asked about trained candidates: few questions may be asked, and each takes minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def ask_by_halves(candidates: Sequence[T], ask: Callable[[T], bool], is_out: Callable[[T], bool]) -> list[T]:
    """Ask about the one in the middle, then about the faster half if it is right, else about the slower half.

    The faster of two trained networks has usually lost more; then this is bisection, and finds the fastest that is right.
    Where that is not so, as with one precision that fails in every round, those passed over are asked from the slowest up,
    until one is turned down.

    Args:
        candidates: The fastest first.
        ask: Whether one is right; called at most once for each.
        is_out: Whether one need not be asked about any more, because a faster one was right, say.

    Returns:
        Those that were asked about.
    """
    waiting, passed_over, asked = list(candidates), list[T](), list[T]()

    def is_right(one: T) -> bool:
        asked.append(one)
        return ask(one)

    while waiting := [one for one in waiting if not is_out(one)]:
        middle = len(waiting) // 2
        if is_right(waiting[middle]):
            waiting = waiting[:middle]
        else:
            passed_over += waiting[:middle]
            waiting = waiting[middle + 1 :]
    for one in reversed(passed_over):
        if not is_out(one) and not is_right(one):
            break
    return asked
