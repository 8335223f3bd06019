"""Profiles of real runs, undisturbed and disturbed: a killed worker, a killed sampler, a full disk, a killed run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.base.page_cache import evict_all, residency
from headrace.diagnose import profile_document
from headrace.profiler.profile import ProfileSettings, profile
from headrace.runs.formats.profile import ProfileDocument, StageAccount
from headrace.runs.reader import read_run
from headrace.testing import ListSource

WORK = bytes(400_000)
NO_BLOCKS = ProfileSettings(measure_overhead=False)


def hashed(value: Any) -> str:
    """Compute for a fraction of a millisecond, without the GIL."""
    return hashlib.sha256(WORK).hexdigest()


def slept(value: Any) -> Any:
    """Wait."""
    time.sleep(0.004)
    return value


def counted(value: Any) -> int:
    """Compute in pure Python."""
    return sum(range(20_000))


def counted_long(value: Any) -> int:
    """Compute ten times as much."""
    return sum(range(200_000))


def counted_and_timed(value: Any) -> float:
    """Return the CPU time that computing took the thread it ran on, by that thread's own clock."""
    begun = time.thread_time()
    counted(value)
    return time.thread_time() - begun


def killed_at_40(value: bytes) -> bytes:
    """Do what a segmentation fault does, once."""
    if value == b"40":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.002)
    return value


def profiled(stages: list[hr.Stage], folder: Path, count: int = 600, **settings: Any) -> ProfileDocument:
    """Profile a pipeline over so many items and return the analysis."""
    source = ListSource([str(number).encode() for number in range(count)])
    pipeline = hr.Pipeline(source, stages=stages, delivery=settings.pop("delivery", None))
    plan = hr.Plan().with_settings(settings.pop("plan", []))
    profile(pipeline, plan, output=folder, settings=settings.pop("settings", NO_BLOCKS))
    return profile_document(read_run(folder))


def stage_of(document: ProfileDocument, name: str) -> StageAccount:
    """Return the account of one stage."""
    return next(stage for stage in document.stages if stage.name == name)


def split_adds_up(stage: StageAccount) -> bool:
    """Return whether service = cpu + run delay + blocked, within 5 %."""
    assert stage.service.mean is not None
    assert stage.cpu is not None
    assert stage.run_delay is not None
    assert stage.blocked is not None
    return stage.cpu + stage.run_delay + stage.blocked == pytest.approx(stage.service.mean, rel=0.05)


@pytest.mark.measures
def test_service_is_cpu_and_run_delay_and_blocked(tmp_path: Path) -> None:
    """Each stage's service is split whole: CPU is what the call's own clock says, and sleeping is blocked."""
    used: list[float] = []

    def hashed_and_timed(value: Any) -> str:
        begun = time.thread_time()
        result = hashed(value)
        used.append(time.thread_time() - begun)
        return result

    stages = [hr.stage("wait", slept, kind="io"), hr.stage("hash", hashed_and_timed, releases_gil=True)]
    document = profiled(stages, tmp_path / "run", 1500, plan=["wait.workers=4", "hash.workers=1"])
    wait, hash_ = stage_of(document, "wait"), stage_of(document, "hash")
    assert split_adds_up(wait)
    assert split_adds_up(hash_)
    # Nothing compares two stages or a speed: cores differ in how fast they hash, and neighbours in what they take.
    assert hash_.cpu == pytest.approx(sum(used) / len(used), rel=0.25, abs=50e-6)
    assert wait.blocked is not None
    assert wait.blocked > 0.95 * 0.004
    assert wait.blocked_split is not None
    assert (
        wait.blocked_split.sleep > 0.5 * 0.004
    )  # the rest is waiting for the GIL, where others keep its holder from a core


@pytest.mark.measures
def test_a_worker_process_measures_its_own_thread(tmp_path: Path) -> None:
    """With the process executor CPU time is that of the child, and the thread in the parent that waits has none of it."""
    delivery = hr.collect()
    document = profiled(
        [hr.stage("count", counted_and_timed)], tmp_path / "run", 1_500, delivery=delivery,
        plan=["count.executor='process'", "count.workers=1"],
    )  # fmt: skip
    assert split_adds_up(stage_of(document, "count"))
    assert document.cpu is not None
    # The CPU of a parent that is counted too, or instead, would differ by far more.
    line = next(line for line in document.cpu.lines if line.name == "count")
    assert line.seconds == pytest.approx(sum(spent for _, spent in delivery.results), rel=0.25)


