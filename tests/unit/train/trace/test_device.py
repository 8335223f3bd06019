"""What a device did in the steps of a trace: every moment once, and idle times have the cause that was put in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.runs.formats.training_trace import DeviceTime
from headrace.train.trace.columns import Columns
from headrace.train.trace.cutting import cut_trace
from headrace.train.trace.device import DeviceUse, describe_devices
from headrace.train.trace.events import TraceFile
from tests.unit.train.trace.made_traces import MadeTrace, cuda_trace


def use(trace: MadeTrace, folder: Path) -> DeviceUse:
    """Return what the device did."""
    columns = Columns(TraceFile(trace.write(folder / "t.json")))
    return describe_devices(columns, cut_trace(columns))


def device(folder: Path, **step: Any) -> DeviceTime:
    """Return the device of a trace of four steps."""
    (found,) = use(cuda_trace(4, **step), folder).times
    return found


def total(found: DeviceTime) -> float:
    """Return the sum of all that a moment can be."""
    return (
        found.compute_seconds
        + found.exposed_communication_seconds
        + found.exposed_transfer_seconds
        + found.queued_seconds
        + sum(found.idle_seconds.values())
        + found.idle_after_sync_seconds
    )


@pytest.mark.parametrize(
    "step",
    [
        {},
        {"kernel": 20.0},
        {"sync": True},
        {"sync": True, "after": 300.0},
        {"wait": 3000.0},
        {"exchange": (5.0, 200.0), "sync": True},
    ],
)
def test_every_moment_of_a_step_is_one_thing(tmp_path: Path, step: dict[str, Any]) -> None:
    """Computing, communication, transfer, queued and idle times add up to the step."""
    found = device(tmp_path, **step)
    assert total(found) == pytest.approx(found.step_seconds)
    assert found.kernels == 4


def test_a_device_that_is_kept_at_work_is_idle_nowhere(tmp_path: Path) -> None:
    """The host waits for data, and costs nothing: the device works on what was launched before."""
    found = device(tmp_path, kernel=400.0)
    assert found.compute_seconds == pytest.approx(1600e-6, rel=0.02)
    assert sum(found.idle_seconds.values()) < 0.01 * found.step_seconds


def test_waiting_for_data_is_idle_time_of_that_phase(tmp_path: Path) -> None:
    """The device has done all it was given, and the host asks for a batch for 3 ms."""
    found = device(tmp_path, wait=3000.0)
    assert found.idle_seconds["wait"] == pytest.approx(1700e-6, abs=200e-6)
    assert found.idle_seconds["wait"] > 0.9 * sum(found.idle_seconds.values())


def test_kernels_shorter_than_their_launches_leave_the_device_idle(tmp_path: Path) -> None:
    """The host launches one in 100 us, and each takes 20."""
    found = device(tmp_path, kernel=20.0)
    idle = {phase: seconds * 1e6 for phase, seconds in found.idle_seconds.items()}
    assert idle["backward"] + idle["forward"] + idle["optimizer"] > 200
    assert found.short_share == 1.0
    assert found.kernel_seconds == pytest.approx(20e-6)


def test_idle_time_behind_a_call_that_waited_is_that_calls(tmp_path: Path) -> None:
    """`.item()` drains the device, and the loop's own code of 300 us and the next wait lie behind it."""
    trace = cuda_trace(4, sync=True, after=300.0)
    found = use(trace, tmp_path)
    (time,) = found.times
    assert time.idle_after_sync_seconds == pytest.approx(427e-6, abs=30e-6)
    assert sum(time.idle_seconds.values()) < 30e-6
    assert len(found.idle_after) == 3


def test_communication_counts_where_nothing_hides_it(tmp_path: Path) -> None:
    """200 us of all-reduce behind the last kernel of the backward pass."""
    found = device(tmp_path, exchange=(5.0, 200.0))
    assert found.exposed_communication_seconds == pytest.approx(200e-6)
    assert found.communication_seconds == pytest.approx(200e-6)
    assert found.kernels == 4


def test_copies_that_nothing_runs_beside_are_exposed(tmp_path: Path) -> None:
    """One copy of each step stands alone, another lies behind a kernel."""
    trace = cuda_trace(4, kernel=400.0)
    for at in range(4):
        start = at * 500.0
        trace.work("Memcpy HtoD (Pinned -> Device)", start + 101, start + 200, 50, cat="gpu_memcpy", stream=9)
    (found,) = use(trace, tmp_path).times
    assert found.transfer_seconds == pytest.approx(50e-6)
    assert found.exposed_transfer_seconds == 0.0


def test_a_trace_without_launches_still_has_its_device(tmp_path: Path) -> None:
    """Traces that were thinned out: the host counts as late wherever nothing runs."""
    trace = cuda_trace(4, kernel=20.0)
    trace.events = [event for event in trace.events if event["cat"] != "cuda_runtime"]
    (found,) = use(trace, tmp_path).times
    assert total(found) == pytest.approx(found.step_seconds)
    assert found.queued_seconds == 0.0


def test_a_trace_of_one_step_has_it_up_to_the_end_of_its_work(tmp_path: Path) -> None:
    """There is no next step that would end it."""
    (found,) = use(cuda_trace(1), tmp_path).times
    assert found.steps == 1
    assert total(found) == pytest.approx(found.step_seconds)
