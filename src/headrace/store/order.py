"""In which order samples are read: every epoch another permutation, known at each place without having been drawn before.

A permutation of many numbers is a Feistel network over the next power of four: six rounds, keyed by seed and epoch, which map
the numbers below that power one to one. What lands at n or above is mapped again until it lands below (cycle walking): less
than four times on average. So any place of any epoch costs the same, no list of n numbers is kept, and what a run has read is a
`Position` of 24 bytes. Up to 65,536 numbers are sorted by a mixed key instead.

Ranks and workers do not change the order. There is one sequence of places; each step takes the next `batch` of them for every
rank, in the order of the ranks. So a run that goes on with other ranks or workers reads the rest of the same sequence.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.settings import check

End = Literal["pad", "drop", "keep"]
#: Seed, epoch, mark of the order, place.
_STATE = struct.Struct("<QIIQ")
_MASK = (1 << 64) - 1
_ROUNDS = 6
#: Up to here a permutation is sorted: a Feistel network over few bits does not come to every permutation.
_MOST_SORTED = 1 << 16
#: Places whose samples are computed at once.
_CHUNK = 4_096


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run has read."""

    seed: int
    epoch: int
    place: int
    """Places of this epoch that were read by all ranks together."""

    NUM_BYTES: ClassVar[int] = _STATE.size

    def encode(self, order: Order) -> bytes:
        """Return 24 bytes, which `decode` takes for the same order only."""
        return _STATE.pack(self.seed, self.epoch, order.mark, self.place)

    @classmethod
    def decode(cls, state: bytes, order: Order) -> Position:
        """Read what `encode` returned.

        Raises:
            SettingsError: If it is of another order: a place means other samples there, so some would be left out.
        """
        check(
            isinstance(state, bytes) and len(state) == _STATE.size,
            "state",
            f"{len(state)} bytes" if isinstance(state, bytes) else type(state).__name__,
            f"the {_STATE.size} bytes that `state` returned",
        )
        seed, epoch, mark, place = _STATE.unpack(state)
        check(seed == order.seed, "the state's seed", seed, f"the seed of the order, {order.seed}")
        if mark != order.mark:
            raise SettingsError(
                f"the state is of another order than that of these {order.size:,} samples: their number, shuffle or block was "
                "another; resume with the same, or begin a new epoch"
            )
        return cls(seed, epoch, place)


