"""Labels that flicker, smoothed: how many flips are left, how much later a change is told, how many frames are right.

The streams are made by a seed: one of four labels for a while (5 s on average, 1 s at least), and scores whose noise lasts for
a few frames, as that of a model does which sees nearly the same picture again. All settings are the defaults.

    python -m benchmarks.temporal [--quick] [--json] [--write]
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import measure
from headrace.stages.temporal import Smooth

_LABELS = 4
_MEAN_SECONDS = 5.0
_LEAST_SECONDS = 1.0
_NOISE_SECONDS = 0.08
"""Time in which the noise of the scores forgets itself to 1/e."""
_SIGNAL = 2.0
_NOISE = 1.15
"""Of the logits, in the same unit."""


@dataclass(frozen=True)
class Stream:
    """Frames of one stream."""

    seconds: np.ndarray
    truth: np.ndarray
    scores: np.ndarray
    """(frames, labels)"""


def make_stream(rate: float, minutes: float, seed: int) -> Stream:
    """Return a stream of so many frames a second."""
    random = np.random.default_rng(seed)
    count = int(minutes * 60 * rate)
    truth = np.empty(count, int)
    at, label = 0, int(random.integers(_LABELS))
    while at < count:
        length = _LEAST_SECONDS + random.exponential(_MEAN_SECONDS - _LEAST_SECONDS)
        end = min(count, at + max(1, round(length * rate)))
        truth[at:end] = label
        at, label = end, int((label + random.integers(1, _LABELS)) % _LABELS)
    noise = random.normal(0, _NOISE, (count, _LABELS))
    kept = np.exp(-1 / rate / _NOISE_SECONDS)
    for index in range(1, count):
        noise[index] = kept * noise[index - 1] + np.sqrt(1 - kept**2) * noise[index]
    logits = noise + _SIGNAL * np.eye(_LABELS)[truth]
    scores = np.exp(logits)
    return Stream(np.arange(count) / rate, truth, scores / scores.sum(axis=1, keepdims=True))


def score(stream: Stream, labels: np.ndarray) -> dict[str, float]:
    """Return flips a minute that the truth does not have, the share of right frames, and delays of changes in seconds."""
    flips = int((labels[1:] != labels[:-1]).sum()) - int((stream.truth[1:] != stream.truth[:-1]).sum())
    delays = []
    changes = [*(np.flatnonzero(stream.truth[1:] != stream.truth[:-1]) + 1), len(labels)]
    for begin, end in itertools.pairwise(changes):
        told = np.flatnonzero(labels[begin:end] == stream.truth[begin])
        delays.append(float(stream.seconds[begin + told[0]] - stream.seconds[begin]) if len(told) else float("inf"))
    minutes = float(stream.seconds[-1]) / 60
    return {
        "flips_per_minute": max(0, flips) / minutes,
        "right": float((labels == stream.truth).mean()),
        "delay": statistics.median(delays),
        "never_told": sum(delay == float("inf") for delay in delays) / len(delays),
    }


def run(quick: bool) -> dict[str, Any]:
    """Return, for each rate of frames, raw and smoothed labels scored.

    Args:
        quick: Two streams of five minutes instead of ten of ten, at each rate.
    """
    streams, minutes = (2, 5.0) if quick else (10, 10.0)
    rows: dict[str, Any] = {}
    for rate in (5, 10, 25):
        raw, smoothed = [], []
        for seed in range(streams):
            stream = make_stream(rate, minutes, seed)
            smooth = Smooth()
            pairs = zip(stream.scores, stream.seconds, strict=True)
            labels = np.array([smooth(scores, float(at))["label"] for scores, at in pairs])
            raw.append(score(stream, stream.scores.argmax(axis=1)))
            smoothed.append(score(stream, labels))
        rows[str(rate)] = {"raw": _mean(raw), "smoothed": _mean(smoothed)}
        before, after = rows[str(rate)]["raw"], rows[str(rate)]["smoothed"]
        rows[str(rate)]["flips_cut"] = 1 - after["flips_per_minute"] / before["flips_per_minute"]
        rows[str(rate)]["added_delay"] = after["delay"] - before["delay"]
    return {"streams": streams, "minutes": minutes, "rates": rows}


def _mean(scores: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.fmean(one[key] for one in scores) for key in scores[0]}


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    lines = [
        f"| {rate} | {row['raw']['flips_per_minute']:.0f} | {row['smoothed']['flips_per_minute']:.1f} | {row['flips_cut']:.1%} "
        f"| {row['added_delay']:.2f} s | {row['raw']['right']:.1%} | {row['smoothed']['right']:.1%} "
        f"| {row['raw']['never_told']:.1%} | {row['smoothed']['never_told']:.1%} |"
        for rate, row in result["rates"].items()
    ]
    table = "\n".join(lines)
    return f"""# Labels that flicker, smoothed in time

{result["streams"]} streams of {result["minutes"]:.0f} minutes at each rate, made by seeds: one of {_LABELS} labels for
{_MEAN_SECONDS:.0f} s on average, noise that lasts {_NOISE_SECONDS * 1e3:.0f} ms. `hr.temporal.Smooth()` with its
defaults. Flips are those that the truth does not have; the delay is the median from a change to the first frame with the
new label, less the same of raw labels.
Goals: 80 % of the flips cut, 0.4 s, as many frames right.

| frames/s | flips a minute | smoothed | cut | added delay | frames right | smoothed | changes never told | smoothed |
|---|---|---|---|---|---|---|---|---|
{table}
"""


if __name__ == "__main__":
    measure.run_benchmark("temporal", "Labels that flicker, smoothed.", run, as_text)
