"""What waits where some are urgent: two lines, so that those go first, and the others still go on.

In each line the order is that of arrival. While both have something, of eight that are taken one at least is not urgent: so
whatever comes with priority 0, the others have an eighth of the stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

#: Urgent ones that are taken at most before another one is, while any waits.
IN_A_ROW = 7


class TwoLines(Generic[T]):
    """Has what the queues use of a `deque`; not thread-safe.

    Args:
        entries: What waits already, in order.
        is_urgent: Tells them apart.
    """

    def __init__(self, entries: Iterable[T], is_urgent: Callable[[T], bool]) -> None:
        self._is_urgent = is_urgent
        self._urgent: deque[T] = deque()
        self._others: deque[T] = deque()
        self._in_a_row = 0
        self.extend(entries)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def __iter__(self) -> Iterator[T]:
        """Return all in the order in which they would be taken."""
        urgent, others, in_a_row = iter(self._urgent), iter(self._others), self._in_a_row
        num_urgent, num_others = len(self._urgent), len(self._others)
        while num_urgent or num_others:
            if num_urgent and (in_a_row < IN_A_ROW or not num_others):
                num_urgent, in_a_row = num_urgent - 1, in_a_row + 1
                yield next(urgent)
            else:
                num_others, in_a_row = num_others - 1, 0
                yield next(others)

    def __getitem__(self, index: int) -> T:
        """Return the next one (0), or the newest of those that are taken last (-1)."""
        return next(iter(self)) if index == 0 else (self._others or self._urgent)[index]

    def append(self, entry: T) -> None:
        """Add one at the end of its line."""
        (self._urgent if self._is_urgent(entry) else self._others).append(entry)

    def extend(self, entries: Iterable[T]) -> None:
        """Add each at the end of its line."""
        for entry in entries:
            self.append(entry)

    def extendleft(self, entries: Iterable[T]) -> None:
        """Put each at the head of its line, one after the other."""
        for entry in entries:
            (self._urgent if self._is_urgent(entry) else self._others).appendleft(entry)

    def popleft(self) -> T:
        """Take the next one."""
        if self._urgent and (self._in_a_row < IN_A_ROW or not self._others):
            self._in_a_row += 1
            return self._urgent.popleft()
        self._in_a_row = 0
        return self._others.popleft()

    def pop(self) -> T:
        """Take the newest of those that are taken last."""
        return (self._others or self._urgent).pop()
