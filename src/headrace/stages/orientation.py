"""How an image must be rotated: by EXIF, or by the text or XMP that replaces it.

In the order in which Pillow's `exif_transpose` asks: EXIF; EXIF as hexadecimal text, as ImageMagick writes it into PNG; XMP.
All functions return 1 to 8, and 0 if there is no orientation. Broken metadata counts as none, because the picture may be fine.

References:
    Exif 2.32, tag 274. XMP Specification Part 2, tiff:Orientation.
"""

from __future__ import annotations

import re
import struct
import zlib

_TAG = 274
_RAW_PROFILE = b"Raw profile type exif\x00"
_PNG_XMP = b"XML:com.adobe.xmp\x00"
#: EXIF in a JPEG has at most this many bytes; compressed text could have any length.
_MOST_BYTES = 65_536
_in_xmp = re.compile(rb'tiff:Orientation(?:="|>)([1-8])').search


def exif_orientation(exif: bytes) -> int:
    """Return the orientation in EXIF data, which begins with its byte order."""
    if exif[:4] not in (b"II*\x00", b"MM\x00*"):
        return 0
    order = "<" if exif.startswith(b"II") else ">"
    try:
        value = _first_directory(exif, order)
    except struct.error:
        return 0
    return value if 1 <= value <= 8 else 0


def _first_directory(exif: bytes, order: str) -> int:
    start = struct.unpack_from(f"{order}I", exif, 4)[0]
    for entry in range(start + 2, start + 2 + 12 * struct.unpack_from(f"{order}H", exif, start)[0], 12):
        tag, kind = struct.unpack_from(f"{order}HH", exif, entry)
        if tag == _TAG and kind in (3, 4):
            value: int = struct.unpack_from(f"{order}{'H' if kind == 3 else 'I'}", exif, entry + 8)[0]
            return value
    return 0


def xmp_orientation(xmp: bytes) -> int:
    """Return the orientation in XMP data."""
    found = _in_xmp(xmp)
    return int(found[1]) if found else 0


def png_text_orientation(kind: bytes, body: bytes) -> int:
    """Return the orientation in a text chunk of a PNG.

    Args:
        kind: `tEXt`, `zTXt` or `iTXt`.
        body: The chunk without length, kind and checksum.
    """
    if kind == b"iTXt":
        return xmp_orientation(body) if body.startswith(_PNG_XMP + b"\x00") else 0  # not compressed
    if not body.startswith(_RAW_PROFILE):
        return 0
    text = body[len(_RAW_PROFILE) :]
    try:
        if kind == b"zTXt":
            text = zlib.decompressobj().decompress(text[1:], 3 * _MOST_BYTES)
        # Name, length in bytes, then hexadecimal digits.
        digits = b"".join(text.split()[2:]).decode("ascii")
        return exif_orientation(bytes.fromhex(digits).removeprefix(b"Exif\x00\x00"))
    except (ValueError, zlib.error):
        return 0
