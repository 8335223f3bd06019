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

#: Exchanges before those that are timed: connections are made, buffers are touched.
_WARM_UP, _TIMED = 3, 9


def measure(num_bytes: int) -> MeasuredReduce:
    """Return what an all-reduce takes: the middle one's wall time, and the CPU of this process for each."""
    values = torch.ones(max(1, num_bytes // 4))
    walls: list[float] = []
    for number in range(_WARM_UP + _TIMED):
        dist.barrier()
        if number == _WARM_UP:
            cpu = time.process_time()
        began = time.perf_counter()
        dist.all_reduce(values)
        walls.append(time.perf_counter() - began)
        values.fill_(1.0)
    spent = (time.process_time() - cpu) / _TIMED
    return MeasuredReduce(num_bytes=values.numel() * 4, seconds=statistics.median(walls[_WARM_UP:]), cpu_seconds=spent)


def main(answer: str, *sizes: str) -> None:
    """Measure every size; the barriers between them cost CPU that is counted, which an exchange of buckets costs too."""
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