@pytest.mark.measures
@pytest.mark.parametrize("executor", ["thread", "inline"])
def test_the_cpu_time_of_a_short_run_is_whole(tmp_path: Path, executor: str) -> None:
    """The clocks are read from the first job to the last outcome: stages cannot have used more than all did together."""
    document = profiled(
        [hr.stage("hash", hashed, releases_gil=True)], tmp_path / "run", 2_000, plan=[f"hash.executor='{executor}'"]
    )
    assert document.cpu is not None
    assert document.cpu.explained_share < 1.05
    hash_ = next(line.seconds for line in document.cpu.lines if line.name == "hash")
    assert hash_ <= 1.05 * document.cpu.total_seconds


@pytest.mark.measures
def test_starting_worker_processes_is_not_the_runs_work(tmp_path: Path) -> None:
    """Importing Python in a worker process takes place before the first job, and is in no line of the CPU account."""
    document = profiled([hr.stage("count", counted_long)], tmp_path / "run", 300, plan=["count.executor='process'"])
    assert document.cpu is not None
    lines = {line.name: line.seconds for line in document.cpu.lines}
    assert lines.get("worker processes, outside stages", 0.0) < lines["count"]


@pytest.mark.measures
@pytest.mark.slow
def test_overhead_is_measured_in_pairs(tmp_path: Path) -> None:
    """A profile of some seconds holds pairs of blocks with the clocks on and off, and spans without CPU time in between."""
    stages = [hr.stage("hash", hashed, releases_gil=True)]
    profiled(stages, tmp_path / "run", 22_000, settings=ProfileSettings(), plan=["hash.workers=1"])
    info = json.loads((tmp_path / "run" / "profiling.json").read_text())
    assert [block["on"] for block in info["blocks"][:4]] in ([True, False], [True, False, False, True])
    assert all(block["cpu_seconds"] > 0 for block in info["blocks"])
    cpu = read_run(tmp_path / "run").spans().column("cpu")
    assert 0 < cpu.null_count < len(cpu)


@pytest.mark.measures
def test_only_some_jobs_are_recorded_above_the_limit(tmp_path: Path) -> None:
    """Above the limit of spans a second whole jobs are left out, counts stay exact, and the rows say what they stand for."""
    settings = ProfileSettings(measure_overhead=False, spans_per_second=200)
    stages = [hr.stage("hash", hashed, releases_gil=True)]
    document = profiled(stages, tmp_path / "run", 6_000, settings=settings)
    run = read_run(tmp_path / "run")
    assert stage_of(document, "hash").items == 6_000
    weights = set(run.spans().column("weight").to_pylist())
    assert max(weights) >= 2
    assert run.spans().num_rows < 12_000
    by_job: dict[str, set[str]] = {}
    for row in run.spans().select(["unit_id", "stage"]).to_pylist():
        by_job.setdefault(row["unit_id"], set()).add(row["stage"])
    assert all(found == {"hash", "deliver"} for found in by_job.values())


def test_a_worker_process_that_dies_is_in_the_profile(tmp_path: Path) -> None:
    """A worker that is killed costs one item a passage; the profile is whole, and the failed passage is in it."""
    stages = [hr.stage("fragile", killed_at_40)]
    document = profiled(
        stages, tmp_path / "run", 120, plan=["fragile.executor='process'", "fragile.workers=1", "fragile.attempts=1"]
    )
    assert stage_of(document, "fragile").failed >= 1
    assert document.counters["notes"]["worker_restarts"] >= 1
    assert document.status == "finished"
    failed = [row for row in read_run(tmp_path / "run").spans().to_pylist() if row["outcome"] == "failed"]
    assert {row["unit_id"] for row in failed} == {"40"}


PROGRAM = textwrap.dedent(
    """
    import hashlib, logging, pathlib, resource, signal, sys, time
    import headrace as hr
    from headrace.profiler.profile import profile
    from headrace.testing import ListSource

    if sys.argv[3] != "0":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    work = bytes(400_000)
    gate = pathlib.Path(sys.argv[4])

    def hashed(value):
        while value == b"100" and not gate.exists():
            time.sleep(0.01)
        return hashlib.sha256(work).hexdigest() + "x" * 100

    stage = hr.stage("hash", hashed, releases_gil=True)
    jobs = [str(number).encode() for number in range(int(sys.argv[2]))]
    result = profile(hr.Pipeline(ListSource(jobs), stages=[stage]), output=sys.argv[1])
    print(result.counters.delivered)
    """
)


