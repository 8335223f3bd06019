"""A golden set from a folder of images, through the user's own decoding and preprocessing.

    FOLDER/labels.jsonl        one JSON object a line: "file", "label" (a name or a number), and "source" where it is known;
                               "boxes" with "classes", or a "mask", in place of the label or beside it: see `marks`
    FOLDER/CLASS/IMAGE         or a folder for each class

What a model answers depends on how its images were decoded and scaled, so they take the pipeline's way: its module's
`input` and `preprocess`. They may need more memory than there is (5,000 images of 224 pixels are 3 GB), so they are put
into a file that the system may take out of memory again.

Each image is also put into slices by what it looks like (small or large, dark or bright, blurred or sharp, thirds of the set),
for a variant may be as often right on average and wrong in the dark.

References:
    J. Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy", ICPR 2000 (variance of the Laplacian as sharpness).
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.documents import decode_document
from headrace.base.errors import DecodeRejected, SettingsError
from headrace.base.formatting import pluralize
from headrace.stages.module import Module
from headrace.stages.placement import Placement
from headrace.stages.stage import Stage
from headrace.validate.annotations import Annotations, pad_boxes, place_boxes, place_mask, read_marks
from headrace.validate.golden import Golden, fingerprint
from headrace.validate.golden_files import MOST_CLASSES, file_in, read_file
from headrace.validate.preparation import Preparation, find_stages_before_model

LABELS = "labels.jsonl"
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
#: Thirds of a set.
_THIRDS = {
    "pixels": ("small", "middle", "large"),
    "light": ("dark", "middle", "bright"),
    "focus": ("blurred", "middle", "sharp"),
}


@dataclass(frozen=True, slots=True)
class _Row:
    """One image before it is read."""

    file: Path
    label: str | int | None
    source: str
    marks: Annotations | None = None


def read_golden_folder(
    folder: Path,
    module: Module,
    names: Sequence[str] | None = None,
    *,
    labelled: bool = True,
    stages: Sequence[Stage] = (),
    say: Callable[[str], object] = lambda text: None,
) -> Golden:
    """Return the golden set of a folder.

    Args:
        folder: With `labels.jsonl`, or with a folder for each class.
        module: Of the pipeline; its input must be an image, or stages of the pipeline make its input of one.
        names: Of the classes in the order of the model's output; None: labels must be numbers, or folders in the order of
            their names.
        labelled: Whether labels are asked for; without, any images will do, in folders or not, and each child of a fan-out is
            an item.
        stages: Of the whole pipeline, for a module that does not decode itself.
        say: Told what was left out.

    Raises:
        SettingsError: If there are no images, a label is no class, a box or a mask is none, or images end up in different
            shapes.
    """
    rows = _rows(folder, labelled, names)
    numbers = _numbers(rows, names, folder) if labelled and rows[0].label is not None else None
    before = find_stages_before_model(module, stages)
    prepare = Preparation(before)
    digest = hashlib.sha256()
    kept: list[int] = []
    looks: list[tuple[float, float, float]] = []
    with _Growing() as inputs, _Growing() as masks:
        marked = _Annotated(masks)
        for number, row in enumerate(rows):
            data = read_file(row.file)
            try:
                found = prepare(data)
            except DecodeRejected:
                continue
            if labelled and len(found.inputs) != 1:
                raise SettingsError(
                    f"{row.file}: the pipeline makes {pluralize(len(found.inputs), 'item')} of it for the model, and what "
                    "is true is known of the image as a whole: make the golden set yourself, as .npz"
                )
            for array in found.inputs:
                inputs.add(array, row.file)
                digest.update(array.tobytes())
                if row.marks is not None:
                    marked.add(row.marks, found.placement, array.shape, row.file)
                kept.append(number)
                looks.append(found.look)
        arrays, truth = inputs.array(), marked.truth()
    if not kept:
        raise SettingsError(f"{folder}: none of its {pluralize(len(rows), 'image')} can be decoded")
    if len(set(kept)) < len(rows):
        say(
            f"{folder}: {len(rows) - len(set(kept))} of {pluralize(len(rows), 'image')} cannot be decoded and are left out"
        )
    paths = [rows[number].file for number in kept]
    labels = None if numbers is None else np.array([numbers[number] for number in kept], np.int64)
    slices, sources = _slices(looks), _sources([rows[number] for number in kept])
    return Golden(
        name=str(folder), inputs=arrays, labels=labels, sha256=fingerprint(digest, labels, truth, slices, sources),
        slices=slices, sources=sources, truth=truth, files=[str(path) for path in paths],
        scaled=lambda side: _load_scaled(before, paths, side),
        some_sources=frozenset(rows[number].source for number in kept) - {""},
    )  # fmt: skip


def _load_scaled(before: Sequence[Stage], files: Sequence[Path], side: int) -> np.ndarray:
    """Return images that can be decoded as a model of that `input_side` takes them, (items, ...)."""
    prepare = Preparation(before, side)
    with _Growing() as inputs:
        for file in dict.fromkeys(files):  # once, however many items were made of it
            for array in prepare(read_file(file)).inputs:
                inputs.add(array, file)
        return inputs.array()


def _rows(folder: Path, labelled: bool, names: Sequence[str] | None) -> list[_Row]:
    if not labelled:
        masks = _masks(folder / LABELS)
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _IMAGES and file not in masks)
        if not files:
            raise SettingsError(f"{folder}: no images; expected files such as a.jpg, in folders or not")
        sources = _read_known_sources(folder / LABELS)
        return [_Row(file, None, sources.get(file, "")) for file in files]
    manifest = folder / LABELS
    rows = list(_read_listed(manifest, names) if manifest.is_file() else _list_in_folders(folder))
    if not rows:
        found = sum(file.suffix.lower() in _IMAGES for file in folder.iterdir())
        what = f"{pluralize(found, 'image')} without labels" if found else "no images"
        raise SettingsError(f"{folder}: {what}; expected {LABELS}, or a folder for each class with images in it")
    return rows


def _read_listed(manifest: Path, names: Sequence[str] | None) -> Iterator[_Row]:
    kind: tuple[bool, ...] | None = None
    for number, line in enumerate(_text(manifest).splitlines(), 1):
        try:
            said = decode_document(line, dict[str, Any])
            name, label = said["file"], said.get("label")
            if type(label) is int and not 0 <= label < MOST_CLASSES:
                raise ValueError(f"label = {label:.6g} is the place of no class")
        except (ValueError, KeyError) as error:
            raise SettingsError(
                f'{manifest}, line {number}: {line[:80]!r} is no label ({error}); expected {{"file": "a.jpg", "label": "cat"}}'
            ) from None
        where = f"{manifest}, line {number}"
        file = file_in(manifest.parent, name, where)
        own = tuple(said.get(key) is not None for key in _TOLD)
        if not any(own):  # then nothing is known of it
            continue
        if kind is not None and own != kind:
            told, before = (
                " and ".join(key for key, has in zip(_TOLD, one, strict=True) if has) for one in (own, kind)
            )
            raise SettingsError(
                f"{manifest}, line {number} has {told}, and lines before have {before}: all need the same"
            )
        kind = own
        marks = read_marks(said, names, where, manifest.parent)
        yield _Row(file, label, str(said.get("source") or ""), marks)


def _text(manifest: Path) -> str:
    data = read_file(manifest)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsError(
            f"{manifest} is not UTF-8: byte {error.start:,} (line {line:,}) is 0x{data[error.start]:02x}; expected JSON lines "
            "in UTF-8: save it so, or convert it: iconv -f latin1 -t utf-8"
        ) from None


#: What a line may tell of its image.
_TOLD = ("label", "boxes", "mask")


def _masks(manifest: Path) -> set[Path]:
    """Return the masks that lines name, which are no images; a line that cannot be read names none."""
    masks = set()
    for line in read_file(manifest).decode("utf-8", "replace").splitlines() if manifest.is_file() else ():
        with contextlib.suppress(ValueError, LookupError, SettingsError):
            masks.add(file_in(manifest.parent, decode_document(line, dict[str, Any])["mask"], str(manifest)))
    return masks


def _read_known_sources(manifest: Path) -> Mapping[Path, str]:
    """Return {image: source}, where lines tell it; a line that cannot be read tells nothing."""
    found = {}
    for line in read_file(manifest).decode("utf-8", "replace").splitlines() if manifest.is_file() else ():
        with contextlib.suppress(ValueError, LookupError, SettingsError):
            said = decode_document(line, dict[str, Any])
            found[file_in(manifest.parent, said["file"], str(manifest))] = str(said.get("source") or "")
    return found


def _list_in_folders(folder: Path) -> Iterator[_Row]:
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        for file in sorted(place.iterdir()):
            if file.suffix.lower() in _IMAGES:
                yield _Row(file, place.name, "")


def _numbers(rows: Sequence[_Row], names: Sequence[str] | None, folder: Path) -> list[int] | None:
    """Return the class of each row."""
    labels = [row.label for row in rows]
    if all(isinstance(label, int) for label in labels):
        return [int(label or 0) for label in labels]
    if names is None:
        if (folder / LABELS).is_file():
            raise SettingsError(
                f"{folder / LABELS} has names as labels, and the model does not say which output is which: write numbers "
                "(the classes' places in the output), or put a JSON list \"names\" into the model's metadata"
            )
        names = sorted({str(label) for label in labels})
    places = {name: place for place, name in enumerate(names)}
    unknown = sorted({str(label) for label in labels} - set(places))
    if unknown:
        raise SettingsError(f"{folder}: {unknown[0]!r} is no class of the model; expected {', '.join(names[:12])}")
    return [places[str(label)] for label in labels]


def _slices(looks: Sequence[tuple[float, float, float]]) -> Mapping[str, np.ndarray]:
    """Return {property: (items,) str}: the third of the set in which each image is; nothing where all are alike."""
    found = {}
    for column, (name, thirds) in enumerate(_THIRDS.items()):
        values = np.array([look[column] for look in looks])
        low, high = np.quantile(values, [1 / 3, 2 / 3])
        if low < high:
            found[name] = np.array(thirds)[np.digitize(values, [low, high], right=True)]
    return found


def _sources(rows: Sequence[_Row]) -> np.ndarray | None:
    return np.array([row.source for row in rows]) if all(row.source for row in rows) else None


class _Annotated:
    """Boxes or masks of the images, in pixels of the model's input."""

    def __init__(self, masks: _Growing) -> None:
        self._boxes: list[tuple[np.ndarray, np.ndarray]] = []
        self._masks = masks

    def add(self, marks: Annotations, place: Placement | None, shape: tuple[int, ...], file: Path) -> None:
        """Append those of one image, which is at that place of what the model gets, an array of that shape."""
        if place is None or place.size not in (shape[:2], shape[-2:]):
            known = "not known" if place is None else f"{place.size[1]} x {place.size[0]} pixels as far as is known"
            raise SettingsError(
                f"{file}: the image is {known}, and what the model gets is {list(shape)}: where its boxes end up is not known. "
                "Resize by short_side and crop, or by long_side, of the module's ImageInput; or say in preprocess what it did: "
                "hr.note_placement(scaled=(h, w), top=-rows_added, left=-columns_added, size=(height, width)); or make the set "
                "yourself as .npz, with truth_boxes and truth_classes, or truth_mask, in pixels of the model's input"
            )
        if marks.boxes is not None:
            self._boxes.append(place_boxes(marks, place))
        if marks.mask is not None:
            self._masks.add(place_mask(marks.mask, place), marks.mask)

    def truth(self) -> Mapping[str, np.ndarray]:
        """Return the arrays of all."""
        masks = self._masks.array()
        return {**(pad_boxes(self._boxes) if self._boxes else {}), **({"mask": masks} if len(masks) else {})}


class _Growing:
    """Arrays of one shape in a file of their own, which goes away with the last reference to them."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="headrace-golden-")  # noqa: SIM115  lives as long as the array
        self._first: np.ndarray | None = None
        self._count = 0

    def __enter__(self) -> _Growing:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()  # the mapping keeps the content

    def add(self, array: np.ndarray, file: Path) -> None:
        """Append one."""
        if self._first is None:
            self._first = array
        if array.shape != self._first.shape or array.dtype != self._first.dtype:
            raise SettingsError(
                f"{file}: preprocess gives {array.dtype}{list(array.shape)}, and {self._first.dtype}{list(self._first.shape)} "
                "before: a golden set needs one shape; set short_side and crop, or long_side and pad, of the module's "
                "ImageInput"
            )
        self._file.write(array.tobytes())
        self._count += 1

    def array(self) -> np.ndarray:
        """Return (items, ...)."""
        if self._first is None:
            return np.empty((0,))
        self._file.flush()
        return np.memmap(self._file, self._first.dtype, "r", shape=(self._count, *self._first.shape))
