"""Tells a recorder when the training thread waits for a loader, and what each batch cost where it was loaded.

The loader's class stays as it is: what is wrapped is this object's iterator. What is measured in the workers stands in
`loader_source`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from headrace.train.batch_values import values_of
from headrace.train.loader_source import LoaderSources, NoSource, Source
from headrace.train.loader_spans import LoadedBatch
from headrace.train.recorder import Recorder

_now = time.monotonic_ns  # a script may replace it


class Tally:
    """What became of the batches of one loader.

    Attributes:
        num_learnt: Batches that were learnt from after this loader gave one, and before it was asked for the next.
    """

    def __init__(self) -> None:
        self.num_learnt = 0


class WatchedLoader:
    """A loader that behaves as the one inside, and tells when it is asked; a copy or pickle of it is one of that loader.

    Args:
        loader: Anything that can be iterated over, usually a `torch.utils.data.DataLoader`.
        recorder: Is told.
        sources: Of the session; None: one of its own.
        tally: Counts; None: nobody asks.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        recorder: Recorder,
        sources: LoaderSources | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._loader = loader
        self._recorder = recorder
        self._sources = sources or LoaderSources()
        self._tally = tally or Tally()

    def __iter__(self) -> Iterator[Any]:
        self._recorder.epoch_begins()
        iterator, source = self._sources.watch(self._loader, lambda: iter(self._loader))
        self._recorder.epoch_began()
        return WatchedIterator(self._loader, iterator, self._recorder, self._sources, source, self._tally)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy in the making
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __reduce_ex__(self, _: Any) -> Any:
        return _give, (self._loader,)


def _give(loader: Any) -> Any:
    return loader


class WatchedIterator:
    """An iterator that tells when it is asked for a batch, and when that has come.

    Args:
        loader: Whose it is.
        iterator: That of the loader.
        recorder: Is told.
        sources: Of the session.
        source: Of the batches; None: known after the first one.
        tally: Counts what was learnt from.
    """

    def __init__(
        self,
        loader: Any,
        iterator: Iterator[Any],
        recorder: Recorder,
        sources: LoaderSources,
        source: Source | None,
        tally: Tally,
    ) -> None:
        self._loader, self._iterator, self._recorder = loader, iterator, recorder
        self._sources, self._source = sources, source
        self._is_blind = isinstance(source, NoSource)
        self._tally, self._learnt = tally, recorder.num_learnt

    def __iter__(self) -> WatchedIterator:
        return self

    def __next__(self) -> Any:
        recorder, is_blind = self._recorder, self._is_blind
        self._tally.num_learnt += recorder.num_learnt - self._learnt
        recorder.batch_wanted()
        asked = 0 if is_blind else _now()
        try:
            if is_blind:
                batch = next(self._iterator)
            elif self._source is None:
                batch = self._first()
            else:
                self._source.is_wanted = recorder.is_metered
                batch = next(self._iterator)
        except StopIteration:
            recorder.batches_ended()
            self._learnt = recorder.num_learnt
            raise
        except BaseException:
            recorder.batch_failed(self._load(asked))
            raise
        recorder.batch_came(count_samples(batch), None if is_blind else self._load(asked))
        self._learnt = recorder.num_learnt
        return batch

    def _load(self, asked: int) -> LoadedBatch | None:
        """Return what the batch cost that has come, or an exception in its place."""
        if self._source is None:
            return None
        taken = _now()
        record, worker = self._source.take()
        self._sources.note(self._loader, record, worker)
        return None if record is None else LoadedBatch(record, worker, asked, taken)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def _first(self) -> Any:
        """Return the first batch of an iterator whose loader starts its workers only now."""
        batch, self._source = self._sources.watch(self._loader, lambda: next(self._iterator), is_late=True)
        return batch

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]


def count_samples(batch: Any) -> int:
    """Return how many samples a batch has, by the first tensor or array in it; 0: not known.

    No method of a class of the user's is called: it may do anything.
    """
    if (type(batch) is tuple or type(batch) is list) and batch and type(batch[0]) is torch.Tensor:  # as most are
        shape = batch[0].shape
        return shape[0] if shape else 0
    for _ in range(4):
        values = values_of(batch)
        if values is None:
            break
        batch = next(iter(values), None)
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.dim() else 0
    return len(batch) if type(batch).__module__ == "numpy" and batch.shape else 0
