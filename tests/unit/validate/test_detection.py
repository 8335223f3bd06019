"""Boxes: what average precision they have, in what layouts they are read, and whether one detector may replace another."""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.errors import MissingExtra, SettingsError
from headrace.cli import main
from headrace.validate import measuring
from headrace.validate.accuracy import judge_accuracy
from headrace.validate.box_heads import boxes_found
from headrace.validate.coco import THRESHOLDS, AveragePrecision, _dataset, _evaluation, _quiet
from headrace.validate.detections import Boxes, read_boxes, true_boxes
from headrace.validate.golden import Golden
from headrace.validate.golden_gate import GateResult
from headrace.validate.metrics import metric_named
from headrace.validate.model_speed import Timing
from headrace.validate.parity import compare_outputs, num_broken
from headrace.validate.policy import Policy


@pytest.fixture(autouse=True)
def short() -> Iterator[None]:
    """What is timed here is not looked at, and 200 draws tell these differences."""
    with measuring.using(timing=Timing(0.0005), max_draws=200):
        yield


def boxes(*rows: Sequence[float], scores: Sequence[float] | None = None) -> Boxes:
    """Return boxes of rows x1, y1, x2, y2, class."""
    array = np.array(rows, float).reshape(-1, 5)
    return Boxes(
        array[:, :4], array[:, 4].astype(int), np.ones(len(array)) if scores is None else np.array(scores, float)
    )


def scene(num: int = 200, seed: int = 0) -> tuple[list[Boxes], list[Boxes]]:
    """Return what is in images and what a detector finds: some missed, some made up, all a little off; three classes."""
    random = np.random.default_rng(seed)
    truth, found = [], []
    for _ in range(num):
        count = random.integers(0, 5)
        corner, size = random.uniform(0, 60, (count, 2)), random.uniform(8, 40, (count, 2))
        real = np.concatenate([corner, corner + size], axis=1)
        classes = random.integers(0, 3, count)
        seen = random.random(count) < 0.8
        off = real[seen] + random.normal(0, 2, (seen.sum(), 4))
        extra = np.array([[1, 1, 9, 9]], float)
        truth.append(Boxes(real, classes, np.ones(count)))
        found.append(
            Boxes(
                np.concatenate([off, extra]),
                np.append(classes[seen], random.integers(0, 3)),
                random.uniform(0.1, 1, len(off) + 1).round(3),
            )
        )
    return truth, found


def padded(images: Sequence[Boxes]) -> dict[str, np.ndarray]:
    """Return outputs of a batch, filled up to one length."""
    most = max(len(image.classes) for image in images)
    out = {
        "boxes": np.zeros((len(images), most, 4), np.float32),
        "labels": np.full((len(images), most), -1),
        "scores": np.zeros((len(images), most), np.float32),
    }
    for number, image in enumerate(images):
        size = len(image.classes)
        out["boxes"][number, :size], out["labels"][number, :size] = image.boxes, image.classes
        out["scores"][number, :size] = image.scores
    return out


def every(values: AveragePrecision, num: int) -> np.ndarray:
    """Return the values of all images once."""
    return values(np.ones(num))


# --- average precision


def test_average_precision_counted_by_hand() -> None:
    """Right, wrong, right of two boxes: precision 1 up to recall 1/2 (51 of 101 recalls), then 2/3 (50 of them)."""
    truth = [boxes([0, 0, 10, 10, 7], [20, 20, 30, 30, 7])]
    found = [boxes([0, 0, 10, 10, 7], [50, 50, 60, 60, 7], [20, 20, 30, 30, 7], scores=[0.9, 0.8, 0.7])]
    values = AveragePrecision(truth, found)
    assert values.classes.tolist() == [7]
    assert every(values, 1) == pytest.approx([(51 + 50 * 2 / 3) / 101])


def test_an_overlap_counts_at_the_thresholds_below_it() -> None:
    """8 of 10 columns are shared, of 10 in either: IoU 0.8 is right at 0.5 to 0.8, 7 of the 10 thresholds."""
    truth, found = [boxes([0, 0, 10, 10, 0])], [boxes([0, 0, 8, 10, 0])]
    assert every(AveragePrecision(truth, found), 1) == pytest.approx([0.7])
    assert every(AveragePrecision(truth, found, THRESHOLDS[:1]), 1) == pytest.approx([1.0])


