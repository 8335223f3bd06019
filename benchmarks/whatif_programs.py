"""Pipelines of other trades for `benchmarks.whatif_error`: text, sound, and detect-crop-recognise.

The shapes of `benchmarks.faults` state their costs; these compute something. What a stage holds of the GIL, what NumPy does in
threads and what a limited service answers is not written down anywhere: headrace has to find it in the recorded run.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.faults.case import Case
from headrace.base.plan import Plan

_WORDS = re.compile(r"[a-z]+")
#: Answers per second that the limited service gives, however many ask.
_ALLOWED = 60.0
#: Bins of a text's vector; samples, frame and bands of a sound; sides of an image and of what is cut out of it.
_BINS, _SAMPLES, _FRAME, _BANDS, _SIDE, _CROP = 1024, 32_000, 512, 40, 320, 64


class Limited:
    """A service that answers after 10 ms, and so many times in a second at most: callers wait for their turn."""

    def __init__(self, per_second: float) -> None:
        self._gap = 1.0 / per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def __call__(self, value: Any) -> Any:
        """Wait for the answer."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at + self._gap, now)
            due = self._free_at
        time.sleep(max(0.0, due - now) + 0.010)
        return value


def _ask(value: Any) -> Any:
    time.sleep(0.030)
    return value


def texts() -> Sequence[bytes]:
    """Return 24 pages of 1,000 to 8,000 words."""
    rng = np.random.default_rng(5)
    words = ["".join(rng.choice(list("abcdefghij"), rng.integers(3, 9))) for _ in range(2000)]
    return [" ".join(rng.choice(words, rng.integers(1000, 8000))).encode() for _ in range(24)]


def tokenize(page: bytes) -> list[int]:
    """Count words and return their hashes, in Python."""
    counts = collections.Counter(_WORDS.findall(page.decode()))
    return [zlib.crc32(word.encode()) % _BINS for word, number in counts.items() for _ in range(number)]


def vectorize(tokens: list[int]) -> Any:
    """Return a normalised vector, in NumPy: sorting, counting and a transform."""
    counts = np.bincount(np.sort(np.tile(np.asarray(tokens), 64)), minlength=_BINS).astype(float)
    found = np.sqrt(counts) / (1.0 + np.abs(np.fft.rfft(counts, 2 * _BINS - 2)))
    return (found / (np.linalg.norm(found) + 1e-9)).astype(np.float32)


def _matrix(rows: int, columns: int) -> Any:
    return np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)


def score(batch: Any, layers: int = 6) -> list[int]:
    """Return the best class of each vector: matrix products on the cores."""
    weights = _weights(batch[0].size)
    found = np.stack(list(batch))
    for _ in range(layers):
        found = np.tanh(found @ weights)
    return [int(one) for one in found.argmax(axis=1)]


@functools.cache
def _weights(size: int) -> Any:
    return _matrix(size, size) / size


def text() -> Case:
    """Return pages that a service enriches, and Python and NumPy classify."""
    return Case(
        shape="text",
        stages=(
            hr.stage("enrich", _ask, kind="io"),
            hr.stage("tokenize", tokenize),
            hr.stage("vectorize", vectorize),
            hr.stage("process", score, kind="device"),
        ),
        payloads=texts,
        plan=Plan().with_settings(
            ["enrich.workers=8", "tokenize.workers=1", "tokenize.executor=thread", "vectorize.workers=1",
             "vectorize.executor=thread", "process.batch=4"]
        ),
    )  # fmt: skip


def limited() -> Case:
    """Return the same behind a service that gives a number of answers in a second, whoever asks."""
    with_service = text().with_stage(hr.stage("enrich", Limited(_ALLOWED), kind="io"))
    return dataclasses.replace(with_service, shape="limited").with_settings("enrich.workers=6")


def sounds() -> Sequence[bytes]:
    """Return 16 sounds of two seconds."""
    rng = np.random.default_rng(6)
    return [(3000 * rng.standard_normal(_SAMPLES)).astype(np.int16).tobytes() for _ in range(16)]


