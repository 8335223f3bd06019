"""What NVIDIA's tools need to see stages, and the device's own clock: NVTX ranges and CUDA events.

`NvtxRanges` names the time of each stage's call, so that Nsight Systems shows stages above the kernels they launched.
`CudaEvents` measures how long the device worked on each call of device stages: a call that only launches kernels returns
before they have run, so its wall time says little. Events are taken from a pool, recorded before and after the call, and asked
later, without ever waiting for the device (no synchronize): waiting would serialize what is to be measured.

Both are for machines with an NVIDIA GPU and say so where there is none, before the run begins.

References:
    NVTX: https://nvtx.readthedocs.io; CUDA C++ Programming Guide, "Events"; torch.cuda.Event.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.base.errors import MissingExtra, SettingsError
from headrace.base.protocols import Instrument

#: Pairs of events that wait for the device, of all workers together; calls beyond that are not timed.
_MAX_PENDING = 4096


class NvtxRanges:
    """An instrument that puts an NVTX range, named like the stage, around each call; in the domain `headrace`.

    Raises:
        SettingsError: If this machine has no CUDA device.
        MissingExtra: If the package `nvtx` is not installed.
    """

    def __init__(self) -> None:
        reason = cuda_missing()
        if reason:
            raise SettingsError(f"NVTX ranges are not possible: {reason}; run without them")
        _nvtx()

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call within a range."""
        domain = _nvtx().get_domain("headrace")
        attributes = domain.get_event_attributes(message=stage, category=kind)
        return functools.partial(_call_in_range, domain, attributes, call)


def _call_in_range(domain: Any, attributes: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    domain.push_range(attributes)
    try:
        return call(*arguments)
    finally:
        domain.pop_range()


def _nvtx() -> Any:
    try:
        import nvtx
    except ImportError as error:
        raise MissingExtra("NVTX ranges around stages", "nvtx") from error
    return nvtx


class DeviceTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long the device worked on calls of one stage, by its own clock."""

    stage: str
    seconds: tuple[float, ...]
    """Of each call, in the order in which they ended."""
    num_pending: int
    """Calls that the device had not ended when it was asked."""
    num_not_timed: int
    """Calls without a time: too many were waiting for the device, or they failed."""


class CudaEvents:
    """An instrument that times the calls of device stages with CUDA events on PyTorch's current stream.

    It sees what was put on that stream by the calling thread: models that PyTorch runs. Engines with streams of their own
    (ONNX Runtime, TensorRT) are not measured by it. Call `device_times` when the run is over.

    Raises:
        SettingsError: If this machine has no CUDA device, or PyTorch cannot use it.
        MissingExtra: If PyTorch is not installed.
    """

    def __init__(self) -> None:
        reason = cuda_missing()
        if reason:
            raise SettingsError(f"the device's clock cannot be read: {reason}; run without it")
        if not _torch().cuda.is_available():
            raise SettingsError(
                "the device's clock cannot be read: there is a CUDA device, but torch.cuda.is_available() is False; install a "
                "PyTorch built for CUDA (https://pytorch.org/get-started), or run without it"
            )
        self._timers: dict[str, _Timer] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _CudaEventsElsewhere, ()

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that is timed, if it is of a device stage."""
        if kind != "device":
            return call
        with self._lock:
            timer = self._timers.get(stage)
            if timer is None:
                timer = self._timers[stage] = _Timer(functools.partial(_torch().cuda.Event, enable_timing=True))
        return functools.partial(timer.time_call, call)

    def device_times(self) -> list[DeviceTimes]:
        """Return what the device has ended by now, for each stage that was timed."""
        return [timer.times(stage) for stage, timer in self._timers.items()]


class _CudaEventsElsewhere:
    """What becomes of `CudaEvents` in another process, from which no times would come back."""

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call of a stage that is not timed anyway."""
        if kind == "device":
            raise SettingsError(
                f"stage {stage} runs in a process of its own, where CUDA events are not collected; give it threads "
                f"(--set {stage}.executor=thread)"
            )
        return call


class _Timer:
    """Times calls of one stage. Thread-safe.

    Args:
        new_event: Makes a CUDA event.
    """

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event
        self._pool: list[Any] = []
        self._pending: deque[tuple[Any, Any]] = deque()
        self._seconds: list[float] = []
        self._num_not_timed = 0
        self._lock = threading.Lock()

    def time_call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call between two events."""
        with self._lock:
            self._poll()
            events = self._take() if len(self._pending) < _MAX_PENDING else None
            if events is None:
                self._num_not_timed += 1
        if events is None:
            return call(*arguments)
        begin, end = events
        begin.record()
        try:
            result = call(*arguments)
        except BaseException:
            with self._lock:  # they may still be under way: not back into the pool
                self._num_not_timed += 1
            raise
        end.record()
        with self._lock:
            self._pending.append(events)
        return result

    def times(self, stage: str) -> DeviceTimes:
        """Return what is known by now."""
        with self._lock:
            self._poll()
            return DeviceTimes(
                stage=stage,
                seconds=tuple(self._seconds),
                num_pending=len(self._pending),
                num_not_timed=self._num_not_timed,
            )

    def _take(self) -> tuple[Any, Any]:
        begin, end = (self._pool.pop() if self._pool else self._new_event() for _ in range(2))
        return begin, end

    def _poll(self) -> None:
        # Oldest first; workers on streams of their own may end out of order, and are then found a little later.
        while self._pending and self._pending[0][1].query():
            begin, end = self._pending.popleft()
            self._seconds.append(begin.elapsed_time(end) / 1e3)
            self._pool += (begin, end)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("timing device calls with CUDA events", "torch") from error
    return torch


def cuda_missing(library: str = "libcuda.so.1") -> str | None:
    """Return why there is no CUDA device on this machine; None if there is one.

    Args:
        library: The driver's library.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return f"this machine has no NVIDIA driver ({library} cannot be loaded)"
    count = ctypes.c_int(0)
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return f"the NVIDIA driver does not start (CUDA error {code}); look at the output of nvidia-smi"
    return None if count.value else "the NVIDIA driver finds no device; look at the output of nvidia-smi"


@dataclass(frozen=True)
class GpuInstruments:
    """What a profile puts around stages on a machine with an NVIDIA GPU; nothing elsewhere."""

    instruments: tuple[Instrument, ...] = ()
    events: CudaEvents | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)
    """{what: why}, where there is a GPU."""


def gpu_instruments(*, has_processes: bool) -> GpuInstruments:
    """Return NVTX ranges where CUDA and the package nvtx are there, and CUDA events where the program uses PyTorch.

    Args:
        has_processes: Stages run in processes of their own, from which no device times come back.
    """
    if cuda_missing():
        return GpuInstruments()
    instruments: list[Instrument] = []
    not_measured: dict[str, str] = {}
    events = None
    try:
        instruments.append(NvtxRanges())
    except MissingExtra as error:
        not_measured["nvtx_ranges"] = str(error)
    if has_processes:
        not_measured["device_seconds"] = "stages run in processes of their own, where CUDA events are not collected"
    elif "torch" not in sys.modules:
        not_measured["device_seconds"] = "the program does not use PyTorch, whose CUDA events tell the device's time"
    else:
        try:
            events = CudaEvents()
            instruments.append(events)
        except SettingsError as error:
            not_measured["device_seconds"] = str(error)
    return GpuInstruments(tuple(instruments), events, not_measured)
