"""Finds ranks that were given the same data, and epochs that were given the same order, by fingerprints of the first batches.

Both cost accuracy without any error: ranks with the same data do the work of one, and a shuffle that is the same in each epoch
is none. How a fingerprint is taken stands in `headrace.train.fingerprints`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.base.documents import convert_document
from headrace.runs.formats.training import FirstBatches, TrainingProcess
from headrace.runs.formats.training_ranks import Same, SameData

__all__ = ["Same", "SameData", "find_same_data"]

#: Fewer batches, or fewer different ones among them, may be equal by chance or because the data are constant.
_MIN_BATCHES, _MIN_DIFFERENT = 4, 3


def find_same_data(processes: Sequence[TrainingProcess]) -> list[SameData]:
    """Return what was the same, for each loader; empty where nothing was, or where there is too little to tell.

    Args:
        processes: Of one run, by rank.
    """
    loaders = [(one.rank, _first_batches(one)) for one in processes]
    found = []
    for loader in range(max((len(batches) for _, batches in loaders), default=0)):
        known = [(rank, batches[loader]) for rank, batches in loaders if loader < len(batches)]
        found += [_describe(Same.RANKS, loader, group) for group in _group_equal(known)]
        repeated = [one for one in known if _is_same(_epoch(one[1], 0), _epoch(one[1], 1))]
        if repeated:
            found.append(_describe(Same.EPOCHS, loader, repeated))
    return found


def _describe(what: Same, loader: int, known: Sequence[tuple[int, FirstBatches]]) -> SameData:
    return SameData(
        what=what,
        loader=loader,
        ranks=tuple(rank for rank, _ in known),
        num_batches=min(len(_epoch(batches, what is Same.EPOCHS)) for _, batches in known),
        sampler=known[0][1].sampler,
    )


def _group_equal(known: Sequence[tuple[int, FirstBatches]]) -> list[list[tuple[int, FirstBatches]]]:
    groups: list[list[tuple[int, FirstBatches]]] = []
    for rank, batches in known:
        for group in groups:
            if rank != group[0][0] and _is_same(_epoch(batches, 0), _epoch(group[0][1], 0)):
                group.append((rank, batches))
                break
        else:
            groups.append([(rank, batches)])
    return [group for group in groups if len(group) > 1]


def _is_same(one: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> bool:
    """Return whether some tensor of all batches is the same in both, and differs from batch to batch."""
    length = min(len(one), len(other))
    if length < _MIN_BATCHES:
        return False
    for position in range(min(len(batch) for batch in (*one, *other))):
        first, second = ([batch[position] for batch in batches[:length]] for batches in (one, other))
        if first == second and len(set(first)) >= _MIN_DIFFERENT:
            return True
    return False


def _epoch(batches: FirstBatches, epoch: int) -> Sequence[Sequence[str]]:
    return batches.epochs[epoch] if epoch < len(batches.epochs) else ()


def _first_batches(process: TrainingProcess) -> list[FirstBatches]:
    try:
        return convert_document(process.details.get("batches", []), list[FirstBatches])
    except msgspec.ValidationError:  # a file that another program wrote
        return []
