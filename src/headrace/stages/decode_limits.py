"""Compares the header of a file with the Plan's limits, before anything is decoded."""

from __future__ import annotations

from headrace.base.errors import DecodeRejected
from headrace.base.plan import DecodePlan
from headrace.stages.image_header import ImageHeader, image_format, read_header


def check_limits(data: bytes, plan: DecodePlan, short_side: int, long_side: int = 0) -> ImageHeader:
    """Return the header of a file that is within the limits.

    Args:
        data: The file.
        plan: The Plan's `[decode]` table.
        short_side: Pixels that the shorter side must have after decoding; 0: all of them.
        long_side: Pixels that the longer side must have, instead of `short_side`; 0: `short_side` counts.

    Raises:
        DecodeRejected: `decode.empty`, `.format`, `.bomb`, `.frames`, `.scans`, `.truncated` or `.corrupt`.
    """
    if not data:
        raise DecodeRejected("decode.empty: there are no bytes to decode; check what the sender stored")
    if len(data) > plan.max_bytes:
        raise DecodeRejected(
            f"decode.bomb: the file has {len(data):,} bytes; max_bytes = {plan.max_bytes:,} in [decode]"
        )
    format_ = image_format(data)
    if format_ is None or format_ not in plan.formats:
        raise DecodeRejected(_wrong_format(data, format_, plan))
    header = read_header(data, format_)
    found = _violation(header, plan, factor_of(header, short_side, long_side))
    if found:
        code, what = found
        raise DecodeRejected(f"decode.{code}: a {header.format} file of {header.width} x {header.height} pixels {what}")
    return header


def factor_of(header: ImageHeader, short_side: int, long_side: int = 0) -> int:
    """Return the factor by which decoding reduces a file; the limits use it too. Arguments as of `check_limits`."""
    if header.format != "jpeg":
        return 1
    shorter, longer = sorted((header.height, header.width))
    return reduction(header.height, header.width, -(-long_side * shorter // longer) if long_side else short_side)


def _violation(header: ImageHeader, plan: DecodePlan, factor: int) -> tuple[str, str] | None:
    width, height = header.width, header.height
    if max(width, height) > plan.max_side:
        return "bomb", f"is longer than max_side = {plan.max_side:,} in [decode]"
    pixels = -(-width // factor) * -(-height // factor)
    if pixels > plan.max_pixels:
        return "bomb", f"would decode to {pixels:,}, more than max_pixels = {plan.max_pixels:,} in [decode]"
    num_bytes = int(pixels * header.pixel_bytes + width * height * header.coefficient_bytes)
    if num_bytes > plan.max_decoded_bytes:
        limit = f"max_decoded_bytes = {plan.max_decoded_bytes:,} in [decode]"
        return "bomb", f"would take {num_bytes:,} bytes to decode, more than {limit}"
    if header.frames > plan.max_frames:
        return "frames", f"has {header.frames:,} frames, more than max_frames = {plan.max_frames:,} in [decode]"
    if header.scans > plan.max_scans:
        return "scans", f"goes over them {header.scans:,} times, more than max_scans = {plan.max_scans:,} in [decode]"
    if not header.complete:
        return "truncated", "lacks its end; check what the sender stored"
    return None


def reduction(height: int, width: int, cover: int) -> int:
    """Return the largest of 8, 4, 2 and 1 by which a JPEG can be reduced so that its shorter side still covers.

    Args:
        height: Pixels.
        width: Pixels.
        cover: Pixels that the shorter side must have; 0: all of them.
    """
    if cover == 0:
        return 1
    return next((factor for factor in (8, 4, 2) if min(height, width) >= factor * cover), 1)


def _wrong_format(data: bytes, format_: str | None, plan: DecodePlan) -> str:
    what = f"is {format_}" if format_ else f"begins with {data[:8].hex(' ')} ({data[:24]!r})"
    return (
        f"decode.format: a file of {len(data)} bytes {what}; formats = {list(plan.formats)} in [decode] are accepted; "
        "check what the sender stored"
    )
