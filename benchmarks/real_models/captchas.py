"""captcha-whisperer: a CRNN with a CTC head, whose answer has time before items: (20, batch, 37)."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import headrace as hr
from benchmarks.real_models import items
from benchmarks.real_models.cases import Case
from benchmarks.real_models.packages import file_of


def fitted(image: np.ndarray) -> np.ndarray:
    """RGB uint8 -> float32 (3, 60, 160) in BGR, 0 to 255."""
    scaled = np.asarray(Image.fromarray(image).resize((160, 60), Image.Resampling.BILINEAR), np.float32)
    return np.ascontiguousarray(scaled[:, :, ::-1].transpose(2, 0, 1))


class Captchas(hr.Module):
    """Puts items first, and reads each."""

    model = file_of("captcha_whisperer", "models/captcha_crnn.onnx")
    input = hr.ImageInput()

    def load(self, context: Any) -> None:
        self.net = context.open_model()

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        return fitted(image)

    def process(self, batch: Any) -> list[Any]:
        from captcha_whisperer import decode

        texts, _, _ = decode(self.net(batch))
        return list(texts)


pipeline = hr.Pipeline(
    source=hr.folder(os.environ.get("REAL_MODELS_ITEMS", ".")), module=Captchas(), delivery=hr.jsonl("results.jsonl"),
    name="captchas",
)  # fmt: skip


def own(files: Sequence[Path]) -> dict[str, Any]:
    """Ask the package."""
    from captcha_whisperer import CaptchaRecognizer

    recognizer = CaptchaRecognizer()
    return {file.name: recognizer.recognize_bytes(file.read_bytes())["text"] for file in files}


def inputs(files: Sequence[Path]) -> np.ndarray:
    """(items, 3, 60, 160)."""
    return np.stack([fitted(np.asarray(Image.open(file).convert("RGB"))) for file in files])


CASE = Case(
    models={"captcha_crnn": Captchas.model}, make_items=items.captchas, own=own,
    same=lambda ours, theirs: ours == theirs, inputs=inputs, batch_axis=1,
)  # fmt: skip
