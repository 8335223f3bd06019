"""Cuts labelled images from the photographs, the same bytes for the same seed.

How this works: every image has its own random generator, seeded from the run's seed and the image's number, which decides
in a fixed order what is cut, how large it becomes and how it is encoded. Labels and faults are dealt out beforehand, so
that every scene gets its share and `messy_ratio` is met exactly. `random.Random` rather than NumPy's generators: its
sequence is promised to stay the same between versions. The bytes still depend on the versions of Pillow and of the codecs
inside it; the same versions give the same bytes.

The part is cut out first and resized afterwards. Pillow's `resize(box=...)` would do both at once but reads pixels beyond
the box for its filter, and so would carry pixels across the line between the two regions.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from PIL import Image

from headrace.samples.catalogue import NAMES, SPLITS, Box, Photograph, Split, photograph
from headrace.samples.labels import LABELS_NAME, Label, Manifest, read_labels, write_labels
from headrace.samples.messy import JPEG_ONLY, MESSY_KINDS, MessyKind, error_page, spoil_picture, truncate, turn

LONG_SIDE_PIXELS = (480, 1600)
"""Smallest and largest long side; uniform in between, which makes the mean image about 0.9 megapixels."""
JPEG_QUALITY = (75, 95)

_KIND_WEIGHTS = {"jpeg": 90, "png": 4, "webp": 6}
_SUFFIXES = {"jpeg": ".jpg", "png": ".png", "webp": ".webp"}
_ASPECT_WEIGHTS = {4 / 3: 4, 3 / 4: 2, 3 / 2: 1, 2 / 3: 1, 1.0: 1, 16 / 9: 1}
_Option = TypeVar("_Option")
_PNG_COMPRESSION = 3  # zlib level; the default of 6 takes three times as long for a few per cent of size


@dataclass(frozen=True)
class Crop:
    """One image in memory."""

    data: bytes
    """The encoded file."""
    record: Label
    """What is known of it; `record.file` is the name that `make` would give it."""

    @property
    def label(self) -> str | None:
        """The photograph it was cut from; None for `not_an_image`."""
        return self.record.label


def make(
    directory: Path | str,
    *,
    count: int,
    seed: int,
    messy_ratio: float = 0.0,
    split: Split = "all",
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Write `count` images and `labels.jsonl` into a folder and return the manifest.

    `labels.jsonl` is written last: a folder that has it is complete.

    Args:
        directory: Made where it does not exist.
        count: Number of files, >= 1.
        seed: Decides every byte.
        messy_ratio: Share of messy files, 0 to 1, met to the nearest file.
        split: The region of the photographs to cut from.
        force: Write into a folder that is not empty; the images of an earlier `make` there are removed, other files stay.
        progress: Called with the number of files written so far, after each.

    Raises:
        ValueError: If a value is out of its range, or the folder is not empty and `force` is not given.
    """
    images = crops(count, seed, messy_ratio=messy_ratio, split=split)
    folder = Path(directory)
    _prepare(folder, force)
    labels = []
    for crop in images:
        (folder / crop.record.file).write_bytes(crop.data)
        labels.append(crop.record)
        if progress is not None:
            progress(len(labels))
    write_labels(folder, tuple(labels))
    return Manifest(directory=folder, seed=seed, split=split, labels=tuple(labels))


def crops(count: int, seed: int, *, messy_ratio: float = 0.0, split: Split = "all") -> Iterator[Crop]:
    """Return an iterator over the images that `make` would write, without writing.

    Clean images do not depend on `count`: the first ten of a hundred are the ten of ten.

    Args:
        count: Number of images, >= 1.
        seed: Decides every byte.
        messy_ratio: Share of messy images, 0 to 1, met to the nearest image.
        split: The region of the photographs to cut from.

    Raises:
        ValueError: If a value is out of its range; raised by the call, not by the first image.
    """
    if count < 1:
        raise ValueError(f"count is {count}; at least 1 image can be made")
    if not 0.0 <= messy_ratio <= 1.0:
        raise ValueError(f"messy_ratio is {messy_ratio}; it is a share from 0 to 1")
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
    faults = _deal_faults(count, seed, messy_ratio)
    return (_make_one(number, seed, split, faults[number]) for number in range(count))


