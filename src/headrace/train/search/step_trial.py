"""Trains a few steps with one batch size, and says how fast it was and how much memory it took. Runs in a child process."""

from __future__ import annotations

import statistics
from typing import Any

from headrace.train.search.own_time import read_clocks
from headrace.train.search.process_memory import forget_peak, read_status
from headrace.train.search.recipe import Recipe

#: Steps before any is timed: the first makes the optimizer's state, the second finds the allocator's pages.
WARM_UP_STEPS = 2
#: Steps that are timed: at least, at most.
FEWEST_STEPS, MOST_STEPS = 5, 200


def run_steps(recipe: Recipe, *, batch_size: int, seconds: float, base_bytes: int) -> dict[str, Any]:
    """Train on one batch again and again; loading it is not timed, nor waiting for a core that others use.

    Args:
        recipe: What trains.
        batch_size: Samples in the batch.
        seconds: No further step is timed after it.
        base_bytes: Resident memory before the model was made.

    Returns:
        `step_seconds` (median), `spread` (of the steps: half the distance of their quartiles, as a share of the median),
        `num_steps`, `core_wait` (share of the wall time in which the thread waited for a core), `peak_bytes` (largest resident
        memory; of a CUDA device, what its allocator held), `base_bytes`.
    """
    import torch

    forget_peak()
    on_cuda = recipe.device.type == "cuda"
    batch = recipe.make_batch(range(batch_size))
    optimizer = recipe.optimizer(recipe.model.parameters())
    recipe.model.train()
    times: list[float] = []
    wall = waited = 0.0
    for number in range(WARM_UP_STEPS + MOST_STEPS):
        begun, waited_before = read_clocks()
        optimizer.zero_grad()
        recipe.loss(recipe.model, batch).backward()
        optimizer.step()
        if on_cuda:
            torch.cuda.synchronize()
        ended, waited_after = read_clocks()
        if number >= WARM_UP_STEPS:
            wall, waited = wall + ended - begun, waited + waited_after - waited_before
            times.append(max(1e-9, (ended - begun) - (waited_after - waited_before)))
        if len(times) >= FEWEST_STEPS and wall >= seconds:
            break
    quartiles = statistics.quantiles(times, n=4)
    median = statistics.median(times)
    peak = torch.cuda.max_memory_reserved() if on_cuda else read_status("VmHWM")
    return {
        "step_seconds": median,
        "spread": (quartiles[2] - quartiles[0]) / 2 / median,
        "num_steps": len(times),
        "core_wait": waited / wall,
        "peak_bytes": peak,
        "base_bytes": 0 if on_cuda else base_bytes,
    }
