"""Ranks with the same batches, and epochs in the same order, found by fingerprints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from headrace.diagnose.training.same_data import find_same_data
from headrace.runs.formats.training import TrainingProcess
from headrace.runs.formats.training_ranks import Same, SameData


def _process(rank: int, *epochs: Sequence[Sequence[str]], sampler: str = "") -> TrainingProcess:
    """A rank whose loader gave these batches; each is a list of the fingerprints of its tensors."""
    prints: list[dict[str, Any]] = [{"sampler": sampler, "epochs": [list(map(list, epoch)) for epoch in epochs]}]
    return TrainingProcess(
        host="host",
        process=rank,
        rank=rank,
        world_size=2,
        script="train.py",
        framework="torch",
        torch_version="2",
        threads=1,
        device="cpu",
        modules=(),
        num_parameters=0,
        parameter_bytes=0,
        optimizers=(),
        details={"batches": prints},
    )


def _epoch(name: str, count: int = 8) -> list[list[str]]:
    return [[f"{name}{number}", f"label {name}{number}"] for number in range(count)]


def test_ranks_with_the_same_batches_are_found() -> None:
    """Three of four ranks are given the same, and only those are named."""
    ranks = [_process(rank, _epoch("same" if rank != 2 else "own")) for rank in range(4)]
    assert find_same_data(ranks) == [SameData(what=Same.RANKS, loader=0, ranks=(0, 1, 3), num_batches=8, sampler="")]


def test_ranks_with_their_own_batches_are_not_found() -> None:
    """Different batches, also if one of them is common."""
    one, other = _epoch("a"), _epoch("b")
    other[3] = one[3]
    assert find_same_data([_process(0, one), _process(1, other)]) == []


def test_labels_show_it_where_images_are_changed_at_random() -> None:
    """One tensor that is the same in all batches is enough."""
    ranks = [_process(rank, [[f"{rank} {n}", f"labels {n}"] for n in range(8)]) for rank in range(2)]
    assert [one.ranks for one in find_same_data(ranks)] == [(0, 1)]


@pytest.mark.parametrize("epoch", [_epoch("same", 3), [["constant"]] * 8, [["even"], ["odd"]] * 4, [[]] * 8])
def test_too_little_is_not_judged(epoch: list[list[str]]) -> None:
    """Few batches, constant data, and labels of two kinds may be equal by chance."""
    assert find_same_data([_process(rank, epoch, epoch) for rank in range(2)]) == []


def test_an_order_that_repeats_is_found() -> None:
    """The second epoch begins as the first did, in one rank; the sampler is named."""
    same = _process(0, _epoch("a"), _epoch("a"), sampler="DistributedSampler")
    shuffled = _process(1, _epoch("b"), _epoch("c"))
    assert find_same_data([same, shuffled]) == [
        SameData(what=Same.EPOCHS, loader=0, ranks=(0,), num_batches=8, sampler="DistributedSampler")
    ]


@pytest.mark.parametrize("prints", [3, [3], [{"sampler": "x"}], [{"sampler": "x", "epochs": [[3]]}]])
def test_a_file_of_another_program_shows_nothing(prints: Any) -> None:
    """Whatever stands in the place of fingerprints is left alone."""
    process = msgspec.structs.replace(_process(0), details={"batches": prints})
    assert find_same_data([process, process]) == []