def _deal_faults(count: int, seed: int, messy_ratio: float) -> list[MessyKind | None]:
    """Return the fault of every image: kinds in turn, at places drawn by chance."""
    rng = random.Random(f"{seed}/faults/{count}")
    faults: list[MessyKind | None] = [None] * count
    for turn_number, place in enumerate(rng.sample(range(count), round(count * messy_ratio))):
        faults[place] = MESSY_KINDS[turn_number % len(MESSY_KINDS)]
    return faults


def _label_of(number: int, seed: int) -> str:
    """Return the scene of an image: in every run of as many images as scenes, each scene once."""
    block, place = divmod(number, len(NAMES))
    return random.Random(f"{seed}/labels/{block}").sample(NAMES, len(NAMES))[place]


def _make_one(number: int, seed: int, split: Split, fault: MessyKind | None) -> Crop:
    rng = random.Random(f"{seed}/{number}")
    if fault == "not_an_image":
        data = error_page(rng)
        return Crop(data, Label(f"{number:06d}.jpg", None, "html", fault, None, None, None, len(data)))
    scene = photograph(_label_of(number, seed))
    region = _choose_box(scene.region(split), rng)
    image = _cut(scene, region, rng)
    kind = "jpeg" if fault in JPEG_ONLY else _choose(_KIND_WEIGHTS, rng)
    data, (width, height) = _encode(image, kind, fault, rng)
    name = f"{number:06d}{_SUFFIXES[kind]}"
    return Crop(data, Label(name, scene.name, kind, fault, region, width, height, len(data)))


def _choose_box(within: Box, rng: random.Random) -> Box:
    """Return a part of the region, 55 to 100 % of the largest that has the aspect ratio drawn."""
    left, top, right, bottom = within
    aspect = _choose(_ASPECT_WEIGHTS, rng)
    scale = rng.uniform(0.55, 1.0)
    largest_width = min(right - left, (bottom - top) * aspect)
    width, height = round(largest_width * scale), round(largest_width / aspect * scale)
    x, y = rng.randint(left, right - width), rng.randint(top, bottom - height)
    return (x, y, x + width, y + height)


def _cut(scene: Photograph, region: Box, rng: random.Random) -> Image.Image:
    """Return the part of the photograph, RGB, resized to a long side drawn from `LONG_SIDE_PIXELS`."""
    part = _open(scene.name).crop(region)
    factor = rng.randint(*LONG_SIDE_PIXELS) / max(part.size)
    return part.resize((round(part.width * factor), round(part.height * factor)), Image.Resampling.BICUBIC)


@cache
def _open(name: str) -> Image.Image:
    """Return the decoded photograph, RGB; all together about 15 MB, kept for the life of the process."""
    with Image.open(photograph(name).path) as image:
        return image.convert("RGB")


def _encode(
    image: Image.Image, kind: str, fault: MessyKind | None, rng: random.Random
) -> tuple[bytes, tuple[int, int]]:
    """Return the file's bytes, with the fault in it, and its width and height as stored."""
    exif = b""
    if fault == "orientation":
        image, exif = turn(image, rng)
    elif fault is not None:
        image = spoil_picture(image, fault, rng)
    buffer = io.BytesIO()
    quality = rng.randint(*JPEG_QUALITY)
    if kind == "png":
        image.save(buffer, "PNG", icc_profile=None, compress_level=_PNG_COMPRESSION)
    elif kind == "webp":
        image.save(buffer, "WEBP", icc_profile=None, quality=quality, method=2)
    else:
        image.save(buffer, "JPEG", icc_profile=None, quality=quality, exif=exif)
    data = buffer.getvalue()
    return (truncate(data, rng) if fault == "truncated" else data), image.size


def _choose(weights: dict[_Option, int], rng: random.Random) -> _Option:
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


def _prepare(folder: Path, force: bool) -> None:
    """Make the folder, or empty it of what an earlier `make` wrote."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder that is empty or does not exist")
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        return
    if not force:
        raise ValueError(f"{folder} is not empty; name another folder, or pass force (--force) to write into this one")
    _remove_earlier(folder)


def _remove_earlier(folder: Path) -> None:
    """Remove `labels.jsonl` and the files it names; nothing where it is missing."""
    if not (folder / LABELS_NAME).exists():
        return
    for label in read_labels(folder):
        if Path(label.file).name == label.file:  # a label file from elsewhere must not reach outside the folder
            (folder / label.file).unlink(missing_ok=True)
    (folder / LABELS_NAME).unlink()
