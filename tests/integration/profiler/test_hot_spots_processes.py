"""Hot spots of real runs: py-spy from outside, cProfile in workers of their own processes; and what py-spy may answer."""

from __future__ import annotations

import itertools
import json
import os
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import HeadraceError, MissingExtra, SettingsError
from headrace.base.protocols import Source
from headrace.pipeline.watching import RunInProgress
from headrace.pipeline.worker import WorkerThread
from headrace.profiler.hot_spots import CProfileInstrument, StageSampler, sample_stage
from headrace.sources.finite import Entry, FiniteSource
from headrace.stages.stage import FunctionStage
from headrace.testing import ListSource

#: Says who may look into whose memory.
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


def inner(number: int) -> int:
    """Take most of the time."""
    total = 0
    for value in range(number):
        total += value * value
    return total


def decode(value: object) -> int:
    """Call what takes the time."""
    return inner(20_000)


def other(value: int) -> int:
    """Work that is not the stage's."""
    return sum(range(2_000)) + value


def pipeline(num_items: int, source: Source | None = None) -> hr.Pipeline:
    """Return decode and one other stage over so many items, or over another source."""
    return hr.Pipeline(
        source=source or ListSource(list(range(num_items))),
        stages=[FunctionStage("decode", decode), FunctionStage("other", other)],
        delivery=hr.collect(),
    )


class WhileWatched(FiniteSource):
    """Items for as long as the sampler has not ended.

    Args:
        samplers: Has it, once the run began.
    """

    def __init__(self, samplers: list[StageSampler]) -> None:
        super().__init__()
        self._samplers = samplers

    def entries(self) -> Iterator[Entry]:
        """Return numbers."""
        for number in itertools.count():
            if any(sampler.result or sampler.problem for sampler in self._samplers):
                return
            yield Entry(str(number), b"x")


def plan(executor: str) -> hr.Plan:
    """Return two workers for decode, and others for the other stage."""
    settings = [f"decode.executor={executor}", "decode.workers=2", "other.executor=thread"]
    return hr.Plan().with_settings(settings)


def test_calls_are_counted_in_processes(tmp_path: Path) -> None:
    """Workers in processes of their own count too, to the last call, in the run folder itself."""
    instrument = CProfileInstrument("decode", tmp_path / "run" / "hot_spots")
    hr.run(pipeline(30), plan("process"), output=tmp_path / "run", instruments=[instrument])
    found = instrument.collect()
    calls = {spot.function: spot.calls for spot in found.top}
    assert (calls["decode"], calls["inner"]) == (30, 30)
    assert found.top[0].function == "inner"
    assert "other" not in calls
    assert found.workers[0].startswith("0 in threads")
    assert sorted(file.name for file in (tmp_path / "run" / "hot_spots").iterdir()) == sorted(found.files)


@pytest.mark.real_clock
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_stage_is_sampled_while_it_runs(tmp_path: Path, executor: str) -> None:
    """py-spy finds the function that takes the time, in the stage's workers and not in others."""
    samplers: list[StageSampler] = []

    def watch(progress: RunInProgress) -> StageSampler:
        samplers.append(StageSampler(progress, "decode", seconds=1.5, rate=100))
        return samplers[-1]

    hr.run(pipeline(0, WhileWatched(samplers)), plan(executor), output=tmp_path / "run", watch=watch)
    [sampler] = samplers
    if sampler.problem and "may not read" in sampler.problem:
        assert YAMA.is_file(), sampler.problem  # nothing else may forbid it
        assert YAMA.read_text().strip() != "0", sampler.problem
        pytest.skip(sampler.problem)
    assert sampler.problem is None
    found = sampler.result
    assert found is not None
    assert found.num_samples is not None
    assert found.top[0].function == "inner"
    assert Path(found.top[0].file) == Path(__file__)
    assert found.seconds == pytest.approx(found.num_samples / 100)
    assert "other" not in {spot.function for spot in found.top}
    assert set(found.workers) <= {"decode-0", "decode-1"}
    folder = tmp_path / "run" / "hot_spots"
    assert sorted(file.name for file in folder.iterdir()) == sorted(found.files)
    assert json.loads((folder / "decode.json").read_bytes())["num_samples"] == found.num_samples
    assert "decode (" in (folder / "decode.folded").read_text()


def test_an_unknown_stage_is_refused(tmp_path: Path) -> None:
    """A stage that the pipeline has not is told before the run begins, with those that it has."""
    with pytest.raises(SettingsError, match="no stage 'decoed'; this pipeline has decode, other, deliver"):
        hr.run(pipeline(1), output=tmp_path / "run", watch=lambda progress: StageSampler(progress, "decoed"))


