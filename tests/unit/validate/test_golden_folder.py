"""A golden set from images, prepared the way the pipeline prepares its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.validate.disjoint import list_known_sources
from headrace.validate.golden import read_golden
from headrace.validate.golden_folder import read_golden_folder


class Small(hr.Module):
    """Takes small pictures from 0 to 1."""

    input = hr.ImageInput(short_side=16, crop=16)

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Scale and put the channels first."""
        return (image.astype(np.float32) / 255).transpose(2, 0, 1)

    def process(self, batch: Any) -> Sequence[Any]:
        """Return nothing of interest."""
        return [0] * len(batch)


class Raw(hr.Module):
    """Takes bytes."""

    def process(self, batch: Any) -> Sequence[Any]:
        """Return nothing of interest."""
        return [0] * len(batch)


class Uneven(Small):
    """Takes pictures of any size."""

    input = hr.ImageInput()


def write(path: Path, grey: int, side: int = 24) -> None:
    """Write a grey image with a pattern."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.full((side, side + 4, 3), grey, np.uint8)
    image[: side // 2, :, 2] = 0  # BGR: less red above
    cv2.imwrite(str(path), image)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine images of three classes, darker and brighter, and one that is none."""
    lines = []
    for number in range(9):
        write(tmp_path / f"{number}.png", 20 + 25 * number)
        lines.append({"file": f"{number}.png", "label": "abc"[number % 3], "source": f"camera {number // 3}"})
    (tmp_path / "broken.png").write_bytes(b"<html>")
    lines += [{"file": "broken.png", "label": "a"}, {"file": "unknown.png", "label": None}]
    (tmp_path / "labels.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return tmp_path


def test_images_are_prepared_as_by_the_module(folder: Path) -> None:
    """Decoded as RGB, scaled, cropped and preprocessed; what cannot be decoded is left out, and said."""
    said: list[str] = []
    golden = read_golden_folder(folder, Small(), ["a", "b", "c"], say=said.append)
    assert golden.inputs.shape == (9, 3, 16, 16)
    assert golden.inputs.dtype == np.float32
    assert golden.labels is not None
    assert golden.labels.tolist() == [0, 1, 2] * 3
    assert golden.inputs[4, 0, 2, 8] == 0.0  # red is the first channel
    assert golden.inputs[4, 2, 2, 8] == pytest.approx(120 / 255, abs=0.01)
    assert "1 of 10 images" in said[0]
    assert golden.sources is not None  # the one that does not tell is left out
    assert golden.sources.tolist() == [f"camera {number // 3}" for number in range(9)]


def test_a_folder_without_labels_still_tells_its_sources(tmp_path: Path) -> None:
    """Calibration data need no labels, and come from somewhere all the same; an image without a source hides no other."""
    lines = [{"file": "0.png", "label": None, "source": "cam1"}, {"file": "1.png"}]
    for line in lines:
        write(tmp_path / str(line["file"]), 20)
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "broken\n")
    found = read_golden_folder(tmp_path, Small(), labelled=False)
    assert found.sources is None
    assert list_known_sources(found) == {"cam1"}
    with (tmp_path / "labels.jsonl").open("ab") as file:
        file.write(b'\n{"file": "\xff.png", "source": 3}\nnothing')
    assert list_known_sources(read_golden_folder(tmp_path, Small(), labelled=False)) == {"cam1"}


def test_images_are_in_thirds_by_what_they_look_like(folder: Path) -> None:
    """Three dark ones, three bright ones; all are of one size, which divides nothing."""
    golden = read_golden_folder(folder, Small(), ["a", "b", "c"])
    assert golden.slices["light"].tolist() == ["dark"] * 3 + ["middle"] * 3 + ["bright"] * 3
    assert "pixels" not in golden.slices


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    """Classes in the order of their names, unless the model says otherwise."""
    for name, grey in (("dog", 10), ("cat", 200)):
        write(tmp_path / name / "one.png", grey)
    assert read_golden_folder(tmp_path, Small()).labels.tolist() == [0, 1]  # type: ignore[union-attr]
    assert read_golden_folder(tmp_path, Small(), ["dog", "cat"]).labels.tolist() == [1, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("module", "names", "expected"),
    [
        (Small(), ["a", "b"], "'c' is no class"),
        (Small(), None, "does not say which output is which"),
        (Raw(), ["a", "b", "c"], "no ImageInput"),
    ],
)
def test_what_cannot_be_is_said(folder: Path, module: hr.Module, names: list[str] | None, expected: str) -> None:
    """An unknown class, names without an order, a module without images."""
    with pytest.raises(SettingsError, match=expected):
        read_golden_folder(folder, module, names)


