"""Resuming, as somebody meets it whose run was cut off: what goes on, what is refused, and what is said."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import headrace as hr
from headrace.base.errors import CheckpointError, RunFolderError
from headrace.cli import main
from headrace.runs.journal import Journal
from headrace.samples.generator import make
from headrace.testing import ListSource

NUMBER = 30


def size(path: Path) -> int:
    """Return the size of a file; one called `bad` is rejected."""
    if "bad" in path.name:
        raise hr.ItemRejected("it is bad")
    return path.stat().st_size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of different sizes, one of them bad."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(NUMBER - 1):
        (folder / f"{number:02d}.txt").write_bytes(b"x" * number)
    (folder / "05-bad.txt").touch()
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where results go."""
    return tmp_path / "out.jsonl"


def pipeline(folder: Path, delivery: Any, function: Callable[[Path], Any] = size, **options: Any) -> hr.Pipeline:
    """Return a pipeline that tells the sizes of files."""
    stages = [hr.stage("size", function, kind="cpu")]
    return hr.Pipeline(hr.folder(folder, patterns=["*.txt"], **options), stages=stages, delivery=delivery)


def cut_off(checkpoint: Path) -> None:
    """Make a run that ended look like one that was killed just before it could say so."""
    journal = checkpoint / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert b'"ended"' in lines[-1]
    journal.write_bytes(b"".join(lines[:-1]))


def begin(folder: Path, out: Path, number: int = 10) -> Path:
    """Do some of the items, be killed, and return the checkpoint."""
    hr.run(pipeline(folder, hr.jsonl(out)), limit=number)
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    cut_off(checkpoint)
    return checkpoint


def resume(folder: Path, out: Path, **options: Any) -> hr.Result:
    """Go on."""
    return hr.run(pipeline(folder, hr.jsonl(out)), resume=True, **options)


def ids(out: Path) -> list[str]:
    """Return the ids of all results."""
    return [json.loads(line)["id"] for line in out.read_text().splitlines()]


def everything(folder: Path) -> list[str]:
    """Return the ids that should come out."""
    return sorted(path.name for path in folder.glob("*.txt") if "bad" not in path.name)


@pytest.mark.smoke
def test_it_goes_on(folder: Path, out: Path) -> None:
    """What was done is not done again, what was not is, and the result says how much of each."""
    begin(folder, out)
    result = resume(folder, out)
    assert sorted(ids(out)) == everything(folder)
    assert result.before is not None
    assert (result.before.total, result.before.done, result.before.left) == (NUMBER, 10, NUMBER - 10)
    assert (result.before.delivered, result.before.rejected) == (9, 1)
    assert result.counters.received == NUMBER - 10


def test_a_finished_run_has_nothing_left(folder: Path, out: Path) -> None:
    """To resume it does nothing: no stage is opened, no result is added."""
    hr.run(pipeline(folder, hr.jsonl(out)))

    def never(path: Path) -> None:
        raise AssertionError("called")

    result = hr.run(pipeline(folder, hr.jsonl(out), never), resume=True)
    assert result.before is not None
    assert (result.before.left, result.counters.received) == (0, 0)
    assert sorted(ids(out)) == everything(folder)