def test_perfect_shuffled_and_nothing_found() -> None:
    """1, next to 0, and 0; a box of a class that no image has counts nowhere."""
    truth, _ = scene(60)
    assert every(AveragePrecision(truth, truth), 60) == pytest.approx([1, 1, 1])
    assert every(AveragePrecision(truth, truth[1:] + truth[:1]), 60).max() < 0.05
    nothing = [boxes() for _ in truth]
    assert every(AveragePrecision(truth, nothing), 60).tolist() == [0, 0, 0]
    strangers = [Boxes(one.boxes, one.classes + 50, one.scores) for one in truth]
    assert every(AveragePrecision(truth, strangers), 60).tolist() == [0, 0, 0]


def test_finding_something_where_nothing_is_costs_precision() -> None:
    """An empty image with a surer detection: precision 1/2 at every recall."""
    truth = [boxes([0, 0, 10, 10, 0]), boxes()]
    found = [boxes([0, 0, 10, 10, 0], scores=[0.5]), boxes([0, 0, 5, 5, 0], scores=[0.9])]
    assert every(AveragePrecision(truth, found), 2) == pytest.approx([0.5])


@pytest.mark.parametrize("seed", [1, 2])
def test_any_draw_is_what_the_library_makes_of_copies_of_the_images(seed: int) -> None:
    """Images that are drawn twice are put in twice, and those that are not left out; the library counts all of it anew."""
    truth, found = scene(40, seed)
    for one in found:  # equals among images have no order that both would keep
        one.scores[:] += np.random.default_rng(seed).uniform(0, 1e-3, len(one.scores))
    drawn = np.random.default_rng(seed).integers(0, 40, 40)
    values = AveragePrecision(truth, found)
    copies = _evaluation([truth[n] for n in drawn], [found[n] for n in drawn], values.classes, THRESHOLDS)
    with _quiet():
        copies.evaluate()
        copies.accumulate()
    by_library = copies.eval["precision"][:, :, :, 0, 0].mean(axis=(0, 1))
    assert values(np.bincount(drawn, minlength=40)) == pytest.approx(by_library, abs=1e-12)


def test_a_class_that_a_draw_has_not_has_no_value() -> None:
    """It is left out of the mean, not counted as 0."""
    truth = [boxes([0, 0, 9, 9, 0]), boxes([0, 0, 9, 9, 1])]
    assert np.isnan(AveragePrecision(truth, truth)(np.array([2, 0]))).tolist() == [False, True]
    assert _dataset(truth, np.array([1])).getCatIds() == [1]


# --- layouts


def same(found: Sequence[Boxes], images: Sequence[Boxes]) -> bool:
    """Return whether both hold the same."""
    return all(
        np.allclose(one.boxes, other.boxes) and one.classes.tolist() == other.classes.tolist()
        for one, other in zip(found, images, strict=True)
    )


def test_layouts_of_usual_exports_say_the_same() -> None:
    """A batch filled up, one item without the batch's axis, one output of six columns, and a number of detections."""
    _, images = scene(3)
    batch = padded(images)
    six = np.concatenate([batch["boxes"], batch["scores"][..., None], batch["labels"][..., None]], axis=2)
    counted = {
        "num_dets": np.array([[len(image.classes)] for image in images]),
        "det_boxes": batch["boxes"],
        "det_classes": batch["labels"].clip(0),
        "det_scores": np.full_like(batch["scores"], 0.5),
    }
    alone = {name: array[0] for name, array in padded(images[:1]).items()}
    assert same(read_boxes(batch, 3), images)
    assert same(read_boxes(six, 3), images)
    assert same(read_boxes(counted, 3), images)
    assert same(read_boxes(alone, 1), images[:1])
    assert len(read_boxes({"boxes": np.zeros((0, 4)), "labels": np.zeros(0), "scores": np.zeros(0)}, 1)[0].boxes) == 0


