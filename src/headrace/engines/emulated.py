"""An accelerator that only takes time: a + b*n seconds per batch of n, without the GIL or the CPU; one call at a time.

The decisions of a runtime (batching, overlap, feeding) depend only on the device's cost curve, so a machine without a GPU
can try them. Every output of a run with this engine says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.protocols import Model, TensorSpec
from headrace.base.settings import build, check
from headrace.engines.traits import EMULATED

_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedOptions:
    """The Plan's `[model.options]` for this engine."""

    launch_seconds: float = 0.0
    """a: what a call costs whatever its size."""
    item_seconds: float = 0.0
    """b: what each item of the batch adds."""
    exclusive: bool = True
    """Whether it takes one call at a time, of all models of the process; where a model `uses` resources of the Plan, these say
    how many calls run side by side, and it does not."""
    device: int = 0
    """Number of the device, each of which takes one call at a time."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(self.device >= 0, "device", self.device, "a whole number >= 0")


class EmulatedEngine:
    """Opens emulated models; all of one process share its devices, unless the Plan has them use resources."""

    def open(self, artifact: Path | None, *, threads: int, options: Mapping[str, Any], calls: int = 1) -> Model:
        """Return the model on its device; artifact and threads mean nothing to it."""
        settings = build(EmulatedOptions, options, "[model.options]")
        return EmulatedModel(settings, None if settings.exclusive else contextlib.nullcontext())


#: By number.
_devices: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


class EmulatedModel:
    """Takes its time and returns a zero for each input.

    Args:
        options: The time.
        device: Held during a call; None: the device of this process that the options name.
    """

    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()

    def __init__(self, options: EmulatedOptions, device: AbstractContextManager[object] | None = None) -> None:
        self._options = options
        self._device = device or _devices[options.device]
        self.metadata: Mapping[str, str] = {}
        self.variant: Mapping[str, Any] = {
            "engine": EMULATED,
            "launch_seconds": options.launch_seconds,
            "item_seconds": options.item_seconds,
        }

    def __call__(self, batch: Any) -> np.ndarray:
        """Return float32 (batch, 1) after a + b*n seconds."""
        with self._device:
            end = time.monotonic() + self._options.launch_seconds + self._options.item_seconds * len(batch)
            _sharpen_timer()
            while (left := end - time.monotonic()) > 0:
                time.sleep(left)
        return np.zeros((len(batch), 1), np.float32)


def _sharpen_timer() -> None:
    # Linux may end a sleep 50 microseconds late to save power; a device does not. Once per thread.
    if not getattr(_sharpened, "done", False):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
        _sharpened.done = True


_sharpened = threading.local()
