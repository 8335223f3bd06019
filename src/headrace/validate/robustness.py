"""Whether a candidate bears spoiled images worse than the incumbent does.

Each kind of spoiling is a part of the set like a class or the dark third: a drop beyond the wider margin that is sure rejects,
and the probability of a false alarm is shared among the kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np

from headrace.base.words import counted
from headrace.runs.formats.variants import Outcome
from headrace.validate.corruptions import CORRUPTIONS, Pixels, corrupted
from headrace.validate.golden import Golden, spread
from headrace.validate.kept_answers import KeptAnswers
from headrace.validate.metrics import Metric
from headrace.validate.noninferiority import Decision, judge_drop
from headrace.validate.parity import top_1
from headrace.validate.policy import Policy

_ALPHA = 0.05
_NO_SCORES = "not known: the answers are no scores of classes"
Call = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """What was found."""

    outcome: Outcome
    says: str
    values: dict[str, float | None]
    """{`KIND_a`, `KIND_b`, `KIND_drop`}: shares of right answers, or without labels the share of changed ones as the drop."""


def judge_robustness(
    models: tuple[Call, Call],
    golden: Golden,
    policy: Policy,
    *,
    items: int,
    stop: Callable[[], bool] = lambda: False,
    kept: KeptAnswers | None = None,
    sides: tuple[int | None, int | None] = (None, None),
) -> Robustness:
    """Return how two variants answer images that were spoiled.

    Args:
        models: Incumbent and candidate.
        golden: Its items are spoiled, at most so many, spread evenly.
        policy: Its batch, and its margin for parts of the set.
        items: At most so many.
        stop: Asked before each kind.
        kept: What the incumbent answered to this set, asked by this policy's batch; None: nothing is known.
        sides: `input_side` of each; spoiled images are scaled to it, for cameras spoil them before the pipeline does.
    """
    pixels = _pixels(golden, policy.metric)
    if isinstance(pixels, str):
        return Robustness(outcome="skipped", says=pixels, values={})
    kept, places = kept or KeptAnswers(0), spread(len(golden), items)
    labels = None if golden.labels is None else golden.labels[places]
    chosen = np.asarray(golden.inputs[places])
    values: dict[str, float | None] = {}
    failed, told = [], []
    for kind in CORRUPTIONS:
        if stop():
            return Robustness(outcome="inconclusive", says="interrupted", values=values)
        spoiled = corrupted(chosen, kind, pixels)
        taken = [_scaled(spoiled, golden, side, pixels) for side in sides]
        first = kept.once(("robustness", kind, items), partial(_firsts, models[0], taken[0], policy.batch))
        second = _firsts(models[1], taken[1], policy.batch)
        if first is None or second is None:
            return Robustness(outcome="skipped", says=_NO_SCORES, values={})
        if labels is None:
            differences = -np.not_equal(first, second).astype(float)
        else:
            a, b = (np.equal(one, labels).astype(float) for one in (first, second))
            differences = b - a
            values[f"{kind}_a"], values[f"{kind}_b"] = float(a.mean()), float(b.mean())
        drop = float(-differences.mean())
        values[f"{kind}_drop"] = drop
        told.append(f"{kind} {100 * drop:+.1f}")
        alpha = _ALPHA / len(CORRUPTIONS)
        mixed = np.random.default_rng(0).permutation(differences)  # files are sorted by class, and the test looks early
        if judge_drop(mixed, policy.max_slice_drop, alpha, is_all=True).decision is Decision.REJECT:
            failed.append(kind)
    limit = f"{100 * policy.max_slice_drop:g} are allowed"
    points = f"drop in points on {counted(len(places), 'spoiled item')}: {', '.join(told)}; {limit}"
    if failed:
        return Robustness(outcome="rejected", says=f"B bears {', '.join(failed)} worse than A: {points}", values=values)
    return Robustness(outcome="passed", says=points, values=values)


def why_no_robustness(model: Call, golden: Golden, metric: Metric) -> str | None:
    """Return why spoiled images of a set cannot be asked of a model; None if they can."""
    pixels = _pixels(golden, metric)
    if isinstance(pixels, str):
        return pixels
    return _NO_SCORES if _firsts(model, golden.inputs[:1], batch=1) is None else None


def _pixels(golden: Golden, metric: Metric) -> Pixels | str:
    """Return how items are pictures, or why they cannot be spoiled and compared."""
    if metric.recount is not None:
        return f"not applicable, because {metric.name} scores no first answers, which spoiled images are compared by"
    found = Pixels.of(golden.inputs)
    return f"not known: {golden.inputs.dtype}{list(golden.inputs.shape)} are no pictures" if found is None else found


def _scaled(items: np.ndarray, golden: Golden, side: int | None, pixels: Pixels) -> np.ndarray:
    """Return images as a model of that `input_side` takes them."""
    if side is None:
        return items
    shape = golden.at(side).shape[1:]
    height, width = shape[1:] if pixels.channels_first else shape[:2]
    # OpenCV scales no float16; and beyond a half, where a decoder averages, lines between pixels would leave some of them out.
    taken = items.astype(np.float32) if items.dtype == np.float16 else items
    last = [np.moveaxis(item, 0, 2) if pixels.channels_first else item for item in taken]
    how = cv2.INTER_AREA if 2 * height <= last[0].shape[0] else cv2.INTER_LINEAR
    scaled = [cv2.resize(np.ascontiguousarray(one), (width, height), interpolation=how) for one in last]
    return np.stack([np.moveaxis(one, 2, 0) if pixels.channels_first else one for one in scaled]).astype(items.dtype)


def _firsts(model: Call, items: np.ndarray, batch: int) -> np.ndarray | None:
    found = [top_1(model(np.ascontiguousarray(items[at : at + batch]))) for at in range(0, len(items), batch)]
    known = [one for one in found if one is not None]
    return np.concatenate(known) if len(known) == len(found) else None
