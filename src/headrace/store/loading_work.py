"""What makes a batch of a loader: reads samples, transforms and collates them, in a thread or in a process of its own.

A process is started by `spawn`, as a fork of a process with threads may hang; so what it is given is pickled. It ends with its
parent, also if that is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headrace.base.errors import ItemRejected, SettingsError, SourceError
from headrace.base.signals import ignore_signals
from headrace.store.collating import Rows, stack

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class Reader(Protocol):
    """Reads samples by their numbers; any thread."""

    @property
    def shown(self) -> str:
        """What was named, for messages."""

    @property
    def paths(self) -> Sequence[Any]:
        """What was named."""

    def __len__(self) -> int: ...

    def key(self, number: int) -> str:
        """Return the key of a sample."""

    def num_bytes(self, numbers: Sequence[int]) -> int:
        """Return the size of samples."""

    def read_parts(self, number: int) -> dict[str, bytes]:
        """Return all files of a sample, {part: bytes}."""

    def close(self) -> None:
        """Close the shards."""


@dataclass(frozen=True, slots=True)
class LoadedSample:
    """One sample as it is in the shard."""

    key: str
    parts: dict[str, bytes]
    """{part: bytes}, such as `jpg` and `cls`."""
    rows: Rows | None = field(default=None, repr=False, compare=False)
    """Of the batch that it is loaded for; None outside of a loader."""

    def place(self, shape: Sequence[int], dtype: DTypeLike = np.uint8) -> np.ndarray:
        """Return an array of the batch's memory, to be written to and returned: so it need not be copied there.

        Args:
            shape: Of this sample's part. One of another shape than in the batch's first sample is memory of its own.
            dtype: Likewise.
        """
        return np.empty(tuple(shape), dtype) if self.rows is None else self.rows.take(tuple(shape), np.dtype(dtype))


@dataclass(frozen=True, slots=True)
class Work:
    """Makes batches; any thread."""

    reader: Reader
    transform: Callable[[LoadedSample], Any] | None
    collate: Callable[[list[Any]], Any] | None
    """None: `collating.stack`."""
    skips: bool
    """Whether samples that are rejected are left out."""
    size: int
    """Samples that there must be, also where a process opens the shards again."""

    def __call__(self, numbers: Sequence[int]) -> tuple[Any, int]:
        """Return a batch, None if nothing is left of it, and how many samples were left out."""
        found: list[Any] = []
        rejected, rows = 0, Rows(len(numbers))
        for number in numbers:
            rows.begin(len(found))  # the row of one that is rejected is the next one's
            try:
                found.append(self._load(number, rows))
            except ItemRejected:
                if not self.skips:
                    raise
                rejected += 1
        if not found:
            return None, rejected
        return self.collate(found) if self.collate is not None else stack(found, rows.arrays), rejected

    def _load(self, number: int, rows: Rows) -> Any:
        key, parts = self.reader.key(number), self.reader.read_parts(number)
        if self.transform is None:
            return LoadedSample(key, parts)
        sample = LoadedSample(key, parts, rows)
        try:
            return self.transform(sample)
        except ItemRejected:
            raise
        except Exception as error:
            error.add_note(f"headrace: in the transform of sample {sample.key!r}")
            raise


def make_threads(workers: int) -> Executor:
    """Return threads that call functions."""
    return _leave_soon(ThreadPoolExecutor(workers, "headrace-loader"))


def make_processes(work: Work, workers: int) -> Executor:
    """Return processes in which `work_there` does what `work` does here.

    Raises:
        SettingsError: If it cannot be sent there.
    """
    try:
        packed = pickle.dumps(work)
    except Exception as error:
        try:
            pickle.dumps(work.reader)
        except Exception:
            raise SettingsError(
                "executor = 'process' opens the shards in other processes, and `fs` cannot be sent there "
                f"({type(error).__name__}); give one that pickle can copy, or use executor = 'thread'"
            ) from None
        raise SettingsError(
            f"executor = 'process' sends `transform` and `collate` to other processes, and one cannot be sent ({error}); "
            "define it as a function of a module, outside of other functions"
        ) from None
    context = multiprocessing.get_context("spawn")
    return _leave_soon(ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(packed,)))


_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


def _leave_soon(executor: Executor) -> Executor:
    """Let a program that ends in the middle of a loop wait for what is being made alone, and not for all that is read ahead."""
    _executors.add(executor)
    return executor


def _cancel_all() -> None:
    for executor in list(_executors):
        executor.shutdown(wait=False, cancel_futures=True)


# As concurrent.futures does, whose own function makes all that waits before the program ends; the last one that was
# registered is called first, and `atexit` comes after them. Without it a program only ends later.
if (_register := getattr(threading, "_register_atexit", None)) is not None:
    _register(_cancel_all)


_packed = b""
_work: Work | None = None


def _begin(packed: bytes) -> None:
    """Prepare a process; what is packed is opened by the first call, whose errors reach the parent."""
    global _packed
    ignore_signals(signal.SIGINT)
    threading.Thread(target=_end_with_parent, name="headrace-parent", daemon=True).start()
    _packed = packed


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def work_there(numbers: Sequence[int]) -> tuple[Any, int]:
    """Do the work of this process.

    Raises:
        SourceError: If the shards are others than when the loader was made.
    """
    global _work
    if _work is None:
        work: Work = pickle.loads(_packed)
        if len(work.reader) != work.size:
            raise SourceError(
                f"{work.reader.shown} held {work.size:,} samples, and {len(work.reader):,} when a process opened it; shards "
                "may not change while they are read"
            )
        _work = work
    try:
        return _work(numbers)
    except Exception as error:
        if _can_be_sent(error):
            raise
        # The parent would take this process for one that was killed, or say only what could not be sent.
        other = RuntimeError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
        other.__notes__ = [
            *getattr(error, "__notes__", ()),
            "headrace: the error itself cannot be sent between processes",
        ]
        raise other.with_traceback(error.__traceback__) from None


def _can_be_sent(error: Exception) -> bool:
    """Return whether an error comes out of a pipe as it went in: many whose `__init__` takes several values do not."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        return False
