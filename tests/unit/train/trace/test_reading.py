"""Traces become run folders that everything else reads: one process, several files of it, several ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.base.errors import RunFolderError
from headrace.cli.training_text import analysis_text
from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
from headrace.report.training_page import render_training
from headrace.runs.formats.diagnosis import DiagnosisDocument, VerdictClass
from headrace.runs.reader import read_run
from headrace.train.trace.reading import find_files, read_traces
from tests.unit.train.trace.made_traces import MadeTrace, cuda_step, cuda_trace


def diagnose(folder: Path) -> tuple[TrainingAnalysis, DiagnosisDocument]:
    """Return what limits a training that was read from traces."""
    analysis = TrainingAnalysis(read_run(folder))
    return analysis, diagnose_training(analysis)


def first(tmp_path: Path, trace: MadeTrace) -> DiagnosisDocument:
    """Return the diagnosis of one trace."""
    return diagnose(read_traces([trace.write(tmp_path / "t.json.gz")], tmp_path / "run"))[1]


def test_a_device_that_waits_for_data(tmp_path: Path) -> None:
    """LOADING, with the idle time of the device and not with the host's wait."""
    found = first(tmp_path, cuda_trace(5, wait=5000.0))
    assert found.first.verdict is VerdictClass.LOADING
    assert found.trusted
    assert found.first.confidence == "low"
    assert any("5 steps of a trace are few" in text for text in found.warnings)


def test_kernels_shorter_than_their_launches(tmp_path: Path) -> None:
    """LAUNCH, with how many kernels, and how long they are."""
    found = first(tmp_path, cuda_trace(5, kernel=15.0, wait=1.0))
    assert found.first.verdict is VerdictClass.LAUNCH
    assert "4 kernels in a step, of 15.0 us" in found.first.evidence[1].says


def test_a_call_that_waits_is_named_with_its_function(tmp_path: Path) -> None:
    """SYNC: `.item()` in the program's own function, not in that of a library."""
    trace, at = MadeTrace(), 0.0
    for number in range(5):
        begun = at
        at = cuda_step(trace, number, at, sync=True, after=400.0, kernel=200.0)
        trace.host("/home/me/train.py(12): train", begun + 1, at - begun - 2, cat="python_function")
        trace.host("torch/_tensor.py(900): wrapped", begun + 490, at - begun - 900, cat="python_function")
    found = first(tmp_path, trace)
    assert found.first.verdict is VerdictClass.SYNC
    assert "cudaStreamSynchronize in aten::item, train.py: train (defined in line 12)" in found.first.says


def test_a_device_that_computes_is_healthy(tmp_path: Path) -> None:
    """What the host does meanwhile costs nothing."""
    found = first(tmp_path, cuda_trace(6, kernel=500.0))
    assert found.first.verdict is VerdictClass.HEALTHY
    assert "the device computes 100% of the step" in found.first.says


def test_communication_that_nothing_hides(tmp_path: Path) -> None:
    """COMMUNICATION, of kernels of the new names of NCCL too (HTA #360); one trace does not say who waited for whom."""
    found = first(tmp_path, cuda_trace(5, kernel=300.0, exchange=(2.0, 500.0), rank=0, world=4))
    assert found.first.verdict is VerdictClass.COMMUNICATION
    assert "one trace does not tell which" in found.first.says


def test_the_rank_that_is_late_is_named(tmp_path: Path) -> None:
    """Four ranks with clocks of their own: all-reduce ends at the same moment for all, and one begins last."""
    for rank in range(4):
        lag = 0.0 if rank == 2 else 2000.0
        trace = MadeTrace(rank=rank, world=4, baseTimeNanoseconds=1_700_000_000_000_000_000)
        at = rank * 700_000.0  # clocks that disagree
        for number in range(5):
            wait = 2100.0 if rank == 2 else 100.0
            at = cuda_step(trace, number, at, wait=wait, kernel=100.0, exchange=(5.0, 60.0 + lag), sync=True)
        trace.write(tmp_path / f"r{rank}.json")
    folder = read_traces([tmp_path], tmp_path / "run")
    analysis, found = diagnose(folder)
    assert found.first.verdict is VerdictClass.STRAGGLER
    judged = analysis.document.together.judged
    assert judged is not None
    assert judged.straggler is not None
    assert judged.straggler.rank == 2
    assert judged.straggler.phase == "wait"
    assert "takes longer in wait" in found.first.says


def test_balanced_ranks_are_not_accused(tmp_path: Path) -> None:
    """The same steps on all ranks."""
    for rank in range(2):
        cuda_trace(6, rank=rank, world=2, exchange=(5.0, 60.0), sync=True).write(tmp_path / f"r{rank}.json")
    analysis, found = diagnose(read_traces([tmp_path], tmp_path / "run"))
    assert found.first.verdict is not VerdictClass.STRAGGLER
    assert analysis.document.together.judged is not None
    assert analysis.document.together.judged.straggler is None


