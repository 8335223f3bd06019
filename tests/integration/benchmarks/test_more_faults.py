"""Faults of devices, Python, storage, drift and outcomes do what they say, when a pipeline with them runs.

Those that compare CPU times are slow: processors differ in what is dear. What each fault does to a single call is tested with
known answers in `tests/unit/benchmarks/test_fault_effects.py`.
"""

from __future__ import annotations

import gc
import mmap
import resource
import timeit
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.faults import FAULTS, SHAPES, Case, run_case
from headrace.diagnose.document import profile_document
from headrace.runs.reader import read_run


class Ran:
    """A profiled run of a faulty case."""

    def __init__(self, fault: str, shape: str, folder: Path, *, dose: float = 2, seconds: float = 1.0) -> None:
        healthy: Case = replace(SHAPES[shape](), seconds=seconds)
        run = read_run(run_case(FAULTS[fault].applied(healthy, dose), folder))
        self.info = run.info
        self.spans = run.spans().to_pydict()
        self.document = profile_document(run)
        self.profiling = (folder / "profiling.json").read_text()

    def of(self, stage: str, column: str) -> np.ndarray:
        """Return a column of one stage's spans, in order of time."""
        rows = [index for index, name in enumerate(self.spans["stage"]) if name == stage]
        rows.sort(key=lambda index: self.spans["started"][index])
        return np.array([self.spans[column][index] for index in rows])

    def stage(self, name: str) -> Any:
        """Return the account of a stage."""
        return next(one for one in self.document.stages if one.name == name)


@pytest.mark.slow
@pytest.mark.measures
def test_f18_f19_a_model_file_takes_the_device(tmp_path: Path) -> None:
    """Matrix products and passes over memory run in ONNX Runtime, and are most of the CPU time."""
    pytest.importorskip("onnx")
    for fault in ("F18", "F19"):
        ran = Ran(fault, "decode_heavy", tmp_path / fault)
        assert [variant["engine"] for variant in ran.info.variants] == ["onnx"]
        demand = {one.name: one.cpu_demand or 0.0 for one in ran.document.stages}
        assert demand["process"] > sum(demand.values()) / 2


@pytest.mark.slow
@pytest.mark.measures
def test_f20_loops_are_a_stage_after_the_model(tmp_path: Path) -> None:
    """Its CPU time grows with the dose."""
    cpu = [
        Ran("F20", "decode_heavy", tmp_path / str(dose), dose=dose).stage("postprocess").cpu_demand for dose in (1, 5)
    ]
    assert cpu[1] > 2 * cpu[0]


def test_f21_each_result_is_a_mask(tmp_path: Path) -> None:
    """Every result brings the pixels of twice the base, four bytes each, to the delivery."""
    ran = Ran("F21", "decode_heavy", tmp_path / "run")
    assert ran.of("deliver", "bytes_in").min() > 0.95 * 2 * 24_000 * 4


def test_f23_posts_fail_and_are_tried_again(tmp_path: Path) -> None:
    """Some passages through the delivery fail, and jobs are delivered all the same."""
    ran = Ran("F23", "download_heavy", tmp_path / "run", dose=5)
    assert "failed" in set(ran.of("deliver", "outcome"))
    assert ran.info.counters.delivered > 0


def test_f24_results_wait_for_the_one_before(tmp_path: Path) -> None:
    """They reach the delivery in order, and some were done long before."""
    ran = Ran("F24", "python_preprocess", tmp_path / "run")
    numbers = [int(number) for number in ran.of("deliver", "unit_id")]
    assert numbers == sorted(numbers)
    done = dict(zip(ran.of("process", "unit_id"), ran.of("process", "ended"), strict=True))
    held = [
        began - done[unit]
        for unit, began in zip(ran.of("deliver", "unit_id"), ran.of("deliver", "started"), strict=True)
    ]
    assert max(held) / 1e9 > 0.3


def test_f25_workers_wait_for_a_lock(tmp_path: Path) -> None:
    """Four workers, but together they keep no more than about one busy."""
    ran = Ran("F25", "decode_heavy", tmp_path / "run", dose=5)
    decode, preprocess = ran.stage("decode"), ran.stage("preprocess")
    assert decode.workers == 4
    assert decode.blocked + preprocess.blocked > decode.cpu + preprocess.cpu


def test_f26_garbage_is_collected_for_each_item(tmp_path: Path) -> None:
    """Full collections are at least as many as items."""
    collections: list[int] = []
    note = lambda phase, info: collections.append(info["generation"]) if phase == "start" else None  # noqa: E731
    gc.callbacks.append(note)
    try:
        ran = Ran("F26", "decode_heavy", tmp_path / "run")
    finally:
        gc.callbacks.remove(note)
    # One that begins while another thread's goes on returns at once.
    assert collections.count(2) > 0.3 * ran.info.counters.delivered


def is_in_memory(folder: Path) -> bool:
    """Return whether a folder's file system keeps its files in memory."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    kinds = {Path(fields[4]): fields[fields.index("-") + 1] for fields in mounts}
    folder = folder.resolve()
    return next(kinds[place] for place in (folder, *folder.parents) if place in kinds) in {"tmpfs", "ramfs"}


def pages_out(folder: Path) -> bool:
    """Return whether this kernel pages a file's memory out when it is asked to."""
    file = folder / "pages"
    file.write_bytes(b"x" * 2**20)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapping:
        mapping.flush()
        for _ in range(3):
            sum(mapping[::4096])
            mapping.madvise(21)  # MADV_PAGEOUT
            before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
            sum(mapping[::4096])
            if resource.getrusage(resource.RUSAGE_SELF).ru_majflt > before:
                return True
    return False


