"""Copies of image files without what their first picture does not need, for files whose other parts lead decoders astray."""

from __future__ import annotations

import struct

from headrace.stages.image_header import jpeg_segments

#: Frames, tables and restarts; JFIF and Adobe, which say how colours are stored.
_NEEDED = frozenset({*range(0xC0, 0xD0), 0xDB, 0xDD, 0xE0, 0xEE})
_ANIMATION = frozenset({b"acTL", b"fcTL", b"fdAT"})


def bare_jpeg(data: bytes) -> bytes:
    """Return a JPEG without metadata and without bytes between its segments.

    libjpeg tells its first warning alone. One about metadata would hide that pixels are missing.

    Args:
        data: A file whose header could be read.
    """
    parts = [data[:2]]
    for marker, position, length in jpeg_segments(data):
        if marker == 0xDA:
            parts.append(data[position:])
            break
        part = data[position : position + 2 + length]
        if marker == 0xE0 and part[4:9] == b"JFIF\x00":
            part = part[:9] + b"\x01\x01" + part[11:]  # an unknown revision is a warning too
        if marker in _NEEDED:
            parts.append(part)
    return b"".join(parts)


def make_still_png(data: bytes) -> bytes:
    """Return an animated PNG as a still one: its default image, which viewers without animation show.

    OpenCV gives the first frame of the animation instead, and dies of some damaged ones.

    Args:
        data: A file whose header could be read.
    """
    parts, position = [data[:8]], 8
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if kind not in _ANIMATION:
            parts.append(data[position:end])
        if kind == b"IEND":
            break
        position = end
    return b"".join(parts)
