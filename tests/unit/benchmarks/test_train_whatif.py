"""The benchmark of predictions for trainings: its cases, and what it makes of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.train.whatif import (
    Amount,
    append_row,
    as_text,
    measure_all,
    ratio_of,
    read_rows,
    run_blocks,
    undisturbed,
)
from benchmarks.train.whatif_cases import JOBS, WHAT_IFS, Job
from benchmarks.whatif_error import Row
from headrace.diagnose.training.change_settings import parse_change
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate

if TYPE_CHECKING:
    from benchmarks.train.whatif_jobs import Training


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

    (tmp_path / f"{name}.rate.json").write_text("100.0")

    def start(*_: object) -> Training:
        raise AssertionError("nothing is left to run")

    result = measure_all(tmp_path, {name: what_ifs}, 1.0, start)
    assert (result["n"], result["wanted"]) == (2, 2)
    assert result["max"] == pytest.approx(0.1)
    assert "2 of 2 changes of 1 trainings" in as_text(result)
    assert result["noise"] == pytest.approx(((1.2 - 1) + (1.1 / 1.0 - 1)) / 2)
    assert "is known to 15.0% (the median of changes)" in as_text(result)


def test_what_was_not_predicted_is_listed(tmp_path: Path) -> None:
    """A refused change is not scored, and stands below the table with its reason."""
    row = Row(pipeline="alone", says="loader.workers=2", change=Change(), refused="no steps")
    append_row(tmp_path / "frozen.jsonl", row)
    append_row(tmp_path / "measured.jsonl", row)
    assert read_rows(tmp_path / "measured.jsonl") == [row]
    (tmp_path / "alone.rate.json").write_text("100.0")
    result = measure_all(tmp_path, {"alone": WHAT_IFS["alone"][:1]}, 1.0, lambda *_: _Rates(1.0))
    assert "* alone: loader.workers=2: refused: no steps" in as_text(result)


class _Rates:
    """A training whose rates are given; when they are used up, it has the last one."""

    def __init__(self, *rates: float) -> None:
        self._rates = list(rates)

    def __enter__(self) -> _Rates:
        return self

    def __exit__(self, *_: object) -> None: ...

    def rate(self, _: float) -> float:
        """Return the next one."""
        return self._rates.pop(0) if len(self._rates) > 1 else self._rates[0]


def test_blocks_beside_which_others_had_the_cores_are_left_out() -> None:
    """The unchanged training says which; others are run in their place, and what the changed one did decides nothing."""
    amount = Amount(blocks=3)
    rates, after = run_blocks(_Rates(100.0), _Rates(200.0, 50.0, 200.0), amount)
    assert (rates, after) == ([100.0] * 4, [200.0, 50.0, 200.0])
    rates, after = run_blocks(_Rates(100.0, 70.0, 100.0), _Rates(200.0), amount)
    assert (len(rates), len(after)) == (6, 5)
    assert undisturbed(rates) == [2, 3, 4]
    rates, after = run_blocks(_Rates(100.0, 50.0, 100.0, 50.0, 100.0, 50.0, 100.0), _Rates(200.0), amount)
    assert len(after) == 6, "twice as many at most"


def test_a_recording_is_made_again_where_the_cores_have_changed(tmp_path: Path) -> None:
    """Before anything is predicted; what was recorded to the end is not recorded again."""
    recorded: list[Path | None] = []

    def start(_: Job, output: Path | None) -> _Rates:
        if output is not None:
            output.mkdir(exist_ok=True)
            recorded.append(output)
            return _Rates(100.0)
        return _Rates(130.0 if len(recorded) == 1 else 101.0)

    chosen = {"alone": WHAT_IFS["alone"][:2]}
    for stage in ("record", "record", "predict"):
        measure_all(tmp_path, chosen, 1.0, start, stage=stage)
    assert recorded == [tmp_path / "alone"] * 2
    assert (tmp_path / "alone.rate.json").read_text() == "100.0"
    assert [row.pipeline for row in read_rows(tmp_path / "frozen.jsonl")] == ["alone"] * 2
    assert read_rows(tmp_path / "measured.jsonl") == []


def test_a_training_stands_still_between_two_blocks() -> None:
    """It goes on where it stopped, also with workers, and ends when it is left."""
    pytest.importorskip("torch")
    from benchmarks.train.whatif_jobs import Training

    with Training(Job(workers=1, items=8 * 200, width=8)) as training:
        assert all(training.rate(0.01) > 0 for _ in range(2))
    assert not training.is_alive


def test_a_training_that_fails_says_how_it_ended() -> None:
    """The status of its process, and which job it was."""
    pytest.importorskip("torch")
    from benchmarks.train.whatif_jobs import Training

    with Training(Job(width=-1)) as training, pytest.raises(RuntimeError, match=r"status 1: Job\("):
        training.rate(0.01)