def program(folder: Path, count: int, most_bytes: int = 0, gate: Path = Path("/")) -> list[str]:
    """Return the command that profiles in a process of its own, which may write no file longer than so many bytes.

    Item 100 is held until there is a file `gate`.
    """
    return [sys.executable, "-c", PROGRAM, str(folder), str(count), str(most_bytes), str(gate)]


@pytest.mark.smoke
def test_a_full_disk_costs_the_profile_and_not_the_run(tmp_path: Path) -> None:
    """Where files cannot grow the run delivers all, says so, and its folder can be read and names what is missing."""
    limit = 12_000
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        program(tmp_path / "run", 6000, limit), capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == "6000"
    assert "cannot be written" in done.stderr
    run = read_run(tmp_path / "run")
    assert run.info.lost_spans > 0
    document = profile_document(run)
    assert document.counters["delivered"] == 6000
    assert not document.trusted
    assert any("lost" in reason for reason in document.distrust)


def test_a_killed_profile_can_still_be_read(tmp_path: Path) -> None:
    """After a SIGKILL in the midst of a run the folder holds what was written, the analysis is made, and it says so."""
    process = subprocess.Popen(program(tmp_path / "run", 200_000), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: any((tmp_path / "run" / "spans").glob("*.parquet")))
    finally:
        process.kill()
        process.wait()
    document = profile_document(read_run(tmp_path / "run"))
    assert document.status == "running"
    assert stage_of(document, "hash").num_spans > 0
    assert any("killed" in problem for problem in document.problems)
    wait_until(lambda: not helpers_of(tmp_path / "run"))


def test_a_killed_helper_costs_its_samples_and_not_the_run(tmp_path: Path) -> None:
    """When the sampler is killed the run goes on, and the profile says what is missing."""
    process = subprocess.Popen(
        program(tmp_path / "run", 3_000, gate=tmp_path / "gate"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_until(lambda: helpers_of(tmp_path / "run") and any((tmp_path / "run" / "resources").glob("*")))
        for sampler in helpers_of(tmp_path / "run"):
            os.kill(sampler, signal.SIGKILL)
        (tmp_path / "gate").touch()
        out, _ = process.communicate(timeout=100)
    finally:
        process.kill()
        process.wait()
    assert out.strip() == "3000"
    document = profile_document(read_run(tmp_path / "run"))
    assert document.status == "finished"
    assert any("helper" in f"{what} {why}" for what, why in document.not_measured.items())


def helpers_of(folder: Path) -> list[int]:
    """Return the sampler processes that write into a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"headrace.profiler.sampler" in command and any(str(folder).encode() in part for part in command):
            found.append(int(entry.name))
    return found


def wait_until(is_true: Any, patience_seconds: float = 60) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + patience_seconds
    while not is_true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_a_profile_says_whether_its_files_were_cold(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As asked for where the kernel lets go of them, else with a warning; a second one finds them in memory."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(20):
        (photos / f"{number}.jpg").write_bytes(os.urandom(20_000))
    evict_all(photos.iterdir())
    can_be_cold = residency(list(photos.iterdir())).share == 0.0
    pipeline = hr.Pipeline(source=hr.folder(photos), stages=[hr.stage("read", Path.read_bytes)])
    cold, warm = dataclasses.replace(NO_BLOCKS, cold=True), NO_BLOCKS
    states = []
    for name, settings in (("a", warm), ("b", cold), ("c", warm)):
        profile(pipeline, hr.Plan(), output=tmp_path / name, settings=settings)
        states.append(profile_document(read_run(tmp_path / name)).environment.page_cache)
    assert states[1:] == ["cold" if can_be_cold else "warm", "warm"]
    assert ("could not be made to leave the page cache" in caplog.text) is not can_be_cold


def test_what_is_no_file_cannot_be_cold(tmp_path: Path) -> None:
    """It is said before the run, and nothing is written."""
    pipeline = hr.Pipeline(source=hr.items([1, 2]), stages=[hr.stage("a", abs)])
    with pytest.raises(SettingsError, match="--cold: the items of Items are no files of this machine"):
        profile(pipeline, hr.Plan(), output=tmp_path / "run", settings=ProfileSettings(cold=True))
    assert not (tmp_path / "run").exists()
