"""Rounds, verdicts, estimates, tables and golden candidates of a folder."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import RunFolderError, SettingsError
from headrace.monitor.review.golden import write_golden
from headrace.monitor.review.reviewing import Review
from headrace.monitor.review.table import read_table, write_table
from headrace.monitor.review.verdicts import read_verdicts
from headrace.runs.formats.review import AnswerBox, VerdictLine
from headrace.validate.annotations import read_marks
from tests.unit.monitor.review.folders import make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with 300 answers."""
    return make_folder(tmp_path / "kept", {"cat": 200, "dog": 90, "=1+1": 10})


def _say(review: Review, num: int, verdict: str = "correct", label: str = "") -> list[str]:
    items = review.list_open(num)
    review.record([VerdictLine(item=item, verdict=verdict, label=label) for item in items])  # type: ignore[arg-type]
    return items


def test_a_round_stays_as_it_was_drawn(folder: Path) -> None:
    """What comes later is for the next round; verdicts are kept over both."""
    first = Review(folder)
    items = _say(first, 5)
    make_folder(folder, {"cat": 100}, seed=2)
    again = Review(folder)
    assert again.round == first.round
    assert again.count_reviewed() == 5
    assert again.estimate().overall.num_answers == 300
    both = Review(folder, is_new=True)
    assert (both.round.number, both.estimate().overall.num_answers) == (2, 400)
    assert both.verdict_of(items[0]) is not None
    assert Review(folder, 1).round == first.round
    with pytest.raises(RunFolderError, match="no round 7; it has 1, 2"):
        Review(folder, 7)


def test_the_estimate_follows_the_verdicts(folder: Path) -> None:
    """Overall, by class, and whoever reviews out of turn waits for those before."""
    review = Review(folder)
    assert review.estimate().overall.accuracy is None
    _say(review, 20)
    wrong = _say(review, 5, "wrong", "cow")
    found = review.estimate()
    assert found.overall.accuracy is not None
    assert 0.6 < found.overall.accuracy < 1
    assert found.overall.low < found.overall.accuracy < found.overall.high
    assert (found.overall.num_reviewed, found.overall.num_wrong) == (25, 5)
    assert sum(one.num_reviewed for one in found.by_class) == 25
    assert found.by_arm == ()
    assert "cow" in review.list_names()
    late = review.list_open(9)[-1]
    review.record([VerdictLine(item=late, verdict="correct")])
    assert (review.estimate().overall.num_reviewed, review.estimate().num_waiting) == (25, 1)
    assert Review(folder).estimate() == review.estimate()
    assert len(wrong) == 5


def test_arms_have_estimates_of_their_own(tmp_path: Path) -> None:
    """The canary's answers beside the stable model's."""
    folder = make_folder(tmp_path / "kept", {"cat": 60}, arm="stable")
    make_folder(folder, {"cat": 20}, seed=2, arm="canary")
    review = Review(folder)
    _say(review, 30)
    assert {one.name: one.num_answers for one in review.estimate().by_arm} == {"stable": 60, "canary": 20}


def test_undo_takes_back_what_was_said_together(folder: Path) -> None:
    """Also what had been said of an item before, and on disk."""
    review = Review(folder)
    (item,) = _say(review, 1)
    review.record([VerdictLine(item=item, verdict="wrong", label="cow")])
    assert review.undo() == [item]
    said = Review(folder).verdict_of(item)
    assert said is not None
    assert said.verdict == "correct"
    assert review.undo() == [item]
    assert review.undo() == []
    assert read_verdicts(folder) == ({}, [])


def test_what_is_no_item_is_refused_as_a_whole(folder: Path) -> None:
    """Nothing of it is written."""
    review = Review(folder)
    good = review.list_open(1)[0]
    with pytest.raises(SettingsError, match="no item of round 1"):
        review.record([VerdictLine(item=good, verdict="correct"), VerdictLine(item="x/y", verdict="correct")])
    assert review.verdict_of(good) is None


def test_a_line_that_was_cut_off_harms_no_other(folder: Path) -> None:
    """A full disk, a crash: the next line begins at a new one, and the damaged one is said."""
    review = Review(folder)
    items = _say(review, 2)
    file = folder / "verdicts.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    again = Review(folder)
    assert len(again.problems) == 1
    assert "line 2 is no verdict" in again.problems[0]
    assert again.list_open(1) == [items[1]]
    _say(again, 1)
    assert Review(folder).count_reviewed() == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"number": "x"}', b"[" * 10_000])
def test_a_damaged_round_is_said(folder: Path, content: bytes) -> None:
    """With what to do."""
    Review(folder)
    (folder / "rounds" / "001.json").write_bytes(content)
    with pytest.raises(RunFolderError, match="--new-round"):
        Review(folder)


def test_an_empty_folder_says_what_is_expected(tmp_path: Path) -> None:
    """And one that there is not."""
    with pytest.raises(RunFolderError, match="nothing is kept"):
        Review(tmp_path)
    with pytest.raises(RunFolderError, match="no review folder"):
        Review(tmp_path / "none")


def test_items_whose_pictures_are_gone_are_unsure(folder: Path) -> None:
    """What was made room for cannot be reviewed any more; the estimate counts it both ways."""
    review = Review(folder)
    items = _say(review, 10)
    (sample,) = (folder / "samples").iterdir()
    document = json.loads((sample / "sample.json").read_bytes())
    document["items"] = [one for one in document["items"] if f"{sample.name}/{one['key']}" in items]
    (sample / "sample.json").write_text(json.dumps(document))
    found = Review(folder).estimate()
    assert (found.num_to_review, found.overall.num_unsure) == (0, len(review.round.draws) - 10)
    assert found.overall.low < review.estimate().overall.high


