"""How long a pipeline of stages takes, and how much of that its ranks wait: from what each stage takes alone.

Ranks of one machine share its cores: where more of them compute at once than there are cores, each gets its share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Seconds that are none.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeeds:
    """What a stage takes for one micro-batch, in seconds."""

    forward: float
    backward: float
    transfer: float = 0.0
    """To the next stage, and back from it, if that waits for it."""
    fetch: float = 0.0
    """Of the same, if it was sent before: a message goes only when its receiver asks for it."""
    between: float = 0.0
    """Of the schedule, before each pass: a core computes, and nothing of the model."""
    forward_core: float = 0.0
    """Of `forward`, in which a core computes; the rest waits for a device."""
    backward_core: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """One pass of one micro-batch."""

    is_forward: bool
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTime:
    """What a step takes, without its update."""

    seconds: float
    bubble: float
    """The share of all ranks' time in which they compute nothing."""


def order_gpipe(micro_batches: int) -> list[Work]:
    """Return what a stage does, one after another: all forward passes, then all backward passes."""
    return [Work(is_forward, number) for is_forward in (True, False) for number in range(micro_batches)]


def order_1f1b(micro_batches: int, stage: int, stages: int) -> list[Work]:
    """Return what a stage does: a forward pass for each stage from here to the last, then backward and forward in turn."""
    ahead = min(micro_batches, stages - stage)
    order = [Work(True, number) for number in range(ahead)]
    for number in range(micro_batches):
        order.append(Work(False, number))
        if number + ahead < micro_batches:
            order.append(Work(True, number + ahead))
    return order


def time_pipeline(
    stages: Sequence[StageNeeds], orders: Sequence[Sequence[Work]], cores: float = math.inf
) -> PipelineTime:
    """Return how long the stages take, if each does its work in its order, and begins as soon as what it needs has come.

    Args:
        stages: In the order in which a micro-batch goes through them.
        orders: What each does.
        cores: That they share; each uses one at most.

    Raises:
        ValueError: If each waits for another.
    """
    pipeline = _Pipeline(stages, orders, cores)
    while pipeline.is_at_work():
        pipeline.go_on()
    seconds = pipeline.now
    busy = sum(rank.busy for rank in pipeline.ranks)
    return PipelineTime(seconds=seconds, bubble=1 - busy / (len(stages) * seconds) if seconds else 0.0)


@dataclass(slots=True)
class _Rank:
    """A stage at work."""

    place: int = 0
    """Of the next work in its order."""
    free_since: float = 0.0
    work: Work | None = None
    """None: it waits for what the next one needs."""
    began: float | None = None
    """When its pass began; None: it has not."""
    until: float | None = None
    """It waits until then, and needs no core."""
    core_left: float = 0.0
    """Seconds of a core that it needs now."""
    busy: float = 0.0


class _Pipeline:
    """All stages, at a moment."""

    def __init__(self, stages: Sequence[StageNeeds], orders: Sequence[Sequence[Work]], cores: float) -> None:
        self._stages, self._orders, self._cores = stages, orders, cores
        self._ended: dict[tuple[int, Work], float] = {}
        self.now = 0.0
        self.ranks = [_Rank() for _ in stages]

    def is_at_work(self) -> bool:
        """Return whether some work is left."""
        return any(rank.place < len(order) for rank, order in zip(self.ranks, self._orders, strict=True))

    def go_on(self) -> None:
        """Go to the next moment at which something ends."""
        for at, rank in enumerate(self.ranks):
            if rank.work is None and rank.place < len(self._orders[at]):
                work = self._orders[at][rank.place]
                found = _find_message(self._stages, self._ended, at, work, rank.free_since)
                if found is not None:
                    rank.work, (rank.until, rank.core_left) = work, found
        waiting = [rank.until for rank in self.ranks if rank.until is not None]
        computing = [rank for rank in self.ranks if rank.work is not None and rank.until is None]
        if not waiting and not computing:
            raise ValueError("no stage can go on: each waits for another; the orders do not fit together")
        speed = min(1.0, self._cores / max(1, len(computing)))
        step = min([*(until - self.now for until in waiting), *(rank.core_left / speed for rank in computing)])
        step = max(0.0, step)
        self.now += step
        for rank in computing:
            rank.core_left -= step * speed
        for at, rank in enumerate(self.ranks):
            self._end_part(at, rank)

    def _end_part(self, at: int, rank: _Rank) -> None:
        """Let a rank whose part of the work has ended begin the next one: around the pass, the pass on a core, its rest."""
        if (
            rank.work is None
            or (rank.until or 0.0) > self.now + _ROUNDING
            or (rank.until is None and rank.core_left > _ROUNDING)
        ):
            return
        needs = self._stages[at]
        whole, core = (
            (needs.forward, needs.forward_core) if rank.work.is_forward else (needs.backward, needs.backward_core)
        )
        if rank.until is not None and rank.began is None:  # what it needs has come
            rank.until, rank.core_left = None, rank.core_left + needs.between
        elif rank.began is None:
            rank.began, rank.core_left = self.now, core
        elif rank.until is None and whole > core:
            rank.until = self.now + whole - core
        else:
            rank.busy += self.now - rank.began
            self._ended[at, rank.work] = rank.free_since = self.now
            rank.place, rank.work, rank.began, rank.until = rank.place + 1, None, None, None


def _find_message(
    stages: Sequence[StageNeeds], ended: dict[tuple[int, Work], float], at: int, work: Work, now: float
) -> tuple[float, float] | None:
    """Return when a stage that is free now begins to get what its work needs, and how long that takes; None: not yet known.

    Between processes of one machine a message is work for its cores.
    """
    neighbour = at - 1 if work.is_forward else at + 1
    if neighbour == -1:
        return now, 0.0
    if neighbour == len(stages):
        found = ended.get((at, Work(True, work.number)))
        return None if found is None else (max(now, found), 0.0)
    found = ended.get((neighbour, work))
    if found is None:
        return None
    link = stages[min(at, neighbour)]
    begins = max(now, found)
    return begins, max(now + link.fetch, found + link.transfer) - begins


def find_cuts(seconds: Sequence[float], stages: int) -> list[int]:
    """Return where a chain of layers is cut, that the longest stage is as short as it can be.

    Args:
        seconds: Of each layer.
        stages: How many, at most as many as layers.

    Returns:
        The first layer of each stage but the first.
    """
    best: dict[tuple[int, int], tuple[float, list[int]]] = {}
    for first in range(len(seconds), -1, -1):
        best[first, 1] = (sum(seconds[first:]), [])
        for count in range(2, min(stages, len(seconds) - first) + 1):
            best[first, count] = min(
                (max(sum(seconds[first:cut]), best[cut, count - 1][0]), [cut, *best[cut, count - 1][1]])
                for cut in range(first + 1, len(seconds) - count + 2)
            )
    return best[0, stages][1]
