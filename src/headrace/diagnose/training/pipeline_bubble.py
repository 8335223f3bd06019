"""How long a pipeline of stages takes, and how much of that its ranks wait: from what each stage takes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    """Of the schedule, before each pass: nothing is computed in it."""


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


def time_pipeline(stages: Sequence[StageNeeds], orders: Sequence[Sequence[Work]]) -> PipelineTime:
    """Return how long the stages take, if each does its work in its order, and begins as soon as what it needs has come.

    Args:
        stages: In the order in which a micro-batch goes through them.
        orders: What each does.

    Raises:
        ValueError: If each waits for another.
    """
    ended: dict[tuple[int, Work], float] = {}
    now, places = [0.0] * len(stages), [0] * len(stages)
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        before = sum(places)
        for at, order in enumerate(orders):
            while places[at] < len(order):
                work = order[places[at]]
                came = _find_arrival(stages, ended, at, work, now[at])
                if came is None:
                    break
                needs = stages[at].forward if work.is_forward else stages[at].backward
                now[at] = ended[at, work] = came + stages[at].between + needs
                places[at] += 1
        if sum(places) == before:
            raise ValueError("no stage can go on: each waits for another; the orders do not fit together")
    seconds = max(now)
    busy = sum(
        stage.forward if work.is_forward else stage.backward
        for stage, order in zip(stages, orders, strict=True)
        for work in order
    )
    return PipelineTime(seconds=seconds, bubble=1 - busy / (len(stages) * seconds) if seconds else 0.0)


def _find_arrival(
    stages: Sequence[StageNeeds], ended: dict[tuple[int, Work], float], at: int, work: Work, now: float
) -> float | None:
    """Return when a stage that is free now has what it needs for its work; None: not yet known."""
    neighbour = at - 1 if work.is_forward else at + 1
    if neighbour == -1:
        return now
    if neighbour == len(stages):
        found = ended.get((at, Work(True, work.number)))
        return None if found is None else max(now, found)
    found = ended.get((neighbour, work))
    link = stages[min(at, neighbour)]
    return None if found is None else max(now + link.fetch, found + link.transfer)


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