def test_a_table_goes_out_and_comes_back(folder: Path, tmp_path: Path) -> None:
    """Filled in by hand; a formula is none any more; a label alone makes an answer right or wrong."""
    review = Review(folder)
    table = tmp_path / "items.csv"
    table.write_text(write_table(review))
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["item"] for row in rows] == [one.item for one in review.round.draws]
    assert all(Path(row["picture"]).is_file() for row in rows)
    assert {row["answer"] for row in rows} == {"cat", "dog", "'=1+1"}
    rows[0]["verdict"], rows[1]["label"], rows[2]["label"] = "Wrong", rows[1]["answer"], "cow"
    with table.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    review.record(read_table(table))
    said = [review.verdict_of(one.item) for one in review.round.draws[:4]]
    assert said[0] is not None
    assert said[0].label == ""
    assert [None if one is None else one.verdict for one in said] == ["wrong", "correct", "wrong", None]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no column item, verdict"),
        (b"item,verdict\nx/y,perhaps\n", "line 2: the verdict 'perhaps'"),
        (b"\xff\xfe", "is not UTF-8"),
        (b'item,verdict\nx,"' + b"y" * 200_000, "line|none of"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    """With the line."""
    table = tmp_path / "items.csv"
    table.write_bytes(content)
    with pytest.raises(SettingsError, match=says):
        read_table(table)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_table(tmp_path / "none.csv")


def test_reviewed_items_become_candidates_of_a_golden_set(folder: Path, tmp_path: Path) -> None:
    """Correct ones with the answer, wrong ones with the label; those without a label are left out."""
    review = Review(folder)
    _say(review, 3)
    _say(review, 2, "wrong", "cow")
    _say(review, 1, "wrong")
    _say(review, 1, "unsure")
    assert write_golden(review, tmp_path / "golden") == (5, 1)
    rows = [json.loads(line) for line in (tmp_path / "golden" / "labels.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows][-2:] == ["cow", "cow"]
    assert all((tmp_path / "golden" / row["file"]).is_file() and row["source"] for row in rows)
    with pytest.raises(SettingsError, match="not empty"):
        write_golden(review, tmp_path / "golden")


def test_boxes_become_candidates_too(tmp_path: Path) -> None:
    """Those of the answer where it is correct, those that were left and drawn where it is wrong; `validate` can read them."""
    found = AnswerBox(name="cat", score=0.9, x1=0.25, y1=0.5, x2=0.75, y2=1.0)
    drawn = AnswerBox(name="7", score=None, x1=0.0, y1=0.0, x2=0.5, y2=0.25)
    review = Review(make_folder(tmp_path / "kept", {"cat": 20}, boxes=[found]))
    _say(review, 1)
    for boxes in ((found, drawn), (), None):
        review.record([VerdictLine(item=review.list_open(1)[0], verdict="wrong", boxes=boxes)])
    assert write_golden(review, tmp_path / "golden") == (3, 1)
    rows = [json.loads(line) for line in (tmp_path / "golden" / "labels.jsonl").read_text().splitlines()]
    assert [row["classes"] for row in rows] == [["cat"], ["cat", 7], []]
    assert rows[1]["boxes"] == [[8.0, 12.0, 24.0, 24.0], [0.0, 0.0, 16.0, 6.0]]
    read = [read_marks(row, ["bird", "cat"], "line", tmp_path) for row in (rows[0], rows[2])]
    assert [marks.classes.tolist() for marks in read if marks is not None and marks.classes is not None] == [[1], []]
    again, _ = read_verdicts(tmp_path / "kept")
    assert {one.boxes for one in again.values()} == {(found, drawn), (), None}


def test_no_golden_set_of_nothing_or_of_blurred_pictures(folder: Path, tmp_path: Path) -> None:
    """It says why."""
    with pytest.raises(SettingsError, match="no reviewed item"):
        write_golden(Review(folder), tmp_path / "a")
    blurred = make_folder(tmp_path / "blurred", {"cat": 9}, blur=True)
    review = Review(blurred)
    _say(review, 2)
    with pytest.raises(SettingsError, match="blurred"):
        write_golden(review, tmp_path / "b")


def test_a_folder_that_cannot_be_written_is_said(folder: Path) -> None:
    """Before anybody believes that a verdict is kept."""
    review = Review(folder)
    (folder / "verdicts.jsonl").mkdir()
    with pytest.raises(RunFolderError, match=r"verdicts.jsonl cannot be written"):
        _say(review, 1)
    assert review.count_reviewed() == 0
    assert not msgspec.to_builtins(review.estimate())["num_waiting"]
    assert os.listdir(folder / "verdicts.jsonl") == []


def test_each_item_has_the_probability_with_which_it_was_kept(folder: Path) -> None:
    """In the table, for who estimates by other means: 40 of a class's answers by chance, and of the least certain all."""
    review = Review(folder)
    rows = list(csv.DictReader(write_table(review).splitlines()))
    cells = {(one.name, one.why): one for one in review.round.cells}
    assert {row["probability"] for row in rows if "least_certain" in row["why"]} == {"1"}
    cat = cells["cat", "random"]
    assert cat.num_kept < cat.num_answers
    told = {row["probability"] for row in rows if row["answer"] == "cat" and row["why"] == "random"}
    assert told == {f"{cat.num_kept / cat.num_answers:.6g}"}
