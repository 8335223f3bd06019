"""Has a loader's iterator say what each of its batches cost, and which worker it came from.

How this works: `open_iterator` lets the loader make its iterator as it always does. While it does, two attributes of that one
loader are replaced: `worker_init_fn`, by one that has the workers' batches timed, and `_get_iterator`, to see the iterator that
is made even where a subclass hides it in a generator. Both are put back before it returns. A loader's iterator calls
`_process_data` with the number of the worker for each batch that it gives; an attribute of that one iterator notes the number.
Without workers the fetcher in the iterator is replaced by a watched one. `release` puts back what still stands.

What cannot be watched is trained as ever, and `why_not` says why there is nothing to see.
"""

# ruff: noqa: SLF001 -- PyTorch has no public way to see which worker a batch came from.
from __future__ import annotations

import contextlib
import inspect
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from headrace.train import loader_parts
from headrace.train.loader_clock import BatchClock, WatchedFetcher
from headrace.train.loader_record import BatchRecord, SharedRecords
from headrace.train.loader_worker import WorkerStart
from headrace.train.slow_items import SlowItems
from headrace.train.worker_lines import WorkerLines

#: Two threads must not replace the attributes of one loader at once.
_lock = threading.RLock()
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.RLock()))


#: Of `_process_data` in PyTorch 2.6 and later: iterator, data, worker.
_NUM_PARAMETERS = 3


class Source(Protocol):
    """Where the batches of one iterator are loaded.

    Attributes:
        is_wanted: Whether the next batch is to be timed; workers, which are ahead of that, time all of theirs.
    """

    is_wanted: bool

    def begin_epoch(self) -> None:
        """The iterator begins from the start."""

    def take(self) -> tuple[BatchRecord | None, int]:
        """Return the record of the batch that has just come, and its worker; -1: the thread that trains."""

    def release(self) -> None:
        """Put everything back."""


class NoSource:
    """Of an iterator that cannot be watched."""

    is_wanted = False

    def begin_epoch(self) -> None:
        """Nothing to do."""

    def take(self) -> tuple[BatchRecord | None, int]:
        """Nothing is known."""
        return None, -1

    def release(self) -> None:
        """Nothing to do."""


class WorkerSource:
    """The worker processes of one iterator.

    Args:
        iterator: PyTorch's.
        records: Where its workers leave what batches cost.
        lines: Adds up where workers were seen at work.
    """

    is_wanted = True

    def __init__(self, iterator: Any, records: SharedRecords, lines: WorkerLines) -> None:
        self._iterator = weakref.ref(iterator)
        self._records, self._lines = records, lines
        self._is_released = False
        self._epoch = 0
        self._counts: dict[int, int] = defaultdict(int)
        self._came: deque[tuple[int, int]] = deque()
        iterator._process_data = _NoteWorker(self, iterator)

    def begin_epoch(self) -> None:
        """Persistent workers begin again; batches that nobody took are dropped."""
        self._epoch += 1
        self._counts.clear()
        self._came.clear()

    def came_from(self, worker: int) -> None:
        """The batch that comes next is this worker's."""
        self._came.append((worker, self._counts[worker]))
        self._counts[worker] += 1

    def take(self) -> tuple[BatchRecord | None, int]:
        """Return the record of the batch that has just come, and its worker."""
        if not self._came:
            return None, -1
        worker, number = self._came.popleft()
        return self._records.read(worker, self._epoch, number), worker

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # of a source that could not be made
            self._leave()

    def _leave(self) -> None:
        """Take what the workers have left, once, and let them write no more."""
        if not self._is_released:
            self._is_released = True
            self._lines.add(self._records)
            self._records.end()

    def release(self) -> None:
        """Remove the attribute from the iterator; workers that go on write no more."""
        self._leave()
        iterator = self._iterator()
        if iterator is not None and getattr(iterator._process_data, "source", None) is self:
            del iterator._process_data


class _NoteWorker:
    """Stands before `_process_data` of one iterator; refers to it weakly, so that it ends when the program drops it."""

    def __init__(self, source: WorkerSource, iterator: Any) -> None:
        self.source, self._iterator = source, weakref.ref(iterator)

    def __call__(self, data: Any, worker: int) -> Any:
        self.source.came_from(worker)
        iterator: Any = self._iterator()
        return type(iterator)._process_data(iterator, data, worker)


