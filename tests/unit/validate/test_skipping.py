"""What looking at fewer frames costs: streams with known changes, and what a reader of files meets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import SettingsError
from headrace.cli import main
from headrace.cli.validate_frames import as_text
from headrace.ledger.ledger import Ledger
from headrace.runs.formats.skipping import SkippingDocument
from headrace.validate.skipping import Way, compare_ways, parse_ways, verdict_of


def write_clips(folder: Path, streams: dict[str, list[tuple[float, Any]]], labels: str) -> tuple[str, str]:
    """Write results and labels, and return their paths."""
    lines = [
        json.dumps(
            {
                "id": f"{stream}#{frame}",
                "attributes": {"stream": stream, "frame": frame, "seconds": seconds},
                "result": answer,
            }
        )
        for stream, frames in streams.items()
        for frame, (seconds, answer) in enumerate(frames)
    ]
    (folder / "all.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "labels.csv").write_text(f"stream,from,to,label\n{labels}")
    return str(folder / "all.jsonl"), str(folder / "labels.csv")


def by_hand(folder: Path) -> tuple[str, str]:
    """One clip of 12 frames at 1/s: a to second 4, b to 8, c to 12; the model is right but for frame 2."""
    answers = ["a", "a", "x", "a", "b", "b", "b", "b", "c", "c", "c", "c"]
    return write_clips(
        folder, {"s": [(float(n), {"label": one}) for n, one in enumerate(answers)]}, "s,0,4,a\ns,4,8,b\ns,8,12,c\n"
    )


def test_by_hand(tmp_path: Path) -> None:
    """Every third frame: 0, 3, 6, 9; it misses the wrong frame, and tells b two frames late and c one frame late."""
    document = compare_ways(*by_hand(tmp_path), [Way(3)], max_drop=0.2, event="c")
    reference, (one,) = document.reference, document.tried
    assert (reference.right, reference.work, reference.flips_per_minute * 11 / 60) == (11 / 12, 1.0, pytest.approx(2))
    assert (one.right, one.work, one.flips_per_minute) == (9 / 12, 4 / 12, 0.0)
    assert (one.changes, one.never_told, one.delay_seconds, one.delay_p90_seconds) == (3, 0, 1.0, 2.0)
    assert one.events is not None
    assert (one.events.total, one.events.found, one.events.false) == (1, 1, 0)
    assert one.drop == pytest.approx(2 / 12)


def test_a_change_between_two_frames_is_never_told(tmp_path: Path) -> None:
    """With every eighth frame b is not seen at all, and what is told at the same time as another label is made up."""
    document = compare_ways(*by_hand(tmp_path), [Way(8)], max_drop=0.2, event="b")
    (one,) = document.tried
    assert one.never_told == 1
    assert one.events is not None
    assert (one.events.found, one.events.total) == (0, 1)


def test_answers_that_are_none_of_the_labels(tmp_path: Path) -> None:
    """Numbers of classes against names would be 0 % right in every way, and none worse than another."""
    found = write_clips(tmp_path, {"s": [(float(n), {"label": n % 3}) for n in range(12)]}, "s,0,12,crossing\n")
    with pytest.raises(
        SettingsError, match=r"answers are '0', '1', '2', and labels 'crossing'; call both by the same names"
    ):
        compare_ways(*found, [Way(3)], max_drop=0.2)


def long_streams(folder: Path, wrong: int = 0) -> tuple[str, str]:
    """Ten minutes of five streams at 1/s whose label changes every 100 s; every so many-th frame is wrong."""
    streams, labels = {}, ""
    for number in range(5):
        frames: list[tuple[float, Any]] = []
        for frame in range(600):
            truth = frame // 100 % 2
            answer = 1 - truth if wrong and frame % wrong == wrong - 1 else truth
            scores = [0.6 - 0.2 * answer, 0.4 + 0.2 * answer]
            frames.append((float(frame), {"label": "ab"[answer], "scores": scores}))
        streams[f"s{number}"] = frames
        labels += "".join(f"s{number},{100 * one},{100 * one + 100},{'ab'[one % 2]}\n" for one in range(6))
    return write_clips(folder, streams, labels)


def test_enough_clips_prove_that_every_third_frame_will_do(tmp_path: Path) -> None:
    """A change every 100 s, told two seconds late at most: that is proved acceptable, and nine points of drop are refused."""
    document = compare_ways(*long_streams(tmp_path), [Way(3), Way(19)], max_drop=0.03)
    assert [one.outcome for one in document.tried] == ["passed", "rejected"]
    assert document.best == 0
    assert verdict_of(document) == "passed"
    assert "every 3 frames" in document.says
    assert document.stretches == 300


def test_smoothing_is_tried_by_the_names_of_the_answers(tmp_path: Path) -> None:
    """One wrong frame of ten flips the raw label and not the smoothed one, whose labels are those of the results."""
    document = compare_ways(*long_streams(tmp_path, wrong=10), [Way(1, 1.5)], max_drop=0.02)
    (one,) = document.tried
    assert document.reference.right == pytest.approx(0.9)
    assert one.right > 0.95
    assert one.flips_per_minute < document.reference.flips_per_minute / 5
    assert one.outcome == "passed"


def test_too_few_clips_decide_nothing(tmp_path: Path) -> None:
    """Of one stretch of ten seconds nothing is proved, and how many would do is said."""
    document = compare_ways(*by_hand(tmp_path), [Way(2)], max_drop=0.01)
    assert verdict_of(document) == "inconclusive"
    assert document.best is None


def test_ways_are_each_number_with_and_without_smoothing() -> None:
    """Every frame is the reference without smoothing, and one of the ways with it."""
    assert parse_ways("3,2,2", "0.25s") == [Way(), Way(2), Way(3), Way(1, 0.25), Way(2, 0.25), Way(3, 0.25)]
    for every, smooth in (("x", None), ("0", None), ("2", "no"), ("2", "-1"), ("", None), ("2", "nan"), ("2", "inf")):
        with pytest.raises(SettingsError):
            parse_ways(every, smooth)


@pytest.mark.parametrize(
    ("results", "labels", "says"),
    [
        ("", "s,0,4,a\n", "no frame"),
        ("{}\n", "s,0,4,a\n", "line 1"),
        ("[1]\n", "s,0,4,a\n", "line 1"),
        ("not json\n", "s,0,4,a\n", "line 1"),
        ("\xff\n", "s,0,4,a\n", "line 1"),
        (None, "", "no column"),
        (None, "s,4,0,a\n", "line 2"),
        (None, "s,0,nan,a\n", "line 2"),
        (None, "s,0,4\n", "line 2"),
        (None, "s,0,4,a\ns,3,5,b\n", "two labels"),
        (None, "other,0,4,a\n", "no frame .* called 's' there, and 'other' in --labels"),
        ('{"attributes": {"stream": "s", "frame": 0, "seconds": null}, "result": 1}\n', "s,0,4,a\n", "no time"),
        ('{"attributes": {"stream": "s", "frame": 0, "seconds": 0}, "result": null}\n', "s,0,4,a\n", "no label"),
        ('{"attributes": {"stream": "s", "frame": 0, "seconds": 0}, "result": true}\n', "s,0,4,a\n", "no label"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, results: str | None, labels: str, says: str) -> None:
    """Each says which line, or what does not fit."""
    found, truth = by_hand(tmp_path)
    Path(truth).write_text(f"stream,from,to,label\n{labels}" if labels else "a,b\n1,2\n")
    if results is not None:
        Path(found).write_text(results)
    with pytest.raises(SettingsError, match=says):
        compare_ways(found, truth, [Way(3)], max_drop=0.1)


def test_labels_that_judge_nothing_are_told(tmp_path: Path) -> None:
    """A stream that no result is of may be a wrong name, or of another run: the others are judged, and it is named."""
    found, truth = by_hand(tmp_path)
    assert compare_ways(found, truth, [Way(3)], max_drop=0.1).warnings == ()
    with Path(truth).open("a") as file:
        file.write("t,0,4,a\n")
    document = compare_ways(found, truth, [Way(3)], max_drop=0.1)
    assert document.streams == 1
    assert "1 stream of which" in document.warnings[0]
    assert "('t')" in as_text(document)


def test_a_file_of_two_runs_is_refused(tmp_path: Path) -> None:
    """Results are appended: one frame with two answers is of two runs; with the same one it counts once."""
    found, truth = by_hand(tmp_path)
    lines = Path(found).read_text().splitlines(keepends=True)
    Path(found).write_text("".join(lines + lines[:1]))
    compare_ways(found, truth, parse_ways("2", None), max_drop=0.5)
    Path(found).write_text("".join(lines) + lines[0].replace('"result":', '"result": "other", "was":'))
    with pytest.raises(SettingsError, match="has another answer above"):
        compare_ways(found, truth, parse_ways("2", None), max_drop=0.5)


def test_frames_that_were_skipped_already_are_refused(tmp_path: Path) -> None:
    """Results of a run with `every` cannot say what skipping costs."""
    found, truth = by_hand(tmp_path)
    Path(found).write_text("".join(line + "\n" for line in Path(found).read_text().splitlines()[::2]))
    with pytest.raises(SettingsError, match="6 of 11 frames"):
        compare_ways(found, truth, [Way(3)], max_drop=0.1)


def test_smoothing_without_scores_and_an_event_that_is_none(tmp_path: Path) -> None:
    """Both are said, with what was found instead."""
    files = by_hand(tmp_path)
    with pytest.raises(SettingsError, match="scores"):
        compare_ways(*files, [Way(1, 0.5)], max_drop=0.1)
    with pytest.raises(SettingsError, match="no such label"):
        compare_ways(*files, [Way(3)], max_drop=0.1, event="z")


def test_the_command_writes_each_way_into_the_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table, JSON, exit status, and an event for each way with its drop."""
    found, truth = long_streams(tmp_path)
    ledger = str(tmp_path / "ledger.sqlite")
    asked = ["validate", "--frames", found, "--labels", truth, "--every", "3", "--max-drop", "3pt", "--ledger", ledger]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "every 3" in said
    assert "passed" in said
    with Ledger.open(ledger) as opened:
        (event,) = opened.events.events("validation")
    assert (event.technique, event.verdict) == ("every=3", "passed")
    assert event.drop is not None
    assert main([*asked, "--json", "-o", str(tmp_path / "out.json")]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == SkippingDocument.__struct_defaults__[0]
    assert json.loads((tmp_path / "out.json").read_text())["best"] == 0


@pytest.mark.parametrize(
    "arguments",
    [["--frames", "a.jsonl"], ["a.onnx", "b.onnx", "--frames", "a.jsonl", "--labels", "l.csv"], [], ["a.onnx"],
     ["--frames", "none.jsonl", "--labels", "none.csv"]],
)  # fmt: skip
def test_commands_that_are_no_question(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Half of what is needed, or both questions at once: misuse."""
    assert main(["validate", *arguments]) == 2
    assert capsys.readouterr().err
