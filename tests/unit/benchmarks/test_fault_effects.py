"""What the faults of devices, Python, storage, drift and outcomes do to single calls."""

from __future__ import annotations

import functools
import gc
import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from benchmarks.faults import FAULTS, SHAPES, device_faults, drift_faults, outcome_faults, profiling_faults, work
from benchmarks.faults.models import matrix_products, passes_over_memory
from benchmarks.faults.python_faults import random_boxes, slow_nms
from benchmarks.faults.storage_faults import OpenFile, Scratch, cold_reads, logged, paged_out
from headrace.base.metering import ThreadMeter
from headrace.engines.onnx_engine import OnnxEngine
from headrace.profiler import profile as profiling

LONG, SHORT = 1e9, 1e-9


def stage_call(case: Any, stage: str) -> Callable[[Any], Any]:
    """Return what a worker of a stage without state calls."""
    changed = case.stage(stage)
    return changed._around(lambda value: value)  # type: ignore[no-any-return]


# --- Loops, locks, garbage -------------------------------------------------------------------------------------------


def test_slow_suppression_keeps_the_boxes_that_the_fast_one_keeps() -> None:
    """headrace.nms is the oracle, on crowded boxes."""
    boxes = [tuple(number / 5 for number in box) for box in random_boxes(200)]
    corners = np.array(boxes)
    corners[:, 2:] = corners[:, :2] + 20
    crowded = [tuple(map(float, box)) for box in corners]
    kept = hr.nms(corners, np.linspace(1, 0.5, len(corners)), max_boxes=1000)
    assert slow_nms(crowded) == [crowded[index] for index in kept]  # type: ignore[arg-type]
    assert 1 < len(kept) < 200


