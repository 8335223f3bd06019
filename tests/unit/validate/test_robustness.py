"""Spoiled images: what is done to them, and who bears them worse; and pictures of golden items."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from headrace.runs.formats.variants import WorstItem
from headrace.validate.corruptions import CORRUPTIONS, Pixels, corrupt
from headrace.validate.golden import Golden
from headrace.validate.meaning_choice import find_meaning
from headrace.validate.policy import Policy
from headrace.validate.robustness import judge_robustness
from headrace.validate.thumbnails import MOST, SIDE, thumbnails


def pictures(num_items: int) -> np.ndarray:
    """Return (items, 3, 32, 32) float32 as after a usual normalization: smooth blobs of colour."""
    random = np.random.default_rng(0)
    small = random.random((num_items, 4, 4, 3)).astype(np.float32)
    large = np.stack([cv2.resize(one, (32, 32), interpolation=cv2.INTER_CUBIC).clip(0, 1) for one in small])
    return np.moveaxis((large - 0.45) / 0.22, 3, 1).astype(np.float32)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_corruption_changes_the_items_and_nothing_else(kind: str) -> None:
    """Shape, type and range stay; the same again is the same."""
    inputs = pictures(6)
    pixels = Pixels.find(inputs)
    assert pixels is not None
    spoiled = corrupt(inputs, kind, pixels)
    assert (spoiled.shape, spoiled.dtype) == (inputs.shape, inputs.dtype)
    assert np.abs(spoiled - inputs).mean() > 0.01
    assert spoiled.min() >= inputs.min() - 0.1
    assert spoiled.max() <= inputs.max() + 0.1
    assert np.array_equal(spoiled, corrupt(inputs, kind, pixels))


def test_pixels_there_and_back_are_the_same() -> None:
    """Up to a step of 255, channels first or last; what has no three channels is no picture."""
    inputs = pictures(3)
    for array in (inputs, np.ascontiguousarray(np.moveaxis(inputs, 1, 3))):
        pixels = Pixels.find(array)
        assert pixels is not None
        back = pixels.inputs(pixels.picture(array[1]), array[1])
        assert np.abs(back - array[1]).max() < 0.02
    assert Pixels.find(np.zeros((5, 7), np.float32)) is None
    assert Pixels.find(np.zeros((5, 8, 8, 8), np.float32)) is None


def by_light(batch: Any) -> np.ndarray:
    """Answer whether red is brighter than blue."""
    return np.stack([batch[:, 0].mean(axis=(1, 2)), batch[:, 2].mean(axis=(1, 2))], axis=1)


def golden(num_items: int = 300, labelled: bool = True) -> Golden:
    """Return items with a clear colour."""
    inputs = pictures(num_items)
    inputs[:, 0] += np.where(np.arange(num_items) % 2, 0.8, -0.8)[:, None, None]
    labels = by_light(inputs).argmax(axis=1) if labelled else None
    return Golden(name="set", inputs=inputs, labels=labels, sha256="")


def worse_in_noise(batch: Any) -> np.ndarray:
    """Answer the same, but the other way round where there is noise."""
    scores = by_light(batch)
    noisy = np.abs(np.diff(batch, axis=3)).mean(axis=(1, 2, 3)) > 0.25
    scores[noisy] = scores[noisy][:, ::-1]
    return scores


def test_the_same_model_bears_the_same() -> None:
    """Whatever is lost by spoiling, it is lost by both."""
    found = judge_robustness((by_light, by_light), golden(), Policy(batch=16), items=300)
    assert found.outcome == "passed"
    assert all(found.values[f"{kind}_drop"] == 0 for kind in CORRUPTIONS)
    assert found.values["blur_a"] is not None


def test_a_candidate_that_fails_in_noise_is_rejected_by_that_kind() -> None:
    """As often right on clean images, and wrong on noisy ones."""
    found = judge_robustness((by_light, worse_in_noise), golden(), Policy(batch=16), items=300)
    assert found.outcome == "rejected"
    assert "B bears" in found.says
    assert "noise" in found.says.partition(":")[0]
    assert "rotation" not in found.says.partition(":")[0]


class InOrder:
    """Answers items by their places, for it is asked about the whole set in order: rightly, but for the first ones."""

    def __init__(self, labels: np.ndarray, num_wrong: int = 0) -> None:
        self.right = np.where(np.arange(len(labels)) < num_wrong, 1 - labels, labels)
        self.place = 0

    def __call__(self, batch: Any) -> np.ndarray:
        """Return scores."""
        places = np.arange(self.place, self.place + len(batch)) % len(self.right)
        self.place += len(batch)
        return np.eye(2, dtype=np.float32)[self.right[places]]


def test_a_set_that_is_sorted_by_class_is_judged_as_a_whole() -> None:
    """All of its first tenth is lost; over all that is a tenth, and a quarter is allowed."""
    clean = golden(300)
    assert clean.labels is not None
    models = InOrder(clean.labels), InOrder(clean.labels, num_wrong=30)
    found = judge_robustness(models, clean, Policy(batch=16, max_slice_drop=0.25), items=300)
    assert found.values["blur_drop"] == pytest.approx(0.1)
    assert found.outcome == "passed"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_candidate_for_much_smaller_images_is_given_the_mean_of_their_pixels(dtype: Any) -> None:
    """As a decoder that scales gives it: of stripes no single ones."""
    inputs = np.zeros((4, 3, 32, 32), dtype)
    inputs[:, :, :, ::4] = inputs[:, :, :, 3::4] = 1.0
    smaller = np.zeros((4, 3, 8, 8), dtype)
    stripes = Golden(name="set", inputs=inputs, labels=np.zeros(4, np.int64), sha256="", scaled=lambda side: smaller)
    seen: list[np.ndarray] = []

    def small(batch: Any) -> np.ndarray:
        seen.append(batch)
        return by_light(batch)

    judge_robustness((by_light, small), stripes, Policy(batch=4), items=4, sides=(None, 8))
    dark = seen[list(CORRUPTIONS).index("grey")]
    assert (dark.shape, dark.dtype) == (smaller.shape, dtype)
    assert np.allclose(dark, 0.5, atol=0.1)


def test_without_labels_changed_answers_count() -> None:
    """And numbers that are no pictures are left alone."""
    found = judge_robustness((by_light, worse_in_noise), golden(labelled=False), Policy(batch=16), items=300)
    assert found.outcome == "rejected"
    flat = Golden(name="set", inputs=np.zeros((20, 5), np.float32), labels=None, sha256="")
    assert judge_robustness((by_light, by_light), flat, Policy(), items=20).outcome == "skipped"


def read_lines(batch: Any) -> np.ndarray:
    """Answer (items, steps, characters) probabilities: blank, then the brighter of two colours, in turns."""
    bright = (batch[:, 0].mean(axis=(1, 2)) > batch[:, 2].mean(axis=(1, 2))).astype(int)
    steps = np.zeros((len(batch), 12, 9), np.float32)
    for step in range(12):
        steps[np.arange(len(batch)), step, 0 if step % 2 else 1 + bright + 2 * (step % 3)] = 1
    return steps


def boxes_of_colour(batch: Any) -> dict[str, np.ndarray]:
    """Answer one box an item, left or right, of the brighter colour's class."""
    bright = by_light(batch).argmax(axis=1)
    corner = 4.0 + 14 * bright[:, None]
    boxes = np.concatenate([corner, corner, corner + 10, corner + 10], axis=1)[:, None].astype(np.float32)
    return {"boxes": boxes, "labels": bright[:, None], "scores": np.full((len(batch), 1), 0.9, np.float32)}


