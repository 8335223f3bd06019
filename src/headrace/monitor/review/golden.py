"""Reviewed items as candidates of a golden set: a folder of pictures with `labels.jsonl`, which `validate` reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError
from headrace.monitor.review.reviewing import Review
from headrace.monitor.review.store import find_file
from headrace.runs.formats.review import SampledAnswer, VerdictLine
from headrace.runs.run_folder import replace_file

_LABELS = "labels.jsonl"
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
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for drawn in review.round.draws:
            item, said = review.find_item(drawn.item), review.verdict_of(drawn.item)
            if item is None or said is None or said.verdict not in ("correct", "wrong"):
                continue
            label = _find_label(item, said)
            file = find_file(review.folder, drawn.item.partition("/")[0], item.file)
            if label is None or file is None or file.suffix not in _PICTURES or item.boxes:
                num_left += 1
                continue
            shutil.copyfile(file, folder / file.name)
            rows.append({"file": file.name, "label": label, "source": item.source or item.job})
        if not rows:
            raise SettingsError(
                f"no reviewed item of round {review.round.number} has a picture and one right class ({num_left} have not); "
                "boxes are judged here and not drawn: for these use --export and a tool of your own"
            )
        replace_file(folder / _LABELS, b"".join(encode_document(row) + b"\n" for row in _alike(rows)))
    except OSError as error:
        raise SettingsError(f"{folder} cannot be written: {error.strerror}") from None
    return len(rows), num_left


def _find_label(item: SampledAnswer, said: VerdictLine) -> str | None:
    return (item.name if said.verdict == "correct" else said.label) or None


def _alike(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with numbers as labels where all are: a class that has no name is its place in the output."""
    if all(str(row["label"]).isdecimal() for row in rows):
        return [{**row, "label": int(row["label"])} for row in rows]
    return rows
