"""What the peers share: their settings, and the work that one request asks for."""

import ctypes
import fcntl
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

VARIABLE = "BENCHMARK_PEER"
_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True)
class Settings:
    """Of one start of a peer."""

    port: int
    workload: str
    """`emulated` or `real`."""
    lock: str
    """File whose lock is the emulated device, one for the machine."""
    launch_seconds: float
    item_seconds: float
    model: str
    """ONNX file of the real workload."""
    batch: int = 64
    wait_ms: float = 1.0
    """How long a batch waits for more requests."""
    workers: int = 1
    """Processes that run the model."""
    decode: str = "usual"
    """See `benchmarks.peers.preprocess`."""


def settings() -> Settings:
    """Return the settings that this process was started with."""
    return Settings(**json.loads(os.environ[VARIABLE]))


class Device:
    """An emulated accelerator, one for all processes that name the same lock: a + b*n seconds, without the GIL."""

    def __init__(self, lock: str, launch_seconds: float, item_seconds: float) -> None:
        self._launch_seconds, self._item_seconds = launch_seconds, item_seconds
        self._file = open(lock, "w")  # noqa: SIM115 - held as long as the process lives
        self._mutex = threading.Lock()
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)

    def __call__(self, batch: Sequence[object]) -> list[tuple[int, float]]:
        """Occupy the device; return a label and a score for each item."""
        with self._mutex:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            end = time.monotonic() + self._launch_seconds + self._item_seconds * len(batch)
            while (left := end - time.monotonic()) > 0:
                time.sleep(left)
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return [(7, 0.5)] * len(batch)


class Work:
    """Preprocessing and model of the workload; thread-safe."""

    def __init__(self, chosen: Settings) -> None:
        self._is_real = chosen.workload == "real"
        if not self._is_real:
            self._model = Device(chosen.lock, chosen.launch_seconds, chosen.item_seconds)
            return
        from benchmarks.peers.classifier import Classifier
        from benchmarks.peers.preprocess import preprocessor

        self._preprocess = preprocessor(chosen.decode)
        self._model = Classifier(chosen.model).warm_up(chosen.batch)

    def prepare(self, payload: bytes) -> np.ndarray:
        """Return one input of the model."""
        return self._preprocess(payload) if self._is_real else np.full((3, 8, 8), payload[0], np.float32)

    def answer(self, batch: Sequence[np.ndarray]) -> list[dict[str, object]]:
        """Run the model on one batch; return an answer for each input."""
        return [{"label": label, "score": score} for label, score in self._model(batch)]
