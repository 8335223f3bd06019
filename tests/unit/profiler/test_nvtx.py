"""NVTX ranges and CUDA events, with stand-ins for NVIDIA's driver, the package nvtx and PyTorch."""

from __future__ import annotations

import ctypes
import pickle
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import MissingExtra, SettingsError
from headrace.profiler.nvtx import CudaEvents, NvtxRanges, cuda_missing, gpu_instruments


@dataclass
class Driver:
    """Stands in for libcuda."""

    num_devices: int = 1
    code: int = 0

    def cuInit(self, flags: int) -> int:  # noqa: N802 - CUDA's name
        """Answer as set."""
        return self.code

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        """Fill in the number of devices."""
        count._obj.value = self.num_devices
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A machine with one CUDA device."""
    driver = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    return driver


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without NVIDIA's driver."""

    def refuse(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)


@dataclass
class Nvtx:
    """Stands in for the package nvtx: notes what is told."""

    told: list[str] = field(default_factory=list)

    def get_domain(self, name: str) -> Nvtx:
        """Return what ranges are told to."""
        self.told.append(f"domain {name}")
        return self

    def get_event_attributes(self, message: str, category: str) -> str:
        """Return a range's attributes."""
        return f"{message} ({category})"

    def push_range(self, attributes: str) -> None:
        """Note it."""
        self.told.append(f"> {attributes}")

    def pop_range(self) -> None:
        """Note it."""
        self.told.append("<")


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Nvtx:
    """The package nvtx."""
    module = Nvtx()
    monkeypatch.setitem(sys.modules, "nvtx", module)
    return module


class Device:
    """Stands in for torch.cuda: work takes time on the device, which moves when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0  # ms at which the device stands
        self.queued = 0.0  # ms at which all that was launched is done
        self.events: list[Event] = []

    def is_available(self) -> bool:
        """Answer that PyTorch can use the device."""
        return True

    def Event(self, enable_timing: bool) -> Event:  # noqa: N802 - PyTorch's name
        """Return a new event."""
        assert enable_timing
        self.events.append(Event(self))
        return self.events[-1]

    def launch(self, milliseconds: float) -> str:
        """Add work; returns at once, as kernels do."""
        self.queued += milliseconds
        return "launched"


class Event:
    """Stands in for torch.cuda.Event."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.at: float | None = None

    def record(self) -> None:
        """Stand behind what was launched."""
        self.at = self.device.queued

    def query(self) -> bool:
        """Return whether the device has come here."""
        assert self.at is not None
        return self.at <= self.device.now

    def elapsed_time(self, end: Event) -> float:
        """Return ms between two events that have both ended."""
        assert self.query()
        assert end.query()
        assert self.at is not None
        assert end.at is not None
        return end.at - self.at


@pytest.fixture
def device(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Device:
    """PyTorch on a machine with a CUDA device."""
    device = Device()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=device))
    return device


def test_a_range_is_around_each_call(driver: Driver, nvtx: Nvtx) -> None:
    """Each call is within a range named like its stage, also one that raises."""
    ranges = NvtxRanges()
    half = ranges.wrap("half", "cpu", lambda value: 1 / value)
    assert half(2) == 0.5
    with pytest.raises(ZeroDivisionError):
        half(0)
    assert nvtx.told == ["domain headrace", "> half (cpu)", "<", "> half (cpu)", "<"]


def test_ranges_go_along_to_processes(driver: Driver, nvtx: Nvtx) -> None:
    """The instrument can be sent to a worker in a process of its own."""
    copy = pickle.loads(pickle.dumps(NvtxRanges()))
    assert copy.wrap("x", "cpu", str)(1) == "1"
    assert nvtx.told[-2:] == ["> x (cpu)", "<"]


