"""Fingerprints of the first batches of each epoch: they show whether ranks, or epochs, were given the same data.

A fingerprint is a hash of 64 bits for each tensor of a batch: of the first 4 kB of its first sample, or of the tensor itself if
it has one dimension, as labels do. So labels show the order even where images are changed at random. Eight batches of two
epochs are looked at; after that nothing is. A pass over the loader that updates no weights belongs to a validation, where ranks
may well see the same: it is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

from headrace.runs.formats.training import FirstBatches
from headrace.train.batch_values import values_of
from headrace.train.loader_source import LoaderSources
from headrace.train.loader_watch import Tally, WatchedLoader
from headrace.train.recorder import Recorder

#: How much is looked at.
NUM_BATCHES, NUM_EPOCHS, NUM_TENSORS, NUM_BYTES = 8, 2, 8, 4096


class LoaderPrints:
    """Fingerprints of what one loader gave, from the first training epochs.

    Args:
        sampler: Class that gives the loader its order; empty: not known.
    """

    def __init__(self, sampler: str = "") -> None:
        self._sampler = sampler
        self._epochs: list[list[list[str]]] = []
        self._batches: list[list[str]] | None = None
        self._steps = (0, 0)

    def begin_epoch(self) -> bool:
        """The loader was asked to begin again; return whether its batches are looked at."""
        self._end_epoch()
        is_looked_at = len(self._epochs) < NUM_EPOCHS
        if is_looked_at:
            self._batches = []
        return is_looked_at

    def see(self, batch: Any, steps: int) -> None:
        """Take the fingerprint of a batch, if it is one of the first.

        Args:
            batch: As the loader gave it.
            steps: Optimizer steps that have ended in this process.
        """
        if self._batches is None or len(self._batches) == NUM_BATCHES:
            return
        self._steps = (self._steps[0] if self._batches else steps, steps)
        try:
            tensors = [tensor for _, tensor in zip(range(NUM_TENSORS), _tensors(batch), strict=False)]
        except Exception:  # Types of the user's own can do anything.
            tensors = []
        self._batches.append([_fingerprint(tensor) for tensor in tensors])

    def epochs(self) -> list[list[list[str]]]:
        """Return 16 hexadecimal digits for each epoch that trained so far, for each batch, for each tensor."""
        return [*self._epochs, self._batches] if self._batches and self._is_training() else self._epochs

    def describe(self) -> FirstBatches:
        """Return what `training/HOST-PID.json` holds of it."""
        return FirstBatches(
            sampler=self._sampler, epochs=tuple(tuple(map(tuple, batches)) for batches in self.epochs())
        )

    def _end_epoch(self) -> None:
        self._epochs = self.epochs()
        self._batches = None

    def _is_training(self) -> bool:
        return self._steps[1] > self._steps[0]


class PrintedLoader(WatchedLoader):
    """A watched loader whose first batches leave their fingerprints; later epochs cost nothing more.

    Args:
        loader: Anything that can be iterated over.
        recorder: Is told of waiting, and knows how many steps have ended.
        prints: Of this loader.
        sources: Of the session; None: what loading costs is not recorded together with that of other loaders.
        tally: Of this loader.
    """

    def __init__(
        self,
        loader: Any,
        recorder: Recorder,
        prints: LoaderPrints,
        sources: LoaderSources | None = None,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(loader, recorder, sources, tally)
        self._prints = prints

    def __iter__(self) -> Iterator[Any]:
        iterator = super().__iter__()
        if not self._prints.begin_epoch():
            return iterator
        return PrintedIterator(iterator, self._recorder, self._prints)


class PrintedIterator:
    """An iterator that takes the fingerprint of each batch that it gives."""

    def __init__(self, iterator: Iterator[Any], recorder: Recorder, prints: LoaderPrints) -> None:
        self._iterator, self._recorder, self._prints = iterator, recorder, prints

    def __iter__(self) -> PrintedIterator:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self._prints.see(batch, self._recorder.steps)
        return batch

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # a copy in the making
            raise AttributeError(name)
        return getattr(self._iterator, name)


def _tensors(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch that lie in memory one after another, in their order."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and value.layout is torch.strided and value.numel() and not value.is_quantized:
            yield value
    elif depth:
        for one in values_of(value) or ():
            yield from _tensors(one, depth - 1)


def _fingerprint(tensor: torch.Tensor) -> str:
    """Return 16 hexadecimal digits; empty for a tensor whose bytes cannot be read."""
    try:
        first = tensor.detach() if tensor.dim() < 2 else tensor.detach()[0]
        start = first.flatten()[: max(NUM_BYTES // first.element_size(), 1)].resolve_conj().resolve_neg().contiguous()
        content = start.view(torch.uint8).numpy().tobytes()
    except Exception:  # Classes of tensors can do anything, and a print is not worth a training.
        return ""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
