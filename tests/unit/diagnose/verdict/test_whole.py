"""Runs of several processes: each member, what differs between them, and the one in the middle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.records import Counters
from headrace.cli import main
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.whole import whole_document
from headrace.runs.formats.whole import WholeDocument
from headrace.runs.reader import Run, read_run
from headrace.runs.run_folder import RunFolder
from headrace.runs.whole_run import WholeRun, read_whole

MakeMember = Callable[[str, Any], Run]
#: Unix time at which members begin.
BEGAN = 1_700_000_000.0


@pytest.fixture
def write(make_member: MakeMember, made: Any, pipe: Any) -> Callable[..., Run]:
    """Writes a member that decoding limits: its name, seconds of decoding, and more of its run.json."""

    def write(name: str, decode: float, *, num_jobs: int = 200, at: float = 0.0, **changes: Any) -> Run:
        stages = [made(name="decode", work="decode", cpu=decode), made(name="look", cpu=0.001)]
        began = {"started_unix_seconds": BEGAN + at, "counters": Counters(num_jobs, num_jobs)}
        return make_member(name, pipe(stages=stages, num_jobs=num_jobs, changes=began | changes))

    return write


def document_of(folder: Path) -> WholeDocument:
    """Return the document of a folder of members."""
    whole = read_whole(folder)
    assert isinstance(whole, WholeRun)
    return whole_document(whole)


def test_a_host_that_is_slower_is_named_with_its_stage(write: Callable[..., Run], tmp_path: Path) -> None:
    """Its decoding takes twice as long; what limits is the same everywhere, and counts add up."""
    for number, (host, seconds) in enumerate([("a", 0.01), ("a", 0.01), ("b", 0.02)]):
        write(f"worker-{number}-1", seconds, host=host)
    document = document_of(tmp_path / "whole")
    assert document.hosts == ("a", "b")
    assert (document.delivered, document.failed) == (600, 0)
    assert {member.verdict for member in document.members} == {"DECODE in decode"}
    assert document.notes[0] == "all are limited by the same: DECODE in decode"
    assert any(
        note.startswith("host b takes 2.0 times as long as the others for an item in decode") for note in document.notes
    )
    assert document.middle in ("worker-0-1", "worker-1-1")
    assert document.diagnosis.first.title == "DECODE in decode"
    assert document.elapsed_seconds == pytest.approx(4.0, rel=0.05)
    assert document.throughput == pytest.approx(150, rel=0.05)


def test_who_works_alone_at_the_end_is_named(write: Callable[..., Run], tmp_path: Path) -> None:
    """Two portions of two seconds, and one that began half a second after them and takes four: it is alone."""
    write("shard-0-of-3", 0.01)
    write("shard-1-of-3", 0.01)
    write("shard-2-of-3", 0.01, num_jobs=400, at=2.5)
    document = document_of(tmp_path / "whole")
    assert document.most_at_work == 2
    assert document.mean_at_work == pytest.approx(8 / 6.5, rel=0.05)
    (alone,) = [note for note in document.notes if "were at work" in note]
    assert "in the mean 1.2 of 2 were at work" in alone
    assert "shard-2-of-3 was alone for the last 4.5" in alone


def test_members_alike_are_not_complained_of(write: Callable[..., Run], tmp_path: Path) -> None:
    """Nothing differs: one sentence, that all have the same limit."""
    for number in range(3):
        write(f"worker-{number}-1", 0.01)
    assert document_of(tmp_path / "whole").notes == ("all are limited by the same: DECODE in decode",)


def test_what_fails_in_one_member_and_what_was_killed_is_told(write: Callable[..., Run], tmp_path: Path) -> None:
    """The killed one did not count: its results are those of its spans, and it is not the one in the middle."""
    write("worker-0-1", 0.01, counters=Counters(220, 200, 20))
    write("worker-1-1", 0.01, status="running", counters=Counters(), num_jobs=150)
    document = document_of(tmp_path / "whole")
    assert document.middle == "worker-0-1"
    assert [member.delivered for member in document.members] == [200, 150]
    assert any("20 of 20 failed jobs are those of worker-0-1" in note for note in document.notes)
    assert any(note.startswith("worker-1-1: still at work, or killed") for note in document.notes)
    assert not any("the supervisor counted" in note for note in document.notes)
    (tmp_path / "whole" / "supervised.json").write_text('{"outcomes": {"delivered": 360}}')
    assert document_of(tmp_path / "whole").notes[0].startswith("the supervisor counted 360 delivered, and 350 are seen")


def supervise(folder: Path, *deaths: tuple[int, int, str], delivered: int = 0) -> None:
    """Write what a supervisor counted; deaths: worker, life, cause."""
    noted = [{"worker": worker, "life": life, "cause": cause} for worker, life, cause in deaths]
    counted = {"outcomes": {"delivered": delivered}, "deaths": len(deaths), "last_deaths": noted}
    (folder / "supervised.json").write_text(json.dumps(counted))


def test_deaths_are_told_by_their_causes(
    write: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each beside its process, and how many of what; what all dead ones lack is said once, and nobody is doubted to live."""
    write("worker-0-1", 0.01)
    for life in range(1, 8):
        write(f"worker-1-{life}", 0.01, num_jobs=20, status="running", counters=Counters())
    memory = "SIGKILL by the kernel: out of memory"
    silent = "SIGKILL by its supervisor: it gave no sign of life for {} s"
    causes = ["SIGSEGV", "SIGSEGV", "SIGSEGV", memory, memory, silent.format(60), silent.format(61)]
    whole = tmp_path / "whole"
    supervise(whole, *((1, life, cause) for life, cause in enumerate(causes, 1)))
    document = document_of(whole)
    (told,) = [note for note in document.notes if "death" in note]
    assert told == (
        "7 deaths: 3 of SIGSEGV, 2 of SIGKILL by the kernel: out of memory, "
        "2 of SIGKILL by its supervisor (the last: it gave no sign of life for 61 s)"
    )
    assert [member.death for member in document.members] == ["", *causes]
    assert document.problems == ()
    assert not any("still at work" in note for note in document.notes)
    assert main(["diagnose", str(whole)]) == 0
    assert "died: SIGSEGV" in capsys.readouterr().out