def test_without_nvtx_the_extra_is_named(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with CUDA but without the package says how to install it."""
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(MissingExtra, match=r"pip install 'headrace\[nvtx\]'"):
        NvtxRanges()


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("instrument", [NvtxRanges, CudaEvents])
def test_without_a_driver_it_says_so(instrument: Any) -> None:
    """A machine without NVIDIA's driver is told before anything runs."""
    with pytest.raises(SettingsError, match=r"no NVIDIA driver.*run without"):
        instrument()


@pytest.mark.parametrize(
    ("changes", "reason"), [({"code": 999}, "CUDA error 999"), ({"num_devices": 0}, "finds no device")]
)
def test_a_driver_without_a_device_says_why(driver: Driver, changes: dict[str, int], reason: str) -> None:
    """A driver that does not start, or has no device, is told apart."""
    assert cuda_missing() is None
    for name, value in changes.items():
        setattr(driver, name, value)
    assert reason in str(cuda_missing())


def test_device_time_is_that_of_the_device(device: Device) -> None:
    """A call that only launches is timed by when the device did its work, without waiting for it."""
    events = CudaEvents()
    process = events.wrap("process", "device", device.launch)
    assert [process(time) for time in (5.0, 7.0)] == ["launched"] * 2
    device.now = 6.0
    [times] = events.device_times()
    assert (times.stage, times.seconds, times.num_pending) == ("process", (0.005,), 1)
    device.now = 100.0
    [times] = events.device_times()
    assert (times.seconds, times.num_pending, times.num_not_timed) == ((0.005, 0.007), 0, 0)


def test_events_are_used_again(device: Device) -> None:
    """As many events as wait for the device at once are made, however many calls there are."""
    process = CudaEvents().wrap("process", "device", device.launch)
    for _ in range(100):
        process(1.0)
        device.now = device.queued
    assert len(device.events) == 2


def test_a_device_that_hangs_fills_no_memory(device: Device) -> None:
    """Above a few thousand pairs of events that wait, calls are made without, and counted."""
    events = CudaEvents()
    process = events.wrap("process", "device", device.launch)
    for _ in range(5000):
        process(1.0)
    [times] = events.device_times()
    assert (times.num_pending, times.num_not_timed) == (4096, 904)
    assert len(device.events) == 2 * 4096


def test_a_call_that_fails_has_no_time(device: Device) -> None:
    """What raises is counted as not timed, and raises on."""
    events = CudaEvents()
    with pytest.raises(ZeroDivisionError):
        events.wrap("process", "device", lambda: 1 / 0)()
    [times] = events.device_times()
    assert (times.seconds, times.num_pending, times.num_not_timed) == ((), 0, 1)


def test_other_stages_are_left_alone(device: Device) -> None:
    """Stages that are not a device's keep their call, here and in processes; a device stage in a process is refused."""
    events = CudaEvents()
    assert events.wrap("decode", "cpu", str) is str
    elsewhere = pickle.loads(pickle.dumps(events))
    assert elsewhere.wrap("decode", "cpu", str) is str
    with pytest.raises(SettingsError, match=r"process\.executor=thread"):
        elsewhere.wrap("process", "device", str)


def test_torch_without_cuda_says_what_to_do(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch that cannot use the device, or none at all, is told."""
    monkeypatch.setattr(device, "is_available", lambda: False)
    with pytest.raises(SettingsError, match="built for CUDA"):
        CudaEvents()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match="torch"):
        CudaEvents()


@pytest.mark.usefixtures("no_driver")
def test_a_profile_without_a_gpu_puts_nothing_around_stages() -> None:
    """Where there is no GPU there are no instruments, and nothing to complain of."""
    found = gpu_instruments(has_processes=False)
    assert found.instruments == ()
    assert found.not_measured == {}


@pytest.mark.usefixtures("driver")
def test_a_profile_with_a_gpu_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU, and neither nvtx nor PyTorch, each has its reason."""
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = gpu_instruments(has_processes=False)
    assert found.instruments == ()
    assert set(found.not_measured) == {"nvtx_ranges", "device_seconds"}
    assert "headrace[nvtx]" in found.not_measured["nvtx_ranges"]


@pytest.mark.usefixtures("driver")
def test_worker_processes_have_ranges_and_no_device_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stages run in processes only ranges go around them, and the reason is told."""
    monkeypatch.setitem(sys.modules, "nvtx", Nvtx())
    found = gpu_instruments(has_processes=True)
    assert [type(one) for one in found.instruments] == [NvtxRanges]
    assert found.events is None
    assert "processes" in found.not_measured["device_seconds"]