def test_the_command(
    folder: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`headrace run --resume` says how many were done before and now, and exits with 0 when nothing is left."""
    script = tmp_path / "resumed_by_command.py"
    script.write_text(
        "import headrace as hr\n"
        f"pipeline = hr.Pipeline(hr.folder({str(folder)!r}, patterns=['*.txt']), "
        f"stages=[hr.stage('size', lambda path: path.stat().st_size)], delivery=hr.jsonl({str(out)!r}))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["run", "resumed_by_command.py", "--limit", "10"]) == 0
    cut_off(tmp_path / "out.jsonl.checkpoint")
    assert main(["run", "resumed_by_command.py"]) == 2
    assert f"cut off with 10 of {NUMBER} done: go on with --resume" in capsys.readouterr().err
    assert main(["run", "resumed_by_command.py", "--resume"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"10 of {NUMBER} were done before (10 delivered), 20 now, 0 are left\n")
    assert "10 done before, 20 received, 20 of 20 delivered" in told.err
    assert main(["run", "resumed_by_command.py", "--resume"]) == 0
    assert f"{NUMBER} delivered); nothing is left to do\n" in capsys.readouterr().out
    assert main(["run", "resumed_by_command.py", "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["before"]["left"] == 0


def test_nothing_to_resume(folder: Path, out: Path) -> None:
    """Without checkpoint and results it is told so, and no folder is left behind."""
    with pytest.raises(CheckpointError, match=r"there is nothing to resume: .* leave out --resume at the first start"):
        resume(folder, out)
    assert not out.with_name("out.jsonl.checkpoint").exists()


def test_a_run_that_could_not_begin_leaves_no_trace(folder: Path, out: Path) -> None:
    """The next start of a run that failed before its first item need not say how it relates to it."""

    class Broken(hr.Stage):
        kind = "cpu"

        def open(self, context: Any) -> Any:
            raise OSError("no such model")

    broken = hr.Pipeline(hr.folder(folder, patterns=["*.txt"]), stages=[Broken("size")], delivery=hr.jsonl(out))
    with pytest.raises(hr.HeadraceError, match="no such model"):
        hr.run(broken)
    assert not out.with_name("out.jsonl.checkpoint").exists()


def test_a_run_that_could_not_begin_leaves_the_checkpoint_of_the_one_before(
    folder: Path, out: Path, tmp_path: Path
) -> None:
    """A run is started again by mistake, into a run folder that is taken: what the first one knows is still there."""
    hr.run(pipeline(folder, hr.jsonl(out)), limit=10, output=tmp_path / "run")
    journal = out.with_name(f"{out.name}.checkpoint") / "journal.jsonl"
    before = journal.read_bytes()
    with pytest.raises(RunFolderError, match="holds an earlier run"):
        hr.run(pipeline(folder, hr.jsonl(out)), output=tmp_path / "run")
    assert journal.read_bytes() == before
    assert resume(folder, out).counters.received == NUMBER - 10


def test_a_folder_with_other_files_hides_no_error(folder: Path, out: Path, tmp_path: Path) -> None:
    """Where a run cannot begin, a checkpoint folder that others use too stays, and the error is the run's own."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes.txt").touch()

    class Broken(hr.Stage):
        kind = "cpu"

        def open(self, context: Any) -> Any:
            raise OSError("no such model")

    broken = hr.Pipeline(hr.folder(folder, patterns=["*.txt"]), stages=[Broken("size")], delivery=hr.jsonl(out))
    with pytest.raises(hr.HeadraceError, match="no such model"):
        hr.run(broken, checkpoint=tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["notes.txt"]


def test_a_run_that_was_cut_off_is_not_gone_over(folder: Path, out: Path) -> None:
    """A new start without resume is refused while there are results; with force, or without them, it begins anew."""
    begin(folder, out)
    with pytest.raises(CheckpointError, match=f"cut off with 10 of {NUMBER} done: go on with --resume .* --force"):
        hr.run(pipeline(folder, hr.jsonl(out)))
    out.unlink()
    hr.run(pipeline(folder, hr.jsonl(out)), limit=5)
    cut_off(out.with_name("out.jsonl.checkpoint"))
    hr.run(pipeline(folder, hr.jsonl(out)), force=True)
    assert len(ids(out)) == 5 + NUMBER - 1


def test_results_of_earlier_runs_are_not_those_of_this_one(folder: Path, out: Path) -> None:
    """A second whole run appends, as ever; resumed, it does not take the first one's results for its own."""
    hr.run(pipeline(folder, hr.jsonl(out)))
    begin(folder, out, 10)
    resume(folder, out)
    assert sorted(ids(out)) == sorted(everything(folder) * 2)


def test_doing_all_again_is_said(folder: Path, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that finished and is started again says that its results will be there twice, unless told that this is meant."""
    hr.run(pipeline(folder, hr.jsonl(out)))
    hr.run(pipeline(folder, hr.jsonl(out)), force=True)
    assert "all is done again" not in caplog.text
    hr.run(pipeline(folder, hr.jsonl(out)))
    assert "finished, and its results are still there: all is done again behind them" in caplog.text
    assert "--resume (resume=True)" in caplog.text


def test_results_without_a_checkpoint_are_said(folder: Path, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As those of a profile that was interrupted; what is missing there can still be done alone."""
    hr.run(pipeline(folder, hr.jsonl(out)), limit=3, checkpoint=False)
    hr.run(pipeline(folder, hr.jsonl(out)), resume=True, force=True)
    found = ids(out)
    assert len(found) == len(set(found)) > 3
    shutil.rmtree(out.with_name("out.jsonl.checkpoint"))
    assert "all is done now, behind them" not in caplog.text
    hr.run(pipeline(folder, hr.jsonl(out)))
    assert "all is done now, behind them" in caplog.text


def test_half_a_line_is_done_again(folder: Path, out: Path) -> None:
    """A line that was cut in the middle, or only lacks its end, is cut off and its item comes out once."""
    checkpoint = begin(folder, out)
    for cut in (1, 9):
        out.write_bytes(out.read_bytes()[:-cut])
        resume(folder, out, limit=3)
        assert len(ids(out)) == len(set(ids(out)))
        cut_off(checkpoint)
    resume(folder, out)
    assert sorted(ids(out)) == everything(folder)


def test_a_damaged_line_is_done_again(folder: Path, out: Path) -> None:
    """A whole line that cannot be read, as after a power cut, stays as it is and its item is done."""
    begin(folder, out)
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join([*lines[:3], b"\0" * len(lines[3][:-1]) + b"\n", *lines[4:]]))
    resume(folder, out)
    readable = [json.loads(line)["id"] for line in out.read_bytes().splitlines() if b"\0" not in line]
    assert sorted(readable) == everything(folder)


def test_a_truncated_part_is_set_aside(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A Parquet part that cannot be read is kept under another name, and what it held is done again."""

    def run(**options: Any) -> None:
        hr.run(pipeline(folder, hr.parquet(tmp_path / "out", rows_per_file=5, seconds_per_file=0.1)), **options)

    run(limit=15)
    cut_off(tmp_path / "out.checkpoint")
    part = min((tmp_path / "out").glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    (tmp_path / "out" / f".{part.name}.partial").touch()
    run(resume=True)
    found = pyarrow.parquet.read_table(tmp_path / "out")["id"].to_pylist()
    assert sorted(found) == everything(folder)
    assert "is set aside as" in caplog.text
    assert [path.name for path in (tmp_path / "out").glob(".*")] == [f".{part.name}.damaged"]


def test_a_deleted_checkpoint(folder: Path, out: Path) -> None:
    """Results without their checkpoint are refused; with force every result counts."""
    shutil.rmtree(begin(folder, out))
    with pytest.raises(CheckpointError, match="--resume --force counts every result as done"):
        resume(folder, out)
    result = resume(folder, out, force=True)
    assert sorted(ids(out)) == everything(folder)
    assert result.before is not None
    assert result.before.delivered == 9


@pytest.mark.parametrize("content", [b"", b'{"checkpoint":1,"so', b"\0\0\0\0\n", b"[]\n"])
def test_a_damaged_checkpoint(folder: Path, out: Path, content: bytes) -> None:
    """A checkpoint whose header cannot be read is refused; with force every result counts."""
    (begin(folder, out) / "journal.jsonl").write_bytes(content)
    with pytest.raises(CheckpointError, match="is empty or damaged"):
        resume(folder, out)
    resume(folder, out, force=True)
    assert sorted(ids(out)) == everything(folder)
    resume(folder, out)  # and the next one needs no force


def test_a_damaged_record(folder: Path, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A record that cannot be read is left out and told: at worst an item is done again."""
    with (begin(folder, out) / "journal.jsonl").open("ab") as journal:
        journal.write(b"\xff\0\n" + b'{"done":"2')
    resume(folder, out)
    assert "1 records of" in caplog.text
    assert sorted(ids(out)) == everything(folder)


def test_a_checkpoint_of_another_version(folder: Path, out: Path) -> None:
    """A journal of a newer headrace is refused."""
    journal = begin(folder, out) / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"checkpoint":1', b'"checkpoint":9'))
    with pytest.raises(CheckpointError, match="has version 9; this headrace knows 1"):
        resume(folder, out)


def test_results_of_earlier_runs_after_a_forced_resume(folder: Path, out: Path) -> None:
    """A forced resume keeps where the run's results begin, although it has none yet, and what was suspected."""
    hr.run(pipeline(folder, hr.jsonl(out)))
    checkpoint = begin(folder, out, number=1)
    journal = checkpoint / "journal.jsonl"
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:-1]))  # the one result of the second run
    journal.write_bytes(journal.read_bytes().replace(b'"checkpoint":1', b'"checkpoint":9'))
    with journal.open("ab") as file:
        file.write(b'{"crashed":["25.txt"],"alone":true}\n')
    resume(folder, out, force=True, limit=1)
    assert ids(out)[-1] == "25.txt"
    assert '{"crashed":["25.txt"],"alone":true}' in journal.read_text()
    cut_off(checkpoint)
    resume(folder, out)
    assert sorted(ids(out)) == sorted(everything(folder) * 2)


