"""What the head of an image file says: format, size, frames, passes, orientation; nothing is decoded.

A decoder makes room for what a header promises before it has read a pixel, and 50 bytes can promise 65,535 x 65,535. So a few
microseconds are spent here first: 2 to 5. The format is known by its first bytes, never by a name or a content type.
A header is believed only as far as the decoders believe the same bytes: where a file says a thing twice (the screen and the
first frame of a GIF), the larger counts; where the decoders would take the first (JPEG's frame header), so is it here.

References:
    JPEG: ITU-T T.81, annex B. PNG: W3C PNG 3 (acTL, eXIf). WebP: RFC 9649. GIF: GIF89a. BMP: BITMAPINFOHEADER. TIFF 6.0, 2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.base.errors import DecodeRejected
from headrace.stages.orientation import exif_orientation, png_text_orientation, xmp_orientation

#: Segments, chunks or blocks looked at; a PNG of 256 MB has 32,000, the largest colour profile of a JPEG 300. 30 ms at worst.
_MOST_PARTS = 65_536
_EXIF_MAGIC = b"Exif\x00\x00"
_XMP_MAGIC = b"http://ns.adobe.com/xap/1.0/\x00"

_segment = struct.Struct(">BBH").unpack_from
_jpeg_frame = struct.Struct(">BHHB").unpack_from
_png_chunk = struct.Struct(">I4s").unpack_from
_png_header = struct.Struct(">IIBBBBB").unpack_from
_riff_chunk = struct.Struct("<4sI").unpack_from
_two_shorts = struct.Struct("<HH").unpack_from
_bmp_header = struct.Struct("<iiHHI").unpack_from


class ImageHeader(NamedTuple):
    """What a file promises; not what it holds."""

    format: str
    """`jpeg`, `png`, `webp`, `gif`, `bmp` or `tiff`."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    pixel_bytes: float = 3.0
    """Bytes that a decoder holds for one pixel of the result, at least three: RGB."""
    coefficient_bytes: float = 0.0
    """Bytes per pixel of the file that are held whatever the scale: a JPEG in several passes."""
    components: int = 3
    """Colour channels of the file; of a JPEG 1 grey, 3 colour, 4 CMYK."""
    frames: int = 1
    """Pictures of an animation, or pages; at least 1."""
    scans: int = 1
    """Passes of a JPEG over its pixels; those of pictures behind the first are counted too."""
    orientation: int = 1
    """EXIF orientation, else that in XMP, 1 to 8 (1: upright); of TIFF always 1: there the decoders turn."""
    complete: bool = True
    """Whether the end of the file is where its header or its last mark says."""
    is_misread: bool = False
    """Whether OpenCV must not see it: a PNG with any part of an animation, a BMP with colour masks."""


def image_format(data: bytes) -> str | None:
    """Return the format by the first bytes of a file; None if it is none that is known here."""
    return next((name for magic, offset, name, _ in _FORMATS if data.startswith(magic, offset)), None)


def read_header(data: bytes, format_: str) -> ImageHeader:
    """Return what the head of a file says.

    Args:
        data: The file.
        format_: See `image_format`.

    Raises:
        DecodeRejected: `decode.corrupt` or `decode.truncated`, if it does not go on as it begins; `decode.bomb`, if a PNG
            holds more than its pixels can need; `decode.format`, if a JPEG is of a kind that decoders cannot reduce.
    """
    try:
        header = _READERS[format_](data)
    except (struct.error, IndexError):
        raise DecodeRejected(f"decode.truncated: the file ends within its header, after {len(data)} bytes") from None
    if header.width < 1 or header.height < 1:
        raise _corrupt(format_, f"its size is {header.width} x {header.height} pixels")
    return header


