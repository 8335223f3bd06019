"""rapidocr: PP-OCRv4, three models in one chained pipeline: where lines are, which way up each is, what it says."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rapidocr_onnxruntime.ch_ppocr_det.text_detect import TextDetector
from rapidocr_onnxruntime.ch_ppocr_det.utils import DBPostProcess, DetPreProcess
from rapidocr_onnxruntime.ch_ppocr_rec.utils import CTCLabelDecode
from rapidocr_onnxruntime.main import RapidOCR

import headrace as hr
from benchmarks.real_models.cases import Case
from benchmarks.real_models.items import pages
from benchmarks.real_models.packages import file_of

_DETECTOR, _TURNED, _READER = (
    file_of("rapidocr_onnxruntime", f"models/{name}.onnx")
    for name in ("ch_PP-OCRv4_det_infer", "ch_ppocr_mobile_v2.0_cls_infer", "ch_PP-OCRv4_rec_infer")
)
# Their functions, without their models.
_ENGINE, _BOXES = object.__new__(RapidOCR), object.__new__(TextDetector)
_DB = {
    "thresh": 0.3, "box_thresh": 0.5, "max_candidates": 1000, "unclip_ratio": 1.6, "use_dilation": True, "score_mode": "fast",
}  # fmt: skip


class Detect(hr.Module):
    """Image -> (boxes, what is cut at them)."""

    model = _DETECTOR
    input = hr.ImageInput()

    def load(self, context: Any) -> None:
        self.net = context.open_model()

    def preprocess(self, image: np.ndarray) -> Any:
        image = np.ascontiguousarray(image[:, :, ::-1])  # BGR, as the package has it
        return DetPreProcess(736, "min", [0.5] * 3, [0.5] * 3)(image)[0], image

    def process(self, batch: Any) -> list[Any]:
        return [(self.net(blob[None]), image) for blob, image in batch]

    def postprocess(self, result: Any) -> Any:
        heat, image = result
        boxes, _ = DBPostProcess(**_DB)(heat, image.shape[:2])
        boxes = _BOXES.filter_tag_det_res(boxes, image.shape[:2])
        if len(boxes) < 1:
            return []
        return _ENGINE.get_crop_img_list(image, _ENGINE.sorted_boxes(boxes))


def fitted(image: np.ndarray, width: int) -> np.ndarray:
    """BGR uint8 -> float32 (3, 48, width), padded right."""
    height, own = image.shape[:2]
    own = min(width, math.ceil(48 * own / height))
    scaled = cv2.resize(image, (own, 48)).astype(np.float32).transpose(2, 0, 1) / 255
    out = np.zeros((3, 48, width), np.float32)
    out[:, :, :own] = (scaled - 0.5) / 0.5
    return out


def widths_of(crops: Sequence[np.ndarray]) -> list[int]:
    """Return the width that the package pads each to: that of the widest of six alike."""
    ratios = np.array([crop.shape[1] / crop.shape[0] for crop in crops])
    found = [0] * len(crops)
    for start in range(0, len(crops), 6):
        group = np.argsort(ratios)[start : start + 6]
        for place in group:
            found[place] = int(48 * max(320 / 48, ratios[group].max()))
    return found


def cut(crops: Sequence[np.ndarray]) -> hr.Fan:
    """One child for each line."""
    return hr.Fan(list(zip(crops, widths_of(crops), strict=True)))


class Turn(hr.Module):
    """Turns lines that stand on their heads."""

    model = _TURNED
    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        self.net = context.open_model()

    def preprocess(self, value: Any) -> Any:
        crop, width = value
        return fitted(crop, 192), crop, width

    def process(self, batch: Any) -> list[Any]:
        shares = self.net(np.stack([blob for blob, _, _ in batch]))
        return [(share, crop, width) for share, (_, crop, width) in zip(shares, batch, strict=True)]

    def postprocess(self, value: Any) -> Any:
        share, crop, width = value
        return (cv2.rotate(crop, cv2.ROTATE_180) if share.argmax() == 1 and share.max() > 0.9 else crop), width


class Read(hr.Module):
    """A line -> [text, score]."""

    model = _READER
    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        self.net = context.open_model()
        self.letters = CTCLabelDecode(character=self.net.metadata["character"].splitlines(), character_path=None)

    def preprocess(self, value: Any) -> np.ndarray:
        crop, width = value
        return fitted(crop, width)

    def process(self, batch: Any) -> list[Any]:
        batches = [batch] if isinstance(batch, np.ndarray) else [blob[None] for blob in batch]
        return [[text, float(score)] for one in batches for text, score in self._read(self.net(one))]

    def _read(self, shares: np.ndarray) -> Any:
        found = self.letters(shares, False, wh_ratio_list=[1] * len(shares), max_wh_ratio=1)
        return [(one[0], one[1]) for one in found]


def together(joined: Any) -> list[str]:
    """Return the lines that are sure enough."""
    return [text for text, score in joined.results if score >= 0.5]


pipeline = hr.Pipeline(
    source=hr.folder(os.environ.get("REAL_MODELS_ITEMS", ".")),
    stages=[
        hr.fetch("fetch"),
        *Detect().stages(prefix="det."),
        hr.fan_out("cut", cut),
        *Turn().stages(prefix="cls."),
        *Read().stages(prefix="rec."),
        hr.join("together", together),
    ],
    delivery=hr.jsonl("results.jsonl"),
    name="lines",
)


def own(files: Sequence[Path]) -> dict[str, Any]:
    """Ask the package."""
    engine = RapidOCR()
    found = {}
    for file in files:
        lines, _ = engine(str(file))
        found[file.name] = [line[1] for line in lines or []]
    return found


def inputs(files: Sequence[Path]) -> np.ndarray:
    """(items, 3, 48, 320): lines of the pages, as their rows of text stand."""
    found = []
    for file in files:
        page = cv2.imread(str(file))
        for row in range(4):
            strip = page[30 + 85 * row : 95 + 85 * row, 10:420]
            if strip.std() > 12:  # there is text
                found.append(fitted(np.ascontiguousarray(strip), 320))
    return np.stack(found)


def few_pages(folder: Path, count: int) -> None:
    """A third as many: a page has several lines, and takes as long as many crops."""
    pages(folder, max(16, count // 3))


CASE = Case(
    models={"ocr_rec": _READER, "ocr_det": _DETECTOR, "ocr_cls": _TURNED}, make_items=few_pages, own=own,
    same=lambda ours, theirs: ours == theirs, inputs=inputs,
)  # fmt: skip
