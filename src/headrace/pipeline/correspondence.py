"""What instruments and their copies in a child process tell each other, beside the values of the items.

How this works: an instrument may be a `Correspondent`. Before a request its `brief` goes along with the items; the copy in the
child gets it (`begin`), and what it noted while the items ran (`report`) comes back with their values (`learn`). Instruments
are known by their place in the worker's list, which is the same on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.base.protocols import Correspondence, Correspondent, Instrument
from headrace.pipeline.item import Item
from headrace.stages.stage import Stage


class Letters:
    """The parent's side.

    Args:
        instruments: Of the worker.
        stages: That run in the child.
    """

    def __init__(self, instruments: Sequence[Instrument], stages: Sequence[Stage]) -> None:
        self._instruments = [one for one in instruments if isinstance(one, Correspondent)]
        self._stages = [stage.name for stage in stages]

    def brief(self, items: Sequence[Item]) -> list[Any]:
        """Return what goes to the child with these items."""
        return [one.brief(items) for one in self._instruments]

    def learn(self, items: Sequence[Item], notes: Sequence[Any] | None) -> None:
        """Hand on what came back with them; None: the child died."""
        for index, one in enumerate(self._instruments):
            one.learn(self._stages, items, None if notes is None else notes[index])


class Copies:
    """The child's side.

    Args:
        instruments: Of the worker, as they arrived.
    """

    def __init__(self, instruments: Sequence[Instrument]) -> None:
        self._instruments = [one for one in instruments if isinstance(one, Correspondence)]

    def begin(self, items: Sequence[Item], briefs: Sequence[Any]) -> None:
        """Give each copy its brief."""
        for one, brief in zip(self._instruments, briefs, strict=True):
            one.begin(items, brief)

    def report(self) -> list[Any]:
        """Return what each copy noted."""
        return [one.report() for one in self._instruments]
