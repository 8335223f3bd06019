"""The profiler beside a run: where its clocks begin and end, and what it says of what it could not measure."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.pipeline.execute import run
from headrace.pipeline.watching import RunInProgress
from headrace.pipeline.worker import WorkerThread
from headrace.profiler import profile as module
from headrace.profiler.nvtx import CudaEvents, DeviceTimes, GpuInstruments
from headrace.profiler.profile import Profiler, ProfileSettings, profile
from headrace.runs.resource_files import read_resources
from headrace.testing import ListSource

QUIET = ProfileSettings(measure_overhead=False)


def pipeline_of(count: int, looked: threading.Event | None = None) -> hr.Pipeline:
    """Return one stage that does nothing, over so many items; it waits until the profiler has looked at the clocks."""
    source = ListSource([str(number).encode() for number in range(count)])

    def work(value: Any) -> Any:
        assert looked is None or looked.wait(60)
        return value

    return hr.Pipeline(source, stages=[hr.stage("work", work)])


def profiling_of(folder: Path) -> dict[str, Any]:
    """Return what the profiler wrote about itself."""
    return dict(json.loads((folder / "profiling.json").read_text()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_hertz": 0.1},
        {"state_hertz": 0},
        {"spans_per_second": 0},
        {"resource_hertz": float("nan")},
        {"curve_batch": -1},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    """A rate out of range is told with its name, the range and the value."""
    with pytest.raises(SettingsError, match=rf"{next(iter(wrong))} must lie between .*, got"):
        ProfileSettings(**wrong)


def test_a_run_without_jobs_has_no_cpu_time(tmp_path: Path) -> None:
    """Where no job came nothing is made up: the reason stands under not_measured."""
    profile(pipeline_of(0), output=tmp_path / "run", settings=QUIET)
    info = profiling_of(tmp_path / "run")
    assert info["process_cpu_seconds"] is None
    assert info["not_measured"]["cpu"] == "no job came"


def test_the_last_look_has_all_jobs_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a moment has an account of its CPU time, and its gauges end with nothing in flight."""
    looked = threading.Event()

    class Clocks(module.CpuClocks):
        def __init__(self, workers: Sequence[WorkerThread] = ()) -> None:
            super().__init__(workers)
            looked.set()

    monkeypatch.setattr(module, "CpuClocks", Clocks)
    profile(pipeline_of(2_000, looked), output=tmp_path / "run", settings=QUIET)
    rows = read_resources(tmp_path / "run")[0].to_pylist()
    last = {row["name"]: row["value"] for row in rows if row["scope"] == "run"}
    info = profiling_of(tmp_path / "run")
    counts = {name: value for name, value in last.items() if not name.startswith("gc_")}
    assert counts == {"in_flight": 0, "received": 2_000, "settled": 2_000, "delivered": 2_000}
    assert info["process_cpu_seconds"] > 0
    assert info["elapsed_seconds"] > 0


def test_a_profiler_that_fails_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trouble with a clock is noted, and every job is delivered."""
    looked = threading.Event()

    def refuse(*_: object) -> None:
        looked.set()
        raise OSError("no clock")

    monkeypatch.setattr(module.CpuClocks, "read", refuse)
    result = profile(pipeline_of(2_000, looked), output=tmp_path / "run", settings=QUIET)
    assert result.counters.delivered == 2_000
    info = profiling_of(tmp_path / "run")
    assert info["process_cpu_seconds"] is None
    assert info["not_measured"]["gauges"].endswith("no clock")


@pytest.mark.parametrize(("curve_batch", "calls"), [(0, {"1": 1}), (4, {"1": 3, "2": 3, "4": 3})])
def test_warm_up_tells_what_larger_batches_cost(tmp_path: Path, curve_batch: int, calls: dict[str, int]) -> None:
    """A profile at batch 1 has the costs of larger batches, unless nobody wants them."""
    stage = hr.stage("device", list, kind="device")
    settings = ProfileSettings(measure_overhead=False, curve_batch=curve_batch)
    profile(hr.Pipeline(ListSource(["x"]), stages=[stage]), output=tmp_path / "run", settings=settings)
    curves = json.loads((tmp_path / "run" / "run.json").read_text())["cost_curves"]
    assert {size: len(seconds) for size, seconds in curves["device"].items()} == calls


def test_why_larger_batches_were_not_measured_is_told(tmp_path: Path) -> None:
    """A model of fixed batch runs as ever; that its curve has one size only is explained."""

    def fixed(batch: list[Any]) -> list[Any]:
        if len(batch) > 1:
            raise ValueError("expected a batch of 1")
        return batch

    stage = hr.stage("device", fixed, kind="device")
    result = profile(hr.Pipeline(ListSource(["x"] * 5), stages=[stage]), output=tmp_path / "run", settings=QUIET)
    assert result.counters.delivered == 5
    assert "expected a batch of 1" in profiling_of(tmp_path / "run")["not_measured"]["cost_curve:device"]


def test_calls_of_warm_up_are_not_in_the_devices_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of the device's clock is of the items' calls: those of warm-up come first, and are left out."""

    class Events:
        def device_times(self) -> list[DeviceTimes]:
            """Two sizes at warm-up, four calls each; then three calls of the run."""
            seconds = (9.0,) * 8 + (1.0, 2.0, 3.0)
            return [DeviceTimes(stage="device", seconds=seconds, num_pending=0, num_not_timed=0)]

    gpu = GpuInstruments(events=cast("CudaEvents", Events()))
    monkeypatch.setattr(module, "gpu_instruments", lambda has_processes: gpu)
    settings = ProfileSettings(measure_overhead=False, curve_batch=2)
    source = ListSource(["x"] * 3)
    profile(
        hr.Pipeline(source, stages=[hr.stage("device", list, kind="device")]),
        output=tmp_path / "run",
        settings=settings,
    )
    assert profiling_of(tmp_path / "run")["device_seconds"] == {"device": 2.0}


def test_a_profile_needs_a_folder() -> None:
    """Without a run folder there is nowhere to write to; the message says what to give."""

    def watch(progress: RunInProgress) -> Profiler:
        return Profiler(progress, QUIET)

    with pytest.raises(SettingsError, match="needs a run folder: give an output"):
        run(pipeline_of(1), watch=watch)
