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

_Part = TypeVar("_Part", LoaderWork, Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshCosts:
    """Needs without what was new, and what that was."""

    loading: dict[LoaderWork, Needs]
    phases: dict[Phase, Needs]
    batch: float = 0.0
    """Seconds that a worker computes more for its first batch."""
    step: float = 0.0
    """Seconds that the training thread computes more in the first step after workers were started."""


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
    first = np.concatenate([[0], np.cumsum(microbatches)])[starts]
    new_batches = np.unique((first[:, None] + np.arange(workers)).ravel())
    new_batches = new_batches[new_batches < int(microbatches.sum())]
    # The first step of a run is no example: its own is not used, but that of the next plain one.
    new_steps = starts[starts > 0]
    loading, batch = _take_out(loading, new_batches)
    phases, step = _take_out(phases, new_steps)
    return FreshCosts(loading=loading, phases=phases, batch=batch, step=step)


def _take_out(parts: Mapping[_Part, Needs], new: Array) -> tuple[dict[_Part, Needs], float]:
    """Return parts with as much less CPU time where something was new as is usual there, and how much that is in all."""
    found, more = dict(parts), 0.0
    for name, needs in parts.items():
        is_new = np.zeros(len(needs.cpu), bool)
        is_new[new] = True
        if not is_new.any() or is_new.all():
            continue
        excess = max(0.0, float(np.median(needs.cpu[is_new]) - np.median(needs.cpu[~is_new])))
        found[name] = Needs(needs.blocked, np.maximum(needs.cpu - excess * is_new, 0.0))
        more += excess
    return found, more
