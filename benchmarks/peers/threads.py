"""What the threaded peers share: workers, batches, and the way a chain of stages ends."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

END = None  # in a queue: nothing more will come; each worker takes one


def start(count: int, target: Callable[[], object]) -> list[threading.Thread]:
    """Start threads that all run ``target``."""
    threads = [threading.Thread(target=target, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def finish(threads: list[threading.Thread], following: Any = None, num_following: int = 0) -> None:
    """Wait for a stage's threads, then tell each worker of the following stage, through its queue, to end."""
    for thread in threads:
        thread.join()
    for _ in range(num_following):
        following.put(END)


def collect(source: Any, most: int, wait_seconds: float) -> tuple[list[Any], bool]:
    """Return a batch from a queue, and whether END was met.

    Blocks for the first item, then takes more until the batch is full or ``wait_seconds`` have passed.

    Args:
        source: ``queue.Queue`` or ``multiprocessing.Queue``.
        most: Largest batch, >= 1.
        wait_seconds: Wait for companions, from the first item on.
    """
    item = source.get()
    if item is END:
        return [], True
    batch, deadline = [item], time.perf_counter() + wait_seconds
    while len(batch) < most:
        try:
            item = source.get(timeout=max(0.0, deadline - time.perf_counter()))
        except queue.Empty:
            break
        if item is END:
            return batch, True
        batch.append(item)
    return batch, False


def answer(item_id: int, label: int, score: float) -> dict[str, object]:
    """Return the callback's body."""
    return {"id": item_id, "label": label, "score": score}
