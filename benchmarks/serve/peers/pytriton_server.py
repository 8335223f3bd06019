"""Triton through pytriton: its own batching; raw bytes come as the Open Inference Protocol's binary tensors."""

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.serve.peers.common import Work, settings

CHOSEN = settings()


def make_instance():
    """Return what prepares and runs one batch."""
    work = Work(CHOSEN)

    @batch
    def infer(image: np.ndarray) -> dict[str, np.ndarray]:
        answers = work.answer([work.prepare(row[0]) for row in image])
        return {
            "label": np.array([[one["label"]] for one in answers], np.int32),
            "score": np.array([[one["score"]] for one in answers], np.float32),
        }

    return infer


if __name__ == "__main__":
    config = TritonConfig(
        http_address="127.0.0.1", http_port=CHOSEN.port, allow_grpc=False, allow_metrics=False, log_verbose=0
    )
    instances = [make_instance() for _ in range(CHOSEN.workers)]
    with Triton(config=config) as triton:
        triton.bind(
            "pipeline",
            instances if len(instances) > 1 else instances[0],
            [Tensor(name="image", dtype=bytes, shape=(1,))],
            [Tensor(name="label", dtype=np.int32, shape=(1,)), Tensor(name="score", dtype=np.float32, shape=(1,))],
            config=ModelConfig(
                max_batch_size=max(2, CHOSEN.batch),
                batcher=DynamicBatcher(max_queue_delay_microseconds=round(CHOSEN.wait_ms * 1e3)),
            ),
            strict=False,
        )
        triton.serve()
