"""The benchmark's networks solve their tasks, and judges come to what it claims, on a defect and an honest variant of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import planted_meanings
from benchmarks.planted_meanings import Task, calls, detector, embedder, judged, recogniser, segmenter
from headrace.base.meaning import Declared
from headrace.validate.meaning_choice import meaning_of

MAKERS = {one.__name__: one for one in (detector, recogniser, segmenter, embedder)}
MEANINGS = {"detector": "detections", "recogniser": "text", "segmenter": "masks", "embedder": "embeddings"}


@pytest.mark.parametrize("name", MAKERS)
def test_the_tasks_have_meanings_that_are_found(tmp_path: Path, name: str) -> None:
    """Nothing is declared, and the answers differ from item to item."""
    task = MAKERS[name](tmp_path, 16)
    answers = calls(str(task.model), task.items, 2)
    meaning = meaning_of(answers, Declared(metadata=task.metadata))
    assert meaning.name == MEANINGS[name]
    first = meaning.read(answers[0])
    assert min(meaning.same(first[0], one) for one in first[1:]) < meaning.least


def test_the_detector_finds_what_was_drawn(tmp_path: Path) -> None:
    """One or two objects in each item, within a pixel of where they are."""
    task = detector(tmp_path, 8)
    meaning = meaning_of(calls(str(task.model), task.items, 1), Declared(metadata=task.metadata))
    found = meaning.read(calls(str(task.model), task.items, 1)[0])
    for item, boxes in zip(task.items, found, strict=True):
        drawn = item.max(axis=0) > 0.5
        sure = boxes.boxes[boxes.scores > 0.6].round().astype(int)
        seen = np.zeros_like(drawn)
        for left, top, right, bottom in sure:
            seen[top:bottom, left:right] = True
        assert 1 <= len(sure) <= 2
        assert (seen & drawn).sum() / (seen | drawn).sum() > 0.9


@pytest.mark.full
@pytest.mark.parametrize("pick", [planted_meanings.defects, lambda: planted_meanings.honest(list(MAKERS))])
def test_one_of_each_is_judged_as_claimed(tmp_path: Path, pick: Callable[[], object]) -> None:
    """The first of each task: by the gate that is named, by the judge of a switch and by the shadow."""
    tasks: dict[str, Task] = {name: make(tmp_path, 160) for name, make in MAKERS.items()}
    firsts = {one.task: one for one in reversed(list(pick()))}  # type: ignore[call-overload]
    for variant in firsts.values():
        row = judged(variant, tasks[variant.task], tmp_path / "b.onnx", 0.05)
        wrong = bool(variant.gates)
        assert (row["gate"] in variant.gates) is wrong, row
        assert row["verdict"] == ("reject" if wrong else "accept"), row
        assert (bool(row["follow"]), row["shadow"]) == ((True, "roll back") if wrong else (False, "promote")), row