@pytest.mark.parametrize(
    "outputs",
    [
        np.zeros((2, 84, 8400)),
        {"pred_boxes": np.zeros((2, 5, 4)), "logits": np.zeros((2, 5, 3))},
        {"boxes": np.zeros((2, 5, 4)), "labels": np.zeros((2, 4)), "scores": np.zeros((2, 5))},
        {"boxes": np.zeros((9, 4)), "labels": np.zeros(9), "scores": np.zeros(9)},
    ],
)
def test_another_layout_is_told_with_what_was_seen(outputs: Any) -> None:
    """The names and shapes that there were, those that are read, and the way out; one item without its axis is no two."""
    with pytest.raises(SettingsError, match=r"\[.*\] for 2 item.*MODULE:FUNCTION") as told:
        read_boxes(outputs, 2)
    assert "labels (items, n)" in str(told.value)


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 5), (0,)])
def test_numbers_of_detections_that_are_not_one_for_each_item_are_told(shape: tuple[int, ...]) -> None:
    """Left out of account, rows that only fill up would count as detections."""
    _, images = scene(2)
    outputs = {**padded(images), "num_dets": np.ones(shape, np.int32)}
    with pytest.raises(
        SettingsError, match=r"num_dets.*int32\[.*expected .*\[2\] or \[2, 1\].*MODULE:FUNCTION"
    ) as told:
        read_boxes(outputs, 2)
    assert str(list(shape)) in str(told.value)


@pytest.mark.parametrize(
    ("rows", "classes", "told"),
    [
        (np.zeros((2, 1, 3)), np.zeros((2, 1), int), "items, n, 4"),
        (np.zeros((2, 1, 4)), np.zeros((2, 2), int), "items, n, 4"),
        (np.zeros((2, 1, 4)), np.zeros((2, 1)), "whole numbers"),
        (np.tile([5.0, 0, 2, 9], (2, 1, 1)), np.zeros((2, 1), int), "item 0.*x1 < x2"),
        (np.tile([0, 0, np.nan, 9], (2, 1, 1)), np.zeros((2, 1), int), "finite"),
    ],
)
def test_true_boxes_that_are_none_are_named(rows: np.ndarray, classes: np.ndarray, told: str) -> None:
    """With the place and what was expected."""
    with pytest.raises(SettingsError, match=told):
        true_boxes({"boxes": rows, "classes": classes})


def test_nothing_found_can_be_held_against_nothing() -> None:
    """Outputs without any row have no broken ones; shadowing compares such answers of detectors too."""
    nothing = {"boxes": np.zeros((0, 4), np.float32), "scores": np.zeros(0, np.float32)}
    assert num_broken(nothing) == 0
    assert compare_outputs(nothing, nothing).shapes == ()


# --- the gate


def judged(
    truth: Sequence[Boxes], b: Mapping[str, np.ndarray], metric: str = "map50", **golden: Any
) -> tuple[GateResult, Golden]:
    """Judge a variant against a perfect incumbent."""
    marked = padded(truth)
    given = Golden(
        name="golden.npz", inputs=np.zeros((len(truth), 1)), labels=None, sha256="",
        truth={"boxes": marked["boxes"], "classes": marked["labels"]}, **golden,
    )  # fmt: skip
    policy = Policy(max_drop=0.05, metric=metric_named(metric), batch=len(truth))
    found = judge_accuracy(
        lambda: iter([marked]),
        lambda: iter([b]),
        given,
        policy,
        names=["cat", "dog", "hen"],
        is_interrupted=lambda: False,
    )
    return found, given


def test_a_detector_that_finds_the_same_passes_and_one_that_misses_does_not() -> None:
    """Of 150 images; every third image without detections costs a third of the recall."""
    truth, _ = scene(150)
    found, _ = judged(truth, padded(truth))
    assert found.gate.outcome == "passed"
    assert found.gate.values["a"] == found.gate.values["b"] == 1.0
    assert found.gate.values["draws"] >= 50
    missing = padded([boxes() if number % 3 == 0 else image for number, image in enumerate(truth)])
    rejected, _ = judged(truth, missing)
    assert rejected.gate.outcome == "rejected"
    assert "map50 0.6" in rejected.gate.says