def _corrupt(format_: str, what: str) -> DecodeRejected:
    return DecodeRejected(f"decode.corrupt: the header is not one of {format_}: {what}; check what the sender stored")


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the marker, the position and the length of each segment of a JPEG until its first pixels, which come last.

    Raises:
        DecodeRejected: If there are too many; struct.error or IndexError, if the file ends before.
    """
    position, end = 2, len(data)
    for _ in range(_MOST_PARTS):
        start, marker, length = _segment(data, position)
        if start != 0xFF or marker in (0x00, 0xFF):  # padding; libjpeg skips it too
            position = data.find(b"\xff", position + 1)
            if position < 0:
                raise _corrupt("jpeg", "the picture does not begin")
            continue
        if marker in _STANDALONE:
            position += 2
            continue
        yield marker, position, length
        if marker == 0xDA:
            return
        position += 2 + length
        if position >= end:
            raise IndexError
    raise _corrupt("jpeg", f"more than {_MOST_PARTS:,} segments come before the picture")


def _jpeg(data: bytes) -> ImageHeader:
    position, exif, xmp = 2, 0, 0
    frame: tuple[int, int, int, int, float] | None = None
    for marker, position, length in jpeg_segments(data):
        if marker in _FRAMES:
            # As libjpeg does; otherwise it might go by another frame than we do.
            if frame is not None:
                raise _corrupt("jpeg", "it has two sizes")
            frame = _frame(data, position, marker)
        elif marker not in _SEGMENTS:
            raise _corrupt("jpeg", f"marker {marker:02X} stands before the picture")
        elif marker == 0xE1 and data.startswith(_EXIF_MAGIC, position + 4):
            exif = exif or exif_orientation(data[position + 10 : position + 2 + length])
        elif marker == 0xE1 and data.startswith(_XMP_MAGIC, position + 4):
            xmp = xmp or xmp_orientation(data[position : position + 2 + length])
    if frame is None:
        raise _corrupt("jpeg", "the picture begins without a size")
    height, width, components, marker, coefficient_bytes = frame
    # One pass with every component is decoded row by row; anything else is kept whole and may go over it again and again.
    several = marker in _PROGRESSIVE or data[position + 4] < components
    return ImageHeader(
        "jpeg",
        width,
        height,
        3.0 if components < 4 else 7.0,
        coefficient_bytes if several else 0.0,
        components,
        1,
        data.count(b"\xff\xda", position) if several else 1,
        exif or xmp or 1,
        # Pictures and films may follow (MPO, motion photographs); a part that is cut off has no end mark behind its start.
        data.rfind(b"\xff\xd9", position) > 0,
    )


_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
#: Baseline, extended and progressive; the last two of each by arithmetic coding. The others are lossless or differential.
_REDUCIBLE = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})
_PROGRESSIVE = frozenset({0xC2, 0xCA})
#: What else libjpeg reads or skips before a picture; at any other marker it gives up.
_SEGMENTS = frozenset({0xC4, 0xCC, 0xDA, 0xDB, 0xDC, 0xDD, *range(0xE0, 0xF0), 0xFE})


def _frame(data: bytes, position: int, marker: int) -> tuple[int, int, int, int, float]:
    bits, height, width, components = _jpeg_frame(data, position + 4)
    if marker not in _REDUCIBLE or bits != 8:
        # Decoders write such a picture whole, also into the room for a reduced one.
        raise DecodeRejected(
            f"decode.format: a jpeg file of kind SOF{marker - 0xC0} with {bits} bits a sample; accepted are SOF0, 1, 2, 9 and "
            "10 (baseline, extended, progressive) with 8 bits, not lossless ones: check what the sender stored"
        )
    if not 1 <= components <= 4:
        raise _corrupt("jpeg", f"it has {components} components")
    factors = data[position + 11 : position + 10 + 3 * components : 3]
    across, down = [factor >> 4 for factor in factors], [factor & 15 for factor in factors]
    if len(factors) < components or not all(across) or not all(down):
        raise _corrupt("jpeg", "a component has no size")
    samples = sum(one * other for one, other in zip(across, down, strict=True)) / (max(across) * max(down))
    return height, width, components, marker, 2.0 * samples  # a coefficient takes two bytes


def _png(data: bytes) -> ImageHeader:
    length, kind = _png_chunk(data, 8)
    if kind != b"IHDR" or length != 13:
        raise _corrupt("png", f"it begins with {kind!r} of {length} bytes")
    width, height, depth, colour, _, _, interlaced = _png_header(data, 16)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour)
    if channels is None or depth not in (1, 2, 4, 8, 16):
        raise _corrupt("png", f"it has colour type {colour} and {depth} bits")
    frames, orientation, complete, packed_bytes, is_animated = _png_parts(data)
    # The decoder unpacks all that is there, also what lies behind the last row: a megabyte of it is a second.
    most = _most_packed_bytes(height, (width * depth * channels + 7) // 8, bool(interlaced))
    if complete and min(width, height) > 0 and packed_bytes > most:
        raise DecodeRejected(
            f"decode.bomb: a png file of {width} x {height} pixels holds {packed_bytes:,} bytes of compressed pixels; "
            f"so many need {most:,} at most: check what the sender stored"
        )
    size = max(3.0, channels * depth / 8)
    frames = max(1, frames)
    return ImageHeader("png", width, height, size, 0.0, channels, frames, 1, orientation, complete, is_animated)


def _most_packed_bytes(height: int, row_bytes: int, interlaced: bool) -> int:
    """Return the size that compressed pixels have at most, by the encoder that wastes most.

    Each row has a byte that names its filter; interlaced, it comes in up to four parts, with a byte more each. Deflate adds
    five bytes to a block that it only stores, and an encoder may store row by row and mark the end of each with five more; its
    fixed codes add an eighth at worst.
    """
    rows = height * (1 + row_bytes + (6 if interlaced else 0))
    return rows + rows // 8 + 10 * height * (4 if interlaced else 1) + 1024


def _png_parts(data: bytes) -> tuple[int, int, bool, int, bool]:
    """Return frames, orientation, whether the end is there, bytes of compressed pixels, and whether anything is animated."""
    # To the end, because OpenCV makes room for whatever length a chunk gives: 12 bytes can ask for 4 GB.
    position, end, frames, exif, text, packed_bytes, is_animated = 33, len(data), 1, 0, 0, 0, False
    for _ in range(_MOST_PARTS):
        if position + 12 > end:
            return frames, exif or text or 1, False, packed_bytes, is_animated
        length, kind = _png_chunk(data, position)
        if kind == b"IDAT":
            packed_bytes += length
        elif kind == b"IEND":
            return frames, exif or text or 1, True, packed_bytes, is_animated
        elif kind in _PNG_ANIMATION:
            is_animated = True
            if kind == b"acTL":
                frames = int.from_bytes(data[position + 8 : position + 12], "big")
        elif kind == b"eXIf":
            exif = exif_orientation(data[position + 8 : position + 8 + length])
        elif kind in _PNG_TEXTS and not text:
            text = png_text_orientation(kind, data[position + 8 : position + 8 + min(length, _MOST_TEXT)])
        position += 12 + length
    raise _corrupt("png", f"it has more than {_MOST_PARTS:,} chunks")


_MOST_TEXT = 262_144
_PNG_TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_PNG_ANIMATION = frozenset({b"acTL", b"fcTL", b"fdAT"})


def _webp(data: bytes) -> ImageHeader:
    kind = data[12:16]
    if not data.startswith(b"RIFF"):
        raise _corrupt("webp", f"it begins with {data[:4]!r}")
    complete = int.from_bytes(data[4:8], "little") + 8 <= len(data)
    frames, orientation = 1, 1
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[start : start + 3], "little") + 1 for start in (24, 27))
        if len(data) < 30:
            raise IndexError
        if data[20] & 0x0E:  # an animation, EXIF, XMP
            frames, orientation = _webp_parts(data)
    elif kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        if len(data) < 25 or data[20] != 0x2F:
            raise IndexError
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in _two_shorts(data, 26))
    else:
        raise _corrupt("webp", f"it begins with {kind!r}")
    return ImageHeader("webp", width, height, 4.0, 0.0, 4, max(1, frames), 1, orientation, complete)


def _webp_parts(data: bytes) -> tuple[int, int]:
    position, frames, exif, xmp = 12, 0, 0, 0
    for _ in range(_MOST_PARTS):
        if position + 8 > len(data):
            return frames, exif or xmp or 1
        kind, length = _riff_chunk(data, position)
        if kind == b"ANMF":
            frames += 1
        elif kind == b"EXIF":
            exif = exif_orientation(data[position + 8 : position + 8 + length].removeprefix(_EXIF_MAGIC))
        elif kind == b"XMP ":
            xmp = xmp_orientation(data[position + 8 : position + 8 + length])
        position += 8 + length + (length & 1)
    raise _corrupt("webp", f"it has more than {_MOST_PARTS:,} parts")


def _gif(data: bytes) -> ImageHeader:
    width, height = _two_shorts(data, 6)
    # Pillow enlarges the screen to its first frame.
    frame, frames = _gif_frames(data, 13 + _palette(data[10]))
    return ImageHeader("gif", max(width, frame[0]), max(height, frame[1]), 4.0, 0.0, 3, frames)


def _gif_frames(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Return how far the first frame reaches, and the number of frames as far as blocks are looked at."""
    frame, frames = (0, 0), 0
    steps = iter(range(4 * _MOST_PARTS))
    try:
        for _ in steps:
            if data[position] == 0x2C:
                if not frames:
                    (left, top), (across, down) = _two_shorts(data, position + 1), _two_shorts(data, position + 5)
                    frame = left + across, top + down
                frames += 1
                position += 11 + _palette(data[position + 9])
            elif data[position] == 0x21:
                position += 2
            else:
                break
            while data[position] and next(steps, None) is not None:  # blocks within
                position += 1 + data[position]
            position += 1
    except (IndexError, struct.error):
        if not frames:
            raise
    if not frames:
        raise _corrupt("gif", "no picture is found")
    return frame, frames  # a picture that is whole is a picture, whatever comes behind it


