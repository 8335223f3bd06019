"""Runs trainings of `whatif_cases`, recorded or not, in processes of their own."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import itertools
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import headrace.samples
import headrace.train
from benchmarks.train.whatif_cases import Job

#: Side of a photograph as it is decoded: opening it, which is no decoding, is then a few hundredths of that.
_SIDE = 256
#: Values of it that are augmented.
_KEPT = 192 * 192 * 3
#: Batches of an epoch that is short: its turn is measured, too, as often as it comes.
_SHORT_EPOCH = 100
#: Batches that are not measured: until then workers have loaded ahead of a training that had not begun.
_WARM_UP = 10
#: Parameters of `mallopt`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


@functools.cache
def _photographs() -> list[bytes]:
    """Return the sample photographs as JPEG of `_SIDE` x `_SIDE`."""
    found = []
    for file in sorted((Path(headrace.samples.__file__).parent / "photographs").glob("*.jpg")):
        content = io.BytesIO()
        Image.open(file).convert("RGB").resize((_SIDE, _SIDE)).save(content, "JPEG", quality=88)
        found.append(content.getvalue())
    return found


class Augment:
    """Changes contrast and adds noise, as often as asked."""

    def __init__(self, times: int) -> None:
        self._times = times

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Return float32, as long as the image."""
        values = image.astype(np.float32)
        for _ in range(self._times):
            values = np.clip(np.sqrt(values * 1.1 + 3.0) * 11.0, 0.0, 255.0)
        return values


class Photographs(torch.utils.data.Dataset):
    """Reads (sleeps), decodes and augments."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._files = _photographs()
        self._kept: dict[int, np.ndarray] = {}
        self.transform = Augment(job.augments)

    def __len__(self) -> int:
        return self._job.items

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return float32, (width,)."""
        image = self._kept.get(index)
        if image is None:
            image = self._load(index)
            if self._job.is_cached:
                self._kept[index] = image
        return torch.from_numpy(self.transform(image)[: self._job.width] / 255.0)

    def _load(self, index: int) -> np.ndarray:
        job = self._job
        if job.slow_every and index % job.slow_every == 0:
            time.sleep(job.slow_seconds)
        if job.read_seconds:
            time.sleep(job.read_seconds)
        for _ in range(job.decodes):
            image = Image.open(io.BytesIO(self._files[index % len(self._files)]))
            image.load()
        return np.asarray(image).reshape(-1)[:_KEPT].copy()


class Layers(torch.nn.Module):
    """One layer, applied several times."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._times = job.layers
        self.layer = torch.nn.Linear(job.width, job.width)
        self.more = torch.nn.Parameter(torch.zeros(job.parameters))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return float32, (batch, width)."""
        for _ in range(self._times):
            batch = torch.relu(self.layer(batch))
        return batch + self.more[:1].sum()


def _loader(job: Job) -> torch.utils.data.DataLoader:
    several: dict[str, Any] = {}
    if job.workers:
        several = {
            "prefetch_factor": job.prefetch,
            "in_order": job.in_order,
            "persistent_workers": job.persistent,
        }
    return torch.utils.data.DataLoader(Photographs(job), batch_size=job.batch, num_workers=job.workers, **several)


def _loop(
    job: Job, loader: Iterable[torch.Tensor], ask: Callable[[], float | None], tell: Callable[[float], None]
) -> None:
    """Train for as long as asked, tell the samples per second of that, and stand still until asked again.

    Args:
        job: What is trained.
        loader: Its batches.
        ask: Returns for how many seconds; None: it is over.
        tell: Gets samples per second, behind some steps; of short epochs, of whole ones.
    """
    model = Layers(job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    to_sort = np.random.default_rng(0).random(4000)
    if (seconds := ask()) is None:
        return
    measured = _Measured(job, seconds)
    for epoch in itertools.count():
        for number, batch in enumerate(loader, 1):
            loss = model(batch).square().mean()
            loss.backward()
            if number % job.accumulate:
                continue
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(job.after):
                np.sort(to_sort)
            if not (job.is_cached and not epoch) and measured.is_over(number):
                tell(measured.rate)
                if (seconds := ask()) is None:
                    return
                measured = _Measured(job, seconds)


class _Measured:
    """Counts the samples of steps until so many seconds have passed."""

    def __init__(self, job: Job, seconds: float) -> None:
        self._job, self._seconds = job, seconds
        self._steps = self._began_at = 0
        self._began = 0.0
        # While a training stands still, its workers load ahead.
        ahead = 2 * job.prefetch * job.workers
        self._warm_up = math.ceil((_WARM_UP + ahead) / job.accumulate)
        epoch = job.items // job.batch
        #: Batches after which all is as it was; the measurement holds a whole number of them.
        self._period = epoch if epoch <= _SHORT_EPOCH else max(1, job.slow_every // job.batch)
        self.rate = 0.0

    def is_over(self, number: int) -> bool:
        """A step has ended, the `number`th of its epoch; return whether it was the last."""
        now = time.monotonic()
        if self._steps == self._warm_up:
            self._began, self._began_at = now, number
        self._steps += 1
        taken, is_whole = now - self._began, (number - self._began_at) % self._period == 0
        if self._steps <= self._warm_up + 1 or taken < self._seconds or not is_whole:
            return False
        self.rate = (self._steps - 1 - self._warm_up) * self._job.batch * self._job.accumulate / taken
        return True


def _keep_memory() -> None:
    """Let this process keep the memory that it frees.

    Else glibc hands it back and maps it again, in each step or in none, as the heap happens to lie: the same training was then
    by two fifths slower for some seconds, or for the life of its process.
    """
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, 32 << 20)
    library.mallopt(_TRIM_THRESHOLD, 1 << 30)


def _train(job: Job, output: Path | None, pipe: Any) -> None:
    # More workers than cores are one of the changes.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    _keep_memory()
    loader = _loader(job)
    if output is None:
        _loop(job, loader, pipe.recv, pipe.send)
    else:
        with headrace.train.profile(loader, output=output, force=True) as watched:
            _loop(job, watched, pipe.recv, pipe.send)
    pipe.close()


@functools.cache
def _prepare() -> None:
    """Do once what each process would do again: the first optimizer imports for two seconds."""
    _photographs()
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])


class Training:
    """A training in a forked process: it goes on for a while each time it is asked, and stands still in between."""

    def __init__(self, job: Job, output: Path | None = None) -> None:
        """Start it; it trains when `rate` is called.

        Args:
            job: What is trained.
            output: Run folder to record into; None: nothing is recorded.
        """
        _prepare()
        context = multiprocessing.get_context("fork")
        self._job = job
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_run_child, args=(job, output, self._pipe, other))
        self._process.start()
        other.close()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join()
        self._pipe.close()

    @property
    def is_alive(self) -> bool:
        """Whether its process lives."""
        return self._process.is_alive()

    def rate(self, seconds: float) -> float:
        """Train for so long, from where it stopped, and return the samples per second.

        Raises:
            RuntimeError: If the process ended without a result.
        """
        try:
            self._pipe.send(seconds)
            return float(self._pipe.recv())
        except (EOFError, OSError):
            self._process.join()
            raise RuntimeError(
                f"the training ended with status {self._process.exitcode}: {self._job}, process {os.getpid()}"
            ) from None


def _run_child(job: Job, output: Path | None, parents: Any, own: Any) -> None:
    parents.close()
    _train(job, output, own)
