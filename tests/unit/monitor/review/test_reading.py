"""What a result comes to: a class, how sure it is, boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.base.meaning import Declared
from headrace.monitor.review.reading import Frame, ResultReader
from headrace.stages.placement import Placement
from headrace.validate.meaning_choice import meaning_of
from headrace.validate.meanings import Classes, Detections

#: An image of 400 x 200 pixels, halved and cut to its middle 100 x 100.
PLACED = Frame(Placement(image=(200, 400), scaled=(100, 200), top=0, left=50, size=(100, 100)))


@pytest.mark.parametrize(
    ("result", "name", "certainty"),
    [
        ("cat", "cat", None),
        (1, "dog", None),
        (7, "7", None),
        (True, "True", None),
        (("cat", 0.5), "cat", 0.5),
        ({"label": "cat", "score": 0.25}, "cat", 0.25),
        ({"class": 1, "confidence": np.float32(0.5)}, "dog", 0.5),
        ({"label": "cat", "score": 3.1}, "cat", None),
        ({"label": "cat", "score": float("nan")}, "cat", None),
        ({"text": "a line"}, "", None),
        ([{"label": "cat", "score": 0.3}, {"label": "dog", "score": 0.9}], "dog", 0.3),
        ([], "", None),
        (0.25, "", None),
        (None, "", None),
        ("x" * 500, "", None),
        ([1, [2, {"three": object()}]], "", None),
    ],
)
def test_names_that_people_use_are_read(result: Any, name: str, certainty: float | None) -> None:
    """A class is what is called one, by its name where that is known; all else is of no class, and raises nothing."""
    read = ResultReader(names=("cat", "dog"))(result)
    assert (read.name, read.certainty) == (name, certainty)


def test_scores_are_read_by_their_meaning() -> None:
    """Logits become probabilities; the class has its name."""
    reader = ResultReader(Declared(), ("cat", "dog"), meaning_of)
    read = reader(np.array([0.0, np.log(3)], np.float32))
    assert read.name == "dog"
    assert read.certainty == pytest.approx(0.75)


def test_several_classes_are_as_sure_as_the_least_sure() -> None:
    """Labels that are scores for themselves: 0.5 is no decision at all."""
    reader = ResultReader(Declared(Classes(scale="labels")), (), meaning_of)
    assert reader(np.array([0.9, 0.45, 0.1], np.float32)).certainty == pytest.approx(0.55)


def test_detections_of_a_model_have_boxes_in_the_picture() -> None:
    """Pixels of the model's input become shares of it."""
    reader = ResultReader(Declared(Detections(sure=0.5)), ("cat", "dog"), meaning_of)
    result = {
        "boxes": np.array([[10.0, 20, 60, 70], [0, 0, 5, 5]], np.float32),
        "labels": np.array([1, 0]),
        "scores": np.array([0.9, 0.6], np.float32),
    }
    read = reader(result, PLACED)
    assert [(one.name, one.x1, one.y2) for one in read.boxes] == [("dog", 0.1, 0.7), ("cat", 0.0, 0.05)]
    assert read.name == "dog"
    assert read.certainty == pytest.approx(0.6, abs=1e-6)


def test_boxes_of_results_are_in_the_image_that_came() -> None:
    """They go through the placement, unless the original is shown."""
    result = [{"label": "cat", "score": 0.9, "box": [100, 50, 300, 150]}]
    (cut,) = ResultReader()(result, PLACED).boxes
    assert (cut.x1, cut.y1, cut.x2, cut.y2) == (0.0, 0.25, 1.0, 0.75)
    (whole,) = ResultReader()(result, Frame(PLACED.placement, is_original=True)).boxes
    assert (whole.x1, whole.y1, whole.x2, whole.y2) == (0.25, 0.25, 0.75, 0.75)
    (share,) = ResultReader()({"boxes": [[0.1, 0.2, 0.3, 0.4]], "labels": ["cat"]}).boxes
    assert (share.x1, share.y2, share.score) == (0.1, 0.4, None)
    assert ResultReader()(result).boxes == ()
