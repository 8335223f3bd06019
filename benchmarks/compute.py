"""The unavoidable work: CPU seconds that decode, resize, normalise and the model need per image, alone on one thread.

Measured with headrace's own functions, which are the fastest of all contestants': a slower yardstick would flatter.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import headrace as hr
from headrace.base.plan import DecodePlan
from headrace.engines.onnx_engine import OnnxEngine
from headrace.pipeline.thread_budget import limit_library_threads
from headrace.stages.decode import DecodeChain
from headrace.stages.images import fit

WANTED = hr.ImageInput(short_side=256, crop=224)


class Yardstick:
    """Measures the machine's speed for one workload, again and again.

    Args:
        paths: JPEG files; 40 give about 1 % of repeatability on a quiet machine.
        model: ONNX file.
    """

    def __init__(self, paths: Sequence[str], model: Path) -> None:
        limit_library_threads()
        self._jpegs = [Path(path).read_bytes() for path in paths]
        self._chain = DecodeChain(DecodePlan(), WANTED.short_side, {}, reuse_buffer=True)
        self._model = OnnxEngine().open(model, threads=1, options={})
        self._input = np.empty((1, 3, 224, 224), np.float32)
        self._one(self._jpegs[0])

    def seconds_per_image(self) -> float:
        """Return CPU seconds per image, mean over the images."""
        started = time.thread_time()
        for data in self._jpegs:
            self._one(data)
        return (time.thread_time() - started) / len(self._jpegs)

    def _one(self, data: bytes) -> None:
        hr.images.normalize(fit(self._chain.decode(data), WANTED), out=self._input[0])
        self._model(self._input)
