"""The order of samples: a permutation each epoch, the same after any stop, with any number of ranks and workers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.store.order import Course, Order, Position


@pytest.mark.parametrize("block", [None, 1, 2, 7, 64])
def test_every_epoch_reads_every_sample_once(block: int | None) -> None:
    """Of every size up to 130, and of some larger ones."""
    for size in [*range(1, 131), 255, 256, 257, 4_099]:
        order = Order(size, seed=size, block=block)
        for epoch in (0, 1, 77):
            assert sorted(order.samples(epoch, 0, size).tolist()) == list(range(size))


@pytest.mark.parametrize("size", [65_536, 65_537, 70_001, 262_144, 300_007])
def test_many_samples_are_each_read_once(size: int) -> None:
    """On both sides of where sorting ends and the network begins, and of powers of four; two epochs share few places."""
    order = Order(size, seed=size)
    first, second = order.samples(0, 0, size), order.samples(1, 0, size)
    assert (np.sort(first) == np.arange(size)).all()
    assert (np.sort(second) == np.arange(size)).all()
    assert (first == second).sum() < 20
    assert (first == np.arange(size)).sum() < 20


def test_orders_differ_by_epoch_and_seed() -> None:
    """And are none that somebody could have had without shuffling."""
    orders = {tuple(Order(1_000, seed).samples(epoch, 0, 1_000)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert tuple(range(1_000)) not in orders
    assert Order(5, shuffle=False).samples(3, 0, 5).tolist() == [0, 1, 2, 3, 4]


def test_places_are_spread_evenly() -> None:
    """Over 4,000 epochs of 8 samples each sample comes at each place about 500 times, and follows each other as often.

    The bounds are six standard deviations; the numbers are the same on every machine.
    """
    counts, pairs = np.zeros((8, 8)), np.zeros((8, 8))
    for epoch in range(4_000):
        samples = Order(8, seed=3).samples(epoch, 0, 8)
        counts[np.arange(8), samples] += 1
        pairs[samples[:-1], samples[1:]] += 1
    assert np.abs(counts - 500).max() < 6 * np.sqrt(500)
    assert np.abs(pairs[~np.eye(8, dtype=bool)] - 500).max() < 6 * np.sqrt(500)


def test_a_part_of_an_epoch_needs_no_other_part() -> None:
    """The places in the middle of a hundred million samples are those that a whole walk would come to."""
    order = Order(100_000_000, seed=9)
    middle = order.samples(2, 60_000_000, 60_000_100)
    assert len(set(middle.tolist())) == 100
    assert order.samples(2, 60_000_050, 60_000_051)[0] == middle[50]
    assert ((middle >= 0) & (middle < 100_000_000)).all()


def test_blocks_stay_together() -> None:
    """Each block's samples follow one another, in an order of their own."""
    samples = Order(1_000, seed=4, block=64).samples(0, 0, 1_000)
    numbers = samples // 64
    changes = int((np.diff(numbers) != 0).sum())
    assert changes == 15
    assert (np.diff(samples) != 1).sum() > 900


def read(
    order: Order, batch: int, ranks: int, workers: int, steps: int, position: Position | None
) -> tuple[list[int], Position]:
    """Return the samples of some steps of all ranks, in the order of the sequence, and the position after them.

    Each rank has workers that each compute every so many batches by themselves, as processes would.
    """
    found: list[list[list[int]]] = []
    after = position or Position(order.seed, 0, 0)
    for rank in range(ranks):
        mine: dict[int, list[int]] = {}
        for worker in range(workers):
            course = Course(order, batch, rank=rank, ranks=ranks, end="pad", position=position)
            for step, one in zip(range(steps), course.batches(), strict=False):
                if step % workers == worker:
                    mine[step] = one.samples.tolist()[: len(one.samples) - one.num_repeated]
                last = one
        after = Position.decode(last.after.encode(order), order)
        found.append([mine[step] for step in range(steps)])
    return [sample for step in range(steps) for rank in range(ranks) for sample in found[rank][step]], after


