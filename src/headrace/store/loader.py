"""Batches for training from shards: in an order that needs no memory, read ahead by threads, resumable with 24 bytes.

How this works: the thread that asks for a batch hands tasks to a pool, one for each batch, as many ahead as the limit of bytes
allows, and takes the results in order. Threads read, and run `transform`: this pays where decoding lets go of the GIL, as
OpenCV, Pillow and NumPy do. `state` is the position behind the batch that was handed out last, whatever was read ahead. Leaving
the loop early throws what was read ahead away; the next loop begins behind what was handed out.

In a worker of PyTorch's DataLoader the batches are dealt out among the workers in turn, which is the order in which DataLoader
collects them: so it gives each batch once, in the same order as without workers.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any, Self

import numpy as np

from headrace.base.errors import ItemRejected, SourceError
from headrace.base.named_paths import Named
from headrace.base.settings import check
from headrace.store.order import Batch, Course, End, Order, Position
from headrace.store.shard_reader import ShardReader

_NUMBERS = (bool, int, float, np.generic)


@dataclass(frozen=True, slots=True)
class LoadedSample:
    """One sample as it is in the shard."""

    key: str
    parts: dict[str, bytes]
    """{part: bytes}, such as `jpg` and `cls`."""


class Loader:
    """Iterates over the batches of one epoch; the next loop is the next epoch.

    Args:
        path: Tar shards: a file, a folder, a pattern such as `shard-{000..009}.tar`, or a list of these, which is sorted.
        batch: Samples of a batch of this rank.
        transform: Called with a `LoadedSample` in a thread; None: the sample itself.
        collate: Called with a list of what transform returned; None: arrays and tensors are stacked, numbers become an array,
            tuples and dicts by their parts, anything else is a list.
        workers: Threads.
        ahead_bytes: Bytes of samples, as packed, that are read ahead at most; one batch always is.
        seed: Of the order.
        shuffle: False: the order of the shards.
        block: Samples that stay together; see `order.Order`.
        rank: Of this process, from 0.
        ranks: How many there are.
        end: `pad`, `drop` or `keep`; see `order.Course`. None: `keep` with one rank, `pad` with several.
        rejects: `raise`: a sample that cannot be read or transformed (an ItemRejected) ends the loop; `skip`: it is left out
            of its batch and counted. A batch of which nothing is left is not handed out; with several ranks it ends the loop.

    It may be read inside a worker of PyTorch's DataLoader (`batch_size=None`): each worker gives its share of the batches.
    `state` then counts in the worker alone; in the training process call `begin_epoch` before each epoch, as DataLoader makes
    new workers from it.

    Raises:
        SourceError: If there are no shards, an index is not of its shard, or no sample can be read.
        SettingsError: If a value is not possible.

    Attributes:
        num_rejected: Samples that were left out.
        num_repeated: Samples that padded the ends of epochs.
    """

    def __init__(
        self,
        path: Named,
        batch: int,
        *,
        transform: Callable[[LoadedSample], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 2,
        ahead_bytes: int = 64 << 20,
        seed: int = 0,
        shuffle: bool = True,
        block: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        end: End | None = None,
        rejects: str = "raise",
    ) -> None:
        check(_is_count(batch), "batch", batch, "a whole number >= 1")
        check(_is_count(workers), "workers", workers, "a whole number >= 1")
        check(seed == 0 or _is_count(seed), "seed", seed, "a whole number from 0 to 2**64 - 1")
        check(rejects in ("raise", "skip"), "rejects", rejects, "raise or skip")
        check(block is None or _is_count(block), "block", block, "a whole number >= 1, or None")
        check(_is_count(ranks), "ranks", ranks, "a whole number >= 1")
        check(rank == 0 or _is_count(rank), "rank", rank, f"a whole number from 0 to {ranks - 1}")
        check(
            ahead_bytes == 0 or _is_count(ahead_bytes),
            "ahead_bytes",
            ahead_bytes,
            "a whole number >= 0, such as 64 << 20",
        )
        for name, function in (("transform", transform), ("collate", collate)):
            check(function is None or callable(function), name, function, "a function, or None")
        self._reader = ShardReader(path)
        if not len(self._reader):
            shown, path = self._reader.shown, self._reader.paths[0]
            self._reader.close()
            raise SourceError(f"{shown} holds no sample that can be read; `headrace pack {path} -o NEW` lists why")
        self._order = Order(len(self._reader), seed, shuffle=shuffle, block=block)
        self._batch, self._rank, self._ranks = batch, rank, ranks
        self._end: End = end if end is not None else "keep" if ranks == 1 else "pad"
        self._transform = transform or _as_it_is
        self._collate = collate or stack
        self._workers, self._ahead_bytes, self._skips = workers, ahead_bytes, rejects == "skip"
        self._position = Position(seed, 0, 0)
        self._course(self._position)  # its settings are checked now
        self.num_rejected = 0
        self.num_repeated = 0

    def __len__(self) -> int:
        return self._course(self._position).steps_per_epoch

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of, from 0."""
        return next(self._course(self._position).batches()).epoch

    def state(self) -> bytes:
        """Return 24 bytes for a checkpoint: what was handed out so far."""
        return self._position.encode(self._order)

    def resume(self, state: bytes) -> None:
        """Go on behind what had been handed out when `state` was called, perhaps with other ranks and workers.

        Raises:
            SettingsError: If it is the state of another seed, number of samples, shuffle or block.
        """
        position = Position.decode(state, self._order)
        self._course(position)
        self._position = position

    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, from 0."""
        is_possible = (epoch == 0 or _is_count(epoch)) and epoch < 1 << 63
        check(is_possible, "epoch", epoch, "a whole number from 0 to 2**63 - 1")
        self._position = Position(self._position.seed, epoch, 0)

    def __iter__(self) -> Iterator[Any]:
        epoch, (worker, workers) = self.epoch, _place_among_workers()
        every = self._course(self._position).batches(epochs=epoch + 1)
        batches = islice(every, worker, None, workers)
        pool = ThreadPoolExecutor(self._workers, "headrace-loader")
        under_way: deque[tuple[Batch, int, Future[tuple[Any, int]]]] = deque()
        try:
            while True:
                ahead = sum(size for _, size, _ in under_way)
                while (not under_way or ahead < self._ahead_bytes) and (batch := next(batches, None)):
                    size = self._reader.num_bytes(batch.samples.tolist())
                    ahead += size
                    under_way.append((batch, size, pool.submit(self._load, batch.samples.tolist())))
                if not under_way:
                    if workers > 1:  # the last batch may have been another worker's
                        self._position = Position(self._position.seed, epoch + 1, 0)
                    return
                batch, _, loading = under_way.popleft()
                loaded, rejected = loading.result()
                self._position = batch.after
                self.num_rejected += rejected
                self.num_repeated += batch.num_repeated
                if rejected < len(batch.samples):
                    yield loaded
                elif self._ranks > 1:  # the others have a batch here, and would wait for this rank's gradients
                    raise SourceError(
                        f"all {rejected} samples of a batch of rank {self._rank} were rejected, so that it would have a batch "
                        f"less than the other ranks; make batches larger, or pack what can be read"
                    )
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Close the shards."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _course(self, position: Position) -> Course:
        return Course(self._order, self._batch, rank=self._rank, ranks=self._ranks, end=self._end, position=position)

    def _load(self, numbers: Sequence[int]) -> tuple[Any, int]:
        """Return a batch, and how many samples were left out of it."""
        found, rejected = [], 0
        for number in numbers:
            try:
                found.append(self._transform(LoadedSample(self._reader.key(number), self._reader.read_parts(number))))
            except ItemRejected:
                if not self._skips:
                    raise
                rejected += 1
            except Exception as error:
                error.add_note(f"headrace: in the transform of sample {self._reader.key(number)!r}")
                raise
        return self._collate(found) if found else None, rejected


def _is_count(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= 1


def _as_it_is(sample: LoadedSample) -> LoadedSample:
    return sample


def _place_among_workers() -> tuple[int, int]:
    """Return which worker of a DataLoader this process is, and how many there are; (0, 1) anywhere else."""
    data = sys.modules.get("torch.utils.data")  # a worker has it
    info = data.get_worker_info() if data is not None else None
    return (info.id, info.num_workers) if info is not None else (0, 1)


def _form_of(value: Any) -> Any:
    """Return what values must have in common to be stacked; None if they are not, and become a list."""
    if isinstance(value, _NUMBERS):
        return "number"
    if isinstance(value, tuple):
        return len(value)
    if isinstance(value, dict):
        return frozenset(value)
    return type(value) if hasattr(value, "shape") else None


def _shown(value: Any) -> str:
    keys = f" with {', '.join(map(str, value))}" if isinstance(value, dict) else ""
    size = f" of {len(value)}" if isinstance(value, tuple) else ""
    return f"{type(value).__name__}{size}{keys}"


def stack(values: list[Any]) -> Any:
    """Return values as one: arrays and tensors stacked, numbers an array, tuples and dicts by their parts, others a list.

    Raises:
        ValueError: If they are of several kinds, or arrays have several shapes.
    """
    first = next(iter(islice(values, 1)), None)
    torch = sys.modules.get("torch")  # whoever made a tensor has it
    if len(unlike := {_form_of(one): one for one in values}) > 1:
        raise ValueError(
            f"a batch has values such as {' and '.join(map(_shown, unlike.values()))}, which cannot be stacked: transform "
            "should return one kind, or collate=list leaves them as they are"
        )
    if isinstance(first, np.ndarray) or (torch is not None and isinstance(first, torch.Tensor)):
        other = next((one.shape for one in values if one.shape != first.shape), first.shape)
        if other != first.shape:
            raise ValueError(
                f"a batch has arrays of the shapes {tuple(first.shape)} and {tuple(other)}, which cannot be stacked: transform "
                "should return one shape, or collate=list leaves them as they are"
            )
        return np.stack(values) if isinstance(first, np.ndarray) else torch.stack(values)  # type: ignore[union-attr]
    if isinstance(first, _NUMBERS):
        return np.asarray(values)
    if isinstance(first, tuple):
        return tuple(stack(list(column)) for column in zip(*values, strict=True))
    if isinstance(first, dict):
        return {key: stack([value[key] for value in values]) for key in first}
    return values