def test_where_nothing_can_be_told_no_limit_is_named(write: Callable[..., Run], tmp_path: Path) -> None:
    """Too few jobs in each: that is no limit that all share; and of one alone it is not said that no two worked together."""
    write("worker-0-1", 0.01, num_jobs=4)
    RunFolder.create(tmp_path / "whole" / "worker-1-1", pipeline="app:pipeline")
    notes = document_of(tmp_path / "whole").notes
    assert notes[0] == "what limits them cannot be told; the one in the middle says why"
    assert not any("no two of them" in note for note in notes)


def test_a_clock_hours_off_is_told_by_its_host(write: Callable[..., Run], tmp_path: Path) -> None:
    """All of one host came after all of the other; by how much, and that its clock may be the reason, is said."""
    for number, (host, at) in enumerate([("a", 0.0), ("a", 1.0), ("b", 7200.0), ("b", 7201.0)]):
        write(f"worker-{number}-1", 0.01, host=host, at=at)
    (apart,) = [note for note in document_of(tmp_path / "whole").notes if "clocks" in note]
    assert apart.startswith("host b began 119.9 min after a had ended")
    assert "one after the other, or the clocks of these hosts differ" in apart


def test_portions_in_turn_and_processes_of_a_queue_are_no_advice(write: Callable[..., Run], tmp_path: Path) -> None:
    """One after the other is said as that; who shares a queue has no portions that could be smaller."""
    write("shard-0-of-2", 0.01)
    write("shard-1-of-2", 0.01, at=10.0)
    assert any("no two of them were at work at the same time" in note for note in document_of(tmp_path / "whole").notes)
    for folder in (tmp_path / "whole").iterdir():
        shutil.rmtree(folder)
    write("worker-0-1", 0.01)
    write("worker-1-1", 0.01, num_jobs=400, at=0.1)
    (alone,) = [note for note in document_of(tmp_path / "whole").notes if "was alone" in note]
    assert "portions" not in alone