@pytest.mark.parametrize("part", range(10))
def test_a_thousand_random_stops_change_no_sample(part: int) -> None:
    """Going on with other ranks, workers and batches, the sequence is the one of a run that nobody stopped; 100 cases each."""
    draw = random.Random(part)
    for _ in range(100):
        size = draw.choice([1, 2, 7, 50, draw.randint(1, 300)])
        order = Order(size, seed=draw.getrandbits(64), block=draw.choice([None, None, 16]))
        expected = [sample for epoch in range(60) for sample in order.samples(epoch, 0, size).tolist()]
        sequence: list[int] = []
        position: Position | None = None
        for _ in range(draw.randint(1, 5)):
            samples, position = read(
                order, draw.randint(1, 9), draw.randint(1, 4), draw.randint(1, 3), draw.randint(1, 8), position
            )
            sequence += samples
            assert len(position.encode(order)) == 24
            if len(sequence) > len(expected) - 300:
                break
        assert sequence == expected[: len(sequence)]


def test_an_uneven_end_is_padded_and_counted() -> None:
    """Every rank has as many samples as the others; what is read again is said."""
    order = Order(10, seed=1)
    by_rank = [list(Course(order, 4, rank=rank, ranks=2).batches(epochs=1)) for rank in range(2)]
    assert [[len(one.samples) for one in batches] for batches in by_rank] == [[4, 4], [4, 4]]
    assert [[one.num_repeated for one in batches] for batches in by_rank] == [[0, 2], [0, 4]]
    fresh = [s for step in range(2) for b in by_rank for s in b[step].samples.tolist()[: 4 - b[step].num_repeated]]
    assert sorted(fresh) == list(range(10))


def test_an_uneven_end_is_dropped_or_kept() -> None:
    """Dropped with any number of ranks, kept with one."""
    order = Order(10, seed=1)
    dropped = [list(Course(order, 3, rank=rank, ranks=2, end="drop").batches(epochs=2)) for rank in range(2)]
    assert [len(batches) for batches in dropped] == [2, 2]
    assert Course(order, 3, ranks=2, end="drop").steps_per_epoch == 1
    kept = list(Course(order, 4, end="keep").batches(epochs=1))
    assert [len(one.samples) for one in kept] == [4, 4, 2]
    assert Course(order, 4, end="keep").steps_per_epoch == 3


def test_more_ranks_than_samples_do_not_hang() -> None:
    """Each gets its batch, all of it repeated."""
    batches = [next(Course(Order(3), 2, rank=rank, ranks=4).batches()) for rank in range(4)]
    assert [one.num_repeated for one in batches] == [0, 1, 2, 2]
    assert all(len(one.samples) == 2 for one in batches)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Order(0),
        lambda: Order(5, seed=-1),
        lambda: Order(5, block=0),
        lambda: Course(Order(5), 0),
        lambda: Course(Order(5), 2, rank=2, ranks=2),
        lambda: Course(Order(5), 2, ranks=2, end="keep"),
        lambda: Course(Order(5), 3, ranks=2, end="drop"),
        lambda: Course(Order(5, seed=1), 2, position=Position(2, 0, 0)),
        lambda: Course(Order(5), 2, position=Position(0, 0, 6)),
        lambda: Position.decode(b"short", Order(5)),
        lambda: Position.decode(None, Order(5)),  # type: ignore[arg-type]
        lambda: Position.decode(Position(0, 0, 3).encode(Order(5)), Order(5, seed=1)),
        lambda: Position.decode(Position(0, 0, 3).encode(Order(5)), Order(6)),
        lambda: Position.decode(Position(0, 0, 3).encode(Order(5)), Order(5, shuffle=False)),
        lambda: Position.decode(Position(0, 0, 3).encode(Order(5)), Order(5, block=2)),
    ],
)
def test_what_cannot_be_is_refused(wrong: object) -> None:
    """Before the first sample."""
    with pytest.raises(SettingsError):
        wrong()  # type: ignore[operator]
