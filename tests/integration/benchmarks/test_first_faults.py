"""Faults of sources, downloads, cores, batches and delivery do what they say, when a pipeline with them runs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from benchmarks.faults import FAULTS, SHAPES, Case, measure_cost, run_case, source_faults, work
from benchmarks.faults.__main__ import main
from benchmarks.faults.shapes import CALLS, CROPS
from headrace.base.observer import Observer
from headrace.base.records import BatchFormed, Job
from headrace.pipeline.execute import Result, run
from headrace.runs.reader import read_run


@dataclass
class Seen(Observer):
    """Notes what came from the source and what the device took."""

    received: list[list[int]] = field(default_factory=list)
    """Attempts of the jobs of each receive."""
    batches: list[BatchFormed] = field(default_factory=list)

    def job_received(self, jobs: Sequence[Job]) -> None:
        """Note it."""
        self.received.append([job.attempt for job in jobs])

    def batch_formed(self, batch: BatchFormed) -> None:
        """Note it."""
        self.batches.append(batch)


def ran(case: Case, *, seconds: float = 1.0) -> tuple[Result, Seen]:
    """Run a case for a short time."""
    seen = Seen()
    with replace(case, seconds=seconds).opened() as pipeline:
        return run(pipeline, case.plan, limit=case.limit, observers=[seen]), seen


def faulty(fault: str, shape: str, dose: float = 2) -> Case:
    """Return a case with a fault."""
    return FAULTS[fault].applied(SHAPES[shape](), dose)


@pytest.mark.smoke
@pytest.mark.parametrize("shape", SHAPES)
def test_a_healthy_shape_delivers_what_it_receives(shape: str) -> None:
    """Nothing is rejected, retried or lost."""
    counters = ran(SHAPES[shape]())[0].counters
    assert counters.delivered == counters.received > 0
    assert counters.rejected + counters.dead_lettered + counters.retried + counters.lost == 0


def test_f1_jobs_arrive_at_a_share_of_the_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 90/s and dose 2 thirty a second arrive, however fast the pipeline could be."""
    monkeypatch.setattr(source_faults, "measure_capacity", lambda shape: 90.0)
    started = time.monotonic()
    result, _ = ran(faulty("F1", "python_preprocess"))
    assert 0 < result.counters.received <= 30 * (time.monotonic() - started) + 1


def test_f2_a_receive_brings_one_job() -> None:
    """Each and every one; with the remedy, more."""
    case = faulty("F2", "python_preprocess")
    assert {len(jobs) for jobs in ran(case)[1].received} == {1}
    fix = FAULTS["F2"].fix
    assert fix is not None
    assert max(len(jobs) for jobs in ran(fix(case))[1].received) > 1


def test_f3_jobs_are_lost_and_come_again() -> None:
    """Loans run out, and jobs are received a second time; with the remedy none is."""
    case = faulty("F3", "decode_heavy", 5)
    result, seen = ran(case, seconds=1.5)
    assert result.counters.lost > 0
    assert max(attempt for jobs in seen.received for attempt in jobs) > 1
    fix = FAULTS["F3"].fix
    assert fix is not None
    assert ran(fix(case))[0].counters.lost == 0


def test_f4_two_workers_can_do_no_more_than_their_latency_allows() -> None:
    """Two workers at 10 ms: 200 a second at most."""
    started = time.monotonic()
    result, _ = ran(faulty("F4", "download_heavy"))
    assert 0 < result.counters.delivered <= 2 / 0.010 * (time.monotonic() - started)


def test_f5_no_more_bytes_come_than_the_link_lets_pass() -> None:
    """Those of 80 images a second, and of a few that are in buffers."""
    started = time.monotonic()
    result, _ = ran(faulty("F5", "download_heavy", 5))
    assert 0 < result.counters.delivered <= 80 * (time.monotonic() - started) + 5


def test_f6_few_downloads_take_most_of_the_time() -> None:
    """One in fifty takes a second; with the remedy it is given up soon and tried again."""
    case = replace(faulty("F6", "download_heavy", 1), limit=60)
    fetch = _stage(ran(case, seconds=60)[0], "fetch")
    assert fetch["items"] == 60
    assert fetch["busy_seconds"] >= 1
    fix = FAULTS["F6"].fix
    assert fix is not None
    mended, _ = ran(fix(case))
    assert mended.counters.delivered == mended.counters.received


def _stage(result: Result, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(stage for stage in result.summary.as_dict()["stages"] if stage["name"] == name)
    return found


def test_f7_each_image_has_a_connection_of_its_own() -> None:
    """The run's notes count them; with keep-alive there is one for each worker."""
    case = faulty("F7", "download_heavy")
    notes = ran(case)[0].counters
    assert notes.notes["fetch.connections"] >= notes.delivered
    assert ran(SHAPES["download_heavy"]())[0].counters.notes["fetch.connections"] <= 12


def test_f8_images_are_larger_and_decoded_in_full() -> None:
    """Five times the pixels, on average."""
    healthy, large = SHAPES["decode_heavy"](), faulty("F8", "decode_heavy")
    assert _pixels(large.payloads()) == pytest.approx(2 * _pixels(healthy.payloads()), rel=0.02)
    assert large.plan.decode.scale == "full"


def _pixels(files: Sequence[bytes]) -> float:
    images = [cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR) for file in files]
    return float(np.mean([image.shape[0] * image.shape[1] for image in images if image is not None]))


