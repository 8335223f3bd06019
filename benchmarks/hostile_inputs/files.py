"""One file of every hostile, damaged or merely odd kind, and which verdicts are right for it."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from PIL import Image

from benchmarks.hostile_inputs import binary
from headrace.samples.catalogue import photograph

OK = frozenset({"ok"})
DAMAGED = frozenset({"decode.corrupt", "decode.truncated"})
_FORMAT, _BOMB = frozenset({"decode.format"}), frozenset({"decode.bomb"})


@dataclass(frozen=True, slots=True)
class HostileFile:
    """A file and what a decoder may make of it."""

    kind: str
    """What is wrong with it, or odd."""
    data: bytes
    verdicts: frozenset[str]
    """`ok`, or codes of `DecodeRejected`; any of them is right."""


def encoded(image: Image.Image, format_: str, **settings: Any) -> bytes:
    """Return an image as Pillow writes it."""
    file = io.BytesIO()
    image.save(file, format_, **settings)
    return file.getvalue()


def picture(name: str = "coffee", width: int = 192, height: int = 128) -> Image.Image:
    """Return a photograph at a small size."""
    return Image.open(photograph(name).path).convert("RGB").resize((width, height))


def hostile_files() -> Iterator[HostileFile]:
    """Yield one file of every kind; the largest have 20 MB."""
    for verdicts, files in (
        (OK, odd_files()),
        (_FORMAT, foreign_files()),
        (_BOMB, bombs()),
    ):
        for kind, data in files.items():
            yield HostileFile(kind, data, verdicts)
    yield from damaged_files()
    yield from metadata_bombs()


@functools.cache
def odd_files() -> dict[str, bytes]:
    """Return files that are right and seldom."""
    image, one = picture(), Image.new("RGB", (1, 1), "red")
    second = picture("chelsea")
    jpeg, png, gif = encoded(image, "JPEG"), encoded(image, "PNG"), encoded(image.quantize(64), "GIF")
    html = b"<html><script>alert(1)</script></html>"
    deep = Image.frombytes("I;16", (4, 2), bytes(range(16)))
    return {
        "cmyk jpeg": encoded(image.convert("CMYK"), "JPEG"),
        "grey jpeg": encoded(image.convert("L"), "JPEG"),
        "progressive jpeg": encoded(image, "JPEG", progressive=True),
        "16-bit png": encoded(deep, "PNG"),
        "1-bit png": encoded(image.convert("1"), "PNG"),
        "palette png with a transparent colour": encoded(image.quantize(32), "PNG", transparency=0),
        "grey png with alpha": encoded(image.convert("LA"), "PNG"),
        "multi-picture jpeg": encoded(image, "MPO", save_all=True, append_images=[second]),
        "animated png": encoded(image, "PNG", save_all=True, append_images=[second]),
        "animated webp": encoded(image, "WEBP", save_all=True, append_images=[second]),
        "animated gif": encoded(image, "GIF", save_all=True, append_images=[second]),
        **{f"one pixel {name}": encoded(one, name) for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP")},
        "16,000 x 16 png": binary.png(16_000, 16),
        "49 Mpx png of 48 KB": binary.png(7_000, 7_000),
        "jpeg with a web page in a comment": binary.with_segments(jpeg, binary.jpeg_segment(0xFE, html)),
        "jpeg with a web page behind it": jpeg + html,
        "gif with a zip archive behind it": gif + b"PK\x03\x04" + bytes(200) + b"PK\x05\x06" + bytes(18),
        "png with a script behind it": png + b"<?php system($_GET['c']); ?>",
        "exif that leads to itself": binary.with_segments(jpeg, binary.jpeg_segment(0xE1, binary.exif_loop())),
        "exif cut off": binary.with_segments(jpeg, binary.jpeg_segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\x7f")),
        "film behind a jpeg": jpeg + b"\0\0\0\x18ftypmp42" + bytes(5000),
        "padding between segments": jpeg[:2] + b"\xff" * 40 + jpeg[2:],
        "bytes between segments": jpeg[:20] + b"\0\1\2" + jpeg[20:],
        "broken colour profile in a jpeg": binary.with_segments(jpeg, _broken_profile()),
        "animation whose first frame is broken": broken_animation(),
        "animation without its default image": binary.skipping_png(
            64,
            64,
            default=binary.rgba_rows(64, 64, (0, 0, 255, 255)),
            frames=[binary.rgba_rows(64, 64, (255, 0, 0, 255))] * 2,
        ),
        "gif frame smaller than its screen": gif[:6] + struct.pack("<HH", 300, 200) + gif[10:],
        "bmp with masks in its header": binary.masked_bmp(64, 64, (200, 100, 50)),
        "bytes between pixels and end": jpeg[:-2] + b"\0" * 3 + jpeg[-2:],
    }


def foreign_files() -> dict[str, bytes]:
    """Return files of formats that are not accepted, whatever they are called."""
    image = picture(width=32, height=32)
    fits = b"SIMPLE  =                    T".ljust(80) + b"BITPIX  =                    8".ljust(80)
    return {
        **{name: encoded(image, name) for name in ("TIFF", "ICO", "PPM", "PCX", "DDS", "PDF", "EPS", "SGI", "TGA")},
        "big-endian tiff": b"MM\x00*" + struct.pack(">I", 8) + bytes(6),
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "svg with an entity": b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg>&x;</svg>',
        "mvg": b"push graphic-context\nfill 'url(https://127.0.0.1/\"|touch /tmp/owned\")'\npop graphic-context",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n(%pipe%touch /tmp/owned) (w) file\n",
        "psd": b"8BPS\x00\x01" + bytes(6) + struct.pack(">HIIHH", 3, 30_000, 30_000, 8, 3),
        "blp": b"BLP2" + struct.pack("<IBBBBII", 1, 1, 8, 0, 0, 65_535, 65_535) + bytes(264),
        "fits": fits.ljust(2880),
        "jpeg 2000": b"\x00\x00\x00\x0cjP  \r\n\x87\n" + bytes(40),
        "avif": b"\x00\x00\x00\x1cftypavif" + bytes(40),
        "heic": b"\x00\x00\x00\x18ftypheic" + bytes(40),
        "exr": b"v/1\x01" + bytes(40),
        "radiance": b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 65535 +X 65535\n",
        "web page": b"<!DOCTYPE html><html><body><h1>503</h1></body></html>",
        "web page before a jpeg": b"<html>" + encoded(image, "JPEG"),
        "zip": b"PK\x03\x04" + bytes(40),
        "gzip": zlib.compress(b"x" * 1000, wbits=31),
        "program": b"\x7fELF\x02\x01\x01" + bytes(40),
        "pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93",
        "text": b"hello",
        "one byte": b"\xff",
        "zeros": bytes(10_000),
        **unusual_jpegs(),
    }


def broken_animation() -> bytes:
    """Return a PNG with a good default image and an animation that cannot be read; OpenCV 5.0 dies of it."""
    good, broken = (binary.rgba_rows(128, 64, (64, 128, 192, 255), filter_) for filter_ in (0, 9))
    return binary.skipping_png(128, 64, default=good, frames=[broken, good])


def _broken_profile() -> bytes:
    return binary.jpeg_segment(0xE2, b"ICC_PROFILE\0\2\1" + bytes(50))  # part two of one


def unusual_jpegs() -> dict[str, bytes]:
    """Return JPEGs of the kinds that decoders cannot reduce, or cannot read at all."""
    jpeg = encoded(picture(), "JPEG")
    kinds = {kind: binary.with_jpeg_kind(jpeg, kind) for kind in (3, 5, 6, 7, 11, 13, 14, 15)}
    return {
        # A decoder that is asked for a part of them writes a megabyte more than there is room for.
        **{f"lossless jpeg of {number} components": binary.lossless_jpeg(640, 640, number) for number in (1, 3, 4)},
        **{f"lossless jpeg of {bits} bits": binary.lossless_jpeg(640, 640, bits=bits) for bits in (2, 12, 16)},
        **{f"jpeg that says it is SOF{kind}": data for kind, data in kinds.items()},
        "jpeg of 12 bits by its header": binary.with_jpeg_kind(jpeg, 0, bits=12),
        "extended jpeg of 12 bits": binary.with_jpeg_kind(jpeg, 1, bits=12),
    }


@functools.cache
def bombs() -> dict[str, bytes]:
    """Return small files that decode to more than they may, or say so."""
    jpeg, png = encoded(picture(), "JPEG"), encoded(picture(), "PNG")
    largest = 2**31 - 1
    return {
        "89 Mpx png": binary.png(9_434, 9_434, depth=1),
        "178 Mpx png": binary.png(13_342, 13_342, depth=1),
        "900 Mpx png": binary.png(30_000, 30_000, depth=1),
        "49 Mpx png of 16 bits and four channels": binary.png(
            7_072, 7_072, depth=16, colour=6, pixels=zlib.compress(b"")
        ),
        "30,000 x 1 png": binary.png(30_000, 1),
        "1 x 30,000 png": binary.png(1, 30_000),
        "2^31 - 1 squared png": binary.with_png_size(png, largest, largest),
        "8 x 8 png of 256 MB": binary.png(8, 8, pixels=binary.zeros(1 << 28)),
        "65,535 squared png": binary.with_png_size(png, 65_535, 65_535),
        "65,535 squared jpeg": binary.with_jpeg_size(jpeg, 65_535, 65_535),
        "65,535 squared progressive jpeg": binary.with_jpeg_size(
            encoded(picture(), "JPEG", progressive=True), 65_535, 65_535
        ),
        "65,535 squared gif": binary.gif(65_535, 65_535),
        "frame larger than its gif": binary.gif(1, 1, frame_size=(65_535, 65_535)),
        "65,535 squared bmp": binary.bmp(65_535, 65_535),
        "upside down bmp": binary.bmp(65_535, -65_535),
        "bmp of 1 bit": binary.bmp(100_000, 100_000, bits=1),
        "16 million squared webp": binary.webp_canvas(1 << 24, 1 << 24),
    }


def damaged_files() -> Iterator[HostileFile]:
    """Yield files that say wrong things of themselves, or go over themselves too often."""
    image = picture()
    jpeg, png, webp = (encoded(image, name) for name in ("JPEG", "PNG", "WEBP"))
    progressive = encoded(image, "JPEG", progressive=True)
    scans, frames = frozenset({"decode.scans"}), frozenset({"decode.frames"})
    broken_checksum = bytearray(png)
    broken_checksum[29] ^= 1
    for kind, data, verdicts in (
        ("nothing", b"", frozenset({"decode.empty"})),
        ("progressive jpeg of 1,000 scans", binary.with_repeated_scan(progressive, 1000), scans),
        ("sequential jpeg of 1,000 scans", binary.with_repeated_scan(_one_by_one(jpeg), 1000), scans | DAMAGED),
        ("gif of 10,000 frames", binary.gif(1, 1, 10_000), frames),
        ("gif of 10,000 frames without delays", binary.gif(1, 1, 10_000, delays=False), frames),
        ("png that promises 2^32 - 1 frames", _with_frames(png, 2**32 - 1), frames),
        ("jpeg that says it is larger", binary.with_jpeg_size(jpeg, 400, 400), DAMAGED),
        ("jpeg that says it is smaller", binary.with_jpeg_size(jpeg, 64, 64), OK | DAMAGED),
        ("png that says it is larger", binary.with_png_size(png, 400, 400), DAMAGED),
        ("png that says it is smaller", binary.with_png_size(png, 64, 64), OK | DAMAGED | _BOMB),
        ("jpeg of no height", binary.with_jpeg_size(jpeg, 192, 0), DAMAGED),
        ("png of no width", binary.with_png_size(png, 0, 128), DAMAGED),
        ("bmp of no size", binary.bmp(0, 0), DAMAGED),
        ("bmp without pixels", binary.bmp(100, 100), DAMAGED),
        ("bmp of -2^31 rows", binary.bmp(1, -(2**31)), _BOMB),
        ("png header with a wrong checksum", bytes(broken_checksum), DAMAGED),
        ("png pixels with a wrong checksum", png[:-20] + bytes([png[-20] ^ 255]) + png[-19:], DAMAGED),
        ("png without pixels", binary.png(64, 64, pixels=b""), DAMAGED),
        ("png without its end", png[:-12], DAMAGED),
        ("png whose pixels say they are 2 GB", png.replace(_length_of(png), b"\x7f\xff\xff\xffIDAT", 1), DAMAGED),
        ("png of 70,000 empty chunks", binary.png(8, 8, chunks=[binary.png_chunk(b"tEXt")] * 70_000), DAMAGED),
        ("jpeg of 70,000 comments", binary.with_segments(jpeg, b"\xff\xfe\x00\x02" * 70_000), DAMAGED),
        ("jpeg without its end", jpeg[:-2], DAMAGED),
        ("half a jpeg with an end", jpeg[: len(jpeg) // 2] + binary.END_OF_IMAGE, DAMAGED),
        ("half a progressive jpeg with an end", progressive[: len(progressive) // 2] + binary.END_OF_IMAGE, DAMAGED),
        ("half a cmyk jpeg with an end", _half(encoded(image.convert("CMYK"), "JPEG")), DAMAGED),
        ("half a jpeg with bytes between segments", _half(jpeg[:20] + b"\0\1\2" + jpeg[20:]), DAMAGED),
        ("half a jpeg with a broken profile", _half(binary.with_segments(jpeg, _broken_profile())), DAMAGED),
        ("half a jpeg of an unknown revision", _half(jpeg[:11] + b"\x09" + jpeg[12:]), DAMAGED),
        ("jpeg of two frames", _two_frames(jpeg), DAMAGED),
        ("jpeg with a marker of no kind", binary.with_segments(jpeg, binary.jpeg_segment(0x42, b"x")), DAMAGED),
        ("jpeg of nothing but its header", binary.with_jpeg_size(jpeg, 192, 128)[:300], DAMAGED),
        ("webp that is shorter than it says", webp[:-50], DAMAGED),
        ("webp of another chunk", webp[:12] + b"VP8?" + webp[16:], DAMAGED),
        ("gif of its head", binary.gif(10, 10)[:13], DAMAGED),
        *((f"magic of {name}", magic, DAMAGED) for name, magic in _MAGICS.items()),
    ):
        yield HostileFile(kind, data, verdicts)


_MAGICS = {
    "jpeg": b"\xff\xd8\xff",
    "png": binary.PNG_MAGIC,
    "webp": b"RIFF\x00\x00\x00\x00WEBP",
    "gif": b"GIF89a",
    "bmp": b"BM",
}


def metadata_bombs() -> Iterator[HostileFile]:
    """Yield pictures of one size with megabytes of what is no picture."""
    jpeg = encoded(picture(), "JPEG")
    text = binary.png_chunk(b"tEXt", b"Comment\0" + b"x" * 20_000_000)
    packed = binary.png_chunk(b"zTXt", b"Comment\0\0" + binary.zeros(100_000_000))
    profile = binary.png_chunk(b"iCCP", b"p\0\0" + binary.zeros(100_000_000))
    maker = binary.jpeg_segment(0xE1, b"Exif\0\0" + b"II*\0\x08\0\0\0\0\0" + bytes(65_000))
    for kind, data in {
        "png with 20 MB of text": binary.png(8, 8, chunks=[text]),
        "png with 100 MB of compressed text": binary.png(8, 8, chunks=[packed]),
        "png with a colour profile of 100 MB": binary.png(8, 8, chunks=[profile]),
        "jpeg with 20 MB of exif": binary.with_segments(jpeg, *[maker] * 300),
    }.items():
        yield HostileFile(kind, data, OK | DAMAGED)


def _length_of(png: bytes) -> bytes:
    start = png.index(b"IDAT")
    return png[start - 4 : start + 4]


def _two_frames(jpeg: bytes) -> bytes:
    """Return a JPEG with a lossless frame behind its own."""
    parts = binary.jpeg_segments(jpeg)
    place = next(index for index, part in enumerate(parts) if part[:2] == b"\xff\xc0")
    return b"".join([*parts[: place + 1], b"\xff\xc3" + parts[place][2:], *parts[place + 1 :]])


def _half(jpeg: bytes) -> bytes:
    return jpeg[: len(jpeg) // 2] + binary.END_OF_IMAGE


def _with_frames(png: bytes, number: int) -> bytes:
    return png[:33] + binary.png_chunk(b"acTL", struct.pack(">II", number, 0)) + png[33:]


def _one_by_one(jpeg: bytes) -> bytes:
    """Return a JPEG whose scan says that it holds the first component alone."""
    parts = binary.jpeg_segments(jpeg)
    last = max(index for index, part in enumerate(parts) if part[:2] == b"\xff\xda")
    scan = parts[last]
    length = int.from_bytes(scan[2:4], "big")
    parts[last] = binary.jpeg_segment(0xDA, b"\x01" + scan[5:7] + b"\x00\x3f\x00") + scan[2 + length :]
    return b"".join(parts)
