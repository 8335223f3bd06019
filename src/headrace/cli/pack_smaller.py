"""`headrace pack --try` with smaller images: what they take, how long they are decoded, and how far their pixels change."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping

import msgspec
import numpy as np

from headrace.base.errors import ItemRejected, SettingsError
from headrace.stages.decode import decode
from headrace.stages.encode import encode
from headrace.stages.images import fit
from headrace.stages.inputs import ImageInput
from headrace.store.manifest import Encoding


class Smaller(msgspec.Struct, frozen=True, kw_only=True):
    """What making images smaller does to some of them."""

    encoding: Encoding
    images: int
    """That became something else; the others pass unchanged."""
    unreadable: int
    mean_bytes_before: float
    mean_bytes_after: float
    decode_us_before: float
    """Median of decoding one at the scale that covers the short side, and resizing it to that; single-threaded."""
    decode_us_after: float
    mean_difference: float
    """Between the pixels before and after at that size: mean of their absolute differences, of 255."""
    largest_difference: float
    """The same, of the image that differs most."""
    worst: str
    """That image."""


def make_smaller(contents: Mapping[str, bytes], encoding: Encoding) -> tuple[dict[str, bytes], Smaller | None]:
    """Return the items as they would be packed, and what that does to images.

    Raises:
        SettingsError: If none can be read.
    """
    made: dict[str, bytes] = {}
    for name, data in contents.items():
        with contextlib.suppress(ItemRejected):
            made[name] = encode(data, encoding)
    if not made:
        raise SettingsError("none of the images that --try chose can be decoded")
    changed = {name: (contents[name], data) for name, data in made.items() if data is not contents[name]}
    return made, _compare(changed, encoding, len(contents) - len(made)) if changed else None


def _compare(changed: Mapping[str, tuple[bytes, bytes]], encoding: Encoding, unreadable: int) -> Smaller:
    times: tuple[list[float], list[float]] = ([], [])
    differences = {}
    for name, pair in changed.items():
        before, after = (_view(data, encoding.short_side, times[number]) for number, data in enumerate(pair))
        differences[name] = float(np.abs(before.astype(np.int16) - after).mean())
    worst = max(differences, key=differences.__getitem__)
    return Smaller(
        encoding=encoding,
        images=len(changed),
        unreadable=unreadable,
        mean_bytes_before=statistics.mean(len(before) for before, _ in changed.values()),
        mean_bytes_after=statistics.mean(len(after) for _, after in changed.values()),
        decode_us_before=statistics.median(times[0]),
        decode_us_after=statistics.median(times[1]),
        mean_difference=statistics.mean(differences.values()),
        largest_difference=differences[worst],
        worst=worst,
    )


def _view(data: bytes, short_side: int | None, times: list[float]) -> np.ndarray:
    """Return what a module would be given; the time that takes is added, in us."""
    began = time.perf_counter()
    image = decode(data, short_side=short_side)
    if short_side is not None and min(image.shape[:2]) > short_side:
        image = fit(image, ImageInput(short_side=short_side))
    times.append((time.perf_counter() - began) * 1e6)
    return image


def describe_smaller(smaller: Smaller) -> list[str]:
    """Return the lines that `--try` prints."""
    before, after = smaller.mean_bytes_before, smaller.mean_bytes_after
    mean, most = smaller.mean_difference, smaller.largest_difference
    slow, fast = smaller.decode_us_before, smaller.decode_us_after
    unreadable = f"; {smaller.unreadable:,} cannot be decoded, and would not be packed" if smaller.unreadable else ""
    return [
        f"{smaller.images:,} images with {smaller.encoding.describe()}{unreadable}:",
        f"  size    {before / 1e3:,.1f} -> {after / 1e3:,.1f} kB on average (x{after / before:.2f})",
        f"  decode  {slow:,.0f} -> {fast:,.0f} us, resizing included (x{slow / fast:.2f} as fast)",
        f"  pixels  differ by {mean:.2f} of 255 on average, most in {smaller.worst}: by {most:.2f}",
        "  whether answers stay the same only your pipeline can tell: run it over both and compare",
    ]