def test_f9_preprocess_enlarges_the_image_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """To as many megapixels as the dose says, by cubic interpolation; what comes out has the old size."""
    enlarged: list[tuple[int, int]] = []
    resize = cv2.resize

    def noted(image: Any, *arguments: Any, **options: Any) -> Any:
        result = resize(image, *arguments, **options)
        if options.get("interpolation") == cv2.INTER_CUBIC:
            enlarged.append(result.shape[:2])
        return result

    monkeypatch.setattr(cv2, "resize", noted)
    context: Any = type("Context", (), {"options": {}})
    call = faulty("F9", "decode_heavy").stage("preprocess").open(context)
    assert call(np.zeros((224, 224, 3), np.uint8)).shape == (3, 224, 224)
    (size,) = enlarged
    assert size[0] * size[1] == pytest.approx(4e6, rel=0.02)


@pytest.mark.parametrize("fault", ["F10", "F11"])
def test_f10_and_f11_preprocess_computes_longer(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By 8 ms of CPU time at dose 2, in Python or in C, in four threads."""
    asked: list[float] = []
    monkeypatch.setattr(work, "spin" if fault == "F10" else "burn", asked.append)
    case = faulty(fault, "decode_heavy")
    context: Any = type("Context", (), {"options": {}})
    case.stage("preprocess").open(context)(np.zeros((224, 224, 3), np.uint8))
    assert asked == [pytest.approx(0.008)]
    assert case.plan.stages["preprocess"].workers == 4


@pytest.mark.parametrize("shape", FAULTS["F10"].applies_to)
def test_f10_is_mended_by_processes(shape: str) -> None:
    """What is around the stage goes to them too, and every job comes back."""
    fix = FAULTS["F10"].fix
    assert fix is not None
    case = fix(faulty("F10", shape))
    result, _ = ran(case)
    assert result.plan.stages["preprocess"].executor == "process"
    assert result.counters.delivered == result.counters.received > 0


@pytest.mark.measures
def test_work_costs_cpu_time_on_the_calling_thread() -> None:
    """Both kinds do: at least a quarter of what is asked, on a core that may be faster now than when it was calibrated."""
    for kind in (work.burn, work.spin):
        started = time.thread_time()
        kind(0.04)
        assert time.thread_time() - started >= 0.01


def test_f12_each_call_of_the_model_has_many_threads() -> None:
    """Eight at dose 2, and four workers."""
    result, _ = ran(faulty("F12", "download_heavy"))
    assert {variant["threads"] for variant in result.variants} == {8}
    assert any("may compute with 32 threads at once" in warning for warning in result.warnings)


def test_f15_no_batch_is_full_and_all_wait() -> None:
    """Two images of four crops can fill half of 16, and the batch is launched when its wait is over."""
    _, seen = ran(faulty("F15", "device_heavy"))
    assert max(batch.size for batch in seen.batches) <= 8
    assert Counter(batch.reason for batch in seen.batches).most_common(1)[0][0] == "max_wait"


def test_f16_batches_wait_for_company() -> None:
    """Nearly all until their window is over."""
    _, seen = ran(faulty("F16", "device_heavy", 1.2), seconds=1.5)
    assert Counter(batch.reason for batch in seen.batches).most_common(1)[0][0] == "max_wait"


def test_f17_the_device_takes_one_at_a_time() -> None:
    """And a call costs more than an item."""
    result, seen = ran(faulty("F17", "device_heavy"))
    assert {batch.size for batch in seen.batches} == {1}
    (variant,) = result.variants
    assert variant["launch_seconds"] > 10 * variant["item_seconds"]


def test_f22_one_worker_can_do_no_more_than_the_callback_allows() -> None:
    """At 12.5 ms: 80 a second."""
    result, _ = ran(faulty("F22", "download_heavy", 5))
    deliver = _stage(result, "deliver")
    assert deliver["busy_seconds"] >= 0.0125 * deliver["items"]
    assert deliver["workers"] == 1


def test_f41_decode_and_device_are_equal() -> None:
    """The device takes as long for the four crops of an image, called twice, as decode for the image."""
    case = faulty("F41", "device_heavy")
    (variant,) = ran(case)[0].variants
    assert CROPS * CALLS * variant["item_seconds"] + variant["launch_seconds"] == pytest.approx(0.012)
    assert case.plan.stages["decode"].workers == 1


def test_a_run_folder_does_not_tell_the_fault(tmp_path: Path) -> None:
    """Nothing in what a profile writes holds the fault's id or title."""
    folder = run_case(replace(faulty("F8", "decode_heavy"), seconds=1.0), tmp_path / "run")
    assert read_run(folder).info.counters.delivered > 0
    text = json.dumps([file.read_text() for file in folder.glob("*.json*")])
    assert "F8" not in text.replace("F8.", "")
    assert FAULTS["F8"].title not in text


def test_the_command_writes_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And prints its path."""
    status = main(["f39", "--shape", "python_preprocess", "--seconds", "1", "-o", str(tmp_path / "run")])
    assert status == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "run")
    assert read_run(tmp_path / "run").info.counters.delivered > 0


@pytest.mark.measures
def test_a_cost_is_the_ratio_of_pairs() -> None:
    """A pipeline that is fed half of what another is does half: far less than it could, so that others may use the machine."""
    fast, slow = (SHAPES["python_preprocess"]().with_broker(rate_per_second=rate) for rate in (20.0, 10.0))
    said: list[str] = []
    cost = measure_cost(replace(fast, seconds=1.5), replace(slow, seconds=1.5), pairs=2, say=said.append)
    assert cost.ratio == pytest.approx(0.5, rel=0.25)
    assert cost.interval is None
    assert len(cost.before) == len(cost.after) == len(said) == 2