def lost_in_noise(model: Any) -> Any:
    """Return a model that answers noisy items as if they were mirrored in colour."""

    def call(batch: Any) -> Any:
        noisy = np.abs(np.diff(batch, axis=3)).mean(axis=(1, 2, 3)) > 0.25
        return model(np.where(noisy[:, None, None, None], batch[:, ::-1], batch))

    return call


@pytest.mark.parametrize(("model", "name"), [(read_lines, "text"), (boxes_of_colour, "detections")])
def test_text_and_boxes_are_compared_by_what_they_mean(model: Any, name: str) -> None:
    """The same model bears the same; one that is lost in noise is named by it."""
    items = golden(100, labelled=False)
    meaning = find_meaning([model(items.inputs)], None, {})
    assert meaning is not None
    assert meaning.name == name
    same = judge_robustness((model, model), items, Policy(batch=16), items=100, meaning=meaning)
    assert same.outcome == "passed"
    assert same.values["blur_agreement"] == 1
    found = judge_robustness((model, lost_in_noise(model)), items, Policy(batch=16), items=100, meaning=meaning)
    assert found.outcome == "rejected"
    told = found.says.partition("; agreement")[0]
    assert "noise" in told
    assert "rotation" not in told


def test_items_that_the_model_in_use_cannot_bear_say_nothing() -> None:
    """Where it reads no spoiled item as it does clean, it stays open, with what to do."""
    items = golden(40, labelled=False)

    def fragile(batch: Any) -> np.ndarray:
        lines = read_lines(batch)
        whole = [bool((np.abs(one - items.inputs) < 1e-6).all(axis=(1, 2, 3)).any()) for one in batch]
        return np.where(np.array(whole)[:, None, None], lines, lines[:, :, [0, 3, 4, 1, 2, 7, 8, 5, 6]])

    meaning = find_meaning([fragile(items.inputs)], None, {})
    found = judge_robustness((fragile, read_lines), items, Policy(batch=16), items=40, meaning=meaning)
    assert found.outcome == "inconclusive"
    assert "give more items" in found.says


