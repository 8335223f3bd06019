"""The model that names the photograph a crop was cut from."""

from __future__ import annotations

import io
import json

import cv2
import numpy as np
import onnxruntime
import pytest
from PIL import Image

from headrace.samples.catalogue import NAMES, SCENES_MODEL_PATH
from headrace.samples.generator import crops

SEED = 424_242  # used nowhere else: neither for training nor for the card
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    """Return the model on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(SCENES_MODEL_PATH, options, providers=["CPUExecutionProvider"])


def _preprocess(data: bytes) -> np.ndarray:
    """Return float32 (3, 224, 224): short side to 256, middle 224, ImageNet's mean and deviation."""
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.asarray(image.convert("RGB"))
    factor = 256 / min(pixels.shape[:2])
    size = (round(pixels.shape[1] * factor), round(pixels.shape[0] * factor))
    pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR)
    top, left = (pixels.shape[0] - 224) // 2, (pixels.shape[1] - 224) // 2
    middle = pixels[top : top + 224, left : left + 224].astype(np.float32) / 255
    return ((middle - MEAN) / STD).transpose(2, 0, 1)


@pytest.mark.full
def test_accuracy_on_held_out_regions(session: onnxruntime.InferenceSession) -> None:
    """At least 90 % of 220 clean crops of regions never trained on are named rightly."""
    images = list(crops(220, SEED, split="held_out"))
    batch = np.stack([_preprocess(crop.data) for crop in images])
    logits = np.concatenate([session.run(["logits"], {"image": part})[0] for part in np.array_split(batch, 15)])
    named = [NAMES[index] for index in logits.argmax(axis=1)]

    assert sum(crop.label == name for crop, name in zip(images, named, strict=True)) >= 0.9 * len(images)


def test_inputs_and_outputs_are_those_of_the_card(session: onnxruntime.InferenceSession) -> None:
    """The model takes (batch, 3, 224, 224) as `image` and answers (batch, scenes) as `logits`."""
    (image,), (logits,) = session.get_inputs(), session.get_outputs()

    assert (image.name, image.type, image.shape) == ("image", "tensor(float)", ["batch", 3, 224, 224])
    assert (logits.name, logits.shape) == ("logits", ["batch", len(NAMES)])


def test_metadata_names_the_scenes(session: onnxruntime.InferenceSession) -> None:
    """The names in the file are those of the catalogue, in the order of the outputs."""
    assert tuple(json.loads(session.get_modelmeta().custom_metadata_map["names"])) == NAMES


def test_answers_do_not_depend_on_the_batch(session: onnxruntime.InferenceSession) -> None:
    """An image gets the same logits alone and among others, within float32's accuracy."""
    batch = np.random.default_rng(0).standard_normal((5, 3, 224, 224), dtype=np.float32)
    together = session.run(["logits"], {"image": batch})[0]
    alone = np.concatenate([session.run(["logits"], {"image": row[None]})[0] for row in batch])

    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)


def test_model_stays_small() -> None:
    """The file weighs at most 3 MB."""
    assert SCENES_MODEL_PATH.stat().st_size <= 3_000_000


def test_card_names_every_scene() -> None:
    """The model card has a row of accuracy for every scene."""
    card = SCENES_MODEL_PATH.with_suffix(".md").read_text(encoding="utf-8")

    assert all(f"| {name} |" in card for name in NAMES)