def test_f27_pages_have_to_be_read_in_again(tmp_path: Path) -> None:
    """The process has major page faults for most items."""
    if is_in_memory(tmp_path) or not pages_out(tmp_path):
        pytest.skip("the temporary folder is on a file system in memory, or this kernel pages nothing out on demand")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    ran = Ran("F27", "python_preprocess", tmp_path / "run")
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
    assert faults > ran.info.counters.delivered  # sixteen for each look, but some pages may still be there


def io_bytes(name: str) -> int:
    """Return what this process has read from, or written to, storage so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def test_f28_files_are_read_from_the_disk(tmp_path: Path) -> None:
    """At least a chunk of a megabyte for each item, and fetch waits."""
    if is_in_memory(tmp_path):
        pytest.skip("the temporary folder is on a file system in memory")
    before = io_bytes("read_bytes")
    ran = Ran("F28", "python_preprocess", tmp_path / "run")
    read = io_bytes("read_bytes") - before
    assert read > (1 << 20) * ran.info.counters.delivered
    assert ran.stage("fetch").service.mean > 0.01


def test_f29_the_device_meets_new_shapes(tmp_path: Path) -> None:
    """Its inputs have several shapes, and the first call of each takes longer than the others."""
    ran = Ran("F29", "decode_heavy", tmp_path / "run", dose=5)
    shapes = ran.of("preprocess", "shape_key")
    assert len(set(shapes)) > 3
    of_unit = dict(zip(ran.of("preprocess", "unit_id"), shapes, strict=True))
    seconds: dict[bool, list[int]] = {True: [], False: []}
    seen: set[str] = set()
    process = zip(*(ran.of("process", name) for name in ("unit_id", "batch_id", "started", "ended")), strict=True)
    calls = {batch: (of_unit[unit], ended - started) for unit, batch, started, ended in process}
    for shape, lasted in calls.values():
        seconds[shape not in seen].append(lasted)
        seen.add(shape)
    assert np.median(seconds[True]) > np.median(seconds[False])


@pytest.mark.slow
@pytest.mark.measures
def test_f30_every_stage_gets_slower(tmp_path: Path) -> None:
    """CPU time per item of preprocess and process is higher at the end than at the beginning."""
    ran = Ran("F30", "python_preprocess", tmp_path / "run", dose=5, seconds=1.5)
    for stage in ("preprocess", "process"):
        cpu = np.array([value for value in ran.of(stage, "cpu") if value is not None], float)
        third = len(cpu) // 3
        assert np.median(cpu[-third:]) > 1.5 * np.median(cpu[:third])


def seconds_to_widen(value: float) -> float:
    """Return the least time of five that widening a million numbers of half precision took."""
    numbers = np.full(1_000_000, value, np.float16)
    return min(timeit.repeat(lambda: numbers.astype(np.float32), number=1, repeat=5))


@pytest.mark.slow
@pytest.mark.measures
def test_f31_some_items_cost_many_times_as_much(tmp_path: Path) -> None:
    """The same shape, and a tenth of the calls several times as dear as the median."""
    if seconds_to_widen(1e-6) < 2 * seconds_to_widen(1.0):
        pytest.skip("denormal numbers cost this processor nothing")
    ran = Ran("F31", "decode_heavy", tmp_path / "run")
    cpu = np.array([value for value in ran.of("process", "cpu") if value is not None], float)
    assert 0.03 < (cpu > 3 * np.median(cpu)).mean() < 0.25
    assert len(set(ran.of("preprocess", "shape_key"))) == 1


@pytest.mark.slow
@pytest.mark.measures
def test_f32_images_grow(tmp_path: Path) -> None:
    """The last are larger than the first, and cost as much per byte."""
    ran = Ran("F32", "decode_heavy", tmp_path / "run", dose=5, seconds=1.5)
    size, cpu = ran.of("decode", "bytes_in"), ran.of("decode", "cpu").astype(float)
    quarter = len(size) // 4
    assert size[-quarter:].mean() > 1.5 * size[:quarter].mean()
    per_byte = cpu[-quarter:].mean() / size[-quarter:].mean(), cpu[:quarter].mean() / size[:quarter].mean()
    assert 0.4 < per_byte[0] / per_byte[1] < 2.5


def test_f33_records_are_written_to_the_disk(tmp_path: Path) -> None:
    """At least a page for each item."""
    if is_in_memory(tmp_path):
        pytest.skip("the temporary folder is on a file system in memory")
    before = io_bytes("write_bytes")
    ran = Ran("F33", "python_preprocess", tmp_path / "run")
    written = io_bytes("write_bytes") - before
    assert written > 4096 * ran.info.counters.delivered


def test_f34_the_device_has_nothing_to_do_most_of_the_time(tmp_path: Path) -> None:
    """By its own clock it works for a part of what the call takes."""
    ran = Ran("F34", "decode_heavy", tmp_path / "run", dose=5)
    assert '"device_seconds": {\n    "process": ' in ran.profiling
    process = ran.stage("process")
    assert process.blocked > process.cpu


@pytest.mark.slow
@pytest.mark.measures
def test_f40_readings_cost_much(tmp_path: Path) -> None:
    """The CPU time outside stages, where clocks are read, is more than a reading at each boundary would be by far."""
    healthy = replace(SHAPES["python_preprocess"](), seconds=1.0)
    case = replace(FAULTS["F40"].applied(healthy, 5), seconds=1.0)
    run = read_run(run_case(case, tmp_path / "run"))
    account = profile_document(run).cpu
    assert account is not None
    in_stages = sum(line.seconds for line in account.lines if line.kind == "stage")
    assert in_stages < 0.9 * account.total_seconds
