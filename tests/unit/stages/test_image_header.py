"""What the head of a file says, with Pillow's own reading as the oracle, and rubbish of every kind."""

from __future__ import annotations

import io
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from benchmarks.hostile_inputs import binary
from benchmarks.hostile_inputs.files import odd_files
from benchmarks.hostile_inputs.mutations import good_files
from headrace.base.errors import DecodeRejected
from headrace.stages.image_header import ImageHeader, image_format, read_header

FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff")


def header(data: bytes) -> ImageHeader:
    """Return the header of a file by its first bytes."""
    format_ = image_format(data)
    assert format_ is not None
    return read_header(data, format_)


def verdict(data: bytes, format_: str) -> ImageHeader | str:
    """Return the header, or the code of the rejection."""
    try:
        return read_header(data, format_)
    except DecodeRejected as error:
        return error.code


def test_good_files() -> None:
    """Format, size, number of frames and orientation are what Pillow says."""
    for kind, data in (good_files() | odd_files()).items():
        if kind.startswith("exif"):
            continue  # of which Pillow complains
        found, image = header(data), Image.open(io.BytesIO(data))
        assert found.format.upper() == ("JPEG" if image.format == "MPO" else image.format), kind
        assert (found.width, found.height) == image.size, kind
        assert found.orientation == image.getexif().get(0x0112, 1), kind
        assert found.complete, kind
        if image.format != "MPO":  # of which the first picture is the picture
            # Pillow counts a default image that is not shown.
            is_more = bool(image.info.get("default_image"))
            assert found.frames == getattr(image, "n_frames", 1) - is_more, kind


def test_a_png_of_more_than_its_pixels() -> None:
    """Compressed pixels beyond what the size can need are a bomb, whatever chunks they come in."""
    packed = binary.zeros(4_000_000)
    several = [binary.png_chunk(b"IDAT", packed[start : start + 500]) for start in range(0, len(packed), 500)]
    assert verdict(binary.png(8, 8, pixels=packed), "png") == "decode.bomb"
    assert verdict(binary.png(8, 8, chunks=several), "png") == "decode.bomb"
    assert isinstance(verdict(binary.png(2_000, 2_000, pixels=packed), "png"), ImageHeader)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 3000), (3000, 1), (300, 200)])
@pytest.mark.parametrize(("depth", "colour"), [(1, 0), (8, 0), (16, 6)])
@pytest.mark.parametrize("interlaced", [False, True])
def test_a_png_by_the_most_wasteful_encoder(width: int, height: int, depth: int, colour: int, interlaced: bool) -> None:
    """Noise that deflate cannot pack, each row a block of its own, is within the bound."""
    noise = random.Random(1)
    compressor = zlib.compressobj(0)
    packed = b""
    for x, y, dx, dy in _PASSES if interlaced else [(0, 0, 1, 1)]:
        across = -(-(width - x) // dx)
        for _ in range(y, height if across > 0 else 0, dy):
            row = noise.randbytes((across * depth * (4 if colour == 6 else 1) + 7) // 8)
            packed += compressor.compress(b"\0" + row) + compressor.flush(zlib.Z_SYNC_FLUSH)
    data = bytearray(binary.png(width, height, depth=depth, colour=colour, pixels=packed + compressor.flush()))
    data[28] = interlaced
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    assert header(bytes(data)).complete
    assert Image.open(io.BytesIO(data)).convert("RGB").size == (width, height)


#: Where each pass of an interlaced PNG begins and how far apart its pixels are: PNG 3, 8.1.
_PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


@pytest.mark.parametrize(
    ("kind", "scans", "components"),
    [("jpeg", 1, 3), ("grey jpeg", 1, 1), ("cmyk jpeg", 1, 4), ("progressive jpeg", 10, 3)],
)
def test_passes_of_a_jpeg(kind: str, scans: int, components: int) -> None:
    """Passes are counted where there are several, and only then are the coefficients kept."""
    found = header(good_files()[kind])
    assert (found.scans, found.components) == (scans, components)
    assert (found.coefficient_bytes > 0) == (scans > 1)


def test_coefficients_of_a_subsampled_jpeg() -> None:
    """With colour at half the size each way there are one and a half samples a pixel, of two bytes each."""
    assert header(good_files()["progressive jpeg"]).coefficient_bytes == 3.0


@pytest.mark.parametrize("format_", ["TIFF", "big-endian TIFF"])
def test_tiff(format_: str) -> None:
    """Size, bits and pages of a TIFF in either order of bytes."""
    image, file = Image.new("I;16", (40, 30)), io.BytesIO()
    image.save(file, "TIFF", save_all=True, append_images=[image, image])
    if format_ == "TIFF":
        found = header(file.getvalue())
        assert (found.width, found.height, found.frames) == (40, 30, 3)
    big = b"MM\x00*\x00\x00\x00\x08" + b"\x00\x02" + b"\x01\x00\x00\x03\x00\x00\x00\x01\x00\x28\x00\x00"
    found = header(big + b"\x01\x01\x00\x04\x00\x00\x00\x01\x00\x00\x00\x1e" + b"\x00\x00\x00\x08")
    assert (found.width, found.height, found.frames) == (40, 30, 2)  # and then in a circle


def test_frame_larger_than_its_screen() -> None:
    """What a decoder would enlarge the picture to is what counts."""
    assert header(binary.gif(1, 1, frame_size=(5000, 4000)))[1:3] == (5000, 4000)


def test_every_cut_of_the_head() -> None:
    """However few bytes there are, the answer is a header that says so or a rejection with a code."""
    for kind, data in good_files().items():
        for length in range(12, min(len(data), 700)):
            found = verdict(data[:length], header(data).format)
            if isinstance(found, str):
                assert found in ("decode.truncated", "decode.corrupt"), (kind, length)
            else:
                assert not found.complete or found.format == "gif", (kind, length)


@settings(max_examples=400)
@given(st.sampled_from(FORMATS), st.binary(max_size=300))
def test_rubbish(format_: str, data: bytes) -> None:
    """Whatever follows the first bytes, the answer is a header of sane numbers or a rejection."""
    magic = {"jpeg": b"\xff\xd8\xff", "png": binary.PNG_MAGIC, "webp": b"RIFF0000WEBP", "gif": b"GIF8", "bmp": b"BM"}
    found = verdict(magic.get(format_, b"II*\0") + data, format_)
    if isinstance(found, str):
        assert found in ("decode.truncated", "decode.corrupt", "decode.format")
    else:
        assert min(found[1:3]) >= 1
        assert found.frames >= 1
        assert found.scans >= 0
        assert 1 <= found.orientation <= 8
