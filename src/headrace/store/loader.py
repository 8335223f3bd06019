"""Batches for training from shards: in an order that needs no memory, read ahead beside the training, resumable with 24 bytes.

How this works: the thread that asks for a batch hands tasks to a pool, one for each batch, as many ahead as the limit of bytes
allows, and takes the results in order, or as they are ready. Threads read, and run `transform`: this pays where decoding lets
go of the GIL, as OpenCV, Pillow and NumPy do; processes where it does not. `state` is what was handed out, whatever was read
ahead. Leaving the loop early throws what was read ahead away; the next loop begins behind what was handed out. Threads live as
long as a loop; processes, which are dear to start, until the loader is closed.

In a worker of PyTorch's DataLoader the batches are dealt out among the workers in turn, which is the order in which DataLoader
collects them: so it gives each batch once, in the same order as without workers.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any, Never, Self
from weakref import WeakSet

from headrace.base.errors import SettingsError, SourceError
from headrace.base.named_paths import Named, list_addresses
from headrace.base.settings import check
from headrace.store.collating import has_gpu, pin
from headrace.store.handed_out import HandedOut
from headrace.store.loading_work import LoadedSample, Reader, Work, make_processes, make_threads, work_there
from headrace.store.object_shards import ObjectShardReader
from headrace.store.objects import SCHEMES
from headrace.store.order import Batch, Course, End, Order, Position
from headrace.store.shard_reader import ShardReader

#: What users of PyTorch's DataLoader write, and what to write here.
_NAMES_OF_DATALOADER = {
    "batch_size": "write batch=",
    "num_workers": "write workers=: threads, or processes with executor='process'",
    "collate_fn": "write collate=; without it arrays and tensors are stacked",
    "sampler": "write shuffle= and seed=; rank= and ranks= for a DistributedSampler",
    "batch_sampler": "write batch=, shuffle= and seed=; rank= and ranks= for several ranks",
    "generator": "write seed=, a whole number",
    "drop_last": "write end='drop' for True, end='keep' or 'pad' for False",
    "prefetch_factor": "write ahead_bytes=, the bytes that are read ahead",
    "in_order": "write ordered=",
    "pin_memory_device": "write pin_memory=",
    "multiprocessing_context": "write executor='process'; processes are started by spawn",
    "persistent_workers": "leave it out: threads cost little, and processes stay until close()",
    "worker_init_fn": "leave it out: what a process needs is made where the module of transform is imported",
    "timeout": "leave it out: requests to a store end by themselves; a transform that hangs is not ended",
}
#: Loops that may have been left open.
_LOOPS: WeakSet[Generator[Any, None, None]] = WeakSet()


@atexit.register
def _close_loops() -> None:
    """End what was left open while the names that its end needs are there: at exit modules lose theirs first."""
    for loop in list(_LOOPS):
        with contextlib.suppress(ValueError):  # a thread is in it
            loop.close()


class Loader:
    """Iterates over the batches of one epoch; the next loop is the next epoch.

    Args:
        path: Tar shards: a file, a folder, a pattern such as `shard-{000..009}.tar`, an address in an object store such as
            `s3://photos/packed`, or a list of these, which is sorted.
        batch: Samples of a batch of this rank; must be given.
        transform: Called with a `LoadedSample` in a thread; None: the sample itself.
        collate: Called with a list of what transform returned; None: arrays and tensors are stacked, numbers become an array,
            tuples and dicts by their parts, anything else is a list.
        workers: Threads or processes.
        fs: A file system of fsspec in which `path` is a folder, a shard or a list of them; None: this machine's, or buckets.
        executor: `thread`, or `process` where `transform` is Python that keeps the GIL; it is sent to processes then, so it
            must be a function of a module.
        ordered: False: batches come as they are ready, with the same samples in each. At most 256 overtake one that is missing.
            In a worker of a DataLoader, which puts them in order itself, it changes nothing.
        pin_memory: Whether tensors of PyTorch are copied to memory that a GPU reads by itself; None: where there is one. Not
            in a worker of a DataLoader, which has an option of its own for that.
        ahead_bytes: Bytes of samples, as packed, that are read ahead at most; one batch always is.
        seed: Of the order.
        shuffle: False: the order of the shards.
        block: Samples that stay together; see `order.Order`. From an object store they come by one request.
        rank: Of this process, from 0.
        ranks: How many there are.
        end: `pad`, `drop` or `keep`; see `order.Course`. None: `keep` with one rank, `pad` with several.
        rejects: `raise`: a sample that cannot be read or transformed (an ItemRejected) ends the loop; `skip`: it is left out
            of its batch and counted. A batch of which nothing is left is not handed out; with several ranks it ends the loop.

    It may be read inside a worker of PyTorch's DataLoader (`batch_size=None`): each worker gives its share of the batches.
    `state` then counts in the worker alone; in the training process call `begin_epoch` before each epoch, as DataLoader makes
    new workers from it.

    There is one sequence, so one loop at a time: a loop that was left open is over once another one begins, and says so if it
    is asked for more.

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
        batch: int | None = None,
        *,
        fs: Any = None,
        transform: Callable[[LoadedSample], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 2,
        executor: str = "thread",
        ordered: bool = True,
        pin_memory: bool | None = None,
        ahead_bytes: int = 64 << 20,
        seed: int = 0,
        shuffle: bool = True,
        block: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        end: End | None = None,
        rejects: str = "raise",
        **others: Never,
    ) -> None:
        for name in others:
            raise _unknown_argument(name)
        check(_is_count(batch), "batch", batch, "a whole number >= 1")
        assert batch is not None
        check(_is_count(workers), "workers", workers, "a whole number >= 1")
        check(seed == 0 or _is_count(seed), "seed", seed, "a whole number from 0 to 2**64 - 1")
        check(rejects in ("raise", "skip"), "rejects", rejects, "raise or skip")
        check(executor in ("thread", "process"), "executor", executor, "thread or process")
        check(type(ordered) is bool, "ordered", ordered, "True or False")
        check(pin_memory is None or type(pin_memory) is bool, "pin_memory", pin_memory, "True, False or None")
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
        # Numbers of NumPy would overflow, and make a state that plain ones of the same value do not take.
        batch, workers, seed, rank, ranks = int(batch), int(workers), int(seed), int(rank), int(ranks)
        ahead_bytes, block = int(ahead_bytes), None if block is None else int(block)
        self._reader = _open(path, fs, shuffle=shuffle, block=block)
        if not len(self._reader):
            shown, path = self._reader.shown, self._reader.paths[0]
            self._reader.close()
            why = f"; `headrace pack {path} -o NEW` lists why" if fs is None else "; pack again what it was made of"
            raise SourceError(f"{shown} holds no sample that can be read{why}")
        self._order = Order(len(self._reader), seed, shuffle=shuffle, block=block)
        self._batch, self._rank, self._ranks = batch, rank, ranks
        self._end: End = end if end is not None else "keep" if ranks == 1 else "pad"
        self._work = Work(self._reader, transform, collate, rejects == "skip", len(self._reader))
        self._workers, self._ahead_bytes, self._ordered, self._pin_memory = workers, ahead_bytes, ordered, pin_memory
        self._processes = make_processes(self._work, workers) if executor == "process" else None
        self._executor = executor
        self._handed_out = HandedOut(Position(seed, 0, 0), is_apart=not ordered)
        self._num_loops = 0  # that began; what is handed out is counted for the last one
        self._course()  # its settings are checked now
        self.num_rejected = 0
        self.num_repeated = 0

    def __len__(self) -> int:
        return self._course().steps_per_epoch

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of, from 0."""
        return next(self._course().batches()).epoch

    def state(self) -> bytes:
        """Return what was handed out so far, for a checkpoint: 24 bytes, or 60 while batches come out of order.

        These 60 bytes are of this rank alone, and of its size of batches and number of ranks. At the end of an epoch it is 24.
        """
        return self._handed_out.encode(self._course())

    def resume(self, state: bytes) -> None:
        """Go on behind what had been handed out when `state` was called, perhaps with other ranks and workers.

        Raises:
            SettingsError: If it is the state of another seed, number of samples, shuffle or block; or has 60 bytes, and is of
                another rank, number of ranks, size of batches or end.
        """
        handed_out = HandedOut.decode(state, self._course())
        self._course(handed_out.position)
        handed_out.is_apart |= not self._ordered
        self._go_to(handed_out)

    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, from 0."""
        is_possible = (epoch == 0 or _is_count(epoch)) and epoch < 1 << 32
        check(is_possible, "epoch", epoch, "a whole number from 0 to 2**32 - 1")
        self._go_to(HandedOut(Position(self._order.seed, int(epoch), 0), is_apart=not self._ordered))

    def __iter__(self) -> Iterator[Any]:
        loop = self._loop()
        _LOOPS.add(loop)
        return loop

    def _loop(self) -> Generator[Any, None, None]:
        epoch, place = self.epoch, _place_among_workers()
        worker, workers = place or (0, 1)
        handed_out, course = self._handed_out, self._course()
        self._go_to(handed_out)
        loop = self._num_loops
        handed_out.begin(epoch)
        every = enumerate(course.batches(epochs=epoch + 1))
        left = islice((one for one in every if not handed_out.has(one[0])), worker, None, workers)
        pool, work = self._open_pool(pins=place is None)
        under_way: list[_Loading] = []
        upcoming = next(left, None)
        try:
            while True:
                ahead = sum(one.num_bytes for one in under_way)
                while upcoming and (not under_way or (ahead < self._ahead_bytes and handed_out.has_room(upcoming[0]))):
                    samples = upcoming[1].samples.tolist()
                    under_way.append(_Loading(*upcoming, self._reader.num_bytes(samples), pool.submit(work, samples)))
                    ahead += under_way[-1].num_bytes
                    upcoming = next(left, None)
                if not under_way:
                    if workers > 1:  # the last batch may have been another worker's
                        self.begin_epoch(epoch + 1)
                    return
                loading = _take(under_way, in_order=self._ordered or place is not None)
                loaded, rejected = loading.future.result()
                if loop != self._num_loops:
                    raise SourceError(
                        "this loop over the loader is over: another one began since, or `resume` or `begin_epoch` was called; "
                        "for two loops at once make two loaders"
                    )
                if workers > 1:
                    handed_out.position, handed_out.beyond = loading.batch.after, 0
                else:
                    handed_out.take(loading.number, course)
                self.num_rejected += rejected
                self.num_repeated += loading.batch.num_repeated
                if rejected < len(loading.batch.samples):
                    yield loaded if self._executor == "thread" else self._pinned(loaded)
                elif self._ranks > 1:  # the others have a batch here, and would wait for this rank's gradients
                    raise SourceError(
                        f"all {rejected} samples of a batch of rank {self._rank} were rejected, so that it would have a batch "
                        f"less than the other ranks; make batches larger, or pack what can be read"
                    )
        except BrokenProcessPool as error:
            self._processes = None  # the next loop starts others
            raise SourceError(
                "a process of the loader ended by itself: it was killed, perhaps for want of memory, or crashed in "
                "`transform`; the next loop goes on behind what was handed out"
            ) from error.__cause__
        finally:
            for one in under_way:
                one.future.cancel()
            if pool is not self._processes:
                pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Close the shards, and end the processes."""
        self._num_loops += 1
        if self._processes is not None:
            self._processes.shutdown(wait=True, cancel_futures=True)
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_processes": None}  # another process starts its own

    def _go_to(self, handed_out: HandedOut) -> None:
        """Go on elsewhere, or in another loop: the one so far is over."""
        self._handed_out = handed_out
        self._num_loops += 1

    def _course(self, position: Position | None = None) -> Course:
        position = position or self._handed_out.position
        return Course(self._order, self._batch, rank=self._rank, ranks=self._ranks, end=self._end, position=position)

    def _open_pool(self, *, pins: bool) -> tuple[Executor, Callable[[list[int]], tuple[Any, int]]]:
        """Return what calls functions beside this thread, and the function that makes a batch there."""
        if self._executor == "thread":
            return make_threads(self._workers), self._work_and_pin if pins else self._work
        check(
            not multiprocessing.current_process().daemon,
            "executor",
            self._executor,
            "thread within a worker of a DataLoader, which may start no processes",
        )
        if self._processes is None:
            self._processes = make_processes(self._work, self._workers)
        return self._processes, work_there

    def _work_and_pin(self, numbers: list[int]) -> tuple[Any, int]:
        loaded, rejected = self._work(numbers)
        return self._pinned(loaded), rejected

    def _pinned(self, loaded: Any) -> Any:
        return pin(loaded) if self._pin_memory or (self._pin_memory is None and has_gpu()) else loaded


@dataclass(frozen=True, slots=True)
class _Loading:
    """A batch that is under way."""

    number: int
    batch: Batch
    num_bytes: int
    future: Future[tuple[Any, int]]


def _take(under_way: list[_Loading], *, in_order: bool) -> _Loading:
    """Remove and return the first batch, or the first one that is ready."""
    if in_order:
        return under_way.pop(0)
    wait([one.future for one in under_way], return_when=FIRST_COMPLETED)
    return under_way.pop(next(index for index, one in enumerate(under_way) if one.future.done()))


def _open(path: Named, fs: Any, *, shuffle: bool, block: int | None) -> Reader:
    """Open shards where they are; of a bucket what the order keeps together comes at once."""
    urls = list_addresses(path, SCHEMES if fs is None else None)
    if urls is None:
        check(fs is None, "path", type(path).__name__, "with fs the path of a folder as text, or a list of such paths")
        return ShardReader(path)
    return ObjectShardReader(urls, block=block or (1 if shuffle else None), fs=fs)


def _is_count(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= 1


def _unknown_argument(name: str) -> Exception:
    if name in _NAMES_OF_DATALOADER:
        return SettingsError(f"{name} is an argument of PyTorch's DataLoader; {_NAMES_OF_DATALOADER[name]}")
    return TypeError(f"hr.loader() got an unexpected keyword argument {name!r}")


def _place_among_workers() -> tuple[int, int] | None:
    """Return which worker of a DataLoader this process is, and how many there are; None anywhere else."""
    data = sys.modules.get("torch.utils.data")  # a worker has it
    info = data.get_worker_info() if data is not None else None
    return (info.id, info.num_workers) if info is not None else None
