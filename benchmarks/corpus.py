"""A folder of JPEG crops cut from the repository's photographs, the images of every benchmark.

Long sides lie in 480-1600 px and qualities in 75-95; the mean is about 0.90 Mpx and 127 KiB, an ordinary web upload.
How large the means become depends on the photographs' shapes and detail. So sides and qualities are drawn as
low + (high - low) u^k, and each k is fitted until its mean is reached; ``corpus.json`` in the folder tells what came out.

Run ``python -m benchmarks.corpus`` to build the default corpus and print its numbers.
"""

import argparse
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from benchmarks.paths import CACHE, PHOTOGRAPHS, digest

LONG_SIDE = (480, 1600)
QUALITY = (75, 95)
TARGET_PIXELS = 0.90e6
TARGET_BYTES = 127 * 1024
NUM_PILOT_CROPS = 200
RECIPE_VERSION = 2  # part of the cache key: raise it when the same arguments would give other images


def build(count: int = 1000, seed: int = 7, photographs: Path = PHOTOGRAPHS) -> Path:
    """Return a folder with ``count`` JPEG files, built at most once per set of parameters.

    Args:
        count: Number of images, >= 1.
        seed: Decides every crop; the same seed and photographs give the same bytes with the same OpenCV.
        photographs: Folder of ``*.jpg`` source photographs.

    Raises:
        FileNotFoundError: If the folder holds no photographs.
    """
    sources = sorted(photographs.glob("*.jpg"))
    if not sources:
        raise FileNotFoundError(f"no *.jpg photographs in {photographs}: the corpus is cut from them")
    key = digest([RECIPE_VERSION, count, seed, LONG_SIDE, QUALITY, [(p.name, p.stat().st_size) for p in sources]])
    folder = CACHE / f"corpus-{count}-{key}"
    if not (folder / "corpus.json").exists():
        _write(folder, sources, count, seed)
    return folder


def paths(folder: Path) -> list[str]:
    """Return the corpus's images as sorted path strings."""
    return sorted(str(path) for path in folder.glob("*.jpg"))


def description(folder: Path) -> dict[str, object]:
    """Return what the corpus is: count, mean pixels, mean bytes, sources."""
    return json.loads((folder / "corpus.json").read_text())


@dataclass(frozen=True)
class _Crop:
    """The random choices behind one image; the ``u`` are uniform in 0-1."""

    source: int
    fraction: float
    u_top: float
    u_left: float
    mirrored: bool
    gain: float
    offset: float
    u_side: float
    u_quality: float

    def cut(self, image: np.ndarray) -> np.ndarray:
        """Return the part of the photograph, uint8 (height, width, 3) BGR."""
        height, width = (int(side * self.fraction) for side in image.shape[:2])
        top = int(self.u_top * (image.shape[0] - height))
        left = int(self.u_left * (image.shape[1] - width))
        part = image[top : top + height, left : left + width]
        return np.ascontiguousarray(part[:, ::-1]) if self.mirrored else part


def _write(folder: Path, sources: list[Path], count: int, seed: int) -> None:
    """Write all images, then the description: a folder without one was interrupted and is made again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    images = [cv2.imread(str(path), cv2.IMREAD_COLOR) for path in sources]
    crops = _draw(len(images), count, seed)
    side_exponent = _fit(lambda k: np.mean([_num_pixels(c, images[c.source], k) for c in crops]), TARGET_PIXELS)
    pilot = [(c, _render(c, images[c.source], side_exponent)) for c in crops[:NUM_PILOT_CROPS]]
    quality_exponent = _fit(lambda k: np.mean([len(_encode(c, i, k)) for c, i in pilot]), TARGET_BYTES)
    num_bytes, num_pixels = 0, 0
    for index, crop in enumerate(crops):
        image = _render(crop, images[crop.source], side_exponent)
        jpeg = _encode(crop, image, quality_exponent)
        num_bytes += len(jpeg)
        num_pixels += image.shape[0] * image.shape[1]
        (folder / f"{index:05d}.jpg").write_bytes(jpeg)
    facts = {
        "count": count,
        "seed": seed,
        "mean_pixels": num_pixels / count,
        "mean_bytes": num_bytes / count,
        "side_exponent": side_exponent,
        "quality_exponent": quality_exponent,
        "sources": [path.name for path in sources],
    }
    (folder / "corpus.json").write_text(json.dumps(facts, indent=1))


def _draw(num_sources: int, count: int, seed: int) -> list[_Crop]:
    rng = random.Random(seed)
    return [
        _Crop(
            source=rng.randrange(num_sources),
            fraction=rng.uniform(0.6, 1.0),
            u_top=rng.random(),
            u_left=rng.random(),
            mirrored=rng.random() < 0.5,
            gain=rng.uniform(0.7, 1.3),
            offset=rng.uniform(-20, 20),
            u_side=rng.random(),
            u_quality=rng.random(),
        )
        for _ in range(count)
    ]


def _between(limits: tuple[int, int], u: float, exponent: float) -> int:
    low, high = limits
    return round(low + (high - low) * u**exponent)


def _num_pixels(crop: _Crop, image: np.ndarray, side_exponent: float) -> float:
    long, short = max(image.shape[:2]), min(image.shape[:2])
    return _between(LONG_SIDE, crop.u_side, side_exponent) ** 2 * short / long


def _render(crop: _Crop, image: np.ndarray, side_exponent: float) -> np.ndarray:
    part = crop.cut(image)
    scale = _between(LONG_SIDE, crop.u_side, side_exponent) / max(part.shape[:2])
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    part = cv2.resize(part, None, fx=scale, fy=scale, interpolation=method)
    return cv2.convertScaleAbs(part, alpha=crop.gain, beta=crop.offset)


def _encode(crop: _Crop, image: np.ndarray, quality_exponent: float) -> bytes:
    quality = _between(QUALITY, crop.u_quality, quality_exponent)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def _fit(mean_of: Callable[[float], float], target: float) -> float:
    """Return the exponent in 0.1-10 whose mean comes closest to the target; larger exponents give smaller means."""
    low, high = 0.1, 10.0
    for _ in range(8):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if mean_of(middle) > target else (low, middle)
    return round((low * high) ** 0.5, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--photographs", type=Path, default=PHOTOGRAPHS)
    arguments = parser.parse_args()
    folder = build(arguments.count, arguments.seed, arguments.photographs)
    facts = description(folder)
    print(folder.name, f"{facts['mean_pixels'] / 1e6:.2f} Mpx, {facts['mean_bytes'] / 1024:.0f} KiB on average")


if __name__ == "__main__":
    main()
