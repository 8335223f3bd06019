"""Images made smaller before they are packed: what changes, and what passes as it is."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest

from headrace.base.errors import DecodeRejected, ItemRejected
from headrace.stages.decode import decode
from headrace.stages.encode import encode
from headrace.stages.image_header import image_format
from headrace.store.manifest import Encoding


def _file(size: tuple[int, int], format_: str, **options: object) -> bytes:
    """Return a smooth picture of (width, height), which every encoder keeps well."""
    across, down = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    pixels = np.stack([across, down, np.full_like(across, 90)], axis=2).astype(np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, format_, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("size", "format_", "encoding", "expected"),
    [
        ((400, 200), "JPEG", Encoding(short_side=50), ("jpeg", (50, 100))),
        ((400, 200), "WEBP", Encoding(short_side=50), ("webp", (50, 100))),
        ((400, 200), "PNG", Encoding(short_side=50, format="webp"), ("webp", (50, 100))),
        ((400, 200), "JPEG", Encoding(format="webp"), ("webp", (200, 400))),
        ((400, 200), "PNG", Encoding(short_side=300, format="jpeg"), ("jpeg", (200, 400))),  # never larger
        ((400, 200), "JPEG", Encoding(quality=20), ("jpeg", (200, 400))),
    ],
)
def test_an_image_becomes_what_was_asked_for(
    size: tuple[int, int], format_: str, encoding: Encoding, expected: tuple[str, tuple[int, int]]
) -> None:
    """Its format, its shorter side and its pixels."""
    data = _file(size, format_)
    made = encode(data, encoding)
    assert made != data
    after = decode(made)
    assert (image_format(made), after.shape[:2]) == expected
    corners = [(0, 0), (0, -1), (-1, 0), (-1, -1)]
    before = decode(data)
    assert all(np.abs(before[at].astype(int) - after[at]).max() < 20 for at in corners)


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"no image", Encoding(format="webp", quality=10)),
        (_file((40, 20), "JPEG"), Encoding(short_side=20)),
        (_file((40, 20), "PNG"), Encoding(short_side=10)),  # other formats only where one is named
        (_file((40, 20), "JPEG", quality=10), Encoding(quality=100)),  # it would be larger
    ],
)
def test_what_gains_nothing_passes_unchanged(data: bytes, encoding: Encoding) -> None:
    """The same object."""
    assert encode(data, encoding) is data


def test_a_turned_photograph_is_upright_afterwards() -> None:
    """Its tag is gone, so nobody turns it twice."""
    exif = PIL.Image.Exif()
    exif[274] = 6
    data = _file((400, 200), "JPEG", exif=exif)
    made = encode(data, Encoding(short_side=100))
    with PIL.Image.open(io.BytesIO(made)) as image:
        assert (image.size, 274 in image.getexif()) == ((100, 200), False)
    assert np.abs(decode(made)[0, 0].astype(int) - decode(data)[0, 0]).max() < 20


def test_what_cannot_be_read_or_written_is_rejected() -> None:
    """With the code of the decoder, or with the limit of the format."""
    with pytest.raises(DecodeRejected, match=r"decode\."):
        encode(_file((400, 200), "JPEG")[:-500], Encoding(short_side=50))
    with pytest.raises(ItemRejected, match=r"encode\.size: 20000 x 1 pixels; webp takes at most 16383 a side"):
        encode(_file((20_000, 1), "PNG"), Encoding(format="webp"))