def _palette(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _bmp(data: bytes) -> ImageHeader:
    size = int.from_bytes(data[14:18], "little")
    if size not in (12, 40, 52, 56, 64, 108, 124):
        raise _corrupt("bmp", f"it describes itself in {size} bytes")
    if size == 12:  # the oldest kind, unsigned and without compression
        width, height = _two_shorts(data, 18)
        bits, compression = int.from_bytes(data[24:26], "little"), 0
    else:
        width, height, _, bits, compression = _bmp_header(data, 18)
    height = abs(height)  # negative: from the top
    stored = int.from_bytes(data[10:14], "little") + (width * bits + 31) // 32 * 4 * height
    complete = compression != 0 or stored <= len(data)
    return ImageHeader("bmp", width, height, 4.0, complete=complete, is_misread=compression in _BMP_MASKS)


_BMP_MASKS = (3, 6)


def _tiff(data: bytes) -> ImageHeader:
    tags, frames = _pages(data)
    width, height = tags.get(256, 0), tags.get(257, 0)
    samples, bits = tags.get(277, 1), min(64, tags.get(258, 8))
    return ImageHeader("tiff", width, height, max(3.0, samples * bits / 8), 0.0, samples, frames)


def _pages(data: bytes) -> tuple[dict[int, int], int]:
    order = "<" if data.startswith(b"II") else ">"
    first, following = _directory(data, order, struct.unpack_from(f"{order}I", data, 4)[0])
    seen: set[int] = set()
    while following and following not in seen and len(seen) < _MOST_PARTS:
        seen.add(following)
        try:
            following = _directory(data, order, following, None)[1]
        except struct.error:
            break
    return first, 1 + len(seen)


def _directory(
    data: bytes, order: str, start: int, wanted: tuple[int, ...] | None = (256, 257, 258, 274, 277)
) -> tuple[dict[int, int], int]:
    """Return the whole numbers in a TIFF directory, by tag, and where the next directory is."""
    number: int = struct.unpack_from(f"{order}H", data, start)[0]
    tags: dict[int, int] = {}
    for entry in range(start + 2, start + 2 + 12 * number, 12) if wanted else ():
        tag, kind, count = struct.unpack_from(f"{order}HHI", data, entry)
        if tag in wanted and kind in (3, 4):  # type: ignore[operator]
            size = "H" if kind == 3 else "I"
            # Several values of two bytes that do not fit stand elsewhere: bits of each sample.
            inside = count * (2 if kind == 3 else 4) <= 4
            place = entry + 8 if inside else struct.unpack_from(f"{order}I", data, entry + 8)[0]
            tags.setdefault(tag, struct.unpack_from(order + size, data, place)[0])
    return tags, struct.unpack_from(f"{order}I", data, start + 2 + 12 * number)[0]


#: First bytes, where they stand, and who reads on.
_FORMATS: tuple[tuple[bytes, int, str, Callable[[bytes], ImageHeader]], ...] = (
    (b"\xff\xd8\xff", 0, "jpeg", _jpeg),
    (b"\x89PNG\r\n\x1a\n", 0, "png", _png),
    (b"WEBP", 8, "webp", _webp),
    (b"GIF8", 0, "gif", _gif),
    (b"BM", 0, "bmp", _bmp),
    (b"II*\x00", 0, "tiff", _tiff),
    (b"MM\x00*", 0, "tiff", _tiff),
)
_READERS = {name: read for _, _, name, read in _FORMATS}