def test_a_class_that_is_lost_alone_is_found_in_a_small_drop_of_all() -> None:
    """One of 25 classes is not found any more: four points over all, where five are allowed."""
    truth = [boxes(*([0, 20 * n, 10, 20 * n + 10, n] for n in range(25))) for _ in range(80)]
    lost = padded([Boxes(one.boxes, np.where(one.classes == 1, 90, one.classes), one.scores) for one in truth])
    found, _ = judged(truth, lost)
    assert found.gate.values["drop"] == pytest.approx(1 / 25)
    assert found.gate.outcome == "rejected"
    assert "`class dog` (80 items) it drops by 100.0 points" in found.gate.says


def test_a_slice_in_which_it_fails_is_named() -> None:
    """In the dark nothing is found, in 24 of 600 images: four points over all, where five are allowed."""
    truth = [boxes([0, 0, 10, 10, 0]) for _ in range(600)]
    dark = np.arange(600) < 24
    found, _ = judged(
        truth,
        padded([boxes() if is_dark else one for is_dark, one in zip(dark, truth, strict=True)]),
        slices={"light": np.where(dark, "dark", "bright")},
    )
    assert found.gate.outcome == "rejected"
    assert "`light dark` (24 items)" in found.gate.says


def test_slices_without_time_for_draws_are_named() -> None:
    """As of a large set, whose draws take long: what was not looked at is not passed over in silence."""
    truth, _ = scene(150)
    with measuring.using(slice_seconds=0.0):
        found, _ = judged(truth, padded(truth), slices={"light": np.array(["dark", "bright"]).repeat(75)})
    assert found.gate.outcome == "passed"
    assert [text for text in found.warnings if "2 of 2 slices were not looked at" in text and "light dark" in text]


def test_an_incumbent_that_finds_nothing_shows_nothing() -> None:
    """Two detectors that are both useless to these labels agree perfectly, and nothing is known."""
    truth, _ = scene(150)
    found, given = judged(truth, padded(truth))
    useless = padded([Boxes(one.boxes, one.classes + 1, one.scores) for one in truth])
    useless["boxes"] /= 1000  # from 0 to 1, where pixels are asked for
    policy = Policy(max_drop=0.05, metric=metric_named("map"), batch=150)
    found = judge_accuracy(
        lambda: iter([useless]), lambda: iter([useless]), given, policy, names=None, is_interrupted=lambda: False
    )
    assert found.gate.outcome == "inconclusive"
    assert "A itself finds next to nothing" in found.gate.says


def test_detections_that_are_no_numbers_reject() -> None:
    """However good the others are."""
    truth, _ = scene(150)
    broken = padded(truth)
    broken["boxes"][3, 0, 0] = np.nan
    found, _ = judged(truth, broken)
    assert found.gate.outcome == "rejected"
    assert "NaN" in found.gate.says


