"""Orientation that stands elsewhere than in EXIF, against Pillow's `exif_transpose`."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from headrace.stages.decode import decode
from headrace.stages.image_header import image_format, read_header
from headrace.stages.orientation import exif_orientation, png_text_orientation, xmp_orientation

PICTURE = Image.linear_gradient("L").resize((48, 32)).convert("RGB")


def xmp(value: object) -> bytes:
    """Return XMP that says an orientation, as programs write it."""
    head = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" '
    return head + f'tiff:Orientation="{value}"/></rdf:RDF></x:xmpmeta>'.encode()


def exif(value: int) -> bytes:
    """Return EXIF that says an orientation."""
    found = Image.Exif()
    found[0x0112] = value
    return found.tobytes()


def encoded(format_: str, *, said: bytes = b"", own: int | None = None) -> bytes:
    """Return a picture with XMP, and with EXIF where an orientation is named."""
    file, settings = io.BytesIO(), {} if own is None else {"exif": exif(own)}
    if format_ == "PNG":
        info = PngImagePlugin.PngInfo()
        info.add_itxt("XML:com.adobe.xmp", said.decode())
        PICTURE.save(file, "PNG", pnginfo=info, **settings)
    else:
        PICTURE.save(file, format_, xmp=said, **settings)
    return file.getvalue()


def as_pillow_turns(data: bytes) -> np.ndarray:
    """Return the picture upright by Pillow."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_xmp_turns(format_: str, value: int) -> None:
    """Without EXIF, XMP says how a picture is turned."""
    data = encoded(format_, said=xmp(value))
    name = image_format(data)
    assert name is not None
    assert read_header(data, name).orientation == value
    expected = as_pillow_turns(data)
    assert decode(data).shape == expected.shape
    assert np.abs(decode(data).astype(int) - expected).mean() < 1


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_exif_counts_more_than_xmp(format_: str) -> None:
    """EXIF decides where it says something, also that the picture is upright."""
    for own in (1, 8):
        data = encoded(format_, said=xmp(6), own=own)
        assert decode(data).shape == as_pillow_turns(data).shape
        assert read_header(data, format_.lower()).orientation == own


@pytest.mark.parametrize("is_packed", [False, True])
def test_raw_profile_of_a_png_turns(is_packed: bool) -> None:
    """ImageMagick's EXIF, in hexadecimal digits, counts as EXIF."""
    body = b"Exif\0\0" + exif(6).removeprefix(b"Exif\0\0")
    digits = body.hex()
    lines = "\n".join(digits[start : start + 72] for start in range(0, len(digits), 72))
    info = PngImagePlugin.PngInfo()
    info.add_text("Raw profile type exif", f"\nexif\n{len(body):8}\n{lines}\n", zip=is_packed)
    file = io.BytesIO()
    PICTURE.save(file, "PNG", pnginfo=info)
    assert (decode(file.getvalue()) == as_pillow_turns(file.getvalue())).all()
    assert decode(file.getvalue()).shape == (48, 32, 3)


@pytest.mark.parametrize("value", ["0", "9", "", "x", "&#54;"])
def test_xmp_that_says_nothing(value: str) -> None:
    """What is no orientation turns nothing."""
    assert xmp_orientation(xmp(value)) == 0


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (b"tEXt", b"Raw profile type exif\0\nexif\n  4\nxyz"),
        (b"tEXt", b"Raw profile type exif\0"),
        (b"tEXt", b"Raw profile type exif\0\nexif\n 3\n\xff\xff"),
        (b"zTXt", b"Raw profile type exif\0\0not compressed"),
        (b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n9\n" + b"0" * 50_000_000)),
        (b"tEXt", b'Comment\0tiff:Orientation="6'),
        (b"iTXt", b'XML:com.adobe.xmp\0\1\0\0\0tiff:Orientation="6'),
    ],
)
def test_text_that_says_nothing(kind: bytes, body: bytes) -> None:
    """Broken, foreign and huge texts of a PNG turn nothing and raise nothing."""
    assert png_text_orientation(kind, body) == 0


def test_exif_that_says_nothing() -> None:
    """Without a byte order, cut off or out of range, EXIF says nothing."""
    assert [exif_orientation(data) for data in (b"", b"XX*\0", b"II*\0\x08\0\0\0", exif(9)[6:])] == [0, 0, 0, 0]