def test_shapes_must_be_one(tmp_path: Path) -> None:
    """Two sizes cannot be one array; it says what to set."""
    write(tmp_path / "a" / "1.png", 10, side=24)
    write(tmp_path / "a" / "2.png", 10, side=32)
    with pytest.raises(SettingsError, match="short_side and crop"):
        read_golden_folder(tmp_path, Uneven())


def test_without_labels_any_images_will_do(tmp_path: Path) -> None:
    """In folders or not; one that its list names and that is gone is said."""
    write(tmp_path / "1.png", 10)
    write(tmp_path / "deeper" / "2.png", 200)
    golden = read_golden_folder(tmp_path, Small(), labelled=False)
    assert golden.labels is None
    assert len(golden) == 2
    (tmp_path / "labels.jsonl").write_text('{"file": "gone.png", "label": 0}')
    with pytest.raises(SettingsError, match=r"gone\.png cannot be read"):
        read_golden_folder(tmp_path, Small())


def test_bad_lines_and_empty_folders_are_said(tmp_path: Path) -> None:
    """With the line's number, and what was expected."""
    with pytest.raises(SettingsError, match="no images"):
        read_golden_folder(tmp_path, Small())
    (tmp_path / "labels.jsonl").write_text('{"file": "a.png", "label": 1}\nnonsense')
    with pytest.raises(SettingsError, match="line 2: 'nonsense'"):
        read_golden_folder(tmp_path, Small())


@pytest.mark.parametrize("labelled", [True, False])
def test_labels_that_are_not_utf_8_are_said(folder: Path, labelled: bool) -> None:
    """With the byte's place and its line, where they are asked for; images alone need no line of them."""
    written = (folder / "labels.jsonl").read_bytes()
    (folder / "labels.jsonl").write_bytes(written + '\n{"file": "3.png", "label": "müll"}'.encode("latin1"))
    if not labelled:
        assert len(read_golden_folder(folder, Small(), labelled=False)) == 9
        return
    place = len(written) + len('\n{"file": "3.png", "label": "m')
    with pytest.raises(
        SettingsError, match=rf"labels\.jsonl is not UTF-8: byte {place:,} \(line 12\) is 0xfc; .*iconv"
    ):
        read_golden_folder(folder, Small(), ["a", "b", "c"])


def test_a_file_may_divide_its_items(tmp_path: Path) -> None:
    """Sources and slices are read from arrays of their own, one for each item."""
    np.savez(
        tmp_path / "set.npz", inputs=np.zeros((4, 2), np.float32), labels=np.arange(4), sources=np.array(list("aabb")),
        slice_light=np.array(["dark", "dark", "bright", "bright"]),
    )  # fmt: skip
    golden = read_golden(tmp_path / "set.npz")
    assert golden.sources is not None
    assert golden.sources.tolist() == list("aabb")
    assert golden.slices["light"].tolist() == ["dark", "dark", "bright", "bright"]
    np.savez(tmp_path / "bad.npz", inputs=np.zeros((4, 2), np.float32), slice_light=np.array(["dark"]))
    with pytest.raises(SettingsError, match="slice_light"):
        read_golden(tmp_path / "bad.npz")


def test_images_without_labels_are_said_to_be_there(tmp_path: Path) -> None:
    """Who gives a plain folder of images is told what is missing: the labels."""
    write(tmp_path / "a.png", 20)
    with pytest.raises(SettingsError, match="1 image without labels"):
        read_golden_folder(tmp_path, Small())