def test_a_golden_set_without_boxes_is_told_what_it_needs() -> None:
    """And one with boxes, for the metric that is the default, what would score them."""
    given = Golden(name="golden.npz", inputs=np.zeros((4, 1)), labels=np.zeros(4, int), sha256="")
    answers = padded([boxes([0, 0, 1, 1, 0])] * 4)
    policy = Policy(metric=metric_named("map"), batch=4)
    ask: Any = {"names": None, "is_interrupted": lambda: False}
    found = judge_accuracy(lambda: iter([answers]), lambda: iter([answers]), given, policy, **ask)
    assert found.gate.outcome == "skipped"
    assert "truth_boxes and truth_classes" in found.gate.says
    marked = Golden(name="g", inputs=given.inputs, labels=None, sha256="", truth={"boxes": np.zeros((4, 0, 4))})
    found = judge_accuracy(lambda: iter([answers]), lambda: iter([answers]), marked, Policy(), **ask)
    assert "--metric map" in found.gate.says


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as the metric is named, before anything is measured."""
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("pycocotools"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "headrace.validate.coco")
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"pip install 'headrace\[detection\]'"):
        metric_named("map")


# --- end to end


def detector(path: Path, off: float = 0.0, *, one_item: bool = False) -> Path:
    """Write a detector whose input (items, n, 6) is what it finds, moved by some pixels; keeps what has a score."""
    columns = {"boxes": [0, 1, 2, 3], "scores": [4], "labels": [5]}
    nodes, constants = [], [numpy_helper.from_array(np.float32(off), "off")]
    start = "inputs"
    if one_item:  # as torchvision: no axis of items, and as many rows as were found
        constants += [numpy_helper.from_array(np.array([0]), "first"), numpy_helper.from_array(np.float32(0), "zero")]
        nodes += [
            helper.make_node("Squeeze", ["inputs", "first"], ["rows"]),
            helper.make_node("Gather", ["rows", "four"], ["every_score"], axis=1),
            helper.make_node("Greater", ["every_score", "zero"], ["is_found"]),
            helper.make_node("Compress", ["rows", "is_found"], ["found"], axis=0),
        ]
        constants.append(numpy_helper.from_array(np.array(4), "four"))
        start = "found"
    last = 1 if one_item else 2
    for name, places in columns.items():
        at = np.array(places if name == "boxes" else places[0])
        constants.append(numpy_helper.from_array(at, f"at_{name}"))
        out = name if name == "scores" else f"raw_{name}"
        nodes.append(helper.make_node("Gather", [start, f"at_{name}"], [out], axis=last))
    nodes.append(helper.make_node("Add", ["raw_boxes", "off"], ["boxes"]))
    nodes.append(helper.make_node("Cast", ["raw_labels"], ["labels"], to=TensorProto.INT64))
    lead: list[Any] = ["n"] if one_item else ["items", "n"]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, [1 if one_item else "items", "k", 6])],
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [*lead, 4]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, lead),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, lead),
        ],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """Write images of which the detector finds most."""
    truth, found = scene(160)
    marked, given = padded(truth), padded(found)
    inputs = np.concatenate([given["boxes"], given["scores"][..., None], given["labels"][..., None]], axis=2)
    path = tmp_path / "golden.npz"
    np.savez(path, inputs=inputs.astype(np.float32), truth_boxes=marked["boxes"], truth_classes=marked["labels"])
    return path


@pytest.mark.parametrize("one_item", [False, True])
def test_a_user_validates_detectors(
    tmp_path: Path, golden: Path, capsys: pytest.CaptureFixture[str], one_item: bool
) -> None:
    """A twentieth of a pixel is within five points, eight pixels are not; with an axis of items and without."""
    a = detector(tmp_path / "a.onnx", one_item=one_item)
    near = detector(tmp_path / "near.onnx", 0.05, one_item=one_item)
    far = detector(tmp_path / "far.onnx", 8.0, one_item=one_item)
    batch = "1" if one_item else "8"
    options = ["--golden", str(golden), "--metric", "map50", "--max-drop", "5pt", "--batch", batch, "--json"]
    assert main(["validate", str(a), str(near), *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "accept"
    assert told["metric"] == "map50"
    assert "compared as detections" in next(gate["says"] for gate in told["gates"] if gate["name"] == "parity")
    assert main(["validate", str(a), str(far), *options]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["gates"][-1]["name"] == "accuracy"
    assert told["gates"][-1]["values"]["low"] > 0.05
    values = told["gates"][-1]["values"]
    assert 0 < values["fewer_found_low"] <= values["fewer_found"] <= values["fewer_found_high"] <= 1
    assert told["worst"][0]["boxes"]
    assert told["worst"][0]["boxes_a"] != told["worst"][0]["boxes_b"]
    assert {one["name"] for one in told["slices"]} == {"class 0", "class 1", "class 2"}


def test_raw_heads_are_scored_too() -> None:
    """Those of YOLO of two kinds and of SSD, by centre, width and height, and with doubles: as the boxes they stand for."""
    random = np.random.default_rng(0)
    wanted = [boxes((10, 10, 40, 50, 1)), boxes((60, 5, 90, 30, 0), (5, 60, 30, 90, 2)), boxes()]
    rows = np.zeros((3, 50, 7), np.float32)
    rows[..., :4] = random.uniform(1, 20, (3, 50, 4))
    for item, image in enumerate(wanted):
        for number, (box, kind) in enumerate(zip(image.boxes, image.classes, strict=True)):
            for anchor in (number, 20 + number):  # twice
                rows[item, anchor, :4] = (*(box[:2] + box[2:]) / 2, *(box[2:] - box[:2]))
                rows[item, anchor, 4 + kind] = 0.9
    sure = np.ones_like(rows[..., :1])
    corners = np.concatenate([rows[..., :2] - rows[..., 2:4] / 2, rows[..., :2] + rows[..., 2:4] / 2], axis=2)
    nothing = 0.95 - rows[..., 4:].max(axis=2, keepdims=True)
    layouts = (
        rows.swapaxes(1, 2),
        np.concatenate([rows[..., :4], sure, rows[..., 4:]], axis=2),
        {"boxes": corners, "scores": rows[..., 4:]},
        {"pred_logits": np.log(np.concatenate([rows[..., 4:], nothing], axis=2) + 1e-6), "pred_boxes": rows[..., :4]},
    )
    for outputs in layouts:
        found = boxes_found(outputs, 3)
        assert [sorted(image.classes.tolist()) for image in found] == [[1], [0, 2], []]
        for image, truth in zip(found, wanted, strict=True):
            order = np.argsort(image.classes)
            assert np.allclose(image.boxes[order], truth.boxes[np.argsort(truth.classes)], atol=1e-3)
    with pytest.raises(SettingsError, match="raw heads"):
        boxes_found(np.ones((3, 4)), 3)


@pytest.mark.parametrize("one_item", [False, True])
def test_detectors_are_matched_without_a_metric_too(
    tmp_path: Path, golden: Path, capsys: pytest.CaptureFixture[str], one_item: bool
) -> None:
    """Where nobody knows what is true the two must agree, and what finds nothing of the same is no rounding."""
    a = detector(tmp_path / "a.onnx", one_item=one_item)
    near = detector(tmp_path / "near.onnx", 0.05, one_item=one_item)
    elsewhere = detector(tmp_path / "elsewhere.onnx", 300.0, one_item=one_item)
    np.savez(tmp_path / "bare.npz", inputs=np.load(golden)["inputs"])
    options = ["--golden", str(tmp_path / "bare.npz"), "--batch", "1" if one_item else "8", "--json"]
    assert main(["validate", str(a), str(near), *options]) == 4
    gates = {gate["name"]: gate for gate in json.loads(capsys.readouterr().out)["gates"]}
    assert gates["parity"]["outcome"] == "passed"
    assert (gates["parity"]["values"]["broken"], gates["parity"]["values"]["changed"]) == (0.0, 0.0)
    assert gates["accuracy"]["outcome"] == "inconclusive"  # too few items
    assert "another answer for 0.00%" in gates["accuracy"]["says"]
    assert main(["validate", str(a), str(elsewhere), *options]) == 1
    (*_, parity) = json.loads(capsys.readouterr().out)["gates"]
    assert (parity["name"], parity["outcome"]) == ("parity", "rejected")
    assert "no rounding" in parity["says"]


def test_answers_that_change_their_shape_and_are_no_detections_are_said(
    tmp_path: Path, golden: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Instead of an error from the inside: which layouts could be matched."""
    model = onnx.load(str(detector(tmp_path / "a.onnx", one_item=True)))
    for output in model.graph.output:  # with an axis of items, under names of its own
        model.graph.node.append(helper.make_node("Unsqueeze", [output.name, "first"], [f"my_{output.name}"]))
        output.name = f"my_{output.name}"
        output.type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=1))
    onnx.save(model, tmp_path / "a.onnx")
    np.savez(tmp_path / "bare.npz", inputs=np.load(golden)["inputs"])
    a = str(tmp_path / "a.onnx")
    assert main(["validate", a, a, "--golden", str(tmp_path / "bare.npz"), "--batch", "1", "--json"]) == 4
    gates = {gate["name"]: gate for gate in json.loads(capsys.readouterr().out)["gates"]}
    assert gates["parity"]["outcome"] == "skipped"
    assert "change their shape" in gates["parity"]["says"]
    assert "boxes (items, n, 4)" in gates["parity"]["says"]
