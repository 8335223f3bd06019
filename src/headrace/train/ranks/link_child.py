"""One rank of the measurement of a link: `python -m headrace.train.ranks.link_child ANSWER BYTES...`; rank 0 writes ANSWER."""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from headrace.base.documents import encode_document
from headrace.base.parent_death import die_with_parent
from headrace.runs.formats.scaling import MeasuredReduce

#: Exchanges before those that are timed: connections are made, buffers are touched. Small ones are timed more often.
_WARM_UP, _TIMED, _TIMED_SMALL, _SMALL_BYTES = 3, 9, 45, 1 << 20
#: What a training touches between two exchanges: more than caches hold, so each finds its memory as cold as there.
_BETWEEN_BYTES = 1 << 24


def measure(num_bytes: int) -> MeasuredReduce:
    """Return what an all-reduce takes: the middle one's wall time, and the CPU of this process for each."""
    values, between = torch.ones(max(1, num_bytes // 4)), torch.zeros(_BETWEEN_BYTES // 4)
    walls: list[float] = []
    spent = 0.0
    timed = _TIMED_SMALL if num_bytes < _SMALL_BYTES else _TIMED
    for number in range(_WARM_UP + timed):
        between.add_(1.0)
        values.fill_(1.0)
        dist.barrier()
        cpu, began = time.process_time(), time.perf_counter()
        dist.all_reduce(values)
        walls.append(time.perf_counter() - began)
        if number >= _WARM_UP:
            spent += time.process_time() - cpu
    return MeasuredReduce(
        num_bytes=values.numel() * 4, seconds=statistics.median(walls[_WARM_UP:]), cpu_seconds=spent / timed
    )


def main(answer: str, *sizes: str) -> None:
    """Measure every size."""
    if not die_with_parent(int(os.environ["HEADRACE_TRAIN_PARENT"])):
        sys.exit(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    measured = [measure(int(size)) for size in sizes]
    if dist.get_rank() == 0:
        Path(answer).write_bytes(encode_document(measured))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
