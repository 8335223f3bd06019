"""The record of one image, the manifest of a folder of them, and the file `labels.jsonl` that keeps it.

History of the file's format:
    1  one JSON object a line with the fields of `Label`, and `version`.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.samples.catalogue import Box, Split
from headrace.samples.messy import UNDECODABLE, MessyKind

LABELS_NAME = "labels.jsonl"
LABELS_VERSION = 1


@dataclass(frozen=True)
class Label:
    """What is known of one image."""

    file: str
    """The file's name inside its folder."""
    label: str | None
    """The photograph it was cut from; None for `not_an_image`. A truncated file keeps the label of what it was."""
    kind: str
    """What the bytes are: "jpeg", "png", "webp" or "html". A file of kind "html" is called `.jpg` all the same."""
    messy: MessyKind | None
    """The fault, or None for a clean image."""
    region: Box | None
    """The part of the photograph that was cut out, in its pixels; None for `not_an_image`."""
    width: int | None
    """Pixels as stored, that is before an orientation tag is applied; None for `not_an_image`."""
    height: int | None
    """Pixels as stored; None for `not_an_image`."""
    bytes: int
    """Size of the file."""

    @property
    def decodable(self) -> bool:
        """Whether a whole image can be had from the file."""
        return self.messy not in UNDECODABLE

    def to_line(self) -> str:
        """Return the line of `labels.jsonl`, without line end."""
        return json.dumps({"version": LABELS_VERSION, **asdict(self)})


@dataclass(frozen=True)
class Manifest:
    """What `make` wrote."""

    directory: Path
    """The folder of the images and of `labels.jsonl`."""
    seed: int
    split: Split
    labels: tuple[Label, ...]
    """One for each image, in the order of the files' names."""

    @property
    def labels_path(self) -> Path:
        """The file with the labels."""
        return self.directory / LABELS_NAME

    @property
    def num_bytes(self) -> int:
        """Size of the images together, `labels.jsonl` not counted."""
        return sum(label.bytes for label in self.labels)

    @property
    def num_by_kind(self) -> dict[str, int]:
        """Count of files by what their bytes are."""
        return dict(sorted(Counter(label.kind for label in self.labels).items()))

    @property
    def num_by_messy(self) -> dict[str, int]:
        """Count of messy files by fault; clean ones are not in it."""
        return dict(sorted(Counter(label.messy for label in self.labels if label.messy is not None).items()))


def write_labels(directory: Path, labels: tuple[Label, ...]) -> Path:
    """Write `labels.jsonl` into the folder and return its path."""
    path = directory / LABELS_NAME
    path.write_text("".join(label.to_line() + "\n" for label in labels), encoding="utf-8")
    return path


def read_labels(directory: Path | str) -> tuple[Label, ...]:
    """Return the labels of a folder that `make` wrote.

    Raises:
        FileNotFoundError: If the folder has no `labels.jsonl`.
        ValueError: If a line is not a label of a version that is known here; names the line.
    """
    path = Path(directory) / LABELS_NAME
    lines = path.read_text(encoding="utf-8").splitlines()
    return tuple(_parse_line(line, f"{path}:{number}") for number, line in enumerate(lines, start=1))


def _parse_line(line: str, where: str) -> Label:
    try:
        fields: dict[str, Any] = json.loads(line)
        version = fields.pop("version")
        region = fields.pop("region")
        label = Label(region=None if region is None else tuple(region), **fields)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{where} is not a label: {error}") from error
    if version != LABELS_VERSION:
        raise ValueError(f"{where} has version {version}, this headrace reads {LABELS_VERSION}; make the folder again")
    return label
