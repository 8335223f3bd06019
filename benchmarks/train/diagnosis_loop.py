"""A small training with a fault on purpose; `benchmarks.train.diagnosis` records and diagnoses it."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from headrace import train

_BATCH, _WIDTH = 16, 512
#: Work of a batch in a healthy loader, as a share of the step.
_LIGHT = 0.2


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Seconds that each place takes more in every step or batch; 0: nothing was injected there."""

    read: float = 0.0
    decode: float = 0.0
    augment: float = 0.0
    tokenise: float = 0.0
    collate: float = 0.0
    slow_batch: float = 0.0
    """Of one batch in twelve."""
    worker_start: float = 0.0
    first_batch: float = 0.0
    prepare: float = 0.0
    loss: float = 0.0
    before_update: float = 0.0
    after: float = 0.0
    optimizer: float = 0.0
    checkpoint: float = 0.0
    """Of one step in ten."""
    workers: int = 2
    epoch_steps: int = 1_000
    """Steps of an epoch."""


def compute(seconds: float) -> None:
    """Use so much CPU time of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _picture() -> bytes:
    file = io.BytesIO()  # of a size that is more work to decode than to open
    Image.linear_gradient("L").resize((224, 224)).convert("RGB").save(file, "JPEG")
    return file.getvalue()


class _Work(Dataset[torch.Tensor]):
    """One item is one batch, so that what is injected is known for each batch."""

    def __init__(self, faults: Faults, light: float) -> None:
        self.faults, self._light, self._picture = faults, light, _picture()
        self.transform: Callable[[torch.Tensor], torch.Tensor] = _Augment(faults.augment)
        self._tokeniser = _make_tokeniser(faults.tokenise) if faults.tokenise else None

    def __len__(self) -> int:
        return self.faults.epoch_steps

    def __getitem__(self, index: int) -> torch.Tensor:
        faults = self.faults
        compute(self._light)
        pause = faults.read + (faults.slow_batch if index % 12 == 11 else 0.0)
        pause += faults.first_batch if index == 0 else 0.0
        if pause:
            time.sleep(pause)
        until = time.thread_time() + faults.decode
        while time.thread_time() < until:
            Image.open(io.BytesIO(self._picture)).load()
        if self._tokeniser is not None:
            self._tokeniser("text")
        return self.transform(torch.zeros(_BATCH, _WIDTH))


class _Augment:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        compute(self._seconds)
        return value + 1.0


def _make_tokeniser(seconds: float) -> Callable[[str], object]:
    """Return a tokeniser of `transformers`, which headrace knows by its class, that computes for so long."""
    from transformers import PreTrainedTokenizerBase

    class Tokeniser(PreTrainedTokenizerBase):
        def __init__(self) -> None:
            pass

        def __call__(self, *_text: object, **_options: object) -> None:
            compute(seconds)

    return Tokeniser()


class _Collate:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, items: Sequence[torch.Tensor]) -> torch.Tensor:
        compute(self._seconds)
        return torch.cat(list(items))


class _StartWorker:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, worker: int) -> None:
        time.sleep(self._seconds)


class _SlowSGD(torch.optim.SGD):
    pause = 0.0

    def step(self, closure: Any = None) -> Any:
        compute(self.pause)
        return super().step(closure)


class _SlowFile(io.BytesIO):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def flush(self) -> None:
        """Take the time of a slow disk, once."""
        pause, self._seconds = self._seconds, 0.0
        time.sleep(pause)
        super().flush()


def record(folder: Path, faults: Faults, *, steps: int, step_seconds: float) -> None:
    """Train and record.

    Args:
        folder: The run folder to write.
        faults: What to inject.
        steps: Updates.
        step_seconds: That forward and backward take about: they compute until then.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(_WIDTH, 64), _Busy(step_seconds), torch.nn.Linear(64, 1))
    optimizer = _SlowSGD(model.parameters(), lr=1e-3)
    optimizer.pause = faults.optimizer
    loader = DataLoader(
        _Work(faults, _LIGHT * step_seconds),
        batch_size=1,
        num_workers=faults.workers,
        collate_fn=_Collate(faults.collate),
        worker_init_fn=_StartWorker(faults.worker_start),
    )
    done = 0
    with train.profile(loader, output=folder, force=True) as watched:
        while done < steps:
            for batch in watched:
                if faults.prepare:
                    compute(faults.prepare)
                loss = model(batch).square().mean()
                compute(faults.loss)
                optimizer.zero_grad()
                loss.backward()
                compute(faults.before_update)
                optimizer.step()
                compute(faults.after)
                done += 1
                if faults.checkpoint and done % 10 == 0:
                    file = _SlowFile(faults.checkpoint)
                    torch.save(_Slow(model.state_dict(), file), file)
                if done == steps:
                    break


class _Slow:
    """A state that takes time to be packed."""

    def __init__(self, state: Any, file: _SlowFile) -> None:
        self._state, self._file = state, file

    def __getstate__(self) -> Any:
        self._file.flush()
        return self._state


class _Busy(torch.nn.Module):
    """Computes for a known time in the forward and in the backward pass."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Return the value, later."""
        return _BusyFunction.apply(value, self._seconds)  # type: ignore[no-any-return]


class _BusyFunction(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        compute(seconds / 3)
        return value.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        compute(2 * context.seconds / 3)
        return gradients[0], None
