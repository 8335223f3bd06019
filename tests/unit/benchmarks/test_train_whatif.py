"""The benchmark of predictions for trainings: its cases, and what it makes of measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.train.whatif import append_row, as_text, measure_all, ratio_of, read_rows
from benchmarks.train.whatif_cases import JOBS, WHAT_IFS
from benchmarks.whatif_error import Row
from headrace.diagnose.training.change_settings import parse_change
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate


def test_changes_are_those_of_a_training() -> None:
    """Each change is understood by `headrace whatif`, makes another job, and none of a job is there twice."""
    assert set(WHAT_IFS) == set(JOBS)
    for name, what_ifs in WHAT_IFS.items():
        for one in what_ifs:
            parse_change(one.change)
            assert one.make(JOBS[name]) != JOBS[name]
        assert len({(one.change.settings, *one.change.speedups.items()) for one in what_ifs}) == len(what_ifs)


def test_there_are_eighty_changes_of_eight_trainings() -> None:
    """As many as the goal is stated for."""
    assert (len(JOBS), sum(map(len, WHAT_IFS.values()))) == (8, 80)


def test_settings_and_the_job_made_agree() -> None:
    """What is predicted is what is made: `loader.workers=4` is a job of 4 workers."""
    for name, what_ifs in WHAT_IFS.items():
        for one in what_ifs:
            asked, made = parse_change(one.change), one.make(JOBS[name])
            for key in ("workers", "prefetch", "in_order", "persistent", "accumulate"):
                wanted = getattr(asked, key)
                assert wanted is None or getattr(made, key) == wanted


def test_ratio_is_that_of_the_pairs() -> None:
    """Pairs of 1 : 2 and 2 : 4 are twice as fast, whatever the machine did between them."""
    assert ratio_of((1.0, 2.0), (2.0, 4.0)) == Estimate(2.0, 2.0, 2.0)


def test_rows_that_are_measured_are_not_measured_again(tmp_path: Path) -> None:
    """A folder with all changes of a job in it needs no training any more, and says how far off they were."""
    name, what_ifs = "updates", WHAT_IFS["updates"][:2]
    for number, one in enumerate(what_ifs):
        row = Row(
            pipeline=name, says=f"change {number}", change=one.change, predicted=Estimate(1.0, 1.1, 1.2), bounds=1.3,
            measured=Estimate(1.0, 1.0 + number / 10, 1.2), before=(1.0,), after=(1.0,),
        )  # fmt: skip
        append_row(tmp_path / "frozen.jsonl", row)
        append_row(tmp_path / "measured.jsonl", row)

    def run_job(*_: object) -> float:
        raise AssertionError("nothing is left to run")

    result = measure_all(tmp_path, {name: what_ifs}, 1.0, run_job)
    assert (result["n"], result["wanted"]) == (2, 2)
    assert result["max"] == pytest.approx(0.1)
    assert "2 of 2 changes of 1 trainings" in as_text(result)
    assert result["noise"] == pytest.approx(((1.2 - 1) + (1.1 / 1.0 - 1)) / 2)
    assert "by up to 15.0% (the median of changes)" in as_text(result)


def test_what_was_not_predicted_is_listed(tmp_path: Path) -> None:
    """A refused change is not scored, and stands below the table with its reason."""
    row = Row(pipeline="alone", says="loader.workers=2", change=Change(), refused="no steps")
    append_row(tmp_path / "frozen.jsonl", row)
    append_row(tmp_path / "measured.jsonl", row)
    assert read_rows(tmp_path / "measured.jsonl") == [row]
    result = measure_all(tmp_path, {"alone": WHAT_IFS["alone"][:1]}, 1.0, lambda *_: 1.0)
    assert "* alone: loader.workers=2: refused: no steps" in as_text(result)


def test_what_other_cores_were_measured_on_is_listed(tmp_path: Path) -> None:
    """A change that was measured while the cores were a fifth faster than at the recording is not scored, and that is said."""
    row = Row(
        pipeline="alone", says="loader.workers=2", change=Change(), predicted=Estimate(1.0, 1.1, 1.2),
        measured=Estimate(1.0, 2.0, 3.0), core_speed=1.2,
    )  # fmt: skip
    append_row(tmp_path / "frozen.jsonl", row)
    append_row(tmp_path / "measured.jsonl", row)
    result = measure_all(tmp_path, {"alone": WHAT_IFS["alone"][:1]}, 1.0, lambda *_: 1.0)
    assert (result["n"], result["disturbed"]) == (0, 1)
    assert "Not scored: 1 for which the cores" in as_text(result)
    assert "cores 1.20 times as fast as at the time of the profile" in as_text(result)


def test_recording_predicting_and_measuring_can_be_apart(tmp_path: Path) -> None:
    """Only what is timed needs a quiet machine: a training that was recorded is not recorded again, a half one is."""
    recorded: list[Path] = []

    def run_job(_: object, __: float, output: Path | None = None) -> float:
        assert output is not None, "nothing is measured"
        recorded.append(output)
        output.mkdir(exist_ok=True)
        if len(recorded) == 1:
            raise RuntimeError("killed")
        return 1.0

    chosen = {"alone": WHAT_IFS["alone"][:2]}
    with pytest.raises(RuntimeError):
        measure_all(tmp_path, chosen, 1.0, run_job, stage="record")
    for stage in ("record", "record", "predict"):
        measure_all(tmp_path, chosen, 1.0, run_job, stage=stage)
    assert recorded == [tmp_path / "alone"] * 2
    assert float((tmp_path / "alone.speed.json").read_text()) > 0
    assert [row.pipeline for row in read_rows(tmp_path / "frozen.jsonl")] == ["alone"] * 2
    assert read_rows(tmp_path / "measured.jsonl") == []
