"""What a device takes for each phase, on a device that works off launches later than they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.records import Span
from headrace.runs.training_phases import DEVICE, WHOLE, Phase
from headrace.train import recorder as recorder_module
from headrace.train.device_clock import DeviceClock
from headrace.train.recorder import Recorder

MS = 1_000_000


class Device:
    """A device with one stream, and the host's clock; behaves as `torch.cuda` does."""

    def __init__(self) -> None:
        self.now, self.until = 1_000 * MS, 0
        self.events = 0
        self.is_started, self.is_captured = True, False
        self.error = ""

    def compute(self, milliseconds: float) -> None:
        """The host is busy, or waits for something else."""
        self.now += int(milliseconds * MS)

    def launch(self, milliseconds: float) -> None:
        """The host hands work to the device, which takes so long."""
        self.until = max(self.now, self.until) + int(milliseconds * MS)

    def synchronize(self) -> None:
        """The host waits for the device, as `.item()` does."""
        self.now = max(self.now, self.until)

    def is_initialized(self) -> bool:
        """As in PyTorch."""
        return self.is_started

    def is_current_stream_capturing(self) -> bool:
        """As in PyTorch."""
        if self.error:
            raise RuntimeError(self.error)
        return self.is_captured

    def current_device(self) -> int:
        """As in PyTorch."""
        return 0

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802 - PyTorch's name
        """As in PyTorch."""
        assert enable_timing
        self.events += 1
        return Event(self)


class Event:
    """As `torch.cuda.Event`."""

    def __init__(self, device: Device) -> None:
        self.device, self.at = device, -1

    def record(self) -> None:
        """Put it behind what was launched so far."""
        self.at = max(self.device.now, self.device.until)

    def query(self) -> bool:
        """Return whether the device came to it."""
        return self.device.now >= self.at

    def elapsed_time(self, other: Event) -> float:
        """Return milliseconds."""
        assert self.query()
        assert other.query()
        return (other.at - self.at) / MS


class Loop:
    """A training loop on that device."""

    def __init__(self, device: Device) -> None:
        self.device, self.spans = device, list[Span]()
        self.recorder = Recorder(lambda spans: self.spans.extend(spans))
        self.recorder.clock = DeviceClock(device)

    def step(self, *, load: float = 1, forward: float = 4, backward: float = 8, is_logged: bool = False) -> None:
        """Milliseconds: loading by the host; on the device, what forward and backward launch within 1 ms each."""
        recorder, device = self.recorder, self.device
        recorder.batch_wanted()
        device.compute(load)
        recorder.batch_came(4)
        recorder.forward_begins(training=True)
        device.launch(forward)
        device.compute(1)
        recorder.forward_ended()
        if is_logged:
            device.synchronize()
        recorder.backward_begins()
        device.launch(backward)
        device.compute(1)
        recorder.backward_ended()
        recorder.update_begins()
        recorder.update_ended()

    def close(self) -> None:
        """End; the device comes to its end meanwhile."""
        self.device.synchronize()
        self.recorder.close()

    def took(self, step: int, unit: str = DEVICE) -> dict[str, float]:
        """Return {phase: milliseconds} of a step."""
        return {
            span.stage: (span.ended - span.started) / MS
            for span in self.spans
            if span.unit == unit and span.unit_id == str(step) and span.ended > span.started
        }


@pytest.fixture
def make_loop(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], Loop]:
    """Make a loop whose recorder reads the device's host clock."""

    def make(device: Device) -> Loop:
        monkeypatch.setattr(recorder_module, "_now", lambda: device.now)
        return Loop(device)

    return make


def test_phases_last_as_long_as_the_device_takes(make_loop: Callable[[Device], Loop]) -> None:
    """The host launches a step in 3 ms and runs ahead; the device takes 12 ms, and never waits for a batch."""
    loop = make_loop(Device())
    for _ in range(4):
        loop.step()
    loop.close()
    assert loop.took(2, "step") == {WHOLE: 3, Phase.WAIT: 1, Phase.FORWARD: 1, Phase.BACKWARD: 1}
    assert loop.took(2) == {WHOLE: 12, Phase.FORWARD: 4, Phase.BACKWARD: 8}
    assert {span.thread for span in loop.spans if span.unit == DEVICE} == {"cuda:0"}


