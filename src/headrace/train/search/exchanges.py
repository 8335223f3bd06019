"""How often an update exchanges gradients under DistributedDataParallel, counted in a group of one process."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.runs.formats.train_check import CheckFinding

#: Backward passes after which the buckets of DistributedDataParallel are final: it builds them again after the first.
_SETTLING = 2


def count_exchanges(model: Any, accumulate: Callable[[Any], None], one: Callable[[Any], None]) -> float:
    """Return how often all gradients are exchanged in one accumulated update; 1 is right.

    Args:
        model: Is wrapped for the while.
        accumulate: Does what the training does for an update, with the wrapped model.
        one: Calls `backward()` once, with the wrapped model.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    buckets = 0

    def count(_state: object, bucket: Any) -> Any:
        nonlocal buckets
        buckets += 1
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    count.__annotations__.clear()  # DistributedDataParallel refuses text, which they are here
    with _group_of_one():
        wrapped = DistributedDataParallel(model)
        wrapped.register_comm_hook(None, count)
        for _ in range(_SETTLING):
            before = buckets
            one(wrapped)
        whole, before = buckets - before, buckets
        accumulate(wrapped)
        model.zero_grad(set_to_none=True)
        return (buckets - before) / whole


@contextlib.contextmanager
def _group_of_one() -> Iterator[None]:
    import torch.distributed as dist

    with tempfile.TemporaryDirectory(prefix="headrace-group-") as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def judge_exchanges(syncs: float, micro_batches: int) -> list[CheckFinding]:
    """Return what is wrong with the number of exchanges of an update."""
    if abs(syncs - 1) < 0.5:
        return []
    if syncs < 0.5:
        return [
            CheckFinding(
                name="unexplained",
                what="an update exchanged no gradients under DistributedDataParallel",
                advice="call the model that `accumulate` is given, and leave the last micro-batch outside of no_sync()",
                is_defect=True,
            )
        ]
    return [
        CheckFinding(
            name="no_sync missing",
            what=f"gradients are exchanged {syncs:.3g} times for {micro_batches} micro-batches: right, and slower",
            advice="run all micro-batches but the last one under model.no_sync()",
            is_defect=True,
        )
    ]
