"""Real JPEGs over loopback HTTP with an 80 ms delay, a MobileNetV2-like model on the CPU, answers by HTTP callback.

headrace reads a SQLite queue with visibility timeout and acks; the peers read a list in memory.

    python -m benchmarks.queue_to_callback [--quick] [--json] [--write]
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks import comparison
from benchmarks.peers import QueueBench
from headrace.delivery.encoding import encode

TITLE = "Queue to callback: 80 ms of network, MobileNetV2-like on the CPU"


def run(*, quick: bool, rounds: int, count: int) -> dict[str, Any]:
    """Return the benchmark's object; see `comparison.compare`."""
    result = comparison.compare(QueueBench, "queue_to_callback.toml", quick=quick, rounds=rounds, count=count)
    return {**result, "encode_us": encode_cost()}


def encode_cost() -> dict[str, float]:
    """Return microseconds to encode a small result and one with 1,000 scores, as a list and as an array."""
    scores = np.random.default_rng(0).random(1000).astype(np.float32)
    results = {
        "small": {"label": 7, "score": 0.5},
        "1000_scores_list": {"scores": scores.tolist()},
        "1000_scores_array": {"scores": scores},
    }
    return {name: _microseconds({"id": "1", "task": "", "result": result}) for name, result in results.items()}


def _microseconds(record: object) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.thread_time()
        for _ in range(200):
            encode(record)
        best = min(best, (time.thread_time() - started) / 200)
    return best * 1e6


if __name__ == "__main__":
    sys.exit(comparison.main("queue_to_callback", TITLE, run, __doc__.splitlines()[0]))
