"""Records a training of Hugging Face's `Trainer`: one callback.

How this works: forward pass, backward pass and update are seen by the hooks of PyTorch. What the callback adds is the loader:
Accelerate's loader holds one of PyTorch, asks that for one batch more than it gives, and moves batches to the device. The one
inside is watched, so that the transfer is part of `prepare`. A resume makes a loader that skips batches; that is watched too.

`Trainer` tells its callbacks nothing of an exception: the record of such a training is closed as failed by the next training
with this callback, or where the process ends.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

try:
    import transformers.trainer
    from transformers import TrainerCallback as _TrainerCallback
except ImportError as error:
    from headrace.base.errors import MissingExtra

    raise MissingExtra("the Trainer of transformers", "transformers") from error

from headrace.train.framework_run import FrameworkRun


class TrainerCallback(_TrainerCallback):  # type: ignore[misc]
    """Records what `Trainer.train` does into a run folder.

        trainer = transformers.Trainer(model, args, callbacks=[headrace.train.TrainerCallback("runs/first")])

    `evaluate` and `predict` outside of a training are not recorded.
    """

    def __init__(self, output: str | Path, *, force: bool = False) -> None:
        """Keep where to write.

        Args:
            output: Run folder to write; `headrace diagnose` reads it.
            force: Replace what an earlier run left in the folder.
        """
        self._run = FrameworkRun(output, framework="transformers", force=force)

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Begin to record."""
        if self._run.begin() is not None:
            self._watch(train_dataloader)
            self._watch_resumed()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the record."""
        self._run.end(failed=False)

    def _watch(self, loader: Any) -> None:
        """Watch the loader of PyTorch within one of Accelerate, which asks it for its iterator by this method's name."""
        inner = getattr(loader, "base_dataloader", loader)
        watched = self._run.watch(inner)
        if watched is inner:  # `headrace train` does
            return
        inner.__iter__ = watched.__iter__
        self._run.undo(lambda: delattr(inner, "__iter__"))

    def _watch_resumed(self) -> None:
        module = transformers.trainer
        original = getattr(module, "skip_first_batches", None)
        if original is None:
            return

        @functools.wraps(original)
        def skip(*args: Any, **kwargs: Any) -> Any:
            loader = original(*args, **kwargs)
            self._watch(loader)
            return loader

        module.skip_first_batches = skip
        self._run.undo(lambda: setattr(module, "skip_first_batches", original))