def test_several_files_of_a_process_are_its_steps(tmp_path: Path) -> None:
    """A schedule that repeats writes a file each time; the pause between them is in no figure."""
    for number in range(2):
        trace, at = MadeTrace(rank=0), number * 1e6
        for step in range(3):
            at = cuda_step(trace, 10 * number + step, at)
        trace.write(tmp_path / f"cycle{number}.json")
    analysis, found = diagnose(read_traces([tmp_path], tmp_path / "run"))
    assert found.trusted
    (rank,) = analysis.document.ranks
    assert rank.steps == 6
    assert rank.trace is not None
    assert rank.trace.devices[0].steps == 4
    assert "6 steps in 3.00 ms" in analysis_text(analysis, found)


def test_the_page_and_the_text_have_the_device(tmp_path: Path) -> None:
    """Both are for people with a GPU; nothing is wider than a terminal."""
    analysis, found = diagnose(read_traces([cuda_trace(4, sync=True).write(tmp_path / "t.json")], tmp_path / "run"))
    text = analysis_text(analysis, found)
    assert "GPU 0, 1 stream: a step lasts" in text
    assert "waits for the device in" in text
    assert "aten::item" in text
    assert max(map(len, text.splitlines())) <= 80
    page = render_training(analysis.document, found)
    assert "In the trace" in page
    assert "Where the host waits for the device" in page


def test_what_a_trace_cannot_tell_is_said(tmp_path: Path) -> None:
    """CPU time, workers, samples, lines."""
    analysis, found = diagnose(read_traces([cuda_trace(3).write(tmp_path / "t.json")], tmp_path / "run"))
    text = analysis_text(analysis, found)
    assert text.count("not measured:") >= 4
    assert all(phase.cpu_seconds is None for phase in analysis.document.ranks[0].phases)
    assert analysis.document.ranks[0].samples_per_second is None
    assert found.unchecked == ("CPU time in rank 0 was not measured",)


def test_a_file_that_is_cut_off_is_diagnosed_and_warned_of(tmp_path: Path) -> None:
    """What could be read is; the verdict says that it is not all."""
    text = cuda_trace(40, wait=3000.0).text()
    file = tmp_path / "t.json"
    file.write_text(text[: len(text) * 2 // 3])
    _, found = diagnose(read_traces([file], tmp_path / "run"))
    assert found.first.verdict is VerdictClass.LOADING
    assert any("cut off" in one for one in found.warnings)


def test_traces_without_steps_and_files_that_are_none_are_refused(tmp_path: Path) -> None:
    """No run folder is left behind."""
    empty = MadeTrace()
    empty.host("aten::linear", 0, 10)
    with pytest.raises(RunFolderError, match=r"no training step is in 1 trace: .*neither prof\.step\(\)"):
        read_traces([empty.write(tmp_path / "t.json")], tmp_path / "run")
    with pytest.raises(RunFolderError, match="does not exist"):
        find_files([tmp_path / "none.json"])
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunFolderError, match="has no trace"):
        find_files([tmp_path / "folder"])
    assert not (tmp_path / "run").exists()


def test_two_files_of_one_rank_and_time_are_refused(tmp_path: Path) -> None:
    """A copy, or ranks of two machines that are numbered alike: their steps are not one rank's."""
    files = [cuda_trace(4).write(tmp_path / f"{name}_rank0.json") for name in ("one", "two")]
    with pytest.raises(RunFolderError, match=r"one_rank0\.json and two_rank0\.json are both of rank 0"):
        read_traces(files, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_times_that_cannot_be_are_the_reason_that_is_given(tmp_path: Path) -> None:
    """Not only that no step was found."""
    trace = cuda_trace(4)
    for event in trace.events:
        event["dur"] = -1.0
    with pytest.raises(RunFolderError, match="events with a time or duration that cannot be are left out"):
        read_traces([trace.write(tmp_path / "t.json")], tmp_path / "run")


def test_a_beginning_beyond_all_times_is_none(tmp_path: Path) -> None:
    """What cannot stand in a run folder is damage in the trace, and the folder can be read."""
    trace = cuda_trace(4)
    trace.about["baseTimeNanoseconds"] = (1 << 62) - 1
    _, found = diagnose(read_traces([trace.write(tmp_path / "t.json")], tmp_path / "run"))
    assert found.trusted


def test_strange_metadata_is_no_trouble(tmp_path: Path) -> None:
    """Types that nobody expects, in what the file says of itself."""
    trace = cuda_trace(3)
    for about in (
        {"distributedInfo": [1], "deviceProperties": {"x": 1}, "baseTimeNanoseconds": "soon", "host_name": 7},
        {
            "distributedInfo": {"rank": 1 << 70, "world_size": "8", "pg_config": [1, None]},
            "deviceProperties": [3, {"name": 4}],
        },
        {"host_name": "../../x\ud800", "distributedInfo": {"rank": -1}, "baseTimeNanoseconds": -3},
    ):
        path = tmp_path / "t.json"
        path.write_text(json.dumps({**about, "traceEvents": trace.events}))
        _, found = diagnose(read_traces([path], tmp_path / "run", force=True))
        assert found.trusted