def test_a_run_without_a_folder_needs_one_for_hot_spots(tmp_path: Path) -> None:
    """Where to write is asked for before the run begins."""
    with pytest.raises(SettingsError, match="need a place"):
        hr.run(pipeline(1), watch=lambda progress: StageSampler(progress, "decode"))


def test_a_run_without_items_has_no_hot_spots(tmp_path: Path) -> None:
    """The run is not disturbed; the sampler says why there is nothing."""
    samplers: list[StageSampler] = []

    def watch(progress: RunInProgress) -> StageSampler:
        samplers.append(StageSampler(progress, "decode"))
        return samplers[-1]

    hr.run(pipeline(0), output=tmp_path / "run", watch=watch)
    assert samplers[0].result is None
    assert samplers[0].problem == "no item went through stage decode"


def test_a_run_that_was_over_at_once_had_items(tmp_path: Path) -> None:
    """Items that went through before the sampler looked are not denied: the run was too short, and that is said."""
    samplers: list[StageSampler] = []

    def watch(progress: RunInProgress) -> StageSampler:
        samplers.append(StageSampler(progress, "decode"))
        return samplers[-1]

    hr.run(pipeline(1), output=tmp_path / "run", watch=watch)
    assert samplers[0].result is None
    assert "the run was over before" in str(samplers[0].problem)


# --- what py-spy may answer, from a stand-in for it

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a shell script in py-spy's place; `$output` and `$pid` are what it was given."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(scripts))
    monkeypatch.setenv("PATH", str(scripts) + os.pathsep + "/usr/bin:/bin")

    def installed(body: str) -> None:
        script = scripts / "py-spy"
        arguments = 'while [ $# -gt 0 ]; do case "$1" in --output) output=$2;; --pid) pid=$2;; esac; shift; done'
        script.write_text(f"#!/bin/sh\n{arguments}\n{body}\n")
        script.chmod(0o755)

    return installed


def spied(tmp_path: Path, samples: dict[str, list[list[int]]]) -> Path:
    """Return a file as py-spy writes it; frame 0 is a thread's, 1 headrace's, 2 the stage's, 3 below it."""
    frames = [
        {"name": "thread (1): decode-0", "file": "", "line": 0, "col": None},
        {"name": "Group._run_one", "file": "/lib/headrace/pipeline/group.py", "line": 7, "col": None},
        {"name": "stage", "file": "/app/code.py", "line": 3, "col": None},
        {"name": "below", "file": "/app/code.py", "line": 9, "col": None},
        {"name": "wait", "file": "/lib/threading.py", "line": 2, "col": None},
        {"name": "measure", "file": "/lib/headrace/pipeline/item.py", "line": 4, "col": None},
    ]
    profiles = [
        {"type": "sampled", "name": name, "unit": "seconds", "startValue": 0, "endValue": 1, "samples": stacks,
         "weights": [0.02] * len(stacks)}
        for name, stacks in samples.items()
    ]  # fmt: skip
    file = tmp_path / "spied.json"
    file.write_text(json.dumps({"shared": {"frames": frames}, "profiles": profiles}))
    return file


WORKERS = [
    WorkerThread(process=4, thread_id=41, name="decode-0"),
    WorkerThread(process=4, thread_id=42, name="decode-1"),
]


def test_samples_of_the_stage_alone_are_kept(tmp_path: Path, install: Install) -> None:
    """Known samples give known shares: by line, without other threads, without headrace's own work, recursion once."""
    samples = {
        'Thread 41 "decode-0"': [[0, 1, 2]] * 3 + [[0, 1, 2, 3]] * 2 + [[0, 1, 2, 3, 2, 3]] + [[0, 4]] * 4,
        'Thread 0x7F "decode-1"': [[0, 1], [0, 1, 5], [0, 1, 2]] + [[0]] * 5,
        'Thread 43 "other-0"': [[0, 1, 3]] * 50,
        'Thread 44 "decode-10"': [[0, 1, 3]] * 50,
    }
    install(f"cp {spied(tmp_path, samples)} $output")
    found = sample_stage("decode", WORKERS, tmp_path / "hot", seconds=1)
    assert (found.num_samples, found.num_outside, found.num_without_stack) == (7, 6, 5)
    assert [(s.function, s.line, round(s.self_share * 7), round(s.total_share * 7)) for s in found.top] == [
        ("stage", 3, 4, 7),
        ("below", 9, 3, 3),
    ]
    assert (tmp_path / "hot" / "decode.folded").read_text().splitlines() == [
        "stage (code.py:3) 4",
        "stage (code.py:3);below (code.py:9) 2",
        "stage (code.py:3);below (code.py:9);stage (code.py:3);below (code.py:9) 1",
    ]
    speedscope = json.loads((tmp_path / "hot" / "decode.speedscope.json").read_bytes())
    assert {one["name"]: round(sum(one["weights"]) * 50) for one in speedscope["profiles"]} == {
        "decode-0": 6,
        "decode-1": 1,
    }


