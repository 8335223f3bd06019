"""Short trainings of several ranks: real processes that exchange over gloo."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.documents import decode_document
from headrace.base.errors import RunFolderError
from headrace.diagnose.training.steps import read_steps
from headrace.runs.formats.scaling import FILE, Part, ScalingDocument
from headrace.runs.reader import read_run
from headrace.train.ranks import ladder
from headrace.train.ranks.ladder import Ladder, LadderSettings
from headrace.train.ranks.launch import Group, RanksFailed
from headrace.train.ranks.link_probe import fit_link, measure_link

pytest.importorskip("torch")

SCRIPT = """
import torch

torch.distributed.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
model = torch.nn.parallel.DistributedDataParallel(model)
loader = torch.utils.data.DataLoader(torch.randn(4000, 16), batch_size=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in loader:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""
STEPS = 14


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a script for torchrun."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def _settings(script: Path, output: Path, **changes: object) -> LadderSettings:
    given = {"argv": (str(script),), "output": output, "ranks": (1, 2), "rounds": 1, "steps": STEPS, **changes}
    return LadderSettings(**given)  # type: ignore[arg-type]


@pytest.mark.full
def test_a_script_is_measured_on_one_and_two_ranks(script: Path, tmp_path: Path) -> None:
    """Each training has the steps that were asked for, on each rank; losses add up; more are predicted or said not to be."""
    said: list[str] = []
    document = Ladder(_settings(script, tmp_path / "scale"), said.append).measure()
    assert document.failures == ()
    assert [rung.ranks for rung in document.rungs] == [1, 2]
    assert [rung.num_steps for rung in document.rungs] == [STEPS - 3] * 2
    two = document.rungs[1]
    assert sum(two.losses.values()) == pytest.approx(1 - two.efficiency.mid)
    assert sum(two.parts.values()) == pytest.approx(two.step_seconds)
    assert two.parts[Part.TRANSFER] > 0
    assert two.samples_per_step == 16
    assert document.link is not None
    assert document.link.bytes_per_second > 0
    if two.predicted is None:  # on a busy machine steps may differ too much to be replayed
        (said_so,) = (warning for warning in document.warnings if "predicted: " in warning)
        assert not document.predicted, said_so
    else:
        assert document.gradient_bytes == 4 * (16 * 64 + 64 + 64 + 1)
        assert [one.ranks for one in document.predicted] == [2, 4, 8]
    for name in ("ranks-1-1", "ranks-2-1"):
        run = read_run(tmp_path / "scale" / name)
        assert run.info.status == "finished"
        assert {len(rank.steps) for rank in read_steps(run)} == {STEPS}
    assert decode_document((tmp_path / "scale" / FILE).read_bytes(), ScalingDocument) == document
    assert said[:2] == ["round 1 of 1: 1 rank", "round 1 of 1: 2 ranks"]


@pytest.mark.full
def test_a_script_without_a_group_is_told_what_is_missing(script: Path, tmp_path: Path) -> None:
    """Each of two processes trains alone; what one rank gave is kept."""
    script.write_text(SCRIPT.replace('torch.distributed.init_process_group("gloo")', "").replace(
        "model = torch.nn.parallel.DistributedDataParallel(model)", ""
    ).replace("torch.distributed.destroy_process_group()", ""))  # fmt: skip
    document = Ladder(_settings(script, tmp_path / "scale"), lambda _: None).measure()
    assert [rung.ranks for rung in document.rungs] == [1]
    (failure,) = document.failures
    assert "no exchange of gradients was seen" in failure
    assert "DistributedDataParallel" in failure


def _pretend(monkeypatch: pytest.MonkeyPatch, run: Callable[[Group], None]) -> None:
    monkeypatch.setattr(ladder, "run_group", run)


def test_ctrl_c_keeps_what_was_measured(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is written, and says that it was interrupted."""

    def interrupt(_: Group) -> None:
        raise KeyboardInterrupt

    _pretend(monkeypatch, interrupt)
    document = Ladder(_settings(script, tmp_path / "scale"), lambda _: None).measure()
    assert document.interrupted
    assert document.rungs == ()
    assert json.loads((tmp_path / "scale" / FILE).read_bytes())["interrupted"]


def test_a_rank_that_dies_ends_the_measurement(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would die in the other rounds too; the reason is in the answer."""

    def die(group: Group) -> None:
        raise RanksFailed(f"rank 0 of {group.ranks} was ended by SIGKILL")

    _pretend(monkeypatch, die)
    document = Ladder(_settings(script, tmp_path / "scale", rounds=3), lambda _: None).measure()
    assert document.failures == ("1 rank(s), round 1: rank 0 of 1 was ended by SIGKILL",)
    assert not document.interrupted


@pytest.mark.parametrize("is_answer", [False, True])
def test_a_full_disk_is_said_with_what_was_measured(
    is_answer: bool, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be full when a rank's output is to be written, or when the answer is."""

    def fill(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if is_answer:
        monkeypatch.setattr(ladder, "replace_file", fill)
    monkeypatch.setattr(ladder, "run_group", fill)
    document = Ladder(_settings(script, tmp_path / "scale"), lambda _: None).measure()
    (failure,) = document.failures
    assert "cannot be written: No space left on device" in failure
    assert document.rungs == ()


def test_what_is_no_matter_of_the_folder_is_not_laid_to_it(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder helps nobody whose process may open no more files."""

    def open_one_more(_: object) -> None:
        raise OSError(24, "Too many open files", "rank-0.log")

    monkeypatch.setattr(ladder, "run_group", open_one_more)
    document = Ladder(_settings(script, tmp_path / "scale"), lambda _: None).measure()
    assert document.failures == ("[Errno 24] Too many open files: 'rank-0.log'",)


def test_a_full_folder_for_temporary_files_is_not_laid_to_the_output(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link between ranks is measured there; what was trained is an answer."""

    def fill() -> None:
        raise OSError(28, "No space left on device", "/tmp/headrace-link-1")

    ladder_ = Ladder(_settings(script, tmp_path / "scale"), lambda _: None)
    monkeypatch.setattr(ladder_, "_train", lambda *_: None)
    monkeypatch.setattr(ladder, "measure_link", fill)
    (failure,) = ladder_.measure().failures
    assert failure.startswith("the link between ranks was not measured: [Errno 28]")


def test_an_earlier_answer_is_not_written_over(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless that is asked for."""
    _pretend(monkeypatch, lambda _: (_ for _ in ()).throw(RanksFailed("no")))
    Ladder(_settings(script, tmp_path / "scale"), lambda _: None).measure()
    with pytest.raises(RunFolderError, match="--force"):
        Ladder(_settings(script, tmp_path / "scale"), lambda _: None).measure()
    Ladder(_settings(script, tmp_path / "scale", force=True), lambda _: None).measure()


@pytest.mark.full
def test_the_link_between_ranks_is_measured() -> None:
    """Larger messages take longer, and the line goes through them."""
    link = measure_link(sizes=(1 << 12, 1 << 22))
    small, large = link.measured
    assert 0 < small.seconds < large.seconds
    assert link.bytes_per_second > 0
    again = fit_link(link.measured, 2)
    assert again == link