def test_deleted_results(folder: Path, out: Path) -> None:
    """A checkpoint whose results are gone is refused; so are results that are shorter than they were at the start."""
    out.write_text('{"id": "of another run"}\n')
    begin(folder, out)
    out.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"the results are others than those of the run: .* has 0 bytes"):
        resume(folder, out)
    out.unlink()
    with pytest.raises(CheckpointError, match=r"the results are gone .*: without --resume all is done again"):
        resume(folder, out)
    resume(folder, out, force=True)
    assert sorted(ids(out)) == everything(folder)


def test_another_folder(folder: Path, out: Path, tmp_path: Path) -> None:
    """The same names in another folder are another source; the same folder through a link at its old place is not."""
    begin(folder, out)
    moved = shutil.copytree(folder, tmp_path / "copy")
    with pytest.raises(CheckpointError, match=r"is of the folder .*/in, .* this run is over the folder .*/copy"):
        resume(moved, out)
    shutil.rmtree(folder)
    folder.symlink_to(moved)
    resume(folder, out)
    assert sorted(ids(out)) == everything(folder)


def test_files_that_came_and_went(folder: Path, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    """New files are done too; those that are gone are not missed; both are told."""
    begin(folder, out)
    (folder / "00.txt").unlink()
    (folder / "20.txt").unlink()
    (folder / "new.txt").touch()
    resume(folder, out)
    assert sorted(ids(out)) == sorted({"00.txt", *everything(folder)})
    assert f"{NUMBER} entries at the start, {NUMBER - 1} now" in caplog.text
    assert "1 that were done are gone" in caplog.text


def test_a_folder_with_other_content(folder: Path, out: Path) -> None:
    """If nothing of what was done is there any more, it is not the same folder."""
    begin(folder, out)
    for path in list(folder.iterdir()):
        path.rename(folder / f"other-{path.name}")
    with pytest.raises(CheckpointError, match="none of the 10 that are done is in"):
        resume(folder, out)


def test_other_settings(folder: Path, out: Path) -> None:
    """Settings that decide answers are named when they differ; those that do not may change; force goes on."""
    begin(folder, out)
    other = hr.Plan().with_settings(["decode.scale=full", "model.engine=emulated"])
    with pytest.raises(CheckpointError, match=r"decode.scale was 'auto' and is 'full'; model.engine was 'onnx' and is"):
        resume(folder, out, plan=other)
    resume(folder, out, plan=hr.Plan().with_settings(["size.workers=7", "run.grace_seconds=3"]), limit=3)
    resume(folder, out, plan=other, force=True)
    assert sorted(ids(out)) == everything(folder)


def test_other_stages(folder: Path, out: Path) -> None:
    """A pipeline with other stages gives other answers."""
    begin(folder, out)
    stages = [hr.stage("size", size), hr.stage("double", lambda value: 2 * value)]
    other = hr.Pipeline(hr.folder(folder, patterns=["*.txt"]), stages=stages, delivery=hr.jsonl(out))
    with pytest.raises(CheckpointError, match="the stages was size, deliver and is size, double, deliver"):
        hr.run(other, resume=True)


class Scenes(hr.Module):
    """Names the scene in a photograph."""

    input = hr.ImageInput(short_side=256, crop=224)

    def __init__(self, model: Path) -> None:
        self.model = model

    def load(self, context: Any) -> None:
        """Open the model."""
        self.scenes = context.open_model()

    def preprocess(self, image: Any) -> Any:
        """Return the model's input."""
        return hr.images.normalize(image)

    def process(self, batch: Any) -> list[Any]:
        """Return the best class."""
        return list(self.scenes(batch).argmax(axis=1).tolist())


def test_another_model_under_the_same_name(tmp_path: Path, out: Path) -> None:
    """The model's content counts, not its name: another one is refused before its first answer."""
    import headrace.samples

    make(tmp_path / "photos", count=12, seed=1)
    model = tmp_path / "model.onnx"
    shutil.copy(Path(headrace.samples.__file__).parent / "models" / "scenes.onnx", model)

    def run(**options: Any) -> hr.Result:
        return hr.run(
            hr.Pipeline(hr.folder(tmp_path / "photos"), module=Scenes(model), delivery=hr.jsonl(out)), **options
        )

    run(limit=5)
    cut_off(tmp_path / "out.jsonl.checkpoint")
    with model.open("ab") as file:
        gc.collect()  # in one process a model lives on as long as anybody holds it
        file.write(b"\xba\x3e\x00")  # a field that nobody knows: another file, the same answers
    before = out.read_bytes()
    with pytest.raises(CheckpointError, match="their answers would be mixed; bring back the file"):
        run(resume=True)
    assert out.read_bytes() == before
    run(resume=True, force=True)
    assert len(set(ids(out))) == len(ids(out)) == 12


def test_two_at_once(folder: Path, out: Path) -> None:
    """While one run is at it, another is refused, with and without resume."""
    checkpoint = begin(folder, out)
    other = Journal(checkpoint / "journal.jsonl")
    try:
        for options in ({}, {"resume": True}, {"resume": True, "force": True}):
            with pytest.raises(CheckpointError, match="another run has the checkpoint"):
                hr.run(pipeline(folder, hr.jsonl(out)), **options)
    finally:
        other.close()
    resume(folder, out)


def test_where_no_checkpoint_can_be_written(folder: Path, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that nobody asked to be resumable goes on without, and says so; one that was asked for is refused."""
    out.with_name("out.jsonl.checkpoint").write_text("a file where the folder should be")
    hr.run(pipeline(folder, hr.jsonl(out)))
    assert "no checkpoint is kept, so the run cannot be resumed" in caplog.text
    with pytest.raises(CheckpointError, match="cannot be resumed: the checkpoint /proc/nothing cannot be written"):
        hr.run(pipeline(folder, hr.jsonl(out)), checkpoint="/proc/nothing")


def test_what_cannot_be_resumed(folder: Path, out: Path) -> None:
    """A queue, and results that cannot be read back, say what to do instead."""
    source = hr.Pipeline(ListSource([1]), stages=[hr.stage("size", str)])
    with pytest.raises(CheckpointError, match="a queue itself keeps what is not done"):
        hr.run(source, resume=True)
    with pytest.raises(CheckpointError, match="values in memory are gone with their program"):
        hr.run(hr.Pipeline(hr.items([1]), stages=[hr.stage("text", str)]), resume=True)
    with pytest.raises(CheckpointError, match=r"results of Collect cannot be read back; .* --checkpoint DIR"):
        hr.run(pipeline(folder, hr.collect()), resume=True)
    hr.run(pipeline(folder, hr.collect()))  # and without resume nothing is asked


def test_a_delivery_that_cannot_be_read_back(folder: Path, tmp_path: Path) -> None:
    """With a checkpoint of its own, what was delivered is in the journal."""
    place = tmp_path / "kept"
    first, second = hr.collect(), hr.collect()
    hr.run(pipeline(folder, first), checkpoint=place, limit=10)
    cut_off(place)
    with pytest.raises(CheckpointError, match="cut off with 10 of"):
        hr.run(pipeline(folder, hr.collect()), checkpoint=place)
    hr.run(pipeline(folder, second), checkpoint=place, resume=True)
    assert sorted(name for name, _ in first.results + second.results) == everything(folder)


def test_a_list_of_urls(folder: Path, out: Path, tmp_path: Path) -> None:
    """A file of URLs is resumed likewise, and may have grown; the number behind one that is named twice tells them apart."""
    listed = tmp_path / "urls.txt"
    urls = [f"http://127.0.0.1/{number}.jpg?key=secret" for number in range(10)] + ["http://127.0.0.1/x"] * 3
    listed.write_text("\n".join(urls))

    def run(**options: Any) -> None:
        hr.run(hr.Pipeline(hr.urls(listed), stages=[hr.stage("length", len)], delivery=hr.jsonl(out)), **options)

    run(limit=11)
    cut_off(tmp_path / "out.jsonl.checkpoint")
    listed.write_text("\n".join([*urls, "http://127.0.0.1/y"]))
    run(resume=True)
    assert len(ids(out)) == len(set(ids(out))) == 14
    kept = (tmp_path / "out.jsonl.checkpoint" / "journal.jsonl").read_text()
    assert "secret" not in kept + out.read_text()


def test_limits_add_up(folder: Path, out: Path) -> None:
    """A run that ended at its limit may be resumed for as many again, or begun anew without a word."""
    hr.run(pipeline(folder, hr.jsonl(out)), limit=10)
    resume(folder, out, limit=10)
    assert len(ids(out)) == 19
    resume(folder, out)
    assert sorted(ids(out)) == everything(folder)


def test_what_was_given_up_is_not_tried_again(folder: Path, out: Path) -> None:
    """An item whose tries are used up is settled, and the journal has the reason."""
    calls: list[str] = []

    def fails(path: Path) -> int:
        calls.append(path.name)
        if path.name == "03.txt":
            raise OSError("a bad day")
        return size(path)

    hr.run(pipeline(folder, hr.jsonl(out), fails, max_receives=2))
    checkpoint = out.with_name("out.jsonl.checkpoint")
    cut_off(checkpoint)
    hr.run(pipeline(folder, hr.jsonl(out), fails, max_receives=2), resume=True)
    assert (calls.count("03.txt"), calls.count("05-bad.txt")) == (2, 1)
    assert "a bad day" in (checkpoint / "journal.jsonl").read_text()


CHILD = """
import os, pathlib, resource, signal, sys, time
import headrace as hr
from headrace.base.plan import Plan
folder, out, mode = sys.argv[1:4]

def size(path):
    if mode == "poison" and path.name == "07.txt":
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "poison":
        time.sleep(0.01)
    return "x" * 40

if mode.startswith("full"):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))
plan = Plan.from_table({"stages": {"size": {"workers": 4}, "deliver": {"attempts": 1}},
    "run": {"brake_after": 0 if mode == "full" else 5},
    "source": {"max_receives": 1 if mode.startswith("full") else 3}})
