"""The what-if benchmark: what it comes to, and whether that is enough."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks import whatif_error
from benchmarks.whatif_cases import PIPELINES, WHAT_IFS
from benchmarks.whatif_error import (
    MOST_ROUNDS,
    ROWS,
    Row,
    as_text,
    coverage,
    errors,
    full_length,
    measure_all,
    missed,
    summarize,
    until_sure,
)
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate


def test_errors_are_of_ratios_and_signs_of_those_that_matter() -> None:
    """10 % too high and 50 % too low; of the two that changed by more than 5 %, one went the other way."""
    found = errors([(1.1, 1.0), (0.6, 1.2), (2.0, 2.0), (None, 3.0)])
    assert (found["n"], found["max"], found["p90"]) == (3, pytest.approx(0.5), pytest.approx(0.5))
    assert found["mean"] == pytest.approx(0.2)
    assert (found["sign_right"], found["n_signed"]) == (0.5, 2)


def test_a_goal_that_is_missed_is_said() -> None:
    """Each of them alone; nothing measured misses what it takes to tell."""
    good = {"n": 60, "mean": 0.05, "p90": 0.10, "max": 0.15, "sign_right": 0.95, "coverage": 0.86}
    assert missed(good) == []
    for key, bad in {"n": 59, "mean": 0.051, "p90": 0.101, "max": 0.16, "sign_right": 0.94, "coverage": 0.85}.items():
        assert len(missed(good | {key: bad})) == 1
    assert missed({"n": 0, "mean": None, "p90": None, "max": None, "sign_right": None, "coverage": None})


@pytest.mark.parametrize(("noise", "pairs"), [(0.01, 2), (0.3, 2 * MOST_ROUNDS)])
def test_pairs_that_disagree_are_run_again(noise: float, pairs: int) -> None:
    """Up to a limit; all pairs are kept, in their order."""
    before, after = until_sure(lambda number: (100.0, 100.0 * (1 + number % 2 * noise)), 2)
    assert before == (100.0,) * pairs
    assert after == (100.0, 100.0 * (1 + noise)) * (pairs // 2)


def test_another_speed_of_the_cores_is_another_machine() -> None:
    """Such a change is not scored, and said to be so."""
    row = Row(
        pipeline="line",
        says="a",
        change=Change(),
        predicted=Estimate(1, 1, 1),
        measured=Estimate(2, 2, 2),
        core_speed=1.2,
    )
    rows = [row, msgspec.structs.replace(row, core_speed=1.05)]
    result = summarize(rows)
    assert (result["n"], result["disturbed"]) == (1, 1)
    assert "cores 1.20 times as fast" in as_text({**result, "frozen": False, "interrupted": False, "cases": rows})


def test_what_was_measured_to_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going on measures the pipelines that are missing or unfinished, and their old rows are gone."""
    chosen = {name: WHAT_IFS[name][:2] for name in ("line", "article")}
    rows = [
        Row(pipeline=name, says=says, change=Change())
        for name, says in (("line", "a"), ("line", "b"), ("article", "c"))
    ]
    (tmp_path / ROWS).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    asked = []

    def run(self: object, pipeline: str, what_ifs: object) -> list[Row]:
        asked.append(pipeline)
        return [Row(pipeline=pipeline, says="new", change=Change())] * 2

    monkeypatch.setattr(whatif_error.Runner, "run", run)
    result = measure_all(chosen, tmp_path, tmp_path / "ledger.sqlite", full_length, resume=True)
    assert asked == ["article"]
    assert [(row["pipeline"], row["says"]) for row in result["cases"]] == [
        ("line", "a"), ("line", "b"), ("article", "new"), ("article", "new"),
    ]  # fmt: skip


def test_another_device_is_known_by_what_warm_up_measures() -> None:
    """Its cost curve, of the whole stage and not of the device alone, goes to the prediction; nothing else changes."""
    changes = [one for one in WHAT_IFS["device_heavy"] if one.has_other_device]
    assert len(changes) == 3
    case = PIPELINES["device_heavy"]()
    curve = changes[0].with_curve(case).change.cost_curves["process"]
    assert set(curve) == {1, 2, 4, 8, 16}
    assert all(seconds > 2 * (0.004 + 0.004 * size) for size, seconds in curve.items()), "image and mirror image"
    plain = WHAT_IFS["device_heavy"][0]
    assert plain.with_curve(case) is plain


def test_coverage_is_told_by_kind_with_the_width_that_it_took() -> None:
    """One of two held, the other's range was touched; both were 10 % on either side."""
    told = Estimate(1 / 1.1, 1.0, 1.1)
    found = coverage([(told, Estimate(1.0, 1.05, 1.1)), (told, Estimate(1.0, 1.2, 1.3))])
    assert (found["n"], found["inside"], found["overlap"]) == (2, 0.5, 1.0)
    assert found["width"] == pytest.approx(0.1)