def test_answers_that_nobody_can_interpret_are_refused_with_what_to_declare() -> None:
    """They are no scores of classes, and their meaning is not known."""
    items = golden(20, labelled=False)

    def numbers(batch: Any) -> np.ndarray:
        return np.asarray(batch.mean(axis=(2, 3)))[:, :, None] * 50

    found = judge_robustness((numbers, numbers), items, Policy(batch=4), items=20)
    assert found.outcome == "skipped"
    assert "`output = hr.Detections()`" in found.says


def test_grey_pictures_are_spoiled_too() -> None:
    """Of one channel, which stays one."""
    inputs = pictures(4)[:, :1]
    pixels = Pixels.find(inputs)
    assert pixels is not None
    spoiled = corrupt(inputs, "dark", pixels)
    assert spoiled.shape == inputs.shape
    assert spoiled.mean() < inputs.mean()


def worst(item: int, file: str = "") -> WorstItem:
    """Return an item that was lost."""
    return WorstItem(item=item, file=file, label="cat", a="cat", b="dog", loss=1.0)


def test_pictures_are_small_and_few(tmp_path: Path) -> None:
    """From files where there are some, from arrays else; what cannot be read is left out."""
    file = tmp_path / "a.jpg"
    cv2.imwrite(str(file), np.full((600, 900, 3), 127, np.uint8))
    (tmp_path / "b.jpg").write_text("no picture")
    found = thumbnails([worst(0, str(file)), worst(1), worst(2, str(tmp_path / "b.jpg"))], None)
    assert list(found) == [worst(0, str(file))]
    data = base64.b64decode(found[worst(0, str(file))].partition(",")[2])
    assert max(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).shape) == SIDE
    assert set(thumbnails([worst(1), worst(7)], golden(4))) == {worst(1)}
    many = thumbnails([worst(number) for number in range(200)], golden(200))
    assert len(many) == MOST
    assert sum(map(len, many.values())) < 400_000