def test_one_lock_lets_one_worker_in() -> None:
    """Two workers that share it never are inside together, also one in decode and one in preprocess."""
    case = FAULTS["F25"].applied(SHAPES["decode_heavy"](), 1)
    inside, most = 0, 0

    def enter(value: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0)  # gives the core away, so that another would come in
        inside -= 1
        return value

    calls = [case.stage(name)._around(enter) for name in ("decode", "preprocess")]  # type: ignore[attr-defined]
    threads = [threading.Thread(target=lambda call=call: [call(None) for _ in range(300)]) for call in calls * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_each_item_collects_garbage() -> None:
    """Each call runs one full collection, which finds the cycle that the call before it left."""
    call = stage_call(FAULTS["F26"].applied(SHAPES["decode_heavy"](), 1), "preprocess")
    found: list[dict[str, int]] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            found.append(info)

    gc.collect()
    gc.callbacks.append(note)
    try:
        for _ in range(3):
            call(None)
    finally:
        gc.callbacks.remove(note)
    assert len(found) == 3
    assert all(info["collected"] >= 1 for info in found[1:])


# --- Models ----------------------------------------------------------------------------------------------------------


def answers(path: Path, images: np.ndarray) -> np.ndarray:
    """Return what a model file answers."""
    result: np.ndarray = OnnxEngine().open(path, threads=1, options={})(images)
    return result


def test_products_are_those_of_the_weights(tmp_path: Path) -> None:
    """NumPy, with the weights of the file, comes to the same number."""
    onnx = pytest.importorskip("onnx")
    matrix_products(tmp_path / "m.onnx", count=3)
    model = onnx.load(tmp_path / "m.onnx")
    weights = [onnx.numpy_helper.to_array(one) for one in model.graph.initializer if one.name.startswith("w")]
    images = np.random.default_rng(1).standard_normal((2, 3, 16, 16)).astype(np.float32)
    expected = functools.reduce(np.matmul, weights, images.reshape(2, -1, 256)).mean(axis=(1, 2))
    assert len(weights) == 3
    np.testing.assert_allclose(answers(tmp_path / "m.onnx", images), expected, rtol=1e-3, atol=1e-5)


def test_passes_add_and_halve(tmp_path: Path) -> None:
    """Mean m becomes (m + 1/2) / 2 after two passes."""
    pytest.importorskip("onnx")
    passes_over_memory(tmp_path / "m.onnx", count=2)
    images = np.random.default_rng(1).random((2, 3, 8, 8)).astype(np.float32)
    expected = (images.mean(axis=(1, 2, 3)) + 0.5) / 2
    np.testing.assert_allclose(answers(tmp_path / "m.onnx", images), expected, rtol=1e-4)


def test_a_dose_of_products_is_so_many_more(tmp_path: Path) -> None:
    """Five times the dose, five times the products; the device is no longer an emulated one."""
    onnx = pytest.importorskip("onnx")
    counts = []
    for dose in (1, 5):
        case = FAULTS["F18"].applied(SHAPES["decode_heavy"](), dose)
        path = case.stage("process").module.model  # type: ignore[attr-defined]
        counts.append(sum(node.op_type == "MatMul" for node in onnx.load(path).graph.node))
        assert case.plan.model.engine == "onnx"
    assert counts[1] == 5 * counts[0] > 0


# --- Inputs of the device --------------------------------------------------------------------------------------------


def test_shapes_change_now_and_then_and_are_built_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only widths change; each width costs one build, and the model sees the square that it was made for."""
    builds: list[float] = []
    monkeypatch.setattr(work, "burn", builds.append)
    case = FAULTS["F29"].applied(SHAPES["decode_heavy"](), 2)
    image = np.ones((3, 8, 8), np.float32)
    pad, seen = stage_call(case, "preprocess"), []
    process = case.stage("process")._around(lambda batch: seen.append(batch.shape))  # type: ignore[attr-defined]
    shapes = []
    for _ in range(40):
        padded = pad(image)
        shapes.append(padded.shape)
        process(padded[np.newaxis])
    widths = sorted({shape[2] for shape in shapes})
    assert {shape[:2] for shape in shapes} == {(3, 8)}
    assert len(widths) > 2
    assert len(builds) == len(widths)
    assert set(seen) == {(1, 3, 8, 8)}


def test_a_share_of_the_items_is_denormal_in_half_precision() -> None:
    """At dose 2 one in ten; the others are as they were."""
    fade = stage_call(FAULTS["F31"].applied(SHAPES["decode_heavy"](), 2), "preprocess")
    image = np.linspace(0.5, 2.0, 64, dtype=np.float32)
    results = [fade(image).astype(np.float16) for _ in range(100)]
    smallest_normal = np.finfo(np.float16).smallest_normal
    faint = [bool((result > 0).all() and (result < smallest_normal).all()) for result in results]
    assert sum(faint) == 10
    assert all(
        (result == image.astype(np.float16)).all()
        for result, is_faint in zip(results, faint, strict=True)
        if not is_faint
    )


def test_a_device_works_by_itself_and_tells_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch returns what waits; profiles ask this device for its time, and no other once it is over."""
    device, worked = device_faults.AsynchronousDevice(0.25), threading.Event()
    before = profiling.gpu_instruments
    with device.running():
        monkeypatch.setattr(device_faults.time, "sleep", lambda seconds: worked.wait(60))
        done = device.launch()
        device.note_call(4)
        assert not done.done()
        events = profiling.gpu_instruments(has_processes=False).events
        worked.set()
        done.result(timeout=60)
    assert events is not None
    assert [times.seconds for times in events.device_times()] == [(1.0,)]
    assert profiling.gpu_instruments is before


def test_the_remedy_waits_once_for_a_batch() -> None:
    """Four items: four gaps, one with the remedy."""
    gaps: list[float] = []
    case = FAULTS["F34"].applied(SHAPES["decode_heavy"](), 2)
    mended = device_faults.waits_once(case)
    for one, expected in ((case, 4), (mended, 1)):
        gaps.clear()
        module = one.stage("process").module  # type: ignore[attr-defined]
        with module._device.running(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(device_faults.time, "sleep", gaps.append)
            assert module.process([None] * 4) == [0] * 4
        assert sum(gap > device_faults._ON_DEVICE_SECONDS for gap in gaps) == expected


# --- Drift -----------------------------------------------------------------------------------------------------------


def test_a_ramp_rises_from_one_to_its_height() -> None:
    """At its beginning it is 1, afterwards its height."""
    assert drift_faults.Ramp(5.0, LONG).now() == pytest.approx(1.0, abs=1e-6)
    ramp = drift_faults.Ramp(5.0, SHORT)
    ramp.now()
    assert ramp.now() == 5.0


def test_a_ramp_waits_for_warming_up() -> None:
    """The first two questions are answered with 1, and do not begin it."""
    ramp = drift_faults.Ramp(5.0, SHORT, calls=2)
    assert [ramp.now(), ramp.now()] == [1.0, 1.0]
    ramp.now()
    assert ramp.now() == 5.0


def test_a_slowed_call_uses_up_the_rest() -> None:
    """Three times as slow: twice the CPU time of the call more."""
    extra: list[float] = []
    ramp = drift_faults.Ramp(3.0, SHORT)
    ramp.now()
    call = drift_faults.slowed(ramp, extra.append, lambda value: sum(range(200_000)) + value)
    assert call(1) == sum(range(200_000)) + 1
    assert extra[0] > 0
    halved = drift_faults.slowed(drift_faults.Ramp(3.0, LONG), extra.append, lambda value: sum(range(200_000)))
    halved(1)
    assert extra[1] < extra[0] / 10


def test_growing_images_begin_small_and_end_large() -> None:
    """All of the first size at first; of the last size when the time is over."""
    by_size = [[b"1", b"2"], [b"10", b"20"], [b"100", b"200"]]
    assert list(itertools.islice(drift_faults.Growing(by_size, LONG), 4)) == [b"1", b"2", b"1", b"2"]
    late = list(itertools.islice(drift_faults.Growing(by_size, SHORT), 100))
    assert {len(image) for image in late[:40]} == {1}
    assert {len(image) for image in late[50:]} == {3}
    assert len(drift_faults.Growing(by_size, LONG)) == 6


# --- Outcomes --------------------------------------------------------------------------------------------------------


def test_one_item_in_fifty_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted over all workers; order is asked for, and given up by the remedy."""
    waits: list[float] = []
    monkeypatch.setattr(outcome_faults.time, "sleep", waits.append)
    fault = FAULTS["F24"]
    case = fault.applied(SHAPES["decode_heavy"](), 2)
    first, second = stage_call(case, "fetch"), stage_call(case, "fetch")
    for _ in range(50):
        first(None)
        second(None)
    assert waits == [pytest.approx(0.6)] * 2
    assert case.plan.run.ordered
    assert fault.fix is not None
    assert not fault.fix(case).plan.run.ordered


def test_lines_are_removed_when_they_are_closed() -> None:
    """Nothing is left of a file of results."""
    lines = outcome_faults.ScratchLines()
    lines.open(None)
    lines.deliver(hr.Job("1", b""), {"mask": np.zeros(3, np.float32)})
    assert lines.path.read_bytes() == b'{"id":"1","task":"","result":{"mask":[0.0,0.0,0.0]}}\n'
    lines.close()
    assert not lines.path.exists()


# --- Storage ---------------------------------------------------------------------------------------------------------


def test_scratch_is_removed() -> None:
    """With its large file."""
    scratch = Scratch()
    with scratch.there_with_file():
        assert scratch.large_file.stat().st_size == 64 << 20
        folder = scratch.folder
    assert not folder.exists()


def test_an_open_file_is_closed_with_its_last_holder(tmp_path: Path) -> None:
    """The descriptor is free again."""
    (tmp_path / "data").write_bytes(b"x")
    file = OpenFile(tmp_path / "data", os.O_RDONLY)
    descriptor = file.descriptor
    assert os.read(descriptor, 1) == b"x"
    del file
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("effect", [paged_out, cold_reads, logged])
def test_storage_passes_values_on(effect: Any) -> None:
    """Whatever goes on around it, a call gets its value and returns its result."""
    scratch = Scratch()
    with scratch.there_with_file():
        call = effect(scratch, 0.001, lambda value: value + 1)
        assert call(1) == 2
        del call


def test_each_record_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many records as forced writes."""
    forced: list[int] = []
    real = os.fsync
    scratch = Scratch()
    with scratch.there():
        monkeypatch.setattr(os, "fsync", lambda file: (forced.append(file), real(file)))
        logged(scratch, 0.002, lambda value: value)(None)
        (log,) = scratch.folder.glob("*.log")
        assert log.read_text().count("DEBUG") == 4 * len(forced) > 0


def test_pages_are_taken_away(tmp_path: Path) -> None:
    """What was touched before has to be read again: each touch has major page faults, the second time too."""
    import resource

    scratch = Scratch()
    with scratch.there_with_file():
        file = os.open(scratch.large_file, os.O_RDWR)
        mapping = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        try:
            mapping.madvise(21)
        except OSError:
            pytest.skip("this kernel pages nothing out on demand")
        finally:
            mapping.close()
            os.close(file)
        call = paged_out(scratch, 0.005, lambda value: value)
        call(None)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        call(None)
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before
    if not faults:
        pytest.skip("the temporary folder is on a file system in memory")
    assert faults >= 16


# --- Elsewhere -------------------------------------------------------------------------------------------------------


def test_clocks_are_slow_only_as_long_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading burns, and the reading is the one that the clock gave."""
    burnt: list[float] = []
    monkeypatch.setattr(work, "spin", burnt.append)
    read = ThreadMeter.read
    meter = ThreadMeter(lambda: 5)
    with profiling_faults.slow_clocks(0.25):
        assert meter.read()[0] == 5
        assert burnt == [0.25]
    assert ThreadMeter.read is read
    meter.close()