def test_the_other_processes_of_a_run_are_no_strangers(
    make_member: MakeMember, made: Any, pipe: Any, tmp_path: Path
) -> None:
    """Two that share the cores: what each calls others is the other one, and the advice is not to stop it."""
    for number in range(2):
        stages = [made(name="decode", work="decode", cpu=0.02, delay=0.02, workers=2)]
        began = {"started_unix_seconds": BEGAN, "counters": Counters(200, 200)}
        shared = pipe(stages=stages, num_jobs=200, cores=2, others=1.0, runtime=0.0001, changes=began)
        make_member(f"worker-{number}-1", shared)
    document = document_of(tmp_path / "whole")
    assert {member.verdict for member in document.members} == {"NEIGHBOUR (siblings)"}
    first = document.diagnosis.first
    assert first.says.startswith("other processes of this run used 1.00 of 2 cores")
    assert first.remedies[0].says.startswith("no more processes here")
    alone = diagnosis_document(Analysis(read_run(tmp_path / "whole" / "worker-0-1")))
    assert alone.first.title == "NEIGHBOUR"


def test_of_many_members_a_few_are_diagnosed(write: Callable[..., Run], tmp_path: Path) -> None:
    """Those at both ends, the middle, and some between; each has its counts."""
    for number in range(11):
        write(f"worker-{number}-1", 0.01, num_jobs=40)
    document = document_of(tmp_path / "whole")
    diagnosed = [member.name for member in document.members if member.verdict]
    assert 8 <= len(diagnosed) <= 9
    assert document.middle in diagnosed
    assert f"({len(diagnosed)} of 11 were diagnosed)" in document.notes[0]
    assert document.delivered == 440


def test_the_command_shows_all_and_the_middle(
    write: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of the members, then the diagnosis; the same as JSON; goals are those of one process."""
    for number in range(2):
        write(f"worker-{number}-1", 0.01, host="ab"[number])
    folder = str(tmp_path / "whole")
    assert main(["diagnose", folder]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "2 processes on 2 hosts; 400 delivered, 0 failed" in " ".join(" ".join(lines[:2]).split())
    rows = [line.split() for line in lines if line.startswith("  worker-")]
    assert [(row[0], row[1], row[2], row[-3:]) for row in rows] == [
        (f"worker-{number}-1", host, "200", ["decode,", "not", "checked"]) for number, host in enumerate("ab")
    ]
    assert "The process in the middle, worker-1-1:" in lines
    assert any(line.startswith("DECODE in decode   [confidence:") for line in lines)
    assert main(["diagnose", folder, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["diagnosis"]["schema"]) == ("headrace.whole/1", "headrace.diagnosis/1")
    assert main(["diagnose", folder, "--rate", "10/s"]) == 2
    assert f"name its folder: {folder}/worker-0-1" in capsys.readouterr().err


def test_the_report_shows_all_members(
    write: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One page in the folder of all: when each worked, what it did, and the one in the middle."""
    for number in range(2):
        write(f"worker-{number}-1", 0.01, at=number)
    assert main(["report", str(tmp_path / "whole")]) == 0
    assert "whole/report.html" in capsys.readouterr().out
    page = (tmp_path / "whole" / "report.html").read_text()
    assert '<section id="members">' in page
    assert "When each worked" in page
    assert "one of 2 processes of" in page
    assert "worker-0-1" in page
    assert "all are limited by the same: DECODE in decode" in page
