"""What the catcher is in a child process, which has no job at hand: it copies pictures, which go back with the values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.current_job import Worked, hands
from headrace.monitor.review.pictures import PictureSettings, copy_value


class PictureCopies:
    """Copies what these stages make, or take, of the items that are looked at.

    Args:
        stages: That make what the model sees; with originals, that take what came.
        settings: Of the pictures.
    """

    def __init__(self, stages: frozenset[str], settings: PictureSettings) -> None:
        self._stages = stages
        self._settings = settings
        self._chosen: dict[int, int] = {}
        self._copies: dict[int, Any] = {}

    def begin(self, items: Sequence[Worked], brief: Any) -> None:
        """Note which of the items that come next are looked at; by their jobs, of which each has one of its own here."""
        self._chosen = {id(item.job): index for index, item in enumerate(items) if brief[index]}

    def report(self) -> Any:
        """Return a pair for each picture: the item's place in the request, and the copy."""
        copies, self._copies, self._chosen = self._copies, {}, {}
        return [[index, copied] for index, copied in copies.items()]

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call of a stage, with what it takes or makes copied where that is wanted."""
        if stage not in self._stages:
            return call

        @functools.wraps(call, updated=())
        def caught(value: Any) -> Any:
            made = call(value)
            index = self._chosen.get(id(hands.items[0].job))
            if index is not None:
                self._copies[index] = copy_value(value if self._settings.original else made, self._settings)
            return made

        return caught
