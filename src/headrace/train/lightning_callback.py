"""Records a training of Lightning: one callback.

How this works: the forward pass, the backward pass and the update are seen by the hooks of PyTorch, as in any loop; Lightning
calls the first two from within `optimizer.step`. What the callback adds is the loader. Lightning makes the loader's iterator
before the first event that a callback hears of (`on_train_start`), after it may have made a new loader with a sampler for
ranks. So the fit loop of this one trainer is followed to the place between the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        from headrace.base.errors import MissingExtra

        raise MissingExtra("Lightning", "lightning") from error

from headrace.train.framework_run import FrameworkRun

if TYPE_CHECKING:
    from headrace.train.session import Session

#: Of the fit loop: called once its loaders are final, before they are iterated over.
_BEFORE_ITERATION = "_load_combined_loader_states"


class LightningCallback(Callback):  # type: ignore[misc]
    """Records what `Trainer.fit` does into a run folder.

        trainer = lightning.Trainer(callbacks=[headrace.train.LightningCallback("runs/first")])

    The sanity check before training is a validation; `validate`, `test` and `predict` are not recorded.
    """

    def __init__(self, output: str | Path, *, force: bool = False) -> None:
        """Keep where to write.

        Args:
            output: Run folder to write; `headrace diagnose` reads it.
            force: Replace what an earlier run left in the folder.
        """
        super().__init__()
        self._run = FrameworkRun(output, framework="lightning", force=force)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record."""
        session = self._run.begin()
        if session is not None:
            self._follow_loaders(trainer.fit_loop, session)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the loaders back, before Lightning stops their workers."""
        self._run.restore()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """End the record."""
        self._run.end(failed=False)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the record of a training that an exception or Ctrl-C ended."""
        self._run.end(failed=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the record, whatever happened."""
        self._run.end(failed=False)

    def _follow_loaders(self, loop: Any, session: Session) -> None:
        original = getattr(loop, _BEFORE_ITERATION, None)
        if original is None:
            session.recorder.not_measured["wait"] = (
                "this version of Lightning prepares its loaders in another way: what they cost is part of `prepare`"
            )
            return

        def watch_loaders() -> None:
            original()
            combined = loop._combined_loader  # noqa: SLF001 - nothing public leads there
            loaders = list(combined.flattened)
            combined.flattened = [self._run.watch(loader) for loader in loaders]
            self._run.undo(lambda: setattr(combined, "flattened", loaders))

        setattr(loop, _BEFORE_ITERATION, watch_loaders)
        self._run.undo(lambda: delattr(loop, _BEFORE_ITERATION))
