"""What new workers cost besides: their first batches, and the first step of the process that forked them.

A worker that was forked shares all memory with the training process. Whichever of them writes to a page first copies it: the
worker while it loads its first batch, in which also its own buffers are made, and the training thread in the step behind.
Where workers live on from one epoch to the next that is paid once; more workers pay it for more batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from headrace.diagnose.training.simulation_needs import Needs
from headrace.diagnose.training.steps import Array
from headrace.runs.training_phases import LoaderWork, Phase

#: Batches or steps after a start that may cost more: by then copying has ended.
_MOST_FRESH = 16

_Part = TypeVar("_Part", LoaderWork, Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshCosts:
    """Needs without what was new, and what that was."""

    loading: dict[LoaderWork, Needs]
    phases: dict[Phase, Needs]
    batches: tuple[float, ...] = ()
    """Seconds that a worker computes more for its first batch, its second, and so on; the others cost what they cost."""
    steps: tuple[float, ...] = ()
    """Seconds that the training thread computes more in the first step after workers were started, the second, and so on."""


def take_out_fresh_costs(
    loading: dict[LoaderWork, Needs], phases: dict[Phase, Needs], microbatches: Array, starts: Array, workers: int
) -> FreshCosts:
    """Return needs as they would be with workers that have been at it for a while.

    Args:
        loading: Of each micro-batch.
        phases: Of each step.
        microbatches: int64: of each step.
        starts: Places of the steps before which workers were started.
        workers: How many.
    """
    first = np.concatenate([[0], np.cumsum(microbatches)])
    loading, batches = _take_out(loading, _since(first[starts], int(first[-1])) // workers)
    phases, steps = _take_out(phases, _since(starts, len(microbatches)))
    return FreshCosts(loading=loading, phases=phases, batches=batches, steps=steps)


def _since(starts: Array, count: int) -> Array:
    """Return how many come between each of `count` and the last start before it: int64."""
    places = np.arange(count)
    return np.asarray(places - starts[np.searchsorted(starts, places, side="right") - 1])


def _take_out(parts: Mapping[_Part, Needs], since: Array) -> tuple[dict[_Part, Needs], tuple[float, ...]]:
    """Return parts with as much less CPU time as was usual so long after a start, and how much that is in all.

    Args:
        parts: Each with a value for each of `since`.
        since: int64: how many were done since the start.
    """
    found, more = dict(parts), np.zeros(_MOST_FRESH)
    for name, needs in parts.items():
        excess = _excess(needs.cpu, since)
        less = np.append(excess, 0.0)[np.minimum(since, len(excess))]
        found[name] = Needs(needs.blocked, np.maximum(needs.cpu - less, 0.0))
        more[: len(excess)] += excess
    return found, tuple(float(one) for one in np.trim_zeros(more, "b"))


def _excess(cpu: Array, since: Array) -> Array:
    """Return what the first, the second and so on cost more than the last: float64, until one does not."""
    usual = float(np.median(cpu[since >= min(_MOST_FRESH, 2 * int(since.max(initial=0)) // 3)])) if len(cpu) else 0.0
    found: list[float] = []
    for place in range(min(_MOST_FRESH, 2 * int(since.max(initial=0)) // 3)):
        more = float(np.median(cpu[since == place])) - usual
        if more <= 0.0:
            break
        found.append(min(more, found[-1]) if found else more)
    return np.array(found)
