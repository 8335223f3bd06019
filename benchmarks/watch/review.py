"""Whether the interval of a review holds, and how wide it is: 200 reviews of 100 items of simulated production.

Each production is made up of 24 hours of answers in ten classes of very different sizes (Zipf), with mistakes of one of the
kinds of `KINDS`. The sampler of `--review` keeps what it keeps, a round is drawn, and 100 items are reviewed. The interval must
hold the share of wrong answers of all, and it must have held it after each single item, as a person looks after each. Beside it
stands a plain random sample of as many answers, with the interval of Clopper and Pearson, which is only valid for who looks
once.

What keeping the sample costs is the CPU time of runs with and without it, in turn, over pictures of 224 pixels that come as
fast as they can. The first answers of each hour are kept, encoded and written; later ones seldom are. So runs of one length are
set against runs three times as long: what the further items add is the cost of an item, the rest that of an hour's beginning.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace.monitor.review.catching import Places, ReviewCatcher, ReviewSettings
from headrace.monitor.review.estimate import Stratum, estimate_errors
from headrace.monitor.review.hour_sample import HourSample, Limits, Offer
from headrace.monitor.review.reading import ResultReader
from headrace.monitor.review.rounds import make_round
from headrace.runs.formats.review import ReviewSample, SampledAnswer
from headrace.samples.catalogue import PHOTOGRAPHS
from headrace.stages.decode import decode

_HOURS, _PER_HOUR, _CLASSES, _ITEMS, _GOAL = 24, 400, 10, 100, 0.9
#: Reviews, the long and the short way.
_REVIEWS, _REVIEWS_QUICK = 200, 5
#: Pairs of runs, and items of each; the rate at which the cost is stated.
_PAIRS, _PAIRS_QUICK, _RUN_ITEMS, _ITEMS_QUICK, _RATE, _TIMES_LONGER = 5, 1, 4_000, 1_500, 400, 3

Draw = np.random.Generator


def _rare(draw: Draw, hours: np.ndarray, classes: np.ndarray, certain: np.ndarray) -> np.ndarray:
    return np.full(len(hours), 0.01)


def _plain(draw: Draw, hours: np.ndarray, classes: np.ndarray, certain: np.ndarray) -> np.ndarray:
    return np.full(len(hours), 0.05)


def _clustered(draw: Draw, hours: np.ndarray, classes: np.ndarray, certain: np.ndarray) -> np.ndarray:
    """Two bad hours, such as a dirty lens."""
    bad = draw.choice(_HOURS, 2, replace=False)
    return np.where(np.isin(hours, bad), 0.4, 0.005)


def _uncertain(draw: Draw, hours: np.ndarray, classes: np.ndarray, certain: np.ndarray) -> np.ndarray:
    """As wrong as an uncalibrated model: the tenth that is least certain has nearly all mistakes."""
    return np.where(certain < np.quantile(certain, 0.1), 0.3, 0.003)


def _by_class(draw: Draw, hours: np.ndarray, classes: np.ndarray, certain: np.ndarray) -> np.ndarray:
    """The rare half of the classes is hard."""
    return np.where(classes >= _CLASSES // 2, 0.25, 0.01)


KINDS: dict[str, Callable[[Draw, np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "rare": _rare, "plain": _plain, "clustered": _clustered, "uncertain": _uncertain, "by_class": _by_class,
}  # fmt: skip


def measure(quick: bool) -> dict[str, Any]:
    """Return `review`."""
    num = _REVIEWS_QUICK if quick else _REVIEWS
    seen = [_review(np.random.default_rng(seed), list(KINDS)[seed % len(KINDS)]) for seed in range(num)]
    kinds = {
        kind: {
            "coverage": _mean(one["holds"] for one in seen if one["kind"] == kind),
            "width": _mean(one["width"] for one in seen if one["kind"] == kind),
            "width_of_one_look": _mean(one["plain_width"] for one in seen if one["kind"] == kind),
            "wrong_found": _mean(one["found"] for one in seen if one["kind"] == kind),
            "wrong_found_plain": _mean(one["plain_found"] for one in seen if one["kind"] == kind),
            "bias": _mean(one["bias"] for one in seen if one["kind"] == kind),
        }
        for kind in KINDS
    }
    item, hour = _measure_cost(*((_PAIRS_QUICK, _ITEMS_QUICK) if quick else (_PAIRS, _RUN_ITEMS)))
    return {
        "review": {
            "coverage": _mean(one["holds"] for one in seen), "reviews": num, "items": _ITEMS, "kinds": kinds,
            "cpu_seconds_per_item": item, "cpu_seconds_per_hour": hour, "cpu_share": item * _RATE + hour / 3600,
        }
    }  # fmt: skip


def _measure_cost(num_pairs: int, num_items: int) -> tuple[float, float]:
    """Return the CPU seconds that keeping the sample adds to an item, and to the beginning of an hour: medians of pairs."""
    _run(num_items, is_kept=True)
    short, long = (
        [_run(count, is_kept=True) - _run(count, is_kept=False) for _ in range(num_pairs)]
        for count in (num_items, _TIMES_LONGER * num_items)
    )
    item = statistics.median(
        (after - before) / ((_TIMES_LONGER - 1) * num_items) for before, after in zip(short, long, strict=True)
    )
    return item, statistics.median(short) - item * num_items


def _run(num_items: int, *, is_kept: bool) -> float:
    """Return the CPU seconds of a run."""
    image = decode(PHOTOGRAPHS[0].path.read_bytes(), short_side=224)[:224, :224].copy()
    stages = [
        hr.stage("picture", lambda value: image),
        hr.stage("answer", lambda value: {"label": f"class {id(value) % 7}", "score": 0.5 + (id(value) % 97) / 200}),
    ]
    pipeline = hr.Pipeline(hr.items(list(range(num_items))), stages=stages, delivery=hr.collect())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "samples").mkdir()
        settings = ReviewSettings(folder=Path(folder), max_bytes=1 << 30, max_days=30)
        places = Places(pictures=frozenset({"picture"}), answers={"answer": ResultReader()})
        catcher = ReviewCatcher(settings, places)
        began = time.process_time()
        if is_kept:
            hr.run(pipeline, observers=[catcher], instruments=[catcher], watch=catcher.watch)
        else:
            hr.run(pipeline)
        return time.process_time() - began


def _review(draw: Draw, kind: str) -> dict[str, Any]:
    num = _HOURS * _PER_HOUR
    hours = np.repeat(np.arange(_HOURS), _PER_HOUR)
    shares = 1 / np.arange(1, _CLASSES + 1) ** 1.5
    classes = draw.choice(_CLASSES, num, p=shares / shares.sum())
    certain = 1 - draw.beta(1, 6, num)
    wrong = draw.random(num) < KINDS[kind](draw, hours, classes, certain)
    samples, truths = _sample(draw, hours, classes, certain, wrong)
    made = make_round(samples, 1, 0.0)
    assert made is not None
    strata = [Stratum(one.num_answers, one.preference) for one in made.cells]
    drawn = made.draws[:_ITEMS]
    said = [truths[one.item] for one in drawn]
    found = estimate_errors(strata, [one.cell for one in drawn], said)
    truth = float(wrong.mean())
    plain = wrong[draw.choice(num, _ITEMS, replace=False)]
    low, high = _clopper_pearson(int(plain.sum()), _ITEMS)
    return {
        "kind": kind, "holds": found.low <= truth <= found.high, "width": found.high - found.low,
        "plain_width": high - low, "found": sum(said), "plain_found": int(plain.sum()),
        "bias": (found.rate or 0.0) - truth,
    }  # fmt: skip


def _sample(
    draw: Draw, hours: np.ndarray, classes: np.ndarray, certain: np.ndarray, wrong: np.ndarray
) -> tuple[list[ReviewSample], dict[str, bool]]:
    samples, truths = [], {}
    for hour in range(_HOURS):
        kept = HourSample(Limits())
        for index in np.flatnonzero(hours == hour):
            key = draw.bytes(16).hex()
            truths[f"{hour}/{key}"] = bool(wrong[index])
            offer = Offer(key, f"class {classes[index]}", certainty=float(certain[index]))
            kept.add(offer, SampledAnswer(key=key, job=str(index), name=offer.name))
        items = tuple(SampledAnswer(key=item.key, job=item.job, name=item.name, why=why) for item, why in kept.items())
        samples.append(
            ReviewSample(
                id=str(hour), began_unix_seconds=hour, ended_unix_seconds=hour + 1, cells=kept.cells(), items=items
            )
        )
    return samples, truths


def _clopper_pearson(num: int, of: int, alpha: float = 0.05) -> tuple[float, float]:
    def edge(is_low: bool) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            ks = np.arange(num, of + 1) if is_low else np.arange(num + 1)
            terms = np.cumsum(np.log(np.concatenate([[1.0], (of - np.arange(of)) / np.arange(1, of + 1)])))
            tail = float(np.exp(terms[ks] + ks * np.log(middle) + (of - ks) * np.log1p(-middle)).sum())
            if (tail > alpha / 2) == is_low:
                high = middle
            else:
                low = middle
        return middle

    return (edge(True) if num else 0.0), (edge(False) if num < of else 1.0)


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def as_text(result: dict[str, Any]) -> str:
    """Return the part for readers."""
    review = result["review"]
    rows = [
        f"| {kind.replace('_', ' ')} | {one['coverage']:.1%} | {one['width']:.1%} | {one['width_of_one_look']:.1%} "
        f"| {one['wrong_found']:.1f} | {one['wrong_found_plain']:.1f} | {one['bias']:+.2%} |"
        for kind, one in review["kinds"].items()
    ]
    says = (
        f"{review['reviews']} simulated reviews of {review['items']} items: the interval, looked at after each item, held the "
        f"true share of wrong answers in {review['coverage']:.1%}. Its width, and that of Clopper and Pearson's interval of a "
        "plain random sample, which must be looked at once:"
    )
    head = "| mistakes | held | width | width, one look | wrong found | in a plain sample | bias |"
    cost = (
        f"Keeping the sample takes {review['cpu_seconds_per_item'] * 1e6:.0f} us of CPU time an item, and "
        f"{review['cpu_seconds_per_hour']:.2f} s at the beginning of each hour, for those that are kept: "
        f"{review['cpu_share']:.1%} of a core at {_RATE} items/s."
    )
    return "\n".join(["## Review\n", cost, "", says, "", head, "|---|---:|---:|---:|---:|---:|---:|", *rows])


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return the goals that were missed."""
    coverage = result["review"]["coverage"]
    return [] if coverage >= _GOAL else [f"review: the interval held in {coverage:.1%}; the goal is {_GOAL:.0%}"]