source = hr.folder(folder, patterns=["*.txt"])
pipeline = hr.Pipeline(source, stages=[hr.stage("size", size, kind="cpu")], delivery=hr.jsonl(out))
result = hr.run(pipeline, plan, resume="--resume" in sys.argv)
print(result.counters.delivered, result.before and result.before.given_up_now)
"""


def child(folder: Path, out: Path, mode: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the pipeline in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), str(out), mode, *options],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_an_item_that_kills_the_process(folder: Path, out: Path) -> None:
    """After as many crashes as it has tries it is given up with the reason; nobody who was beside it is."""
    starts = 0
    done = child(folder, out, "poison")
    while done.returncode == -9:
        starts += 1
        assert starts < 6
        done = child(folder, out, "poison", "--resume")
    assert (done.returncode, starts) == (0, 3), done.stderr
    assert (
        "'07.txt': 'the process ended 3 times while working on it, the last time on nothing else; limit: 3"
        in done.stdout
    )
    assert sorted(ids(out)) == sorted(path.name for path in folder.iterdir() if path.name != "07.txt")
    journal = out.with_name("out.jsonl.checkpoint") / "journal.jsonl"
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    given_up = [record["done"] for record in records if record.get("as") == "given_up"]
    assert given_up == ["07.txt"]


def test_a_full_disk(folder: Path, out: Path) -> None:
    """What could not be written for want of room is done once there is some, and every item comes out once."""
    full = child(folder, out, "full")
    assert full.returncode == 0, full.stderr
    assert 0 < len(ids(out)) < NUMBER
    done = child(folder, out, "normal", "--resume")
    assert done.returncode == 0, done.stderr
    assert sorted(ids(out)) == sorted(path.name for path in folder.iterdir())


def test_a_run_that_waits_for_room_is_stopped(folder: Path, out: Path) -> None:
    """A full disk is waited for; stopped meanwhile and resumed with room, every item comes out once."""
    command = [sys.executable, "-c", CHILD, str(folder), str(out), "full, waiting"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as full:
        assert full.stderr is not None
        assert any("nothing succeeds" in line for line in full.stderr)
        full.terminate()
        delivered, _ = full.communicate(timeout=120)
    assert 0 < len(ids(out)) == int(delivered.split()[0]) < NUMBER
    done = child(folder, out, "normal", "--resume")
    assert done.returncode == 0, done.stderr
    assert sorted(ids(out)) == sorted(path.name for path in folder.iterdir())


def test_a_kill_after_sigterm_suspects_nobody(folder: Path, out: Path) -> None:
    """Who was asked to stop and then killed was killed from outside."""
    checkpoint = begin(folder, out)
    with (checkpoint / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"stopping":true}\n')
    resume(folder, out)
    assert "crashed" not in (checkpoint / "journal.jsonl").read_text()


def test_suspects_of_a_crash_come_first_and_alone(folder: Path, out: Path) -> None:
    """What was in hand at a crash is given out before all else, one at a time."""
    checkpoint = begin(folder, out)
    suspects = ["25.txt", "27.txt"]
    with (checkpoint / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"crashed":["25.txt","27.txt"],"alone":false}\n')
    active: list[str] = []
    seen: list[tuple[str, int]] = []

    def watch(path: Path) -> int:
        active.append(path.name)
        seen.append((path.name, len(active)))
        active.remove(path.name)
        return size(path)

    hr.run(pipeline(folder, hr.jsonl(out), watch), resume=True)
    assert seen[:2] == [(name, 1) for name in suspects]
    assert sorted(ids(out)) == everything(folder)


@pytest.mark.timeout(60)
def test_one_that_is_alone_does_not_wait_for_company(folder: Path, tmp_path: Path) -> None:
    """A delivery that gathers results writes that of a suspect at once: no other comes before it is through."""

    def run(**options: Any) -> None:
        delivery = hr.parquet(tmp_path / "out", rows_per_file=1000, seconds_per_file=1e6)
        hr.run(pipeline(folder, delivery), **options)

    run()
    part = next((tmp_path / "out").glob("part-*.parquet"))
    part.unlink()
    cut_off(tmp_path / "out.checkpoint")
    with (tmp_path / "out.checkpoint" / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"crashed":["25.txt","27.txt"],"alone":false}\n')
    run(resume=True)
    found = [pyarrow.parquet.read_table(path)["id"].to_pylist() for path in sorted((tmp_path / "out").glob("part-*"))]
    assert found[:2] == [["25.txt"], ["27.txt"]]
    assert sorted(name for names in found for name in names) == everything(folder)
