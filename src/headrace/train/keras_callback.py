"""Records a training of Keras 3 on its PyTorch backend: one callback.

How this works: Keras calls its layers without `torch.nn.Module.__call__`, and its optimizers are none of PyTorch's. So the
model's `call` and the optimizer's `apply` are followed on these two objects; `backward` is PyTorch's. Keras loads through
PyTorch's loaders, whatever the data were given as; `TorchEpochIterator` asks for their iterators.

`fit` tells its callbacks nothing of an exception: the record of such a training is closed as failed by the next training with
this callback, or where the process ends. Several steps in one execution are no matter: Keras refuses them on this backend.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import keras
except ImportError as error:
    from headrace.base.errors import MissingExtra

    raise MissingExtra("Keras", "keras") from error

from headrace.train.framework_run import FrameworkRun

if TYPE_CHECKING:
    from headrace.train.session import Session


class KerasCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Records what `Model.fit` does into a run folder.

        model.fit(loader, callbacks=[headrace.train.KerasCallback("runs/first")])

    `evaluate` and `predict` outside of `fit` are not recorded.
    """

    def __init__(self, output: str | Path, *, force: bool = False) -> None:
        """Keep where to write.

        Args:
            output: Run folder to write; `headrace diagnose` reads it.
            force: Replace what an earlier run left in the folder.

        Raises:
            ValueError: If Keras runs on another backend than PyTorch.
        """
        super().__init__()
        if keras.backend.backend() != "torch":
            raise ValueError(
                f"Keras runs on {keras.backend.backend()!r}; headrace records its steps on 'torch' only: "
                "set KERAS_BACKEND=torch before keras is imported"
            )
        self._run = FrameworkRun(output, framework="keras", force=force)

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to record."""
        session = self._run.begin()
        if session is None:
            return
        self._follow_loaders()
        self._follow_update(session)
        if self.model.jit_compile:
            session.recorder.not_measured["forward"] = (
                "Keras compiles the whole step (jit_compile): the forward pass is part of `prepare`"
            )
        else:
            self._follow_forward(session)

    def on_train_end(self, logs: Any = None) -> None:
        """End the record."""
        self._run.end(failed=False)

    def _follow_loaders(self) -> None:
        from keras.src.backend.torch.trainer import TorchEpochIterator

        original = TorchEpochIterator._get_iterator  # noqa: SLF001 - nothing public leads to the loader

        @functools.wraps(original)
        def watch(iterator: Any) -> Iterator[Any]:
            return iter(self._run.watch(original(iterator)))

        TorchEpochIterator._get_iterator = watch  # noqa: SLF001
        self._run.undo(lambda: setattr(TorchEpochIterator, "_get_iterator", original))

    def _follow_forward(self, session: Session) -> None:
        model = self.model
        original = model.call

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            session.hooks.found(model)
            output = None
            try:
                output = original(*args, **kwargs)
            finally:
                session.hooks.left(model, output)
            return output

        self._replace(model, "call", call)

    def _follow_update(self, session: Session) -> None:
        optimizer = self.model.optimizer
        original = optimizer.apply
        session.hooks.note_optimizer(optimizer)

        @functools.wraps(original)
        def apply(*args: Any, **kwargs: Any) -> Any:
            session.recorder.update_begins(id(optimizer))
            result = original(*args, **kwargs)
            session.recorder.update_ended()
            return result

        self._replace(optimizer, "apply", apply)

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        """Set an attribute of one object, past what Keras does with attributes."""
        object.__setattr__(owner, name, function)
        self._run.undo(lambda: object.__delattr__(owner, name))
