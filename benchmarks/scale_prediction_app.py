"""The pipeline of `benchmarks.scale_prediction`: download, a wait and a little arithmetic in the place of a model, a callback.

Where it reads and posts is in the environment, because each machine is a process of its own: SCALE_QUEUE, SCALE_CALLBACK.
"""

import hashlib
import os

import headrace as hr

MODEL_SECONDS = 0.05


def digest(value: bytes) -> str:
    """Return what stands for a result."""
    return hashlib.sha256(value).hexdigest()


pipeline = hr.Pipeline(
    hr.queue(os.environ["SCALE_QUEUE"]),
    stages=[hr.fetch("fetch"), hr.emulated("model", kind="cpu", seconds=MODEL_SECONDS), hr.stage("digest", digest)],
    delivery=hr.callback(os.environ["SCALE_CALLBACK"]),
)