def test_a_wait_is_what_the_device_stands_still_for(make_loop: Callable[[Device], Loop]) -> None:
    """Where loading takes 30 ms, the device waits for what is left of it when it is through with the step before."""
    loop = make_loop(Device())
    for _ in range(4):
        loop.step(load=30)
    loop.close()
    took = loop.took(2)
    assert took[Phase.WAIT] == 30 - 10  # when the batch is asked for, 10 of the 12 ms are left to do
    assert took[Phase.FORWARD] == 4
    assert took[Phase.BACKWARD] == 8


def test_what_waits_for_the_device_is_not_blamed(make_loop: Callable[[Device], Loop]) -> None:
    """`.item()` in the loss takes the host until the forward pass is over: the device works in that time."""
    loop = make_loop(Device())
    for _ in range(4):
        loop.step(is_logged=True)
    loop.close()
    assert loop.took(2, "step")[Phase.LOSS] > 2
    assert Phase.LOSS not in loop.took(2)


def test_nothing_waits_for_the_device(make_loop: Callable[[Device], Loop]) -> None:
    """While it is behind, no step is read; at the end all are, in order."""
    device = Device()
    loop = make_loop(device)
    for _ in range(5):
        loop.step(forward=100)
    assert not [span for span in loop.spans if span.unit == DEVICE and span.unit_id in "34"]
    loop.close()
    assert [span.unit_id for span in loop.spans if span.unit == DEVICE and span.stage == WHOLE] == [*"01234"]


def test_what_stands_still_is_given_up(make_loop: Callable[[Device], Loop], monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that comes to no end keeps nobody from ending, and the process says what is missing."""
    monkeypatch.setattr("headrace.train.device_clock._PATIENCE_SECONDS", 0.01)
    loop = make_loop(Device())
    loop.step(forward=1e6)
    loop.recorder.close()
    assert loop.recorder.clock is not None
    assert "not through with the last" in loop.recorder.clock.not_measured
    assert loop.took(0, "step")[WHOLE] == 3


def test_a_backlog_is_bounded(make_loop: Callable[[Device], Loop]) -> None:
    """Of a device that is far behind the oldest steps have no times, and nothing piles up."""
    device = Device()
    loop = make_loop(device)
    for _ in range(600):
        loop.step(load=10, forward=100)
    assert loop.recorder.clock is not None
    assert len(loop.recorder.clock._waiting) <= 256
    assert "steps behind" in loop.recorder.clock.not_measured


def test_events_are_used_again(make_loop: Callable[[Device], Loop]) -> None:
    """A long training makes no more events than are on their way."""
    device = Device()
    loop = make_loop(device)
    for _ in range(500):
        loop.step(load=20)
    assert device.events < 50


def test_a_captured_graph_has_no_times(make_loop: Callable[[Device], Loop]) -> None:
    """Events in a capture would become part of the graph: such steps have the host's times alone."""
    device = Device()
    loop = make_loop(device)
    device.is_captured = True
    loop.step()
    loop.step()
    device.is_captured = False
    loop.step()
    loop.step()
    loop.close()
    assert not loop.took(0)
    assert loop.took(3) == {WHOLE: 12, Phase.FORWARD: 4, Phase.BACKWARD: 8}


def test_an_error_of_the_device_stays_the_programs(make_loop: Callable[[Device], Loop]) -> None:
    """It comes up where the program asks the device next, and not in the recorder."""
    device = Device()
    loop = make_loop(device)
    loop.step()
    device.error = "CUDA error: device-side assert triggered\nCompile with ..."
    loop.step()
    loop.step()
    loop.close()
    assert loop.recorder.clock is not None
    assert loop.recorder.clock.not_measured == "the device failed: CUDA error: device-side assert triggered"
    assert loop.took(1, "step")[WHOLE] == 3


def test_a_device_that_nobody_uses_is_left_alone(make_loop: Callable[[Device], Loop]) -> None:
    """Until the program has begun to use it, no event is made."""
    device = Device()
    device.is_started = False
    loop = make_loop(device)
    loop.step()
    device.is_started = True
    for _ in range(3):
        loop.step()
    loop.close()
    assert not loop.took(0)
    assert loop.took(2) == {WHOLE: 12, Phase.FORWARD: 4, Phase.BACKWARD: 8}
