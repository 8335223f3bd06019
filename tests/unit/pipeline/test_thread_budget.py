"""How many cores there are, who gets how many threads, and what does not add up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.plan import Plan, resolve
from headrace.pipeline.thread_budget import ThreadBudget, budget, limit_library_threads, usable_cores
from headrace.stages.stage import Stage


@pytest.fixture(autouse=True)
def _sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def own_group(folder: Path) -> Path:
    """Return the folder of this process's own group below a made-up root."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split("::", 1)[1] for line in lines if line.startswith("0::")), "/")
    group = folder / own.strip("/")
    group.mkdir(parents=True, exist_ok=True)
    return group


def test_affinity_without_a_quota(tmp_path: Path) -> None:
    """Without control groups the affinity counts."""
    assert usable_cores(tmp_path) == 16


@pytest.mark.parametrize(
    ("text", "cores"),
    [("400000 100000", 4), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", 16), ("9900000 100000", 16),
     ("", 16), ("nonsense 1", 16), ("1 0", 16)],
)  # fmt: skip
def test_quota_v2(tmp_path: Path, text: str, cores: int) -> None:
    """cpu.max of version 2 limits, rounded down, at least one; what cannot be read does not."""
    (own_group(tmp_path) / "cpu.max").write_text(text)
    assert usable_cores(tmp_path) == cores


def test_quota_v2_of_a_parent(tmp_path: Path) -> None:
    """The smallest quota from our group up to the root counts."""
    (tmp_path / "cpu.max").write_text("300000 100000")
    group = own_group(tmp_path)
    if group != tmp_path:
        (group / "cpu.max").write_text("800000 100000")
    assert usable_cores(tmp_path) == 3


@pytest.mark.parametrize(("quota", "cores"), [("250000", 2), ("-1", 16), ("x", 16)])
def test_quota_v1(tmp_path: Path, quota: str, cores: int) -> None:
    """Version 1 has quota and period in two files; -1 is none."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert usable_cores(tmp_path) == cores


def budget_of(stages: list[Stage], plan: dict[str, Any], cores: int) -> ThreadBudget:
    """Return the budget of stages under a Plan."""
    defaults = [stage.defaults() for stage in stages]
    return budget(resolve(Plan.from_table(plan), defaults, cores), defaults, cores)


def chain() -> list[Stage]:
    """Return a stage of each kind."""
    return [hr.stage("io", str, kind="io"), hr.stage("cpu", str), hr.stage("device", list, kind="device")]


@pytest.mark.parametrize(("workers", "threads", "expected"), [(1, None, 8), (2, None, 4), (16, None, 1), (2, 3, 3)])
def test_model_threads(workers: int, threads: int | None, expected: int) -> None:
    """The cores are divided among the workers of the device, unless the Plan says how many."""
    plan = {"stages": {"device": {"workers": workers}}, "model": {} if threads is None else {"threads": threads}}
    assert budget_of(chain(), plan, 8).model_threads == {"device": expected}


def test_all_that_fits_is_silent() -> None:
    """The defaults ask for no more than there is, stage by stage; io does not count."""
    assert budget_of(chain(), {"stages": {"io": {"workers": 64}}}, 4).warnings == ()


def test_too_many_workers_are_told() -> None:
    """A stage that may compute with more threads than there are cores is named with both numbers and the remedy."""
    made = budget_of(chain(), {"stages": {"cpu": {"workers": 9}, "device": {"workers": 2}}, "model": {"threads": 3}}, 4)
    cpu, device = made.warnings
    assert cpu == (
        "stage cpu may compute with 9 threads at once, but this process may use 4 cores: lower cpu.workers or model.threads"
    )
    assert device.startswith("stage device may compute with 6 threads at once")


def test_inline_stages_compute_in_their_heads_workers() -> None:
    """A fused cpu stage has as many threads as the stage that it is fused to; at the head, as there are receivers."""
    fused = budget_of(chain(), {"stages": {"io": {"workers": 7}, "cpu": {"executor": "inline"}}}, 4)
    assert fused.demand == {"io": 7, "device": 4}
    assert "stage io may compute with 7 threads" in fused.warnings[0]
    first = {name: {"executor": "inline"} for name in ("io", "cpu", "device")}
    received = budget_of(chain(), {"stages": first, "source": {"receivers": 2}}, 4)
    assert received.model_threads == {"device": 2}


def test_emulated_devices_use_no_cores() -> None:
    """An emulated device asks for no threads."""
    plan = {"model": {"engine": "emulated", "threads": 99}}
    assert budget_of(chain(), plan, 4).warnings == ()


def test_libraries_compute_in_the_callers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV is told to use the calling thread; OpenMP's variable is left alone where it is set."""
    import cv2

    before = cv2.getNumThreads()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    limit_library_threads()
    assert cv2.getNumThreads() == 1
    assert os.environ["OMP_NUM_THREADS"] == "3"
    cv2.setNumThreads(before)