class ThreadSource:
    """The thread that trains, which loads its batches itself.

    Args:
        iterator: PyTorch's.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        self._records: deque[BatchRecord] = deque()
        self._is_over = False
        self.is_wanted = True
        clock = BatchClock(self._records.append, os.getpid(), is_alone=False)
        fetcher = WatchedFetcher(iterator._dataset_fetcher, clock, self._has_ended, lambda: self.is_wanted)
        iterator._dataset_fetcher = fetcher
        self._fetcher = weakref.ref(fetcher)

    def begin_epoch(self) -> None:
        """An iterator without workers serves one epoch only."""

    def take(self) -> tuple[BatchRecord | None, int]:
        """Return the record of the batch that has just come."""
        return (self._records.popleft() if self._records else None), -1

    def release(self) -> None:
        """Put the fetcher back."""
        self._is_over = True
        iterator, fetcher = self._iterator(), self._fetcher()
        if iterator is not None and fetcher is not None and iterator._dataset_fetcher is fetcher:
            iterator._dataset_fetcher = fetcher.release()

    def _has_ended(self) -> bool:
        return self._is_over


class LoaderSources:
    """The sources of all loaders that one session watches.

    Attributes:
        why_not: {what: why} of loaders that are not watched.
        slow: What took longest.
        lines: Where workers were seen at work.
    """

    def __init__(self) -> None:
        self.slow = SlowItems()
        self.lines = WorkerLines()
        self.why_not: dict[str, str] = {}
        self._num_lost = 0
        self._sources: weakref.WeakSet[Any] = weakref.WeakSet()
        self._of_iterators: weakref.WeakKeyDictionary[Any, Source] = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Put back what still stands."""
        for source in list(self._sources):
            source.release()
        loader_parts.release()

    def note(self, loader: Any, record: BatchRecord | None, worker: int) -> None:
        """Look at what a batch cost.

        Args:
            loader: That gave it.
            record: Of the batch; None if there is none.
            worker: That loaded it; -1: the thread that trains, or not known.
        """
        if record is not None:
            self.slow.see(type(loader.dataset).__qualname__, record)
        elif worker >= 0:
            self._num_lost += 1
            self.why_not["what some batches cost"] = (
                f"{self._num_lost} batches came without a record: what makes them was replaced in their worker"
            )

    def watch(self, loader: Any, make: Callable[[], Any], *, is_late: bool = False) -> tuple[Any, Source | None]:
        """Have a loader make what it makes, and return that with the source of its batches.

        Args:
            loader: The loader.
            make: `iter(loader)`, or the first `next` of an iterator that makes its workers only then.
            is_late: It is that first `next`.

        Returns:
            What `make` returned, and the source; None if the loader made no iterator yet.
        """
        if not isinstance(loader, DataLoader):
            return make(), self._cannot(loader, "is no torch.utils.data.DataLoader: only the wait for it is measured")
        made: list[Source] = []
        with _lock, contextlib.ExitStack() as changes:
            before = loader._iterator
            again = None if before is None else self._of_iterators.get(before)
            if again is not None and is_late:
                again.begin_epoch()
            records = None
            why_not = ""
            if loader.num_workers > 0 and before is None:
                try:
                    records = SharedRecords(loader.num_workers, loader.num_workers * (loader.prefetch_factor or 2))
                except OSError as error:  # limits of files, of their size or of memory: the training may do without
                    why_not = f"cannot share memory with its workers: {error.strerror or error}"
                else:
                    start = WorkerStart(loader.worker_init_fn, records)
                    changes.enter_context(_replaced(loader, "worker_init_fn", start))
            original = loader._get_iterator

            def get_iterator() -> Any:
                iterator = original()
                made.append(self._cannot(loader, why_not) if why_not else self._add(loader, iterator, records))
                return iterator

            changes.enter_context(_replaced(loader, "_get_iterator", get_iterator))
            result = make()
        if made:
            return result, made[-1]
        if before is None or not (is_late or result is before):
            return result, self._cannot(loader, "has made no iterator of its own") if is_late else None
        if again is None:
            return result, self._cannot(loader, "had its persistent workers before the recording began")
        if not is_late:
            again.begin_epoch()
        return result, again

    def _add(self, loader: Any, iterator: Any, records: SharedRecords | None) -> Source:
        source: Source
        if isinstance(iterator, _MultiProcessingDataLoaderIter) and records is not None:
            if len(inspect.signature(type(iterator)._process_data).parameters) != _NUM_PARAMETERS:
                return self._cannot(
                    loader, "does not say which worker a batch came from; that of PyTorch 2.6 and later does"
                )
            source = WorkerSource(iterator, records, self.lines)
        elif isinstance(iterator, _SingleProcessDataLoaderIter):
            source = ThreadSource(iterator)
        else:
            return self._cannot(loader, f"has an iterator of its own, {type(iterator).__qualname__}")
        self._sources.add(source)
        self._of_iterators[iterator] = source
        return source

    def _cannot(self, loader: Any, why: str) -> Source:
        self.why_not["what loading costs"] = f"{type(loader).__module__}.{type(loader).__qualname__} {why}"
        return NoSource()


@contextlib.contextmanager
def _replaced(loader: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of one object."""
    attributes = vars(loader)
    had, before = name in attributes, attributes.get(name)
    attributes[name] = value
    try:
        yield
    finally:
        if had:
            attributes[name] = before
        else:
            attributes.pop(name, None)
