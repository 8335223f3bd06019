"""Ranks that have more steps in an epoch than others, because their parts of the data are larger."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.diagnose.training.cost import WORTH_WORK, Cost, fact
from headrace.diagnose.training.rate import epoch_starts
from headrace.diagnose.training.steps import RankSteps
from headrace.runs.formats.diagnosis import Remedy, VerdictClass


def uneven_shards(ranks: Sequence[RankSteps]) -> Cost | None:
    """Return what ranks lose that have nothing to do while others are not yet at the end of the epoch."""
    counts = {one.rank: _steps_of_an_epoch(one) for one in ranks if len(one.steps)}
    if len(counts) < 2:
        return None
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    idle = 1.0 - float(np.mean(list(counts.values()))) / counts[most]
    return Cost(
        verdict=VerdictClass.STRAGGLER,
        stage=None,
        cause="uneven shards",
        says=f"an epoch has {counts[most]:.4g} steps in rank {most} and {counts[least]:.4g} in rank {least}: those that are "
        "done wait, or their samples are learnt from without the others",
        rule=f"ranks have epochs of different length, and on average are idle for {WORTH_WORK:.0%} of the longest",
        share=idle,
        evidence=tuple(fact("steps", f"rank {rank}: {count:.4g} steps an epoch", count) for rank, count in counts.items()),
        remedies=(
            Remedy(says="shards of equal size: as many samples for each rank, or DistributedSampler, which evens them out"),
            Remedy(says="cut the longer ones off at the shortest (drop_last), or fill the shorter ones up"),
        ),
    )  # fmt: skip


def _steps_of_an_epoch(rank: RankSteps) -> float:
    """Return the mean of the epochs that were recorded to their end; of a single one, its steps so far."""
    starts = epoch_starts(rank.steps)
    return float(np.diff(starts).mean()) if len(starts) > 1 else float(len(rank.steps))
