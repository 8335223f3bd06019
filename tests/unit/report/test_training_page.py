"""The page of a training: every part is there, every number stands in a table, and nothing of a run becomes markup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
from headrace.report.training_page import _PHASES, render_training
from headrace.runs.formats.training_memory import MemoryProfile, OwnedBytes
from headrace.runs.reader import read_run
from headrace.runs.training_phases import LoaderWork, Phase, Stretch
from tests.unit.diagnose.training.made_runs import MadeRun, plain_steps

STEP = {Phase.WAIT: 4.0, Phase.FORWARD: 3.0, Phase.BACKWARD: 6.0}


def _analysis(path: Path) -> TrainingAnalysis:
    run = MadeRun(path / "run")
    for _ in range(3):
        plain_steps(run, STEP, 20)
        run.stretch({Phase.OUTSIDE: 9.0}, stretch=Stretch.VALIDATION)
    for number in range(60):
        run.batch(number, {LoaderWork.ITEMS: (8.0, 1.0), LoaderWork.DECODE: (5.0, 1.0)})
    return TrainingAnalysis(read_run(run.finish(lines={"wait": [["<b>train.py:3", 0.8]]})))


def test_it_has_every_part_in_order(tmp_path: Path, read_page: Callable[[str], Any]) -> None:
    """Verdict, step, course, loading, epochs, what is apart; a chart for each that has one."""
    analysis = _analysis(tmp_path)
    page = read_page(render_training(analysis.document, diagnose_training(analysis)))
    sections = [one["id"] for one in page.named("section")]
    assert sections == ["diagnosis", "step", "course", "loading", "epochs", "apart"]
    assert "LOADING" in page.text
    assert "0 bytes" not in page.text


def test_whose_figures_they_are_is_said_of_several_ranks(tmp_path: Path, read_page: Callable[[str], Any]) -> None:
    """Tables of one rank stand beside those of all, and the diagnosis may be of another."""
    run = MadeRun(tmp_path / "run")
    for rank in range(2):
        for _ in range(40):
            run.stretch(STEP, rank=rank)
    analysis = TrainingAnalysis(read_run(run.finish()))
    text = read_page(render_training(analysis.document, diagnose_training(analysis))).text
    assert "where none is named, figures are those of rank 0" in text
    alone = _analysis(tmp_path / "alone")
    assert "where none is named" not in read_page(render_training(alone.document, diagnose_training(alone))).text


def test_phases_of_a_step_have_colours_of_their_own() -> None:
    """What is not part of a plain step shares one."""
    colours = [colour for colour in _PHASES.values() if colour != "var(--muted)"]
    assert len(set(colours)) == len(colours) == 9


def test_its_numbers_are_exact(tmp_path: Path, read_page: Callable[[str], Any]) -> None:
    """Phases, loading and what is apart stand in tables as the document has them."""
    analysis = _analysis(tmp_path)
    (rank,) = analysis.document.ranks
    assert rank.loading is not None
    expected = {one.seconds for one in (*rank.phases, *rank.loading.work, *rank.apart)} | {rank.samples_per_second}
    page = read_page(render_training(analysis.document, diagnose_training(analysis)))
    assert not expected - set(page.values)


def test_memory_that_was_sampled_has_a_part(tmp_path: Path, read_page: Callable[[str], Any]) -> None:
    """What tensors hold and what is resident in each phase; names of phases come from a file, and are no markup."""
    analysis = _analysis(tmp_path)
    owned = OwnedBytes(parameters=2_000_000, gradients=2_000_000, buffers=0, optimizer=4_000_000)
    memory = MemoryProfile(
        num_samples=9, limit_bytes=None, peak_bytes=700_000_000, resident_bytes={"<b>": 600_000_000}, swapped_bytes=0,
        major_faults_per_second=0.0, stalled_share=None, growth_bytes_per_step=None, owned=owned, device_peak_bytes=None,
    )  # fmt: skip
    ranks = (msgspec.structs.replace(analysis.document.ranks[0], memory=memory),)
    text = render_training(msgspec.structs.replace(analysis.document, ranks=ranks), diagnose_training(analysis))
    page = read_page(text)
    assert "memory" in [one["id"] for one in page.named("section")]
    assert "resident in <b>" in page.text
    assert all(size in page.text for size in ("700 MB", "600 MB", "2.00 MB", "4.00 MB"))


def test_names_of_a_run_are_no_markup(tmp_path: Path) -> None:
    """A script may be named like a tag; so may the file of a line."""
    analysis = _analysis(tmp_path)
    document = msgspec.structs.replace(analysis.document, pipeline="<script>alert(1)</script>.py")
    html = render_training(document, diagnose_training(analysis))
    assert "<script>alert" not in html
    assert "<b>train.py" not in html


def test_a_training_without_steps_has_a_page(tmp_path: Path, read_page: Callable[[str], Any]) -> None:
    """It says why there is nothing on it."""
    analysis = TrainingAnalysis(read_run(MadeRun(tmp_path / "run").finish()))
    page = read_page(render_training(analysis.document, diagnose_training(analysis)))
    assert "INCONCLUSIVE" in page.text
    assert "No training step was recorded" in page.text
