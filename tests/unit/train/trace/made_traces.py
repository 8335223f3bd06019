"""Traces of trainings that never were, as Kineto writes them: every duration is known. Modelled on traces of CUDA machines."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Microseconds: where traces begin.
ZERO = 4_000_000_000.0
HOST, AUTOGRAD = 100, 101


class MadeTrace:
    """Collects events; times are microseconds after `ZERO`."""

    def __init__(self, *, rank: int | None = None, world: int = 1, **about: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.about: dict[str, Any] = {"schemaVersion": 1, **about}
        if rank is not None:
            self.about["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
        self._correlation = 0
        #: When the device has done all that it was given.
        self.free = 0.0

    def host(
        self, name: str, start: float, length: float, *, cat: str = "cpu_op", thread: int = HOST, **args: Any
    ) -> None:
        """Add an event of the host."""
        self._add(cat, name, HOST, thread, start, length, args)

    def note(self, name: str, start: float, length: float, *, thread: int = HOST) -> None:
        """Add an annotation."""
        self.host(name, start, length, cat="user_annotation", thread=thread)

    def work(
        self,
        name: str,
        launched: float,
        start: float,
        length: float,
        *,
        cat: str = "kernel",
        stream: int = 7,
        launch_length: float = 5.0,
        thread: int = HOST,
    ) -> None:
        """Add work on the device and the call that launched it."""
        self._correlation += 1
        args = {"correlation": self._correlation}
        call = "cudaMemcpyAsync" if cat == "gpu_memcpy" else "cudaLaunchKernel"
        self._add("cuda_runtime", call, HOST, thread, launched, launch_length, args)
        self._add(cat, name, 0, stream, start, length, {**args, "device": 0, "stream": stream})

    def wait(self, name: str, start: float, length: float) -> None:
        """Add a call that waits for the device."""
        self._correlation += 1
        self._add("cuda_runtime", name, HOST, HOST, start, length, {"correlation": self._correlation})

    def _add(
        self, cat: str, name: str, pid: int, tid: int, start: float, length: float, args: Mapping[str, Any]
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": ZERO + start,
                "dur": length,
                "args": dict(args),
            }
        )

    def text(self) -> str:
        """Return the file, laid out as Kineto does."""
        return json.dumps({**self.about, "traceEvents": self.events, "traceName": "made"}, indent=2)

    def write(self, path: Path) -> Path:
        """Write it, compressed if its name says so."""
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def cuda_step(
    trace: MadeTrace,
    number: int,
    start: float,
    *,
    wait: float = 100.0,
    kernel: float = 400.0,
    sync: bool = False,
    after: float = 0.0,
    exchange: tuple[float, float] | None = None,
) -> float:
    """Add a step whose host part is 100 us of forward pass, 200 of backward pass and 100 of the optimizer; return its end.

    The device gets four kernels of `kernel` us; they begin 10 us after their launch at the earliest, one after the other.

    Args:
        trace: To add to.
        number: Of the step.
        start: When it begins.
        wait: us for the loader.
        kernel: us of each kernel.
        sync: The host waits for the device at the end, in `aten::item`.
        after: us of the loop's own code behind that.
        exchange: (start after the last kernel of the backward pass, length) of an all-reduce; None: there is none.
    """
    trace.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", start, wait)
    at = start + wait
    trace.host("aten::linear", at, 100)
    launches = [at + 10]
    trace.host("autograd::engine::evaluate_function: AddmmBackward0", at + 100, 100, thread=AUTOGRAD)
    trace.host("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 210, 90, thread=AUTOGRAD)
    launches += [at + 110, at + 220]
    trace.note("Optimizer.step#SGD.step", at + 300, 100)
    launches += [at + 310]
    free = max(trace.free, at)
    for place, launched in enumerate(launches):
        begun = max(launched + 10, free)
        trace.work(f"kernel_{place}", launched, begun, kernel, thread=AUTOGRAD if place in (1, 2) else HOST)
        free = begun + kernel
        if place == 2 and exchange is not None:
            trace.work(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL", launched + 6, free + exchange[0], exchange[1], stream=20
            )
            free += sum(exchange)
    trace.free = free
    end = at + 400
    if sync:
        waited = max(free - end, 0.0) + 5
        trace.host("aten::item", end, waited + 2)
        trace.host("aten::_local_scalar_dense", end + 0.5, waited + 1)
        trace.wait("cudaStreamSynchronize", end + 1, waited)
        end += waited + 2
    end += after
    trace.note(f"ProfilerStep#{number}", start, end - start)
    return end


def cuda_trace(count: int = 4, *, rank: int | None = None, world: int = 1, **step: Any) -> MadeTrace:
    """Return a trace of steps one after the other."""
    trace, at = MadeTrace(rank=rank, world=world, baseTimeNanoseconds=1_700_000_000_000_000_000), 0.0
    for number in range(count):
        at = cuda_step(trace, 10 + number, at, **step)
    return trace