def decode_sound(content: bytes) -> Any:
    """Return samples, filtered twice."""
    samples = np.frombuffer(content, np.int16).astype(np.float32) / 32768
    return np.convolve(samples, np.hanning(64).astype(np.float32), mode="same")


def spectrum(samples: Any) -> Any:
    """Return log energies of overlapping frames, (frames, bands)."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[:: _FRAME // 8]
    power = np.abs(np.fft.rfft(frames * np.hanning(_FRAME), axis=1)) ** 2
    return np.log1p(power @ _matrix(power.shape[1], _BANDS) ** 2).astype(np.float32)


def smooth(energies: Any) -> Any:
    """Return a vector of moving means, in Python loops over frames."""
    means = [0.0] * energies.shape[1]
    for row in energies.tolist() * 2:
        means = [0.9 * mean + 0.1 * value for mean, value in zip(means, row, strict=True)]
    return np.resize(np.asarray(means, np.float32), 1024)


def sound() -> Case:
    """Return sounds from a store: NumPy, then Python, then a small model."""
    return Case(
        shape="sound",
        stages=(
            hr.stage("fetch", _ask, kind="io"),
            hr.stage("decode", decode_sound),
            hr.stage("spectrum", spectrum),
            hr.stage("smooth", smooth),
            hr.stage("process", score, kind="device"),
        ),
        payloads=sounds,
        plan=Plan().with_settings(
            ["fetch.workers=4", "decode.executor=thread", "decode.workers=1", "spectrum.executor=thread",
             "spectrum.workers=1", "smooth.executor=thread", "smooth.workers=1", "process.batch=4"]
        ),
    )  # fmt: skip


def pictures() -> Sequence[bytes]:
    """Return 12 grey images with bright squares."""
    rng = np.random.default_rng(7)
    found = []
    for number in range(12):
        image = rng.integers(0, 60, (_SIDE, _SIDE), np.uint8)
        for _ in range(1 + number % 4):
            x, y = rng.integers(0, _SIDE - _CROP, 2)
            image[y : y + _CROP, x : x + _CROP] = 220
        found.append(image.tobytes())
    return found


def detect(content: bytes) -> hr.Fan:
    """Find bright places with sums of areas and cut them out."""
    image = np.frombuffer(content, np.uint8).reshape(_SIDE, _SIDE).astype(np.float64)
    sums = np.pad(image.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    boxes = sums[_CROP:, _CROP:] - sums[:-_CROP, _CROP:] - sums[_CROP:, :-_CROP] + sums[:-_CROP, :-_CROP]
    places = np.argsort(boxes, axis=None)[::-1][:200]
    kept: list[tuple[int, int]] = []
    for place in places:
        y, x = divmod(int(place), boxes.shape[1])
        if all(abs(y - other) + abs(x - another) > _CROP // 2 for other, another in kept):
            kept.append((y, x))
    crops = [image[y : y + _CROP, x : x + _CROP].astype(np.float32) for y, x in kept[:4]]
    return hr.Fan(keep=len(crops), children=crops)


def normalize(crop: Any) -> Any:
    """Return a crop of mean 0, blurred in the frequency domain, as a vector."""
    blurred = np.abs(np.fft.ifft2(np.fft.fft2(np.kron(crop, np.ones((4, 4)))) ** 0.9))
    return (blurred[::8, ::8] - blurred.mean()).astype(np.float32).ravel()


def crops() -> Case:
    """Return images of which up to four crops are recognised."""
    return Case(
        shape="crops",
        stages=(
            hr.fan_out("detect", detect),
            hr.stage("normalize", normalize),
            hr.stage("process", score, kind="device"),
            hr.join("together", lambda joined: list(joined.results)),
        ),
        payloads=pictures,
        plan=Plan().with_settings(
            ["detect.workers=1", "normalize.executor=thread", "normalize.workers=1", "process.batch=8"]
        ),
    )  # fmt: skip


PROGRAMS: Mapping[str, Callable[[], Case]] = {"text": text, "limited": limited, "sound": sound, "crops": crops}
