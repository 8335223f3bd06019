"""Image files written byte by byte, to say what no encoder would."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
END_OF_IMAGE = b"\xff\xd9"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def png_chunk(kind: bytes, body: bytes = b"") -> bytes:
    """Return a chunk with its length and checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    width: int,
    height: int,
    *,
    depth: int = 8,
    colour: int = 0,
    chunks: Sequence[bytes] = (),
    pixels: bytes | None = None,
) -> bytes:
    """Return a PNG of any size, black unless its compressed pixels are given.

    Args:
        width: As the header says.
        height: As the header says.
        depth: Bits per sample.
        colour: PNG's colour type: 0 grey, 2 RGB, 3 palette, 6 RGBA.
        chunks: What comes between header and pixels.
        pixels: Compressed; None: as many black rows as the header says.
    """
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    if pixels is None:
        pixels = zeros((1 + (width * depth * _CHANNELS[colour] + 7) // 8) * height)
    return PNG_MAGIC + header + b"".join(chunks) + png_chunk(b"IDAT", pixels) + png_chunk(b"IEND")


def skipping_png(width: int, height: int, *, default: bytes, frames: Sequence[bytes]) -> bytes:
    """Return an animated RGBA PNG whose default image is no frame of the animation.

    Args:
        width: Pixels.
        height: Pixels.
        default: Rows of the default image, compressed.
        frames: The same of each frame.
    """
    still = png(
        width, height, colour=6, chunks=[png_chunk(b"acTL", struct.pack(">II", len(frames), 0))], pixels=default
    )
    parts = []
    for number, rows in enumerate(frames):
        control = struct.pack(">IIIIIHHBB", 2 * number, width, height, 0, 0, 1, 10, 0, 0)
        parts += [png_chunk(b"fcTL", control), png_chunk(b"fdAT", struct.pack(">I", 2 * number + 1) + rows)]
    end = len(still) - 12
    return still[:end] + b"".join(parts) + still[end:]


def rgba_rows(width: int, height: int, colour: tuple[int, int, int, int], filter_: int = 0) -> bytes:
    """Return the compressed rows of a PNG in one colour; filters above 4 do not exist."""
    return zlib.compress((bytes([filter_]) + bytes(colour) * width) * height)


def masked_bmp(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    """Return a BMP in one colour with 32 bits a pixel, whose masks stand within a header of 52 bytes."""
    masks = struct.pack("<III", 0xFF000000, 0xFF0000, 0xFF00)  # red last, where most files have nothing
    head = struct.pack("<IiiHHIIiiII", 52, width, height, 1, 32, 3, 0, 0, 0, 0, 0) + masks
    pixels = bytes([0, *colour[::-1]]) * (width * height)
    return b"BM" + struct.pack("<IHHI", 66 + len(pixels), 0, 0, 66) + head + pixels


def zeros(number: int) -> bytes:
    """Return so many zero bytes, compressed to a thousandth."""
    compressor, block = zlib.compressobj(9), bytes(1 << 20)
    parts = [compressor.compress(block) for _ in range(number >> 20)]
    return b"".join([*parts, compressor.compress(bytes(number & (1 << 20) - 1)), compressor.flush()])


def gif(
    width: int, height: int, frames: int = 1, *, frame_size: tuple[int, int] | None = None, delays: bool = True
) -> bytes:
    """Return a GIF of a screen and frames of one pixel's data.

    Args:
        width: Of the screen.
        height: Of the screen.
        frames: How many.
        frame_size: What each frame says of itself; None: 1 x 1.
        delays: Whether each frame has a delay, as those of an animation do.
    """
    control = b"\x21\xf9\x04\x00\x02\x00\x00\x00" if delays else b""
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, *(frame_size or (1, 1)), 0) + b"\x02\x02\x44\x01\x00"
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\x00\x00\x00\xff\xff\xff"
    return screen + (control + frame) * frames + b"\x3b"


def bmp(width: int, height: int, *, bits: int = 24, pixels: bytes = b"") -> bytes:
    """Return a BMP whose header says anything; height below zero: from the top."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 0, len(pixels), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + head + pixels


def webp_canvas(width: int, height: int) -> bytes:
    """Return a WebP that is all canvas."""
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\x00\x00\x00" + size
    return b"RIFF" + struct.pack("<I", len(body)) + body


def jpeg_segments(data: bytes) -> list[bytes]:
    """Return a JPEG cut before each marker of its header and of its scans; the parts joined are the file."""
    cuts, position = [0], 2
    while position < len(data) and data[position + 1] != 0xD9:
        cuts.append(position)
        marker, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
        position += 2 + length
        if marker == 0xDA:
            position = _next_marker(data, position)
    cuts.append(position)
    return [data[start:end] for start, end in zip(cuts, [*cuts[1:], len(data)], strict=True)]


def _next_marker(data: bytes, position: int) -> int:
    while True:
        position = data.index(b"\xff", position)
        if data[position + 1] not in (0, *range(0xD0, 0xD8)):
            return position
        position += 2


def jpeg_segment(marker: int, body: bytes) -> bytes:
    """Return a segment with its length."""
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    """Return a JPEG with segments put behind its start."""
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def with_repeated_scan(jpeg: bytes, times: int) -> bytes:
    """Return a JPEG that goes over its pixels many times more: its last scan, with what belongs to it, repeated."""
    parts = jpeg_segments(jpeg)
    last = max(index for index, part in enumerate(parts) if part[:2] == b"\xff\xda")
    return b"".join([*parts[: last + 1], parts[last] * times, *parts[last + 1 :]])


def with_jpeg_size(jpeg: bytes, width: int, height: int) -> bytes:
    """Return a JPEG that says it has another size."""
    parts = jpeg_segments(jpeg)
    for index, part in enumerate(parts):
        if part[0] == 0xFF and part[1] in (0xC0, 0xC1, 0xC2):
            parts[index] = part[:5] + struct.pack(">HH", height, width) + part[9:]
    return b"".join(parts)


def with_png_size(data: bytes, width: int, height: int) -> bytes:
    """Return a PNG that says it has another size, with the right checksum."""
    body = struct.pack(">II", width, height) + data[24:29]
    return data[:8] + png_chunk(b"IHDR", body) + data[33:]


def with_jpeg_kind(jpeg: bytes, kind: int, bits: int = 8) -> bytes:
    """Return a JPEG that says its frame is SOF0 to SOF15, with samples of so many bits."""
    parts = jpeg_segments(jpeg)
    for index, part in enumerate(parts):
        if part[0] == 0xFF and part[1] in (0xC0, 0xC1, 0xC2):
            parts[index] = bytes([0xFF, 0xC0 + kind, *part[2:4], bits]) + part[5:]
    return b"".join(parts)


def lossless_jpeg(width: int, height: int, components: int = 3, bits: int = 8) -> bytes:
    """Return a lossless JPEG (SOF3), all grey: decoders give the whole picture whatever scale they are asked for."""
    parts = b"".join(bytes([number + 1, 0x11, 0]) for number in range(components))
    frame = struct.pack(">BHHB", bits, height, width, components) + parts
    table = bytes([0, 1, *bytes(15), 0])  # one code, of one bit: no difference to the neighbour
    scan = bytes([components]) + b"".join(bytes([number + 1, 0]) for number in range(components)) + b"\x01\x00\x00"
    segments = [(0xC3, frame), (0xC4, table), (0xDA, scan)]
    if components == 3:
        segments.insert(0, (0xEE, b"Adobe\0\x64\0\0\0\0\0"))  # RGB
    head = b"\xff\xd8" + b"".join(jpeg_segment(*segment) for segment in segments)
    return head + bytes(width * height * components // 8 + 1) + END_OF_IMAGE


def exif_loop() -> bytes:
    """Return EXIF whose directories lead back to themselves."""
    entries = [(0x8769, 4, 1, 8), (0x8825, 4, 1, 8), (0x0112, 3, 1, 1)]
    table = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"Exif\x00\x00II*\x00" + struct.pack("<I", 8) + table + struct.pack("<I", 8)
