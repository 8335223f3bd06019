"""Trainings that `benchmarks.train.unchanged` runs as they are and recorded: python -m benchmarks.train.unchanged_loops NAME.

Each prints a digest of what it has learnt, and of the random numbers that come next.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset


def _tell(weights: Iterable[Any]) -> None:
    digest = hashlib.sha256()
    for one in [*weights, torch.rand(4), np.random.random(4), np.array([random.random()])]:
        digest.update(np.ascontiguousarray(one.detach().numpy() if isinstance(one, torch.Tensor) else one).tobytes())
    print(digest.hexdigest(), flush=True)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def _data() -> Any:
    return TensorDataset(torch.randn(160, 16), torch.randint(0, 4, (160,)))


def _model() -> Any:
    layers = [torch.nn.Linear(16, 32), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(32, 4)]
    return torch.nn.Sequential(*layers)


def plain(*, workers: int = 0, at_step: Callable[[int], object] = lambda step: None, rank: int = 0) -> None:
    """Three epochs of a plain loop; something may happen at a step."""
    _seed(3 + rank)
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(_data(), batch_size=16, shuffle=True, num_workers=workers)
    step = 0
    for _ in range(3):
        for values, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(values), labels).backward()
            optimizer.step()
            step += 1
            at_step(step)
    _tell(model.parameters())


def lightning() -> None:
    """A module of Lightning; no callback."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = _model()

        def training_step(self, batch: Any, _: int) -> Any:
            return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    pl.seed_everything(3, verbose=False)
    module = Module()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", **quiet)
    trainer.fit(module, DataLoader(_data(), batch_size=16, shuffle=True))
    _tell(module.parameters())


def trainer() -> None:
    """A Trainer of Hugging Face; no callback."""
    import tempfile

    from transformers import PrinterCallback, Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = _model()

        def forward(self, values: Any, labels: Any) -> Any:
            return {"loss": torch.nn.functional.cross_entropy(self.layers(values), labels)}

    _seed(3)
    model, data = Model(), [{"values": values, "labels": label} for values, label in _data()]
    with tempfile.TemporaryDirectory() as folder:
        usual: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
        arguments = TrainingArguments(
            folder, num_train_epochs=3, per_device_train_batch_size=16, use_cpu=True, seed=3, **usual
        )
        whole = Trainer(model, arguments, train_dataset=data)
        whole.remove_callback(PrinterCallback)  # how long it took is another each time
        whole.train()
    _tell(model.parameters())


def keras(*, with_callback: bool = False) -> None:
    """A model of Keras; `headrace train` sees it by a callback."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras as package

    from headrace.train import KerasCallback

    package.utils.set_random_seed(3)
    model = package.Sequential(
        [package.Input((16,)), package.layers.Dense(32), package.layers.Dropout(0.3), package.layers.Dense(4)]
    )
    loss = package.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, jit_compile=False)
    callbacks = [KerasCallback("unused")] if with_callback else []  # joins the recording of `headrace train`
    model.fit(DataLoader(_data(), batch_size=16, shuffle=True), epochs=3, verbose=0, callbacks=callbacks)
    _tell(model.get_weights())


def compiled() -> None:
    """A model that `torch.compile` compiles, without a compiler of C++."""
    _seed(3)
    model = _model()
    called = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for values, labels in DataLoader(_data(), batch_size=16):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(called(values), labels).backward()
        optimizer.step()
    _tell(model.parameters())


def threads() -> None:
    """Another thread works on a model of its own, meanwhile."""
    other = threading.Thread(target=lambda: [_model()(torch.ones(1, 16)).sum().backward() for _ in range(20)])
    other.start()
    other.join()
    plain()


def forks() -> None:
    """A child is forked in the middle of the training."""

    def fork(step: int) -> None:
        if step == 9:
            child = os.fork()
            if not child:
                os._exit(7)
            print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

    plain(at_step=fork)


def spawns() -> None:
    """The training runs in a spawned child."""
    child = multiprocessing.get_context("spawn").Process(target=plain)
    child.start()
    child.join()
    sys.exit(child.exitcode)


def _at(step: int, do: Callable[[], object]) -> Callable[[int], object]:
    return lambda now: do() if now == step else None


def _raise() -> None:
    raise ValueError("as the benchmark wants")


def _kill_worker() -> None:
    for child in multiprocessing.active_children():
        os.kill(child.pid or 0, signal.SIGKILL)


def rank_dies() -> None:
    """One of two ranks exits in the middle, and torchrun ends the other, which waits for it; started by torchrun."""
    rank = int(os.environ["RANK"])
    plain(rank=rank, at_step=_at(9, lambda: os._exit(3) if rank else signal.pause()))


LOOPS: dict[str, Callable[[], object]] = {
    "lightning": lightning,
    "trainer": trainer,
    "keras": keras,
    "keras-callback": lambda: keras(with_callback=True),
    "plain": plain,
    "rank dies": rank_dies,
    "worker killed": lambda: plain(workers=1, at_step=_at(3, _kill_worker)),
    "raises": lambda: plain(at_step=_at(9, _raise)),
    "sys.exit": lambda: plain(at_step=_at(9, lambda: sys.exit(3))),
    "killed": lambda: plain(at_step=_at(9, lambda: os.kill(os.getpid(), signal.SIGKILL))),
    "os._exit": lambda: plain(at_step=_at(9, lambda: os._exit(4))),
    "workers": lambda: plain(workers=2),
    "spawns": spawns,
    "forks": forks,
    "threads": threads,
    "compile": compiled,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    LOOPS[sys.argv[1]]()
