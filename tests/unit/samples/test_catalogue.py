"""The photographs, their regions and their licences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from headrace.samples.catalogue import (
    LICENCES_PATH,
    NAMES,
    PHOTOGRAPHS,
    PHOTOGRAPHS_FOLDER,
    SCENES_MODEL_PATH,
    Photograph,
    photograph,
)

every_photograph = pytest.mark.parametrize("scene", PHOTOGRAPHS, ids=NAMES)


@every_photograph
def test_size_is_that_of_the_file(scene: Photograph) -> None:
    """The catalogue states the size that the file has."""
    with Image.open(scene.path) as image:
        assert image.size == (scene.width, scene.height)


@every_photograph
def test_regions_share_no_pixel(scene: Photograph) -> None:
    """Between the regions lies a gap of at least 16 pixels along one axis."""
    (left, top, right, bottom), other = scene.train, scene.held_out
    gaps = (other[0] - right, left - other[2], other[1] - bottom, top - other[3])

    assert max(gaps) >= 16


@every_photograph
def test_regions_lie_inside_the_photograph(scene: Photograph) -> None:
    """Both regions are boxes inside the photograph."""
    for left, top, right, bottom in (scene.train, scene.held_out):
        assert 0 <= left < right <= scene.width
        assert 0 <= top < bottom <= scene.height


def test_there_are_at_least_ten() -> None:
    """There are at least ten photographs, each with a name of its own."""
    assert len(set(NAMES)) == len(PHOTOGRAPHS) >= 10


def test_folder_holds_no_photograph_outside_the_catalogue() -> None:
    """Every picture in the folder is in the catalogue."""
    assert {path.stem for path in PHOTOGRAPHS_FOLDER.iterdir() if path != LICENCES_PATH} == set(NAMES)


@every_photograph
def test_licence_file_covers_every_photograph(scene: Photograph) -> None:
    """The licence file has a row with file, author and licence, and quotes the source."""
    text = LICENCES_PATH.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith(f"| `{scene.path.name}` |")]

    assert len(rows) == 1
    assert scene.licence in rows[0]
    assert scene.credit in rows[0]
    assert f"**{scene.path.name}**" in text


def test_data_stays_within_four_megabytes() -> None:
    """Photographs, licences and model together weigh at most 4 MB."""
    files = [*PHOTOGRAPHS_FOLDER.iterdir(), *SCENES_MODEL_PATH.parent.iterdir()]

    assert sum(path.stat().st_size for path in files) <= 4_000_000


def test_unknown_name_is_refused() -> None:
    """Asking for a photograph that is not there names those that are."""
    with pytest.raises(ValueError, match="no photograph is called 'lena'; there are: brick"):
        photograph("lena")


def test_import_is_cheap() -> None:
    """Importing the package and its catalogue loads neither Pillow nor NumPy."""
    program = "import sys, headrace.samples.catalogue; print({'PIL', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path.cwd())

    assert done.stdout.strip() == "set()"