def test_a_native_stage_is_the_line_that_calls_it(tmp_path: Path, install: Install) -> None:
    """A stage without a Python frame of its own, such as a NumPy function, shows as the place it is called from."""
    file = spied(tmp_path, {'Thread 41 "decode-0"': [[0, 1]] * 3 + [[0, 1, 5]] + [[0, 4]]})
    install(f"cp {file} $output")
    found = sample_stage("decode", WORKERS, tmp_path / "hot", seconds=1)
    assert [(spot.function, spot.self_share) for spot in found.top] == [("Group._run_one", 1.0)]
    assert (found.num_samples, found.num_outside) == (3, 2)


def test_each_process_has_its_own_py_spy(tmp_path: Path, install: Install) -> None:
    """Workers in two processes are sampled in both."""
    file = spied(tmp_path, {'Thread 41 "MainThread"': [[0, 1, 2]]})
    install(f"sed s/41/$pid/ {file} > $output")
    workers = [WorkerThread(process=number, thread_id=number, name=f"decode-{number}") for number in (71, 72)]
    assert sample_stage("decode", workers, tmp_path / "hot", seconds=1).workers == ("decode-71", "decode-72")


def test_without_py_spy_the_extra_is_named(tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without py-spy says how to install it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtra, match=r"pip install 'headrace\[pyspy\]'"):
        sample_stage("decode", WORKERS, tmp_path / "hot", seconds=1)


ANSWERS = {
    "not permitted": ("echo 'Error: Permission Denied: Try running again with sudo' >&2; exit 1", "ptrace_scope"),
    "refused by the kernel": ("echo 'Error: Operation not permitted (os error 1)' >&2; exit 1", "SYS_PTRACE"),
    "no such process": (
        "echo 'Error: Failed to get process executable name' >&2; exit 1",
        "Failed to get process executable",
    ),
    "ended at once": ("kill -INT $$", "the run was over before py-spy took a sample"),
    "silence": ("exit 3", r"exit code 3.*it said nothing"),
    "something else": ("echo '{}' > $output", "py-spy wrote something else"),
}


@pytest.mark.parametrize(("body", "message"), ANSWERS.values(), ids=ANSWERS)
def test_what_goes_wrong_is_said(tmp_path: Path, install: Install, body: str, message: str) -> None:
    """Each way in which py-spy fails has a message that says what to do or what it said; nothing is written."""
    install(body)
    with pytest.raises(HeadraceError, match=message):
        sample_stage("decode", WORKERS, tmp_path / "hot", seconds=1)
    assert not (tmp_path / "hot").exists()


def test_threads_never_at_work_are_an_error(tmp_path: Path, install: Install) -> None:
    """Samples of headrace's own work alone give no hot spots, and the message counts them."""
    file = spied(tmp_path, {'Thread 41 "decode-0"': [[0, 4]] * 9})
    install(f"cp {file} $output")
    with pytest.raises(HeadraceError, match="9 times elsewhere"):
        sample_stage("decode", WORKERS, tmp_path / "hot", seconds=1)


def test_sampling_can_be_ended_before_its_time(tmp_path: Path, install: Install) -> None:
    """When the run is over py-spy is asked to write what it has."""
    file = spied(tmp_path, {'Thread 41 "decode-0"': [[0, 1, 2]]})
    install(f"trap 'cp {file} $output; exit' INT; while :; do sleep 0.05; done")
    stopping = threading.Event()
    timer = threading.Timer(0.5, stopping.set)
    timer.start()
    assert sample_stage("decode", WORKERS, tmp_path / "hot", seconds=3600, stopping=stopping).num_samples == 1
    timer.join()


@pytest.mark.parametrize(
    "changes", [{"seconds": 0}, {"seconds": -1}, {"rate": 0}, {"rate": 5000}, {"seconds": float("nan")}]
)
def test_impossible_numbers_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Times and rates that cannot be are refused before anything starts."""
    with pytest.raises(SettingsError, match="expected"):
        sample_stage("decode", WORKERS, tmp_path, **changes)


def test_no_workers_is_an_error(tmp_path: Path, install: Install) -> None:
    """A stage without workers is told as such."""
    install("exit 0")
    with pytest.raises(SettingsError, match="has no workers"):
        sample_stage("decode", [], tmp_path)
