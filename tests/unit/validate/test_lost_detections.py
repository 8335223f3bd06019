"""Which detections a candidate lost: counted without a threshold, with an interval, and drawn."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import cv2
import numpy as np
import pytest

from headrace.runs.formats.variants import WorstItem
from headrace.validate.detections import Boxes
from headrace.validate.golden import Golden
from headrace.validate.lost_detections import fewer_found, num_found, worst_detections
from headrace.validate.thumbnails import BOXED_SIDE, thumbnails


def boxes(*rows: Sequence[float], scores: Sequence[float] | None = None) -> Boxes:
    """Return boxes of rows x1, y1, x2, y2, class."""
    array = np.array(rows, float).reshape(-1, 5)
    return Boxes(
        array[:, :4], array[:, 4].astype(int), np.ones(len(array)) if scores is None else np.array(scores, float)
    )


TRUTH = boxes([0, 0, 10, 10, 1], [20, 20, 30, 30, 2])


@pytest.mark.parametrize(
    ("found", "num"),
    [
        (TRUTH, 2),
        (boxes(), 0),
        (boxes([0, 0, 10, 10, 2], [20, 20, 30, 30, 2]), 1),  # the first is of another class
        (boxes([0, 0, 10, 10, 1], [1, 1, 10, 10, 1]), 1),  # twice the same
        (boxes([0, 0, 10, 4, 1], [20, 20, 30, 29, 2]), 1),  # the first overlaps by 40 %
        (boxes([50, 50, 60, 60, 1], [0, 0, 10, 10, 1], [20, 20, 30, 30, 2], scores=[0.9, 0.5, 0.4]), 1),  # two count
    ],
)
def test_a_true_box_is_found_once_by_the_best_scored(found: Boxes, num: int) -> None:
    """Of its class, by half or more, among as many detections as there are true boxes."""
    assert num_found(TRUTH, found) == num


def test_the_share_of_lost_detections_has_an_interval() -> None:
    """One in ten of 400; none where nothing was found before; whole sources make it wider."""
    a, random = np.full(200, 2), np.random.default_rng(0)
    b = a - (random.random(200) < 0.2)
    found = fewer_found(a, b, None)
    assert found is not None
    low, mid, high = found
    assert low < mid < high
    assert mid == pytest.approx((a - b).sum() / 400)
    together = fewer_found(a, np.repeat(np.where(np.arange(20) < 2, 1, 2), 10), np.repeat(np.arange(20), 10))
    assert together is not None
    assert together[2] - together[0] > 2 * (high - low)
    assert fewer_found(np.zeros(5), np.zeros(5), None) is None


def test_the_worst_item_is_drawn_with_all_three() -> None:
    """Truth, incumbent and candidate beside one another, from the pixels that the model takes."""
    lost = worst_detections(
        [TRUTH, TRUTH],
        [TRUTH, TRUTH],
        [TRUTH, boxes([20, 20, 30, 30, 2])],
        np.array([0, 1]),
        most=5,
        files=(),
        name=str,
    )
    assert [(one.item, one.a, one.b, one.loss) for one in lost] == [(1, "2 found", "1 found", 0.5)]
    assert (len(lost[0].boxes), len(lost[0].boxes_a), len(lost[0].boxes_b)) == (2, 2, 1)
    inputs = np.random.default_rng(0).random((2, 3, 40, 40)).astype(np.float32)
    golden = Golden(name="golden.npz", inputs=inputs, labels=None, sha256="")
    address = thumbnails(lost, golden)[lost[0]]
    data = np.frombuffer(base64.b64decode(address.partition(",")[2]), np.uint8)
    picture = cv2.imdecode(data, cv2.IMREAD_COLOR)
    assert picture is not None
    assert picture.shape[0] == BOXED_SIDE
    assert picture.shape[1] > 3 * BOXED_SIDE


@pytest.mark.parametrize("shape", [(3, 40, 40), (3, 1, 3000)])
def test_what_cannot_be_drawn_to_scale_spoils_no_page(shape: tuple[int, int, int]) -> None:
    """Boxes that a broken detector finds far outside, and pictures of a pixel's height: a page comes after hours of search."""
    wild = boxes([-1e12, 0, 3e38, 10, 1], [0, 5, 30, 1e20, 1])
    (lost,) = worst_detections([TRUTH], [TRUTH], [wild], np.array([2]), most=1, files=(), name=str)
    golden = Golden(name="golden.npz", inputs=np.ones((1, *shape), np.float32), labels=None, sha256="")
    assert thumbnails([lost], golden)[lost].startswith("data:image/jpeg")
    plain = WorstItem(item=0, file="", label="", a="", b="", loss=1.0)
    assert thumbnails([plain], golden)[plain].startswith("data:image/jpeg")
