"""Photographs in every accepted format, damaged by a seeded dose: cut, flipped, zeroed, spliced, told lies."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator

from PIL import Image

from benchmarks.hostile_inputs.binary import END_OF_IMAGE
from benchmarks.hostile_inputs.files import DAMAGED, OK, HostileFile, encoded, picture

#: Whatever may become of a file that was damaged anywhere.
ANY = OK | DAMAGED | {"decode.bomb", "decode.frames", "decode.scans", "decode.format", "decode.memory"}
_REFUSED = ANY - OK
_EXTREMES = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
)

Damage = Callable[[bytes, random.Random], bytes]


@functools.cache
def good_files() -> dict[str, bytes]:
    """Return the undamaged files, by what they are."""
    coffee, chelsea, rocket = (picture(name) for name in ("coffee", "chelsea", "rocket"))
    clear = coffee.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(coffee.size))
    return {
        "jpeg": encoded(coffee, "JPEG"),
        "jpeg 4:4:4": encoded(chelsea, "JPEG", subsampling=0, quality=95),
        "jpeg with restarts": encoded(rocket, "JPEG", restart_marker_rows=1),
        "grey jpeg": encoded(picture("brick").convert("L"), "JPEG"),
        "progressive jpeg": encoded(chelsea, "JPEG", progressive=True),
        "cmyk jpeg": encoded(rocket.convert("CMYK"), "JPEG"),
        "jpeg with exif": encoded(coffee, "JPEG", exif=_turned()),
        "png": encoded(coffee, "PNG"),
        "palette png": encoded(chelsea.quantize(64), "PNG"),
        "png with alpha": encoded(clear, "PNG"),
        "webp": encoded(rocket, "WEBP"),
        "lossless webp": encoded(coffee, "WEBP", lossless=True),
        "webp with alpha": encoded(clear, "WEBP"),
        "animated webp": encoded(coffee, "WEBP", save_all=True, append_images=[chelsea]),
        "gif": encoded(rocket.quantize(64), "GIF"),
        "animated gif": encoded(coffee, "GIF", save_all=True, append_images=[chelsea]),
        "bmp": encoded(chelsea, "BMP"),
        "palette bmp": encoded(rocket.quantize(64), "BMP"),
    }


def mutated_files(number: int, seed: int = 0) -> Iterator[HostileFile]:
    """Yield damaged photographs, every kind of damage to every kind of file by turns.

    Args:
        number: How many.
        seed: Equal seeds give equal files.
    """
    rng = random.Random(seed)
    pairs = [(file, damage) for damage in DAMAGES for file in good_files()]
    for index in range(number):
        name, damage = pairs[index % len(pairs)]
        spoil, verdicts = DAMAGES[damage]
        if damage.startswith("cut") and "gif" in name:
            verdicts = verdicts | OK  # the first picture may be whole
        if damage == "cut and closed" and name == "progressive jpeg":
            verdicts = verdicts | OK  # between two passes: the whole picture, only coarser
        if damage == "cut and closed" and "jpeg" not in name:
            spoil = _cut
        yield HostileFile(f"{name}: {damage}", spoil(good_files()[name], rng), verdicts)


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: int(len(data) * rng.uniform(0.05, 0.95))]


def _cut_and_closed(data: bytes, rng: random.Random) -> bytes:
    return _cut(data, rng) + END_OF_IMAGE


def _flip(most: int) -> Damage:
    def flip(data: bytes, rng: random.Random) -> bytes:
        spoiled = bytearray(data)
        for _ in range(rng.randint(1, most)):
            spoiled[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(spoiled)

    return flip


def _flip_in_header(data: bytes, rng: random.Random) -> bytes:
    return _flip(8)(data[:700], rng) + data[700:]


def _block(fill: Callable[[random.Random, int], bytes]) -> Damage:
    def spoil(data: bytes, rng: random.Random) -> bytes:
        size = min(512, len(data) // 4)
        start = rng.randrange(len(data) - size)
        return data[:start] + fill(rng, size) + data[start + size :]

    return spoil


def _extreme(data: bytes, rng: random.Random) -> bytes:
    value = rng.choice(_EXTREMES)
    start = rng.randrange(min(700, len(data) - len(value)))
    return data[:start] + value + data[start + len(value) :]


def _spliced(data: bytes, rng: random.Random) -> bytes:
    other = rng.choice(list(good_files().values()))
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]


def _repeated(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) - 64)
    part = data[start : start + rng.randint(1, 2000)]
    return data[:start] + part * rng.randint(2, 20) + data[start:]


DAMAGES: dict[str, tuple[Damage, frozenset[str]]] = {
    "cut": (_cut, _REFUSED),
    "cut and closed": (_cut_and_closed, _REFUSED),
    "one bit flipped": (_flip(1), ANY),
    "bits flipped": (_flip(50), ANY),
    "bits of the header flipped": (_flip_in_header, ANY),
    "extreme value in the header": (_extreme, ANY),
    "block of zeros": (_block(lambda rng, size: bytes(size)), ANY),
    "block of noise": (_block(lambda rng, size: rng.randbytes(size)), ANY),
    "block missing": (_block(lambda rng, size: b""), ANY),
    "part repeated": (_repeated, ANY),
    "two files spliced": (_spliced, ANY),
    "noise behind it": (lambda data, rng: data + rng.randbytes(rng.randint(1, 3000)), OK),
}
