"""Reviewed items as candidates of a golden set: a folder of pictures with `labels.jsonl`, which `validate` reads.

An item of a task whose answers have boxes becomes a line with boxes: those of the answer if it is correct, else those that the
reviewer left or drew; every other item one with a label.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError
from headrace.monitor.review.reviewing import Review
from headrace.monitor.review.store import find_file
from headrace.runs.formats.review import AnswerBox, SampledAnswer, VerdictLine
from headrace.runs.run_folder import replace_file

_LABELS = "labels.jsonl"
_ORIENTATION, _TURNED = 0x0112, 5  # of EXIF: from this value on width and height change places
_PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def write_golden(review: Review, folder: Path, *, force: bool = False) -> tuple[int, int]:
    """Write reviewed items, and return how many, and how many have no label or no picture.

    Raises:
        SettingsError: If the folder is not empty, items cannot be in a golden set, or there are none.
    """
    if review.is_blurred:
        raise SettingsError(f"the pictures in {review.folder} are blurred: no model should be judged by them")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not force:
        raise SettingsError(f"{folder} exists and is not empty; name another, or write into it with --force")
    rows: list[dict[str, Any]] = []
    num_left = 0
    items = [review.find_item(drawn.item) for drawn in review.round.draws]
    detecting = {item.task for item in items if item is not None and item.boxes}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for drawn in review.round.draws:
            item, said = review.find_item(drawn.item), review.verdict_of(drawn.item)
            if item is None or said is None or said.verdict not in ("correct", "wrong"):
                continue
            file = find_file(review.folder, drawn.item.partition("/")[0], item.file)
            known = file is not None and file.suffix in _PICTURES
            truth = (
                _find_truth(item, said, file, has_boxes=item.task in detecting) if file is not None and known else None
            )
            if file is None or truth is None:
                num_left += 1
                continue
            shutil.copyfile(file, folder / file.name)
            rows.append({"file": file.name, **truth, "source": item.source or item.job})
        if not rows:
            raise SettingsError(
                f"no reviewed item of round {review.round.number} has a picture and one right class, or boxes that are right "
                f"({num_left} have not); accept or correct some with `headrace review`"
            )
        replace_file(folder / _LABELS, b"".join(encode_document(row) + b"\n" for row in _alike(rows)))
    except OSError as error:
        raise SettingsError(f"{folder} cannot be written: {error.strerror}") from None
    return len(rows), num_left


def _find_truth(item: SampledAnswer, said: VerdictLine, file: Path, *, has_boxes: bool) -> dict[str, Any] | None:
    """Return what is true of an item, as a line of `labels.jsonl` says it; None if nobody said."""
    if not has_boxes:
        label = _find_label(item, said)
        return None if label is None else {"label": label}
    boxes = item.boxes if said.verdict == "correct" else said.boxes
    if boxes is None or not all(box.name for box in boxes):
        return None
    return _as_pixels(boxes, file)


def _as_pixels(boxes: Sequence[AnswerBox], file: Path) -> dict[str, Any] | None:
    """Return boxes in pixels of the picture as it is seen; None if it cannot be read."""
    try:
        with Image.open(file) as image:
            width, height = image.size
            if image.getexif().get(_ORIENTATION, 1) >= _TURNED:
                width, height = height, width
    except OSError:
        return None
    rows = [
        [
            round(share * size, 2)
            for share, size in zip((box.x1, box.y1, box.x2, box.y2), (width, height) * 2, strict=True)
        ]
        for box in boxes
    ]
    names: list[Any] = [int(box.name) if box.name.isdecimal() else box.name for box in boxes]
    return {"boxes": rows, "classes": names}


def _find_label(item: SampledAnswer, said: VerdictLine) -> str | None:
    return (item.name if said.verdict == "correct" else said.label) or None


def _alike(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with numbers as labels where all are: a class that has no name is its place in the output."""
    if all(str(row.get("label", "")).isdecimal() for row in rows):
        return [{**row, "label": int(row["label"])} for row in rows]
    return rows
