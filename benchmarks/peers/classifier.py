"""The model as every peer calls it: ONNX Runtime on the CPU."""

from collections.abc import Sequence

import numpy as np
import onnxruntime

Answer = tuple[int, float]  # label, its logit


class Classifier:
    """Calls the model on batches; thread-safe.

    Args:
        model: ONNX file with one input (n, 3, 224, 224) and one output, logits.
        threads: Threads inside one call. With 1 the calling thread does the work itself.
    """

    def __init__(self, model: str, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def __call__(self, images: np.ndarray | Sequence[np.ndarray]) -> list[Answer]:
        """Return label and logit of each image."""
        batch = images if isinstance(images, np.ndarray) else np.stack(images)
        (logits,) = self._session.run(None, {self._input: batch})
        labels = logits.argmax(axis=1)
        return list(zip(labels.tolist(), logits[np.arange(len(labels)), labels].tolist(), strict=True))

    def warm_up(self, batch: int) -> "Classifier":
        """Run batches of the size to come, so that no allocation is left for the first job; return self."""
        for _ in range(3):
            self(np.zeros((batch, 3, 224, 224), np.float32))
        return self
