"""Scores `scenes.onnx` on crops of the held-out regions and prints the tables of its card.

Run from the repository's root: `python tools/score_scenes.py`. Needs no PyTorch. The images are decoded by Pillow, scaled
to a short side of 256, cropped to the middle 224 and normalised; once with a filter against aliasing (Pillow) and once
without (OpenCV), because pipelines do either.
"""

from __future__ import annotations

import argparse
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

from headrace.samples.catalogue import NAMES, SCENES_MODEL_PATH
from headrace.samples.generator import Crop, crops

SHORT_SIDE_PIXELS = 256
IMAGE_PIXELS = 224
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)
CONFIDENCE_Z = 1.96  # 95 %

Scale = Callable[[Image.Image, tuple[int, int]], np.ndarray]


def scale_pillow(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """Return uint8 (height, width, 3), bilinear with a filter against aliasing."""
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR))


def scale_opencv(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """Return uint8 (height, width, 3), bilinear without a filter."""
    return cv2.resize(np.asarray(image), size, interpolation=cv2.INTER_LINEAR)


def preprocess(data: bytes, scale: Scale) -> np.ndarray:
    """Return float32 (3, 224, 224), RGB, normalised, from the bytes of an image; its orientation tag is obeyed."""
    with Image.open(io.BytesIO(data)) as stored:
        image = ImageOps.exif_transpose(stored).convert("RGB")
    factor = SHORT_SIDE_PIXELS / min(image.size)
    pixels = scale(image, (round(image.width * factor), round(image.height * factor)))
    top, left = ((side - IMAGE_PIXELS) // 2 for side in pixels.shape[:2])
    middle = pixels[top : top + IMAGE_PIXELS, left : left + IMAGE_PIXELS].astype(np.float32) / 255
    return ((middle - MEAN) / STD).transpose(2, 0, 1)


def score(session: onnxruntime.InferenceSession, images: Iterator[Crop], scale: Scale) -> list[tuple[Crop, str]]:
    """Return every decodable crop with the name the model gives it."""
    answers = []
    for crop in images:
        if crop.record.decodable:
            logits = session.run(["logits"], {"image": preprocess(crop.data, scale)[None]})[0]
            answers.append((crop, NAMES[int(logits.argmax())]))
    return answers


def wilson(right: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion.

    References:
        Wilson, 1927; behaves at 100 %, where the textbook interval has no width.
    """
    z2 = CONFIDENCE_Z**2
    middle = (right + z2 / 2) / (total + z2)
    half = CONFIDENCE_Z / (total + z2) * math.sqrt(right * (total - right) / total + z2 / 4)
    return middle - half, middle + half


def print_table(title: str, answers: list[tuple[Crop, str]], key: Callable[[Crop], str]) -> None:
    """Print accuracy over all and by `key`, as a Markdown table."""
    groups: dict[str, list[bool]] = {"all": []}
    for crop, name in answers:
        groups["all"].append(crop.label == name)
        groups.setdefault(key(crop), []).append(crop.label == name)
    print(f"\n{title}\n\n| group | right / crops | accuracy | 95 % interval |\n|---|---|---|---|")
    for group in sorted(groups, key=lambda name: (name != "all", name)):
        right, total = sum(groups[group]), len(groups[group])
        low, high = wilson(right, total)
        print(f"| {group} | {right} / {total} | {right / total:.1%} | {low:.1%} to {high:.1%} |")


def print_confusions(answers: list[tuple[Crop, str]]) -> None:
    """Print how often which scene was taken for which."""
    mistakes = [f"{crop.label} taken for {name}" for crop, name in answers if crop.label != name]
    for mistake in sorted(set(mistakes), key=lambda text: (-mistakes.count(text), text)):
        print(f"- {mistake}: {mistakes.count(mistake)}")


def main() -> None:
    """Score and print."""
    parser = argparse.ArgumentParser(description="Score the scenes model of headrace.samples.")
    parser.add_argument("--model", type=Path, default=SCENES_MODEL_PATH)
    parser.add_argument("--count", type=int, default=1100, help="crops of each set")
    parser.add_argument("--seed", type=int, default=20261121, help="of the crops; not the seed of training")
    arguments = parser.parse_args()
    session = onnxruntime.InferenceSession(arguments.model, providers=["CPUExecutionProvider"])
    assert tuple(json.loads(session.get_modelmeta().custom_metadata_map["names"])) == NAMES
    for scale in (scale_pillow, scale_opencv):
        clean = score(session, crops(arguments.count, arguments.seed, split="held_out"), scale)
        print_table(f"Clean, {scale.__name__}", clean, lambda crop: str(crop.label))
        print_confusions(clean)
        messy = score(session, crops(arguments.count, arguments.seed, messy_ratio=1.0, split="held_out"), scale)
        print_table(f"Messy but decodable, {scale.__name__}", messy, lambda crop: str(crop.record.messy))
        print_confusions(messy)


if __name__ == "__main__":
    main()