class Order:
    """The order of n samples.

    Args:
        size: How many samples there are.
        seed: Another one gives other orders.
        shuffle: False: 0, 1, 2, ... in every epoch.
        block: Samples that stay together: blocks are permuted, and the samples within each. For stores where neighbours come
            cheaper. None: all are permuted.
    """

    def __init__(self, size: int, seed: int = 0, *, shuffle: bool = True, block: int | None = None) -> None:
        check(size >= 1, "size", size, "a whole number >= 1")
        check(0 <= seed <= _MASK, "seed", seed, "a whole number from 0 to 2**64 - 1")
        check(block is None or block >= 1, "block", block, "a whole number >= 1, or None")
        self.size = size
        self.seed = seed
        self._shuffles = shuffle
        self._block = block if block is not None and 1 < block < size else None

    @property
    def mark(self) -> int:
        """32 bits that are others for another number of samples, shuffle or block."""
        return zlib.crc32(repr((self.size, self._shuffles, self._block)).encode())

    def samples(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Return the samples at places of an epoch: int64, of length stop - start."""
        check(0 <= start <= stop <= self.size, "start and stop", (start, stop), f"places from 0 to {self.size}")
        places = np.arange(start, stop, dtype=np.uint64)
        if not self._shuffles:
            return places.astype(np.int64)
        if self._block is None:
            return _permute(places, self.size, self._key(epoch)).astype(np.int64)
        return self._permute_blocks(places, epoch, self._block).astype(np.int64)

    def _permute_blocks(self, places: np.ndarray, epoch: int, block: int) -> np.ndarray:
        """Return samples of permuted blocks; the last block of the data may be short, wherever it comes."""
        num_blocks = -(-self.size // block)
        short = self.size - (num_blocks - 1) * block
        key = self._key(epoch)
        order = np.arange(num_blocks, dtype=np.uint64)
        # Where the short block comes: found by asking for it, as there is no inverse at hand.
        turn = (
            int(np.flatnonzero(_permute(order, num_blocks, key) == num_blocks - 1)[0]) if short < block else num_blocks
        )
        begins = turn * block
        at = places.astype(np.int64)
        late = at >= begins + short
        behind = np.where(late, at + (block - short), at)  # as if all blocks were whole
        numbers = _permute((behind // block).astype(np.uint64), num_blocks, key)
        inner = (behind % block).astype(np.uint64)
        found = np.empty(len(places), np.uint64)
        for number in np.unique(numbers):
            mine = numbers == number
            length = short if int(number) == num_blocks - 1 else block
            found[mine] = number * np.uint64(block) + _permute(inner[mine], length, _mix(key + int(number) + 1))
        return found

    def _key(self, epoch: int) -> int:
        return _mix(_mix(self.seed) ^ _mix(epoch + 0x5851F42D4C957F2D))


@dataclass(frozen=True, slots=True)
class Batch:
    """What one rank reads in one step."""

    epoch: int
    samples: np.ndarray
    num_repeated: int
    """How many at the end were read before in this epoch, by any rank; above 0 only where an epoch's end is padded."""
    after: Position
    """How far all ranks are, once each has read this step's batch."""


class Course:
    """The batches of one rank, from any position on. Pure: two courses of the same position give the same.

    Args:
        order: Of the samples.
        batch: Samples of a batch of one rank.
        rank: Of this process, from 0.
        ranks: How many there are.
        end: What the last step of an epoch does where samples are missing: `pad` reads some of the epoch again, `drop` leaves
            the rest out, `keep` gives a short batch (with one rank only: with several, some would wait for the others).
        position: Where to begin; None: at the beginning.
    """

    def __init__(
        self,
        order: Order,
        batch: int,
        *,
        rank: int = 0,
        ranks: int = 1,
        end: End = "pad",
        position: Position | None = None,
    ) -> None:
        check(batch >= 1, "batch", batch, "a whole number >= 1")
        check(0 <= rank < ranks, "rank", rank, f"from 0 to ranks - 1 = {ranks - 1}")
        check(end in ("pad", "drop", "keep"), "end", end, "pad, drop or keep")
        check(
            end != "keep" or ranks == 1,
            "end",
            end,
            "pad or drop where there are several ranks: some would get no batch",
        )
        check(
            end != "drop" or batch * ranks <= order.size,
            "batch",
            batch,
            f"at most {order.size // ranks}, or end = 'pad'",
        )
        position = position or Position(order.seed, 0, 0)
        check(position.seed == order.seed, "the position's seed", position.seed, f"the seed of the order, {order.seed}")
        check(
            position.place <= order.size,
            "the position's place",
            position.place,
            f"at most {order.size}, the samples there are",
        )
        self.order = order
        self.ranks = ranks
        self.cut = (batch, rank, ranks, end)
        """What the batches depend on beside the order."""
        self._batch = batch
        self._rank = rank
        self._step = batch * ranks
        self._end = end
        self._position = position
        self._chunk: tuple[int, int, np.ndarray] = (-1, 0, np.empty(0, np.int64))

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch."""
        size = self.order.size
        return size // self._step if self._end == "drop" else -(-size // self._step)

    def batches(self, epochs: int | None = None) -> Iterator[Batch]:
        """Yield batches, until an epoch of this number begins; None: without end."""
        position = self._position
        while True:
            if self.is_over(position.place):
                position = Position(position.seed, position.epoch + 1, 0)
            if epochs is not None and position.epoch >= epochs:
                return
            batch = self._at(position)
            yield batch
            position = batch.after

    def behind(self, position: Position) -> Position:
        """Return where all ranks are once each has read the batch at a position."""
        return Position(position.seed, position.epoch, min(self.order.size, position.place + self._step))

    def is_over(self, place: int) -> bool:
        """Return whether an epoch has no batch at a place."""
        left = self.order.size - place
        return left < self._step if self._end == "drop" else left <= 0

    def _at(self, position: Position) -> Batch:
        size, epoch, after = self.order.size, position.epoch, self.behind(position)
        start = position.place + self._rank * self._batch
        stop = start + self._batch
        if stop <= size or self._end == "keep":
            return Batch(epoch, self._samples(epoch, start, min(stop, size)), 0, after)
        places = np.arange(start, stop) % size  # from the beginning of the epoch again
        samples = np.concatenate([self._samples(epoch, int(place), int(place) + 1) for place in places])
        return Batch(epoch, samples, stop - max(start, size), after)

    def _samples(self, epoch: int, start: int, stop: int) -> np.ndarray:
        known_epoch, begins, samples = self._chunk
        if epoch != known_epoch or start < begins or stop > begins + len(samples):
            begins = start
            samples = self.order.samples(epoch, start, min(self.order.size, max(stop, start + _CHUNK)))
            self._chunk = (epoch, begins, samples)
        return samples[start - begins : stop - begins]


def _permute(numbers: np.ndarray, size: int, key: int) -> np.ndarray:
    """Return where a permutation of the numbers below size takes some of them; uint64."""
    if size <= _MOST_SORTED:
        return _sorted(size, key)[numbers.astype(np.int64)]
    half = max(1, -(-max(1, (size - 1).bit_length()) // 2))
    keys = [np.uint64(_mix(key + number)) for number in range(_ROUNDS)]
    found = _feistel(numbers, half, keys)
    while True:
        outside = np.flatnonzero(found >= size)
        if not len(outside):
            return found
        found[outside] = _feistel(found[outside], half, keys)


@functools.lru_cache(maxsize=16)
def _sorted(size: int, key: int) -> np.ndarray:
    """Return a permutation by sorting mixed numbers; not by NumPy's generator, whose draws may change with its version."""
    return np.argsort(_mix_array(np.arange(size, dtype=np.uint64) ^ np.uint64(key)), kind="stable").astype(np.uint64)


def _feistel(numbers: np.ndarray, half: int, keys: list[np.uint64]) -> np.ndarray:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = numbers >> shift, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix_array(right ^ key) & mask)
    return (left << shift) | right


def _mix_array(values: np.ndarray) -> np.ndarray:
    """Return well mixed bits (the finalizer of SplitMix64; Steele, Lea and Flood, 2014); overflow is meant."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def _mix(value: int) -> int:
    """Return the same for one number, which may have more than 64 bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
