"""Detectors held against one another on traffic, and when a running pipeline takes another model up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.base.plan import ModelPlan
from headrace.validate.agreement import Agreement
from headrace.validate.detections import OVERLAP, Boxes, detections_in
from headrace.validate.meanings import SURE, Detections
from headrace.validate.shadow import ShadowRecord
from headrace.validate.switching import explain_no_switch

SAME = Detections()
NEW = ModelPlan(artifact="new.onnx", engine="onnx")


def boxes(*rows: tuple[float, ...]) -> Boxes:
    """Return detections of rows x1, y1, x2, y2, class, score."""
    array = np.array(rows, float).reshape(-1, 6)
    return Boxes(array[:, :4], array[:, 4].astype(int), array[:, 5])


CAT, DOG = (0, 0, 10, 10, 0, 0.9), (20, 20, 40, 40, 1, 0.8)
MOVED = (1, 0, 11, 10, 0, 0.7)


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        ([], [], True),
        ([CAT, DOG], [DOG, CAT], True),
        ([CAT], [MOVED], True),
        ([CAT], [], False),
        ([], [CAT], False),
        ([CAT], [(*CAT[:4], 1, 0.9)], False),
        ([CAT], [(5, 5, 15, 15, 0, 0.9)], False),
        ([CAT, MOVED], [CAT], False),
        ([CAT], [CAT, (50, 50, 60, 60, 0, 0.3)], True),
        ([(*CAT[:5], 0.51)], [(*CAT[:5], 0.49)], True),
        ([(*CAT[:5], 0.49)], [(*CAT[:5], 0.51)], True),
    ],
)
def test_what_is_alike(a: list[Any], b: list[Any], alike: bool) -> None:
    """Order, small shifts, unsure boxes and scores about a half change nothing; a lost, new or renamed object does."""
    assert (SAME.same(boxes(*a), boxes(*b)) >= SAME.least) is alike


@pytest.mark.parametrize("seed", range(20))
def test_boxes_are_matched_as_the_library_matches_them(seed: int) -> None:
    """Sure boxes in crowds that overlap one another: all have one of their own exactly if pycocotools finds one for each."""
    pytest.importorskip("pycocotools")
    from headrace.validate.coco import _evaluation, _quiet

    random = np.random.default_rng(seed)
    corner, size = random.uniform(0, 8, (2, 4, 2)), random.uniform(18, 22, (2, 4, 2))
    found, others = (
        Boxes(np.concatenate([low, low + wide], axis=1), np.zeros(4, int), random.permutation(4) / 10 + SURE + 0.05)
        for low, wide in zip(corner, size, strict=True)
    )
    matched = []
    for truth, own in ((others, found), (found, others)):
        evaluation = _evaluation([truth], [own], np.array([0]), np.array([OVERLAP]))
        with _quiet():
            evaluation.evaluate()
        matched.append(bool((evaluation.evalImgs[0]["dtMatches"] > 0).all()))
    assert (SAME.same(found, others) >= SAME.least) is all(matched)


def padded(images: list[list[Any]], rows: int) -> dict[str, np.ndarray]:
    """Return outputs of a batch, filled up to so many rows."""
    out = {
        "boxes": np.zeros((len(images), rows, 4), np.float32),
        "labels": np.full((len(images), rows), -1),
        "scores": np.zeros((len(images), rows), np.float32),
    }
    for number, image in enumerate(boxes(*one) for one in images):
        size = len(image.classes)
        out["boxes"][number, :size], out["labels"][number, :size] = image.boxes, image.classes
        out["scores"][number, :size] = image.scores
    return out


def six(images: list[list[Any]], rows: int) -> np.ndarray:
    """Return the same as one output of six columns."""
    named = padded(images, rows)
    return np.concatenate(
        [named["boxes"], named["scores"][..., None], named["labels"].clip(0)[..., None]], axis=2
    ).astype(np.float32)


@pytest.mark.parametrize("layout", [padded, six])
def test_other_numbers_of_rows_are_matched(layout: Any) -> None:
    """Only the item that lost something has changed."""
    changed = Agreement(SAME).add(layout([[CAT], [CAT, DOG]], 2), layout([[MOVED], [DOG]], 7))
    assert changed.tolist() == [0, 1]


def test_six_columns_that_hold_no_boxes_are_no_detections() -> None:
    """Features have numbers below 0, scores above 1 and labels with fractions."""
    assert detections_in(np.random.default_rng(0).standard_normal((4, 5, 6))) is None
    assert detections_in(np.ones((4, 10))) is None


def test_a_shadow_of_a_detector_is_judged_by_what_it_finds() -> None:
    """Other rows and another order are no disagreement; a lost object is one."""
    same, blind = ShadowRecord("candidate", 0.02), ShadowRecord("candidate", 0.02)
    for _ in range(200):
        incumbent = padded([[CAT, DOG]] * 4, 3)
        same.add(incumbent, padded([[DOG, MOVED]] * 4, 5), 0.02, 0.01)
        blind.add(incumbent, padded([[DOG], [CAT, DOG]] * 2, 5), 0.02, 0.01)
    assert (same.document().advice, same.document().disagreement) == ("promote", 0)
    document = blind.document()
    assert (document.advice, document.num_items) == ("roll back", 800)
    assert document.disagreement == pytest.approx(0.5)
    assert "compared as detections" in document.says


def test_what_no_one_can_match_is_told_with_what_can_be() -> None:
    """Other numbers of rows under names that say nothing."""
    record = ShadowRecord("candidate", 0.02)
    with pytest.raises(ValueError, match=r"\[2, 3, 5\], B \[2, 4, 5\].*boxes \(items, n, 4\)"):
        record.add({"dets": np.ones((2, 3, 5))}, {"dets": np.ones((2, 4, 5))}, 0.02, 0.01)


def test_a_shadow_that_finds_what_is_no_number_is_rejected() -> None:
    """In an image alone as torchvision gives it, in which the one found three and the other one."""
    record = ShadowRecord("candidate", 0.02)
    wrong = {name: array[0] for name, array in padded([[CAT]], 1).items()}
    wrong["boxes"] = np.full((1, 4), np.nan, np.float32)
    record.add({name: array[0] for name, array in padded([[CAT, DOG, MOVED]], 3).items()}, wrong, 0.02, 0.01)
    assert (record.document().advice, record.document().broken) == ("roll back", 1)


def test_a_detector_may_take_over_that_finds_the_same() -> None:
    """In batches that are filled up to other numbers of rows, each."""
    before = [padded([[CAT], [DOG]], 1), padded([[CAT, DOG]], 2)]
    assert explain_no_switch(before, [padded([[MOVED], [DOG]], 4), padded([[DOG, CAT]], 3)], NEW) is None
    blind = explain_no_switch(before, [padded([[], []], 4), padded([[DOG, CAT]], 3)], NEW)
    assert blind is not None
    assert "2 of 3 items" in blind
    broken = padded([[CAT], [DOG]], 1)
    broken["scores"][0] = np.nan
    refusal = explain_no_switch(before, [broken, before[1]], NEW)
    assert refusal is not None
    assert "NaN" in refusal


def test_answers_of_changing_shapes_that_are_no_detections_are_refused_with_the_way_out() -> None:
    """As many rows as some item of the batch needs, under names that say nothing: nobody can hold them against one another."""
    before = [{"out": np.ones((2, 3, 5))}, {"out": np.ones((2, 4, 5))}]
    refusal = explain_no_switch(before, before, NEW)
    assert refusal is not None
    assert "[2, 3, 5]" in refusal
    assert "start the run again" in refusal
