"""What a station asks of the run that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.base.errors import ItemError
from headrace.base.parking import Bell
from headrace.pipeline.item import Item
from headrace.pipeline.work_notes import WorkNote


@dataclass(frozen=True, slots=True)
class Connections:
    """What a station asks of the run that it is part of; all may be called from any thread."""

    hand_on: Callable[[Sequence[Item], bool], list[int]]
    """Sends items that went through the station on their way, and returns when each left it (ns); True: does not wait."""
    find_room: Callable[[Sequence[Item], Bell], list[Item]]
    """Returns the items that `hand_on` need not wait with; the bell is rung once there is room for more."""
    fail: Callable[[Item, ItemError, str], object]
    """Ends an item's job with an error, which happened in the stage of this name."""
    drop_lost: Callable[[Item], object]
    """Leaves an item whose loan ran out to whoever has it now."""
    is_draining: Callable[[], bool]
    """Returns whether no more items can come, so that a batch need not wait for company."""
    note: Callable[[WorkNote], object]
    """Takes what a worker did, of which spans are made."""
    start_worker: Callable[[int], object]
    """Starts a worker with this number beside the others, or in the place of one that was left behind."""
    broke: Callable[[BaseException], object]
    """Ends the run with an error."""
