"""Models that can be taken out from under running workers, and that others can run beside.

How this works: with a follower (`following`) or a shadow (`shadow`), what `open_model` gives a module is a slot that holds
the model. A call takes the model that is in the slot at that moment; switching is one assignment, so that calls under way
end with the old model, the next ones begin with the new one, and none is lost, repeated or held up. The slot keeps a copy
of a batch now and then, on which a new model is warmed up and held against the old one before it gets real work.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.base.meaning import Declared, Output
from headrace.base.protocols import Model, TensorSpec
from headrace.pipeline.canary_calls import CanaryCalls
from headrace.pipeline.shadow import Shadow

#: How often a batch is copied, and how many copies are kept.
_SAMPLE_SECONDS = 1.0
_MOST_SAMPLES = 8


class ModelSlot:
    """A Model that stands for whichever it holds. Thread-safe.

    Attributes:
        task: The `[models]` key that chooses it, see `model_key`; empty: `[model]`.
        default: The model file that the module names.
        threads: Threads inside one call.
        calls: Workers that share it.
        device: Number of the device that it is on, of several that the Plan names; None: there is one.
        output: What its answers mean, as the module declares it.
        declared: The same, with what the file of the model that it holds says.
        variants: Of every model that it has held, and of those beside it.
        canary: Answers the batches of a canary's jobs; None: there is none.
    """

    def __init__(
        self,
        model: Model,
        task: str,
        default: str | None,
        threads: int,
        calls: int,
        shadow: Shadow | None = None,
        output: Output = None,
        device: int | None = None,
    ) -> None:
        self.task = task
        self.default = default
        self.threads = threads
        self.calls = calls
        self.device = device
        self.output = output
        self.variants = [dict(model.variant)]
        self.declared = Declared(output, model.metadata)
        self._model = model
        self._shadow = shadow
        self.canary: CanaryCalls | None = None
        self._samples: deque[Any] = deque(maxlen=_MOST_SAMPLES)
        self._sample_at = 0.0

    @property
    def model(self) -> Model:
        """The model that it holds."""
        return self._model

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """What it takes."""
        return self._model.inputs

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """What it gives."""
        return self._model.outputs

    @property
    def variant(self) -> Mapping[str, Any]:
        """The variant that it holds."""
        return self._model.variant

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the model file says of itself."""
        return self._model.metadata

    def __call__(self, batch: np.ndarray | Mapping[str, np.ndarray]) -> Any:
        """Return the answers of the model that it holds."""
        model = self._model
        now = time.monotonic()
        if now >= self._sample_at:
            self._sample_at = now + _SAMPLE_SECONDS
            self._samples.append(_copy(batch))  # the runtime writes its next batch over this one
        canary = self.canary
        if canary is not None:
            return canary.answer(model, batch, self.declared)
        if self._shadow is None:
            return model(batch)
        began = time.perf_counter()
        answers = model(batch)
        self._shadow.offer(batch, answers, time.perf_counter() - began, self.declared)
        return answers

    def samples(self) -> list[Any]:
        """Return copies of recent batches."""
        return list(self._samples)

    def switch(self, model: Model) -> None:
        """Hold another model from the next call on."""
        if dict(model.variant) not in self.variants:
            self.variants.append(dict(model.variant))
        self._model = model
        self.declared = Declared(self.output, model.metadata)


class ModelSlots:
    """The slots of a run, one for each model that its modules open.

    Args:
        shadow: Runs beside the models; None: nothing does.
    """

    def __init__(self, shadow: Shadow | None = None) -> None:
        self._shadow = shadow
        self._slots: dict[tuple[str, str | None, int, int | None], ModelSlot] = {}
        self._lock = threading.Lock()

    def around(
        self,
        model: Model,
        *,
        task: str,
        default: str | None,
        threads: int,
        calls: int,
        output: Output = None,
        device: int | None = None,
    ) -> ModelSlot:
        """Return the slot of a model; workers that open the same one share it."""
        with self._lock:
            made = ModelSlot(model, task, default, threads, calls, self._shadow, output, device)
            return self._slots.setdefault((task, default, threads, device), made)

    def all(self) -> list[ModelSlot]:
        """Return every slot."""
        with self._lock:
            return list(self._slots.values())


def _copy(batch: np.ndarray | Mapping[str, np.ndarray]) -> Any:
    if isinstance(batch, Mapping):
        return {name: np.array(array) for name, array in batch.items()}
    return np.array(batch)
