"""Masks: what IoU they have, in what layouts they are read, and whether one segmentation may replace another."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.errors import SettingsError
from headrace.cli import main
from headrace.runs.formats.variants import ValidationDocument
from headrace.validate import measuring
from headrace.validate.accuracy import judge_accuracy
from headrace.validate.golden import Golden
from headrace.validate.golden_gate import MOST_WORST, GateResult
from headrace.validate.metrics import metric_named
from headrace.validate.policy import Policy
from headrace.validate.segmentation import ClassOverlap, count_pixels
from headrace.validate.thumbnails import BOXED_SIDE, thumbnails


@pytest.fixture(autouse=True)
def few_draws() -> Iterator[None]:
    """200 tell these differences."""
    with measuring.using(max_draws=200):
        yield


def scores(classes: np.ndarray, num: int = 4) -> np.ndarray:
    """Return (items, classes, h, w) scores whose largest is the class."""
    return np.moveaxis(np.eye(num, dtype=np.float32)[classes], -1, 1)


def masks(num: int = 150, seed: int = 0) -> np.ndarray:
    """Return masks of stripes of three classes."""
    return np.random.default_rng(seed).integers(0, 3, (num, 8, 1), np.uint8).repeat(8, axis=2)


def test_iou_counted_by_hand() -> None:
    """Class 0: 2 shared of 3 in either; class 1: 1 of 2; the unknown pixel counts nowhere, and class 3 has no truth."""
    mask = np.array([[[0, 0, 1, 255]]])
    named = np.array([[[0, 0, 0, 1]]])
    assert ClassOverlap(count_pixels(scores(named), mask))(np.ones(1)) == pytest.approx([2 / 3, 0])
    better = np.array([[[0, 3, 1, 3]]])
    values = ClassOverlap(count_pixels(scores(better), mask))
    assert values.classes.tolist() == [0, 1]
    assert values(np.ones(1)) == pytest.approx([1 / 2, 1])


def test_pixels_are_added_up_before_they_are_divided() -> None:
    """A draw of an item twice counts its pixels twice: 1 of 4 and 4 of 4 come to 6 of 12 when the first is there twice."""
    mask = np.zeros((2, 2, 2), np.uint8)
    named = np.array([[[0, 1], [1, 1]], [[0, 0], [0, 0]]])
    values = ClassOverlap(count_pixels(scores(named), mask))
    assert values(np.array([1, 1])) == pytest.approx([5 / 8])
    assert values(np.array([2, 1])) == pytest.approx([6 / 12])
    assert np.isnan(values(np.zeros(2))).all()


def test_scores_and_class_numbers_say_the_same() -> None:
    """Scores of classes, numbers, numbers with an axis of one channel, and the output that torchvision calls out."""
    mask, named = masks(3), masks(3, seed=1).astype(np.int64)
    layouts: list[Any] = [scores(named), named, named[:, None], {"aux": named * 0, "out": scores(named)}]
    found = [np.stack(count_pixels(outputs, mask)) for outputs in layouts]
    assert all((one == found[0]).all() for one in found)


@pytest.mark.parametrize("outputs", [scores(masks(3))[:, :, :4], np.zeros((3, 1, 8, 8)), np.zeros((3, 5))])
def test_another_size_or_layout_is_told_with_what_was_seen(outputs: np.ndarray) -> None:
    """And the way out."""
    with pytest.raises(SettingsError, match=r"\[8, 8\]; the model gives.*MODULE:FUNCTION"):
        count_pixels(outputs, masks(3))


def test_masks_that_are_none_are_told() -> None:
    """A class below 0, and numbers with fractions."""
    for mask in (np.full((1, 8, 8), -2), np.zeros((1, 8, 8)), np.zeros((8, 8), int)):
        with pytest.raises(SettingsError, match="expected \\(items, h, w\\) whole numbers"):
            count_pixels(scores(masks(1)), mask)


def test_classes_that_do_not_fit_their_type_are_told() -> None:
    """255, which nobody knows, is -1 as int8, and class 200 is -56: what was seen, what is expected, and what to do."""
    for wrong, seen in ((255, -1), (200, -56)):
        mask = np.full((1, 8, 8), wrong, np.uint8)
        with pytest.raises(SettingsError, match=rf"truth_mask.*int8.*{seen} to {seen}.*0 to 254.*uint8"):
            count_pixels(scores(masks(1)), mask.view(np.int8))
    named = np.full((3, 8, 8), 200, np.uint8).view(np.int8)
    with pytest.raises(SettingsError, match=r"the model names.*int8.*-56.*0 to 254.*uint8"):
        count_pixels(named, masks(3))


def test_a_model_may_name_no_class() -> None:
    """-1 in a type that holds every class is a pixel that it gave no class: wrong, and no error."""
    assert ClassOverlap(count_pixels(np.full((3, 8, 8), -1), masks(3)))(np.ones(3)).max() == 0


def judged(truth: np.ndarray, b: np.ndarray) -> GateResult:
    """Judge a variant against a perfect incumbent."""
    golden = Golden(
        name="g", inputs=np.zeros((len(truth), 1)), labels=None, sha256="", truth={"mask": truth}
    )  # fmt: skip
    policy = Policy(max_drop=0.05, metric=metric_named("iou"), batch=len(truth))
    return judge_accuracy(
        lambda: iter([scores(truth)]), lambda: iter([b]), golden, policy, names=None, is_interrupted=lambda: False
    )


def test_one_that_names_the_same_passes_and_one_that_does_not_is_rejected() -> None:
    """A tenth of the rows are named otherwise: about a sixth of the IoU."""
    truth = masks()
    assert judged(truth, scores(truth)).gate.outcome == "passed"
    wrong = truth.copy()
    other = np.random.default_rng(3).random((150, 8)) < 0.1
    wrong[other] = (wrong[other] + 1) % 3
    rejected = judged(truth, scores(wrong))
    assert rejected.gate.outcome == "rejected"
    assert rejected.gate.values["drop"] == pytest.approx(1 - 0.9 / 1.1, abs=0.03)


def test_the_items_that_lost_most_are_drawn() -> None:
    """Their masks are asked for again, and outlined beside what is true and what the incumbent named; others are none."""
    truth = np.zeros((30, 20, 40), np.uint8)
    truth[:, 5:15, 10:20] = 1
    truth[:, 8:12, 30:36] = 2
    named = truth.copy()
    named[7] = 0  # all is lost
    named[4, 5:15, 15:20] = 0  # half of one of three
    inputs = np.random.default_rng(0).random((30, 3, 20, 40)).astype(np.float32)
    golden = Golden(name="g", inputs=inputs, labels=None, sha256="", truth={"mask": truth})
    asked: list[list[int]] = []

    def again(places: np.ndarray) -> tuple[Any, Any]:
        asked.append(places.tolist())
        return scores(truth[places]), scores(named[places])

    policy = Policy(max_drop=0.05, metric=metric_named("iou"), batch=30)
    worst = judge_accuracy(
        lambda: iter([scores(truth)]), lambda: iter([scores(named)]), golden, policy, names=["wall", "box", "lid"],
        is_interrupted=lambda: False, again=again,
    ).worst  # fmt: skip
    assert asked == [[7, 4]]
    assert [(one.item, one.label, one.a, one.b) for one in worst] == [
        (7, "wall, box, lid", "IoU 1.00", "IoU 0.28"), (4, "wall, box, lid", "IoU 1.00", "IoU 0.81"),
    ]  # fmt: skip
    lost = worst[0]
    assert [outline.name for outline in lost.outlines] == ["box", "lid"]
    assert (lost.outlines_a, lost.outlines_b) == (lost.outlines, ())
    xs, ys = zip(*lost.outlines[0].points, strict=True)
    assert (min(xs), max(xs), min(ys), max(ys)) == pytest.approx((10.5 / 40, 19.5 / 40, 5.5 / 20, 14.5 / 20), abs=1e-3)
    pictures = thumbnails(worst, golden)
    assert len({pictures[one] for one in worst}) == 2
    drawn = cv2.imdecode(np.frombuffer(base64.b64decode(pictures[lost].partition(",")[2]), np.uint8), cv2.IMREAD_COLOR)
    assert drawn is not None
    assert drawn.shape[1] > 3 * BOXED_SIDE
    plain = thumbnails([msgspec.structs.replace(lost, outlines=(), outlines_a=(), outlines_b=())], golden)
    assert pictures[lost] not in plain.values()


def test_the_page_of_a_validation_shows_lost_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line: the first of two channels is the class, and the candidate answers with the second."""
    random = np.random.default_rng(0)
    for name, weights in (("a", [[1, 0, 0], [0, 1, 0]]), ("b", [[0, 1, 0], [1, 0, 0]])):
        graph = helper.make_graph(
            [helper.make_node("Conv", ["x", "w"], ["masks"])], "tiny",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16])],
            [helper.make_tensor_value_info("masks", TensorProto.FLOAT, ["batch", 2, 16, 16])],
            [numpy_helper.from_array(np.array(weights, np.float32).reshape(2, 3, 1, 1), "w")],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / f"{name}.onnx")
    inputs = random.random((40, 3, 16, 16)).astype(np.float32)
    inputs[:, 0, 4:12, 4:12] += 1
    inputs[:, 1] += 0.5
    np.savez(tmp_path / "golden.npz", inputs=inputs, truth_mask=inputs[:, :2].argmax(axis=1).astype(np.uint8))
    command = ["validate", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--golden", str(tmp_path / "golden.npz")]
    assert main([*command, "--metric", "iou", "--report", str(tmp_path / "page.html"), "--json"]) == 1
    document = msgspec.json.decode(capsys.readouterr().out, type=ValidationDocument)
    assert len(document.worst) == MOST_WORST
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/jpeg") == MOST_WORST
    assert "Pictures of masks" in page


def test_an_incumbent_that_names_other_classes_shows_nothing() -> None:
    """Both agree, and on nothing that is true; what masks and outputs must agree on is said, and nothing of boxes."""
    truth = masks()
    golden = Golden(name="g", inputs=np.zeros((150, 1)), labels=None, sha256="", truth={"mask": truth + 3})
    policy = Policy(max_drop=0.05, metric=metric_named("iou"), batch=150)
    ask: Any = {"names": None, "is_interrupted": lambda: False}
    answers = scores(truth)
    gate = judge_accuracy(lambda: iter([answers]), lambda: iter([answers]), golden, policy, **ask).gate
    assert gate.outcome == "inconclusive"
    assert "finds next to nothing: the numbers of a mask" in gate.says
    assert "boxes" not in gate.says
